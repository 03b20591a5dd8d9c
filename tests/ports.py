"""Ports for servers that are told their number."""

import socket
from contextlib import ExitStack

__all__ = ["hold_port", "hold_ports"]


def hold_port(number: int = 0) -> socket.socket:
    """Return a socket that reserves a port for a server that asks for it by its number.

    It does not listen, so a server with SO_REUSEADDR may bind the same port. The system gives the port to no other.
    """
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", number))
    except OSError:
        held.close()
        raise
    # Not before: of two sockets with it, both may hold the same port.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def hold_ports(stack: ExitStack, count: int) -> int:
    """Reserve this many consecutive ports until a stack is closed; return the first."""
    while True:
        with ExitStack() as tried:
            first: int = tried.enter_context(hold_port()).getsockname()[1]
            try:
                for number in range(first + 1, first + count):
                    tried.enter_context(hold_port(number))
            except (OSError, OverflowError):  # One of them is taken.
                continue
            stack.enter_context(tried.pop_all())
            return first
