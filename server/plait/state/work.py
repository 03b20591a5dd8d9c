"""What changes cost while nothing else can run, counted and bounded."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.state.types import MOST_MOVED, TOO_MANY_MOVED, count_moved
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.step import is_place

__all__ = ["Work", "carried_out", "compared", "count_moves", "weigh"]

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


# Bytes of a message that count as one more. Smaller ones count as one, whatever they say.
_BYTES_PER_MESSAGE: Final = 16 * 1024

# Bringing so many operations behind as many others as make this product takes about a twentieth of a second.
_MOST_PAIRS: Final = 25_000
_PAIRS_PER_MESSAGE: Final = 50
_MOVED_PER_MESSAGE: Final = 100_000
# So few operations are not looked at.
_FEW: Final = 100
_OPS_PER_MESSAGE: Final = 50
# Where the places of so many operations were is found as fast as one operation is brought behind another.
_PLACES_PER_PAIR: Final = 4


def weigh(size: int) -> float:
    """Return as how many more messages one of so many bytes counts: it is read, decoded and compared."""
    return 0.0 if size < _BYTES_PER_MESSAGE else size / _BYTES_PER_MESSAGE


def count_moves(ops: Sequence[Op]) -> int:
    """Return with how many of others each operation is to be compared to find where its place was before all."""
    return sum(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in ops) // _PLACES_PER_PAIR


def compared(ops: Sequence[Op], others: int, charge: Callable[[float], None]) -> None:
    """Charge what it costs to compare operations with so many others. Raises Conflict where it is too much."""
    pairs = len(ops) * others
    charge(min(pairs, _MOST_PAIRS) / _PAIRS_PER_MESSAGE)
    if pairs > _MOST_PAIRS:
        raise Conflict("too much has been changed at once to be brought together")


def carried_out(ops: Sequence[Op], tree: Any, charge: Callable[[float], None]) -> None:
    """Charge what many operations cost, and the elements that they move in the arrays of a state.

    Raises Conflict as `compared` does.
    """
    if len(ops) <= _FEW:
        return
    charge(len(ops) / _OPS_PER_MESSAGE)
    moved = count_moved(tree, ops)
    charge(min(moved, MOST_MOVED) / _MOVED_PER_MESSAGE)
    if moved > MOST_MOVED:
        raise Conflict(TOO_MANY_MOVED)
