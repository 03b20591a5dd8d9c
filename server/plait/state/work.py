"""What changes cost while nothing else can run, counted and bounded."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.state.types import MOST_MOVED, TOO_MANY_MOVED, count_moved
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.step import is_place

__all__ = ["MOST_OF_A_PUSH", "Work", "weigh"]

# In about microseconds, as all that is counted: of an undo, which nobody asks for often, and of a push.
_MOST: Final = 150_000
MOST_OF_A_PUSH: Final = 100_000
_PER_MESSAGE: Final = 100
_PER_PAIR: Final = 4
_MOVED_PER_COST: Final = 1_000
# So few operations of a push are not looked at; of more, so many count as one message.
_FEW: Final = 100
_OPS_PER_MESSAGE: Final = 50
# Where the places of so many operations were is found as fast as one operation is brought behind another.
_PLACES_PER_PAIR: Final = 4
# Bytes of a message that count as one more. Smaller ones count as one, whatever they say.
_BYTES_PER_MESSAGE: Final = 16 * 1024


class Work:
    """What one undo or one push does: counted, charged as so many messages of whoever asks for it, and bounded.

    What is too much all together raises Conflict.
    """

    def __init__(self, most: int = _MOST, charge: Callable[[float], None] | None = None) -> None:
        self._left: float = most
        self._charge = charge

    def decode(self, row: ChangeRow) -> list[Op]:
        """Return the operations of a change."""
        self._take(5 + len(row.ops) // 100)
        return decode_ops(row.ops)

    def apply(self, document: Any, ops: Iterable[Op], owned: Owned) -> Any:
        """Do what `apply` does."""
        for op in ops:
            self._take(5 + _cost(document, [op], owned))
            document = apply(document, [op], owned)
        return document

    def rebase(self, ops: Sequence[Op], over: Sequence[Op], document: Any) -> Rebased:
        """Do what `rebase` does."""
        if over:
            self._take(20 + 3 * (len(ops) + len(over)))
            self.compare(ops, len(over))
            both = [*ops, *over]
            if any(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in both):
                self._take(_cost(document, both))  # It is looked at what these were made on.
        return rebase(ops, over, document)

    def compare(self, ops: Sequence[Op], others: int, *, traces: bool = False) -> None:
        """Count that operations are compared with so many others; `traces` says whether origins are looked for."""
        if traces:
            moving = sum(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in ops)
            others += moving // _PLACES_PER_PAIR
        if others:
            self._take(_PER_PAIR * len(ops) * others)

    def carry_out(self, ops: Sequence[Op], tree: Any) -> None:
        """Count that many operations of a push are carried out, and the elements that they move in arrays."""
        if len(ops) <= _FEW:
            return
        if self._charge is not None:
            self._charge(len(ops) / _OPS_PER_MESSAGE)
        moved = count_moved(tree, ops)
        self._take(min(moved, MOST_MOVED) / _MOVED_PER_COST)
        if moved > MOST_MOVED:
            raise Conflict(TOO_MANY_MOVED)

    def _take(self, cost: float) -> None:
        if self._charge is not None:
            self._charge(min(cost, self._left) / _PER_MESSAGE)
        self._left -= cost
        if self._left < 0:
            raise Conflict("too much has been changed to be brought together")


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


def weigh(size: int) -> float:
    """Return as how many more messages one of so many bytes counts: it is read, decoded and compared."""
    return 0.0 if size < _BYTES_PER_MESSAGE else size / _BYTES_PER_MESSAGE
