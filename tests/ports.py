"""Ports for servers that are told their number."""

import socket

__all__ = ["hold_port"]


def hold_port() -> socket.socket:
    """Return a socket that reserves a port for a server that asks for it by its number.

    It does not listen, so a server with SO_REUSEADDR may bind the same port. The system gives the port to no other.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
