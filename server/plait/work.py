"""Carrying changes out and bringing them behind others, as long as that does not hold up everybody else."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.step import is_place

__all__ = ["Work"]

# In about microseconds.
_MOST: Final = 150_000


class Work:
    """Decodes changes, carries operations out and brings them behind others, and counts what that costs."""

    def __init__(self) -> None:
        self._left = _MOST

    def decode(self, row: ChangeRow) -> list[Op]:
        """Return the operations of a change. Raises Conflict when all together is too much."""
        self._take(5 + len(row.ops) // 100)
        return decode_ops(row.ops)

    def apply(self, document: Any, ops: Iterable[Op], owned: Owned) -> Any:
        """Do what `apply` does. Raises Conflict when all together is too much."""
        for op in ops:
            self._take(5 + _cost(document, [op], owned))
            document = apply(document, [op], owned)
        return document

    def rebase(self, ops: Sequence[Op], over: Sequence[Op], document: Any) -> Rebased:
        """Do what `rebase` does. Raises Conflict when all together is too much."""
        if over:
            self._take(20 + 3 * (len(ops) + len(over)) + 4 * len(ops) * len(over))
            both = [*ops, *over]
            if any(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in both):
                self._take(_cost(document, both))  # It is looked at what these were made on.
        return rebase(ops, over, document)

    def _take(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise Conflict("too much has been changed since")


def _cost(document: Any, ops: Sequence[Op], owned: Collection[int] = ()) -> int:
    """Return what it costs to copy what operations lead through, but for what is owned, and to move elements."""
    copied: dict[int, int] = {}
    moved = 0
    for op in ops:
        node, length = document, 0
        for part in parse(op.path):
            if not isinstance(node, dict | list | tuple):
                break
            if id(node) not in owned:
                copied[id(node)] = len(node)
            length = 0 if isinstance(node, dict) else len(node)
            node = find(node, [part])
        moved += 0 if op.op == "replace" else length
    return sum(copied.values()) // 250 + moved // 2_000
