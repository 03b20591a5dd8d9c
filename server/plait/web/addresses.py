"""How many connections each address has."""

from collections import Counter

from plait.errors import TooMany

__all__ = ["Addresses"]


class Addresses:
    """Counts open sockets, and connections that have not finished a request, by the address that they come from."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sockets: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    def enter(self, host: str) -> None:
        """Count a socket. Raises TooMany when its address has as many connections as it may."""
        if self._sockets[host] + self._waiting[host] >= self._limit:
            raise TooMany(f"{self._limit} connections from one address are open, which is the limit; close some first")
        self._sockets[host] += 1

    def leave(self, host: str) -> None:
        """Count a socket no longer."""
        _subtract(self._sockets, host)

    def is_full(self, host: str) -> bool:
        """Whether an address has as many connections that wait for a request as it may."""
        return self._waiting[host] >= self._limit

    def begin_waiting(self, host: str) -> None:
        """Count a connection whose peer has not finished a request."""
        self._waiting[host] += 1

    def end_waiting(self, host: str) -> None:
        """Count such a connection no longer."""
        _subtract(self._waiting, host)


def _subtract(counts: Counter[str], host: str) -> None:
    counts[host] -= 1
    if counts[host] <= 0:
        del counts[host]
