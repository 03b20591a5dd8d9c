"""The state of a thread in one of its clients: the confirmed state, and the shown state with the client's pushes."""

from collections.abc import Callable, Iterable
from typing import Any

from plait_client.errors import Refused
from plait_client.fold import Pending
from plait_client.pushes import Pushes
from plait_schemas.diff import diff
from plait_schemas.elements import Keys
from plait_schemas.patch import Op

__all__ = ["ClientState"]


class ClientState:
    """The state on which the pushes of a session are made."""

    def __init__(self, now: Callable[[], float], *, has_state: bool = True) -> None:
        self._has_state = has_state
        self._pushes = Pushes(now, has_state=has_state)

    def check_state(self) -> None:
        """Raise Refused in a session that has joined without the state."""
        if not self._has_state:
            raise Refused("bad_state", "the thread was opened without its state")

    def reach(self, version: int) -> None:
        """Note the version that a result of a query was read at, in a session without the state."""
        self._pushes.fold.reach(version)

    @property
    def shown(self) -> Any:
        """The state as its user sees it, as JSON values that may not be changed; None without a state."""
        return self._pushes.fold.shown

    @property
    def confirmed(self) -> Any:
        """The state that the server has confirmed."""
        return self._pushes.fold.confirmed

    @property
    def epoch(self) -> str | None:
        """The epoch of the confirmed state; None before the first join."""
        at = self._pushes.fold.at
        return None if at is None else at[0]

    @property
    def version(self) -> int:
        """The version of the confirmed state."""
        at = self._pushes.fold.at
        return 0 if at is None else at[1]

    @property
    def keys(self) -> Keys | None:
        """The members that identify the elements of lists, as the server has told them."""
        return self._pushes.fold.keys

    def diff(self, old: Any, new: Any) -> list[Op]:
        """Return the operations that turn one state of the thread into another."""
        return diff(old, new, self.keys)

    def difference(self, before: Any, after: Any, ops: Iterable[Op]) -> list[Op]:
        """Return changes of others that may lead from one state to another, for rebasing `ops` over them."""
        return self._pushes.fold.difference(before, after, ops)

    @property
    def pending(self) -> list[Pending]:
        """The pushes that are still open; pushes that were answered in a join are left out."""
        return [push for push in self._pushes.all if not push.is_settled]
