"""Relays sockets and requests between the node that a client has reached and the node that owns the thread."""
