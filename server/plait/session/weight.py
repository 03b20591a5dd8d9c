"""What a message costs everybody, as nothing else runs while it is judged: counted in messages, and bounded."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.state import MOST_MOVED, TOO_MANY_MOVED, count_moved
from plait_schemas.patch import Op
from plait_schemas.step import is_place

__all__ = ["carried_out", "compared", "count_moves", "weigh"]

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
