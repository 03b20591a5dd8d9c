"""A store in Redis or Valkey, which several processes may share. Its driver is the extra `plait[redis]`."""
