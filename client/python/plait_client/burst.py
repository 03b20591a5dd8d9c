"""Letters that were typed one after the other at one place of a text, which are rebased all at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op, PatchError, apply, compact, find, parse, region_of, splice
from plait_schemas.rebase import rebase

__all__ = ["Burst", "Moved"]


class Moved(NamedTuple):
    """What became of a burst."""

    # Of each push.
    ops: list[Sequence[Op]]
    # What it was rebased over, as it is to be applied after the burst.
    over: list[Op]
    # With the burst carried out.
    document: Any


class Burst:
    """Pushes with a splice of one text each, where each one touches what those before it have changed.

    What others do elsewhere moves all of them alike, and is moved by what all of them do. So it need not be brought
    past each of them, which takes seconds where thousands of letters were typed without a connection.
    """

    def __init__(self, op: Op) -> None:
        self._path = op.path
        self._ops: list[Sequence[Op]] = [[op]]
        self._extent = _Extent(op)

    def take(self, op: Op) -> bool:
        """Add a push; return False if it is elsewhere."""
        if op.path != self._path or not self._extent.touches(op):
            return False
        self._extent.add(op)
        self._ops.append([op])
        return True

    def rebase(self, over: Sequence[Op], document: Any) -> Moved | None:
        """Return what becomes of it on `document`, which `over` has led to.

        None where one of its pushes is lost or does not fit, or its text may be another.
        """
        ops, extent, found, shift = self._ops, self._extent, list[Op](), 0
        for op in over:
            if op.op != "splice" or op.path != self._path:
                if not _is_apart(op, self._path, document):
                    return None
                found.append(op)
                continue
            at, remove, insert = region_of(op)
            if at - shift + remove <= extent.start:
                found.append(op)
                shift += len(insert) - remove
            elif at - shift > extent.end:
                found.append(_shift(op, extent.growth))
            else:
                # Only the text matters of two splices, not what else is in the document.
                later = [op]
                ops, shift = _shift_all(ops, shift), 0
                for index, each in enumerate(ops):
                    moved = rebase(each, later, document)
                    if moved.is_lost:
                        return None
                    ops[index], later = moved.ops, moved.over
                found += later
                extent = _Extent(*(each for push in ops for each in push))
        ops = _shift_all(ops, shift)
        try:
            return Moved(ops, found, apply(document, compact(op for push in ops for op in push)))
        except PatchError:
            return None


class _Extent:
    """What splices of a text change, one after the other, as far as one stretch of the text has it all."""

    __slots__ = ("_length", "end", "start")

    def __init__(self, *ops: Op) -> None:
        # In the text before them.
        self.start = self.end = 0
        # How long the stretch is after them; -1 as long as there are none.
        self._length = -1
        for op in ops:
            self.add(op)

    @property
    def growth(self) -> int:
        """By how many characters the text is longer after them."""
        return max(self._length, 0) - (self.end - self.start)

    def touches(self, op: Op) -> bool:
        """Tell whether the next splice begins or ends in the stretch."""
        at, remove, _ = region_of(op)
        return at <= self.start + self._length and at + remove >= self.start

    def add(self, op: Op) -> None:
        """Add the next splice."""
        at, remove, insert = region_of(op)
        if self._length < 0:
            self.start, self.end, self._length = at, at + remove, len(insert)
            return
        before = max(self.start - at, 0)
        after = max(at + remove - self.start - self._length, 0)
        self.start -= before
        self.end += after
        self._length += before + after + len(insert) - remove


def _shift_all(ops: list[Sequence[Op]], shift: int) -> list[Sequence[Op]]:
    return [[_shift(op, shift) for op in push] for push in ops] if shift else list(ops)


def _shift(op: Op, shift: int) -> Op:
    at, remove, insert = region_of(op)
    return splice(op.path, at + shift, remove, insert)


def _is_apart(op: Op, path: str, document: Any) -> bool:
    """Tell whether an operation neither leads to a place, nor around it, nor moves an element that it is in."""
    if f"{path}/".startswith(f"{op.path}/"):
        return False
    container = op.path.rpartition("/")[0]
    may_move = op.op in ("add", "remove") and f"{path}/".startswith(f"{container}/")
    return not may_move or isinstance(find(document, parse(container)), dict)
