"""The native protocol, `plait.v1`."""
