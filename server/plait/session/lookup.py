"""What the judging of a push needs to know of the past, of which a part has to be read from the store."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plait.errors import Conflict, NotFound
from plait.history import History
from plait.past import Past
from plait.store.protocol import ChangeRow

__all__ = ["TOO_OLD", "Lookup", "NeedsPast"]

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

    async def read(self, past: Past, needs: NeedsPast) -> "Lookup":
        """Return it with what is needed, too. Raises Conflict where that is not kept, and StoreError."""
        after = needs.after if self.after is None else min(needs.after, self.after)
        documents = {**self.documents}
        try:
            rows = await past.changes(after)
            if needs.document is not None:
                documents[needs.document] = await past.document(needs.document)
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
