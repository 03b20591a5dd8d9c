"""A store in a PostgreSQL database, which several processes may share. Its driver is the extra `plait[postgres]`."""
