"""What has happened in a thread that a client's next push may not know of."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plait.errors import Conflict
from plait.store.protocol import ChangeRow
from plait_schemas.messages import UNANSWERED, Push
from plait_schemas.patch import Op, decode_ops

__all__ = ["Bridge", "Other"]


class Other(NamedTuple):
    """An operation that the client has not made: one of others in a version, or of what takes back a refused push.

    A push whose place others have taken away is taken back in that very version: its client stops showing it then.
    """

    op: Op
    version: int
    # The number of the push whose refusal lets the client know of it.
    refused: int | None = None


class Bridge(NamedTuple):
    """All such operations behind the last push of a client, as they are behind all its pushes so far."""

    others: Sequence[Other] = ()
    # The version at which that push was judged, up to which it goes.
    to: int = 0
    # The base of that push, from which on it goes.
    since: int = 0
    # The number of that push; None before the first one.
    ref: int | None = None

    def unknown(self, push: Push, rows: Iterable[ChangeRow]) -> list[Other]:
        """Return what the client did not know of when it sent a push; `rows` are the changes behind the bridge.

        Raises Conflict when it may have been made on top of a refused push that it is not known how to take back.
        """
        base = push.base[1]
        answered = push.ref - 1 if push.answered is None else max(push.answered, push.ref - 1 - UNANSWERED)
        if self.ref is not None and self.ref < push.ref - 1 and answered < push.ref - 1:
            raise Conflict("a push that it may have been made on was refused")
        found = [
            other
            for other in self.others
            if (other.version > base if other.refused is None else other.refused > answered)
        ]
        return found + [Other(op, row.version) for row in rows for op in decode_ops(row.ops)]

    def back_to(self, version: int) -> "Bridge":
        """Return it without what came behind a version."""
        others = [other for other in self.others if other.version <= version]
        return self._replace(others=others, to=min(self.to, version))
