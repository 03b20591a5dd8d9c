"""The data of one thread: its state, versions and changes. No sockets."""
