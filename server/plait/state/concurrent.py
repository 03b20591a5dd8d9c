"""The changes that a client had not seen when it sent a push, and the reading of older ones."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from plait.errors import Conflict, NotFound
from plait.state.history import History
from plait.state.log import ChangeLog
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, decode_ops

__all__ = ["TOO_OLD", "ConcurrentOps", "Needs", "Other", "Past"]


class Other(NamedTuple):
    """An operation that others have made, in a version."""

    op: Op
    version: int


class ConcurrentOps(NamedTuple):
    """What a client did not know of at its last accepted push, as it is after all the client's pushes so far."""

    others: Sequence[Other] = ()
    # The version that this push has made: no operation is of a later one.
    to: int = 0
    # The base of that push: each operation is of a later version.
    since: int = 0

    def unknown(self, base: int, rows: Iterable[ChangeRow]) -> list[Other]:
        """Return what a client at the version `base` does not know of; `rows` are the changes after these."""
        found = [other for other in self.others if other.version > base]
        return found + [Other(op, row.version) for row in rows for op in decode_ops(row.ops)]

    def back_to(self, version: int) -> "ConcurrentOps":
        """Return it without the operations after a version."""
        others = [other for other in self.others if other.version <= version]
        return self._replace(others=others, to=min(self.to, version))


TOO_OLD = "it was made on a version that is too old"


class Past(NamedTuple):
    """What was read for one push: the changes after a version, and the state that it was made on."""

    rows: Sequence[ChangeRow] = ()
    document: Any = msgspec.UNSET

    def since(self, history: History, version: int) -> list[ChangeRow] | None:
        """Return the changes after a version; None when some of them are to be read."""
        return history.since(version, history.current.version, self.rows)


class Needs(NamedTuple):
    """What is to be read before a push is judged: the changes after a version, and maybe the state at another."""

    after: int
    document: int | None = None

    async def read(self, change_log: ChangeLog) -> Past:
        """Read it. Raises Conflict where it is not kept, and StoreError."""
        try:
            rows = await change_log.changes(self.after)
            document = msgspec.UNSET if self.document is None else await change_log.document(self.document)
        except NotFound:
            raise Conflict(TOO_OLD) from None
        if rows is None:
            raise Conflict(TOO_OLD)
        return Past(rows, document)
