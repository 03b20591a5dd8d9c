"""The sockets and streams of principals, which are closed when their rights end."""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Final

from plait.clock import read_wall_clock
from plait.errors import Unauthenticated
from plait.state.principal import Principal
from plait_schemas.codes import UNAUTHENTICATED

__all__ = ["EXPIRED", "Leases", "PrincipalLease", "Target", "find_seconds_left"]

EXPIRED: Final = "the token has expired"
"""The reason for refusing an expired principal, and for closing its sockets and streams."""

_DISCONNECTED: Final = "the server has disconnected this user"
# Maximum seconds between two looks at the wall clock, as it may be set.
_LONGEST_WAIT: Final = 10.0

Target = tuple[str | None, str | None]
"""The receiver of a disconnect: the id of a user, or of connections."""


def find_seconds_left(principal: Principal | None) -> float | None:
    """Return the seconds until a principal expires, 0 if it has; None if it never does."""
    if principal is None or principal.expires_at is None:
        return None
    return max(principal.expires_at - read_wall_clock() / 1e6, 0.0)


class PrincipalLease:
    """An open socket or a streamed answer of a principal.

    The lease is pending from the beginning of the client's authentication to `open`, so that disconnections in between
    count for it. From `open` to `end`, it is closed when its principal expires or is disconnected.
    """

    __slots__ = (
        "_ask",
        "_close",
        "_leases",
        "_timer",
        "connection_id",
        "holds",
        "is_ended",
        "number",
        "principal",
        "reason",
    )

    def __init__(self, leases: "Leases") -> None:
        self._leases = leases
        self.principal: Principal | None = None
        self.connection_id: str | None = None
        # The number of the authentication's beginning, in the order of all authentications and disconnections.
        self.number = 0
        self._close: Callable[[int, str], None] | None = None
        # The seconds before the expiry, and the function that then asks the client for a new token.
        self._ask: tuple[float, Callable[[float], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Whether the lease is open, and so will be closed when the rights end. Callers need no further check then.
        self.holds = False
        self.is_ended = False
        # The reason for which the lease was closed.
        self.reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._close is not None

    def begin(self) -> None:
        """Remember that the authentication begins."""
        if not self.is_ended:
            self._leases.begin_authentication(self)

    def check(self) -> None:
        """Raise Unauthenticated if the principal has expired, or was disconnected after the authentication began."""
        if self.reason is not None:
            raise Unauthenticated(self.reason)
        if self._leases.is_disconnected(self):
            raise Unauthenticated(_DISCONNECTED)
        if self.principal is not None and find_seconds_left(self.principal) == 0:
            raise Unauthenticated(EXPIRED)

    def open(self, close: Callable[[int, str], None], *, connection_id: str | None = None) -> None:
        """Call `close` with a code and a reason when the rights of the principal end; at once if they have ended."""
        self._close, self.connection_id = close, connection_id
        if self.is_ended:
            return
        is_disconnected = self._leases.is_disconnected(self)
        self._leases.open(self)
        self.holds = True
        if is_disconnected:
            self.close()
        else:
            self._look()

    def renew(self, principal: Principal | None) -> None:
        """Replace the principal after another authentication."""
        self.principal, self._ask = principal, None
        self._look()

    def ask_before(self, seconds: float, ask: Callable[[float], None]) -> None:
        """Call `ask` once with the seconds left, `seconds` before the principal expires."""
        self._ask = (seconds, ask)
        self._look()

    def close(self, reason: str = _DISCONNECTED) -> None:
        """Close the socket or stream, as the rights have ended."""
        self.end()
        self.reason = reason
        if self._close is not None:
            self._close(UNAUTHENTICATED, reason)

    def end(self) -> None:
        """Forget the lease, as its socket or stream is closed."""
        self.is_ended, self.holds = True, False
        self._stop_timer()
        self._leases.discard(self)

    def _look(self) -> None:
        """Close the lease if its principal has expired, otherwise look again later."""
        self._stop_timer()
        if self.is_ended or (left := find_seconds_left(self.principal)) is None:
            return
        if left == 0:
            self.close(EXPIRED)
            return
        before = 0.0
        if self._ask is not None:
            before, ask = self._ask
            if left <= before:
                self._ask, before = None, 0.0
                ask(left)
        wait = min(left - before, _LONGEST_WAIT)
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Leases:
    """The leases of one process."""

    def __init__(self) -> None:
        # Numbers authentications and disconnections.
        self._numbers = itertools.count(1)
        # The leases whose authentication has begun, in this order.
        self._pending: dict[PrincipalLease, None] = {}
        self._open: set[PrincipalLease] = set()
        # The numbers of the last disconnections by target, the earliest first; kept while an older authentication is
        # under way.
        self._disconnected: dict[Target, int] = {}

    def begin(self) -> PrincipalLease:
        """Return a lease of a client whose authentication begins."""
        lease = PrincipalLease(self)
        lease.begin()
        return lease

    def disconnect(self, target: Target) -> int:
        """Close all open leases of a target, and refuse its older authentications; return the number of closed ones."""
        if self._pending:
            self._disconnected.pop(target, None)
            self._disconnected[target] = next(self._numbers)
        found = [lease for lease in self._open if target in _find_targets(lease)]
        for lease in found:
            lease.close()
        return len(found)

    # Called by leases

    def begin_authentication(self, lease: PrincipalLease) -> None:
        """Add a pending lease."""
        lease.number = next(self._numbers)
        self._pending[lease] = None

    def is_disconnected(self, lease: PrincipalLease) -> bool:
        """Return whether a lease's principal or connection was disconnected after its authentication began."""
        found = self._disconnected
        return bool(found) and any(found.get(target, 0) > lease.number for target in _find_targets(lease))

    def open(self, lease: PrincipalLease) -> None:
        """Open a pending lease."""
        self.discard(lease)
        self._open.add(lease)

    def discard(self, lease: PrincipalLease) -> None:
        """Forget a lease, and the disconnections that no older lease needs."""
        self._open.discard(lease)
        self._pending.pop(lease, None)
        if self._disconnected:
            oldest = next(iter(self._pending)).number if self._pending else math.inf
            while self._disconnected and self._disconnected[target := next(iter(self._disconnected))] < oldest:
                del self._disconnected[target]


def _find_targets(lease: PrincipalLease) -> tuple[Target, Target]:
    return (None if lease.principal is None else lease.principal.id, None), (None, lease.connection_id)
