"""How many connections each address has."""

from plait.errors import TooMany

__all__ = ["Addresses"]


class Addresses:
    """Counts open sockets, and connections that have not finished a request, by the address that they come from."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Those that have none are not in these.
        self._sockets: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    def enter(self, host: str) -> None:
        """Count a socket. Raises TooMany when its address has as many connections as it may."""
        sockets = self._sockets.get(host, 0)
        if sockets + self._waiting.get(host, 0) >= self._limit:
            raise TooMany(f"{self._limit} connections from one address are open, which is the limit; close some first")
        self._sockets[host] = sockets + 1

    def leave(self, host: str) -> None:
        """Count a socket no longer."""
        _subtract(self._sockets, host)

    def is_full(self, host: str) -> bool:
        """Whether an address has as many connections that wait for a request as it may."""
        return self._waiting.get(host, 0) >= self._limit

    def begin_waiting(self, host: str) -> None:
        """Count a connection whose peer has not finished a request."""
        self._waiting[host] = self._waiting.get(host, 0) + 1

    def end_waiting(self, host: str) -> None:
        """Count such a connection no longer."""
        _subtract(self._waiting, host)


def _subtract(counts: dict[str, int], host: str) -> None:
    left = counts[host] - 1
    if left:
        counts[host] = left
    else:
        del counts[host]
