"""Counts the connections of each address."""

from collections.abc import Callable

from plait.errors import TooMany

__all__ = ["Addresses"]


class Addresses:
    """Counts open sockets, and connections without a complete request, by address."""

    def __init__(self, limit: int, tell_limit: Callable[[str], object] = lambda _: None) -> None:
        self._limit = limit
        # Called with the name of the limit when a connection is refused before its first request.
        self.tell_limit = tell_limit
        # Addresses without connections are removed.
        self._sockets: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    def enter(self, host: str) -> None:
        """Count a socket. Raises TooMany if its address has reached the limit."""
        sockets = self._sockets.get(host, 0)
        if sockets + self._waiting.get(host, 0) >= self._limit:
            many = f"one address may have {self._limit} connections; close some first"
            raise TooMany(many, limit="connections_per_address")
        self._sockets[host] = sockets + 1

    def leave(self, host: str) -> None:
        """Stop counting a socket."""
        _subtract(self._sockets, host)

    def is_full(self, host: str) -> bool:
        """Return whether an address has reached the limit of connections without a complete request."""
        return self._waiting.get(host, 0) >= self._limit

    def begin_waiting(self, host: str) -> None:
        """Count a connection without a complete request."""
        self._waiting[host] = self._waiting.get(host, 0) + 1

    def end_waiting(self, host: str) -> None:
        """Stop counting a connection without a complete request."""
        _subtract(self._waiting, host)


def _subtract(counts: dict[str, int], host: str) -> None:
    left = counts[host] - 1
    if left:
        counts[host] = left
    else:
        del counts[host]
