"""What is open for principals, and is closed when their rights end."""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

from plait.actor.connection import Principal
from plait.clock import read_wall_clock
from plait.errors import Unauthenticated
from plait_schemas.codes import UNAUTHENTICATED

__all__ = ["EXPIRED", "Lease", "Leases", "Target", "find_seconds_left"]

EXPIRED: Final = "the token has expired"
"""Why a principal that has expired is refused, and what is open for it is closed."""

_DISCONNECTED: Final = "the server has disconnected this user"
# Seconds between two looks at the wall clock, which may be set.
_LONGEST_WAIT: Final = 1.0
# The number of outdated entries that are kept in any case.
_MOST_OUTDATED: Final = 64

Close = Callable[[int, str], None]
"""Closes something with a close code and a reason."""

Target = tuple[str | None, str | None]
"""What is to be disconnected: the id of a user, or that of connections."""


def find_seconds_left(principal: Principal | None) -> float | None:
    """Return the seconds until a principal expires, 0 or less if it has; None if it never does."""
    if principal is None or principal.expires_at is None:
        return None
    return principal.expires_at - _read_time()


class Lease:
    """What is open for a principal: a socket, or an answer that is streamed.

    It is pending from the beginning of its client's authentication to `open`, so that it knows who was disconnected
    since. From `open` to `end`, it is closed when its principal expires or is disconnected.
    """

    __slots__ = (
        "_ask",
        "_close",
        "_leases",
        "_notice",
        "connection_id",
        "due",
        "is_ended",
        "number",
        "principal",
        "reason",
    )

    def __init__(self, leases: "Leases") -> None:
        self._leases = leases
        self.principal: Principal | None = None
        self.connection_id: str | None = None
        # When the authentication began, in the order of all authentications and disconnections.
        self.number = 0
        self._close: Close | None = None
        # Asks the client for a new token, this many seconds before the principal expires.
        self._ask: Callable[[float], None] | None = None
        self._notice = 0.0
        # When it is looked at next, by the wall clock.
        self.due: float | None = None
        self.is_ended = False
        # Why it was closed.
        self.reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it will be closed when the rights end, or was."""
        return self._close is not None

    def begin(self) -> None:
        """Remember that the authentication begins."""
        self._leases.add_pending(self)

    def open(self, close: Close, *, connection_id: str | None = None) -> None:
        """Call `close` when the rights of the principal end; at once if they have ended."""
        self._close, self.connection_id = close, connection_id
        self._leases.open(self)

    def check(self) -> None:
        """Raise Unauthenticated if the user was disconnected after the authentication began."""
        if self._leases.is_disconnected(self):
            raise Unauthenticated(_DISCONNECTED)

    def renew(self, principal: Principal | None) -> None:
        """Replace the principal after another authentication."""
        self.principal, self._ask = principal, None
        self._leases.watch(self)

    def ask_before(self, notice: float, ask: Callable[[float], None]) -> None:
        """Call `ask` with the seconds left, once, `notice` seconds before the principal expires."""
        self._notice, self._ask = notice, ask
        self._leases.watch(self)

    def end(self) -> None:
        """Forget the lease, as what was open is closed."""
        self.is_ended = True
        self._leases.discard(self)

    # Called by the leases

    def find_due(self) -> float | None:
        """Return when it is to be looked at, by the wall clock."""
        if self.is_ended or self.principal is None or (expires_at := self.principal.expires_at) is None:
            return None
        return expires_at if self._ask is None else expires_at - self._notice

    def look(self) -> None:
        """Close it if its principal has expired, or else ask for a new token."""
        left = find_seconds_left(self.principal)
        if left is not None and left <= 0:
            self.close(EXPIRED)
            return
        ask, self._ask = self._ask, None
        self._leases.watch(self)
        if ask is not None and left is not None:
            ask(left)

    def close(self, reason: str = _DISCONNECTED) -> None:
        """Close what is open, as the rights have ended."""
        self.end()
        self.reason = reason
        if self._close is not None:
            self._close(UNAUTHENTICATED, reason)


class Leases:
    """The leases of one process, with one timer for all of them."""

    def __init__(self) -> None:
        # Numbers authentications and disconnections.
        self._numbers = itertools.count(1)
        # In the order in which their authentications began.
        self._pending: dict[Lease, None] = {}
        self._open: set[Lease] = set()
        # When users and connections were last disconnected, the earliest first; kept while an older authentication is
        # under way.
        self._disconnected: dict[Target, int] = {}
        # When leases are due, and a number, as they cannot be compared; an entry may be outdated.
        self._due: list[tuple[float, int, Lease]] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Lease:
        """Return a lease of a client whose authentication begins."""
        lease = Lease(self)
        self.add_pending(lease)
        return lease

    def disconnect(self, target: Target) -> int:
        """Close all that is open for a target, and what older authentications will open; return how many are open."""
        if self._pending:
            self._disconnected.pop(target, None)
            self._disconnected[target] = next(self._numbers)
        found = [lease for lease in self._open if target in _find_targets(lease)]
        for lease in found:
            lease.close()
        return len(found)

    # Called by leases

    def add_pending(self, lease: Lease) -> None:
        """Add a lease whose authentication begins."""
        if not lease.is_ended:
            lease.number = next(self._numbers)
            self._pending[lease] = None

    def is_disconnected(self, lease: Lease) -> bool:
        """Return whether its principal or connection was disconnected after its authentication began."""
        disconnected = self._disconnected
        return bool(disconnected) and any(disconnected.get(target, 0) > lease.number for target in _find_targets(lease))

    def open(self, lease: Lease) -> None:
        """Watch a pending lease from now on, or close it."""
        if lease.is_ended:
            return
        if self.is_disconnected(lease):
            lease.close()
            return
        self._forget_pending(lease)
        self._open.add(lease)
        if (left := find_seconds_left(lease.principal)) is not None and left <= 0:
            lease.close(EXPIRED)
        else:
            self.watch(lease)

    def watch(self, lease: Lease) -> None:
        """Look at a lease when it is due."""
        due = lease.due = lease.find_due()
        if due is None:
            return
        if len(self._due) > 2 * len(self._open) + _MOST_OUTDATED:
            self._due = [entry for entry in self._due if entry[0] == entry[2].due]
            heapq.heapify(self._due)
        entry = (due, next(self._numbers), lease)
        heapq.heappush(self._due, entry)
        if self._timer is None or self._due[0] is entry:
            self._wait()

    def discard(self, lease: Lease) -> None:
        """Forget a lease."""
        lease.due = None
        self._forget_pending(lease)
        self._open.discard(lease)
        if not self._open and self._timer is not None:
            self._due.clear()
            self._timer.cancel()
            self._timer = None

    # Inside

    def _forget_pending(self, lease: Lease) -> None:
        self._pending.pop(lease, None)
        oldest = next(iter(self._pending)).number if self._pending else math.inf
        while self._disconnected and self._disconnected[target := next(iter(self._disconnected))] < oldest:
            del self._disconnected[target]

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = min(max(self._due[0][0] - _read_time(), 0.0), _LONGEST_WAIT)
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            while self._due and self._due[0][0] <= _read_time():
                due, _, lease = heapq.heappop(self._due)
                if due == lease.due:
                    lease.look()
        finally:
            if self._due and self._timer is None:
                self._wait()


def _find_targets(lease: Lease) -> tuple[Target, Target]:
    return (lease.principal.id if lease.principal else None, None), (None, lease.connection_id)


def _read_time() -> float:
    return read_wall_clock() / 1e6
