"""The changes that a client had not seen when it sent a push, and the reading of older ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plait.errors import Conflict, NotFound
from plait.state.history import History
from plait.state.log import ChangeLog
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, decode_ops

__all__ = ["TOO_OLD", "ConcurrentOps", "Lookup", "NeedsPast", "Other"]


class Other(NamedTuple):
    """An operation that others have made, in a version."""

    op: Op
    version: int


class ConcurrentOps(NamedTuple):
    """All such operations behind the last push of a client that was taken, as they are behind all its pushes so far."""

    others: Sequence[Other] = ()
    # The version that this push has made, up to which it goes.
    to: int = 0
    # The base of that push, from which on it goes.
    since: int = 0

    def unknown(self, base: int, rows: Iterable[ChangeRow]) -> list[Other]:
        """Return what a client at the version `base` does not know of; `rows` are the changes behind these."""
        found = [other for other in self.others if other.version > base]
        return found + [Other(op, row.version) for row in rows for op in decode_ops(row.ops)]

    def back_to(self, version: int) -> "ConcurrentOps":
        """Return it without what came behind a version."""
        others = [other for other in self.others if other.version <= version]
        return self._replace(others=others, to=min(self.to, version))


TOO_OLD = "it was made on a version that is too old"


class NeedsPast(Exception):
    """What is in memory is not enough: the changes behind a version are needed, and maybe a state."""

    def __init__(self, after: int, document: int | None = None) -> None:
        self.after = after
        self.document = document


class Lookup(NamedTuple):
    """What was read for one push: the changes behind a version, and states, by their versions."""

    after: int | None = None
    rows: Sequence[ChangeRow] = ()
    documents: Mapping[int, Any] = {}

    async def read(self, change_log: ChangeLog, needs: NeedsPast) -> "Lookup":
        """Return it with what is needed, too. Raises Conflict where that is not kept, and StoreError."""
        after = needs.after if self.after is None else min(needs.after, self.after)
        documents = {**self.documents}
        try:
            rows = await change_log.changes(after)
            if needs.document is not None:
                documents[needs.document] = await change_log.document(needs.document)
        except NotFound:
            raise Conflict(TOO_OLD) from None
        if rows is None:
            raise Conflict(TOO_OLD)
        return Lookup(after, rows, documents)

    def changes(self, history: History, after: int, to: int) -> list[ChangeRow]:
        """Return the changes behind a version, up to another. Raises NeedsPast."""
        rows = history.since(after, to, self.rows)
        if rows is None:
            raise NeedsPast(after)
        return rows

    def document(self, version: int) -> Any:
        """Return the state at a version as JSON values. Raises NeedsPast."""
        if version not in self.documents:
            raise NeedsPast(version, version)
        return self.documents[version]
