"""A store in an SQL database, which several processes may share. An engine's dialect is in a package of its own."""
