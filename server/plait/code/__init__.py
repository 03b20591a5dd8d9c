"""Programs that agents write: each runs in a process of its own, without access to the server."""
