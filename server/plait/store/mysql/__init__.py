"""A store in a MariaDB or MySQL database, which several processes may share. Its driver is the extra `plait[mysql]`."""
