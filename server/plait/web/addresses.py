"""Counts the connections of each address, and closes connections whose peers are slow to send or to read."""

import asyncio
from collections.abc import Container
from typing import Final, Protocol

from plait.errors import TooMany
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments

__all__ = ["KEPT", "Addresses", "HalfOpen"]

KEPT: Final = 120
"""Seconds for which a connection is kept for another request; a proxy should keep its own for less."""

# If a check is this many seconds late, the loop was busy, and data that peers have sent is read first.
_LATE: Final = 1.0
_MOMENT: Final = 0.2
# Seconds between two lines in the log about bad requests, which any client may send.
_LOG_EVERY: Final = 1.0


class Addresses:
    """Counts open sockets, and connections without a complete request, by address."""

    def __init__(self, limit: int, instruments: Instruments = NO_INSTRUMENTS) -> None:
        self._limit = limit
        self.instruments = instruments
        # The addresses of proxies, which have the connections of many clients, and are not counted.
        self.proxies: Container[str] = ()
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


class WaitingConnection(Protocol):
    """A connection that waits for its peer to send or to read."""

    host: str | None
    """The address that the connection counts for; None for a proxy, which has the connections of many clients."""

    def give_up(self) -> None:
        """Close the connection, unless the delay is not the peer's."""
        ...


class HalfOpen:
    """Gives the peer of each connection `timeout` seconds, with one timer for all connections."""

    def __init__(self, addresses: Addresses, timeout: float) -> None:
        self.addresses = addresses
        self._timeout = timeout
        # The deadline of each connection, the earliest first.
        self._deadlines: dict[WaitingConnection, float] = {}
        # The next check, and when it is due.
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        # Open connections that were refused, and whose peers are still sending.
        self.lingering: set[WaitingConnection] = set()
        # When a bad request was logged last.
        self._logged = -_LOG_EVERY

    def may_log(self) -> bool:
        """Return whether a bad request may be logged now."""
        now = asyncio.get_running_loop().time()
        if now - self._logged < _LOG_EVERY:
            return False
        self._logged = now
        return True

    def admit(self, connection: WaitingConnection) -> bool:
        """Wait for a new connection's first request; return False if its address has too many such connections."""
        if connection.host is not None and self.addresses.is_full(connection.host):
            self.addresses.instruments.limit_hit("connections_per_address")
            return False
        self.wait(connection)
        return True

    def wait(self, connection: WaitingConnection) -> None:
        """Wait for a connection's peer, or reset its deadline."""
        if self._deadlines.pop(connection, None) is None and connection.host is not None:
            self.addresses.begin_waiting(connection.host)
        deadline = self._deadlines[connection] = asyncio.get_running_loop().time() + self._timeout
        if self._timer is None:
            self._check_at(deadline)

    def is_waiting(self, connection: WaitingConnection) -> bool:
        """Return whether a connection has a deadline."""
        return connection in self._deadlines

    def leave(self, connection: WaitingConnection) -> None:
        """Remove a connection's deadline."""
        if self._deadlines.pop(connection, None) is not None and connection.host is not None:
            self.addresses.end_waiting(connection.host)

    def _check(self) -> None:
        """Give up the connections whose deadline has passed."""
        now = asyncio.get_running_loop().time()
        if now > self._due + _LATE:
            self._check_at(now + _MOMENT)
            return
        overdue = []
        for connection, deadline in self._deadlines.items():
            if deadline > now:
                break
            overdue.append(connection)
        for connection in overdue:
            self.wait(connection)  # `give_up` is called again if the connection is still open at the next deadline.
            connection.give_up()
        self._timer = None
        if self._deadlines:
            self._check_at(next(iter(self._deadlines.values())))

    def _check_at(self, due: float) -> None:
        self._due = due
        # For a time within half a millisecond, uvloop returns a handle without `when`.
        self._timer = asyncio.get_running_loop().call_at(due, self._check)


def _subtract(counts: dict[str, int], host: str) -> None:
    left = counts[host] - 1
    if left:
        counts[host] = left
    else:
        del counts[host]
