"""What a push costs everybody, as nothing else runs while it is judged: counted in messages, and bounded."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait_schemas.patch import Op, find, parse

__all__ = ["carried_out", "compared"]

# Bringing so many operations behind as many others as make this product takes about a twentieth of a second.
_MOST_PAIRS: Final = 25_000
_PAIRS_PER_MESSAGE: Final = 50
# Moving so many elements of arrays takes less than a second.
_MOST_MOVED: Final = 500_000_000
_MOVED_PER_MESSAGE: Final = 100_000
# So few operations are not looked at.
_FEW: Final = 100


def compared(ops: Sequence[Op], others: Sequence[object], charge: Callable[[float], None]) -> None:
    """Charge what it costs to compare operations with others. Raises Conflict where it is too much."""
    pairs = len(ops) * len(others)
    charge(min(pairs, _MOST_PAIRS) / _PAIRS_PER_MESSAGE)
    if pairs > _MOST_PAIRS:
        raise Conflict("too much has been changed at once to be brought together")


def carried_out(ops: Sequence[Op], tree: Any, charge: Callable[[float], None]) -> None:
    """Charge what the elements cost that operations move in the arrays of a state. Raises Conflict as `compared`."""
    if len(ops) <= _FEW:
        return
    containers = (find(tree, parse(op.path)[:-1]) for op in ops if op.op != "replace" and op.path[-1:].isdecimal())
    moved = sum(len(container) for container in containers if isinstance(container, list | tuple))
    charge(min(moved, _MOST_MOVED) / _MOVED_PER_MESSAGE)
    if moved > _MOST_MOVED:
        raise Conflict("too many elements of arrays would be moved at once: replace the array")
