"""What has happened in a thread that a client's next push may not know of."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from plait.store.protocol import ChangeRow
from plait_schemas.messages import UNANSWERED, Push
from plait_schemas.patch import Op, decode_ops, parse
from plait_schemas.shape import Shape

__all__ = ["Bridge", "Other", "taking_back"]


class Other(NamedTuple):
    """An operation that the client has not made: one of others in a version, or of what takes back a refused push."""

    op: Op
    version: int
    # The number of that push.
    refused: int | None = None


class Bridge(NamedTuple):
    """All such operations behind the last push of a client, as they are behind all its pushes so far."""

    others: Sequence[Other] = ()
    # The version at which that push was judged, up to which it goes.
    to: int = 0
    # The base of that push, from which on it goes.
    since: int = 0

    def unknown(self, push: Push, rows: Iterable[ChangeRow]) -> list[Other]:
        """Return what the client did not know of when it sent a push; `rows` are the changes behind the bridge."""
        base = push.base[1]
        answered = push.ref - 1 if push.answered is None else max(push.answered, push.ref - 1 - UNANSWERED)
        found = [
            other
            for other in self.others
            if (other.version > base if other.refused is None else other.refused > answered)
        ]
        return found + [Other(op, row.version) for row in rows for op in decode_ops(row.ops)]

    def back_to(self, version: int) -> "Bridge":
        """Return it without what came behind a version."""
        return Bridge([other for other in self.others if other.version <= version], min(self.to, version), self.since)


def taking_back(ref: int, ops: Iterable[Op], tree: Any, version: int) -> list[Other]:
    """Return what would take back a push that was refused: its operations, those that fit, on the state there was.

    It has no values, which may be large and are not needed to bring others behind it.
    """
    shape = Shape(tree)
    inverse: list[Other] = []
    for op in ops:
        parts = parse(op.path)
        container = shape.look(parts[:-1])
        is_there = shape.look(parts) is not msgspec.UNSET
        path, name = op.path, op.op
        if op.op == "remove":
            name = "add"
        elif op.op == "add" and isinstance(container, list | tuple) and parts:
            path, name = f"{path.rpartition('/')[0]}/{len(container) if parts[-1] == '-' else parts[-1]}", "remove"
        elif op.op == "add":
            name = "replace" if is_there else "remove"
        if is_there or op.op == "add":
            inverse.append(Other(Op(name, path), version, ref))
            shape.do(op.op, parts, op.value)
    return inverse[::-1]
