"""The changes that a client had not seen when it sent a push, and the reading of older ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from plait.errors import Conflict, NotFound
from plait.state.change_log import ChangeLog
from plait.state.state_history import StateHistory
from plait.store.thread_rows import ChangeRow
from plait_schemas.patch import Op

__all__ = ["TOO_OLD", "ConcurrentOp", "ConcurrentOps", "LoadedChanges", "MissingChanges"]


class ConcurrentOp(NamedTuple):
    """An operation of another client or of the server, and the version that it is a part of."""

    op: Op
    version: int


class ConcurrentOps(NamedTuple):
    """The operations that a client had not seen at its last accepted push, rebased over all its pushes so far."""

    ops: Sequence[ConcurrentOp] = ()
    # The version that this push has made: no operation belongs to a later version.
    to: int = 0
    # The base of the push: every operation belongs to a later version.
    since: int = 0

    def back_to(self, version: int) -> "ConcurrentOps":
        """Return a copy without the operations after a version."""
        ops = [each for each in self.ops if each.version <= version]
        return self._replace(ops=ops, to=min(self.to, version))


TOO_OLD = "the base of the change is no longer kept; get the current state and make the change again"


class LoadedChanges(NamedTuple):
    """The history that was read for a push: the changes after a version, and the state that it is based on."""

    rows: Sequence[ChangeRow] = ()
    document: Any = msgspec.UNSET

    def since(self, history: StateHistory, version: int) -> list[ChangeRow] | None:
        """Return the changes after a version; None when some of them must be read first."""
        return history.since(version, history.current.version, self.rows)


class MissingChanges(NamedTuple):
    """The history that a push needs to be rebased: the changes after a version, and maybe an earlier state."""

    after: int
    # The version of the earlier state; None if it is not needed.
    document: int | None = None

    async def read(self, change_log: ChangeLog) -> LoadedChanges:
        """Read both. Raises Conflict when they are no longer kept, and StoreError."""
        try:
            rows = await change_log.changes(self.after)
            document = msgspec.UNSET if self.document is None else await change_log.document(self.document)
        except NotFound:
            raise Conflict(TOO_OLD) from None
        if rows is None:
            raise Conflict(TOO_OLD)
        return LoadedChanges(rows, document)
