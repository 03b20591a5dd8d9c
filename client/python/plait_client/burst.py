"""Letters that were typed one after the other at one place of a text, which are rebased all at once."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op, PatchError, apply, compact, find, parse, region_of, splice, splices
from plait_schemas.step import MOST_REGIONS
from plait_schemas.text import Region, goes_on, in_order, transform_both

__all__ = ["Burst", "Moved"]


class Moved(NamedTuple):
    """The outcome of a burst."""

    # Of each push.
    ops: Sequence[Sequence[Op]]
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
        # What each push changes: as the text is after those before it.
        self._changes: list[Sequence[Region]] = []
        # Whether each push goes on after what the client has inserted.
        self._owns: list[bool] = []
        self._extent = _Extent()
        self._add(op)

    def take(self, op: Op) -> bool:
        """Add a push; return False if it is elsewhere."""
        if op.path != self._path or not self._extent.touches(region_of(op)):
            return False
        self._add(op)
        return True

    def _add(self, op: Op) -> None:
        region = region_of(op)
        self._extent.add(region)
        self._changes.append([region])
        self._owns.append(op.own is True)

    def rebase(self, over: Sequence[Op], document: Any) -> Moved | None:
        """Return its outcome on `document`, which `over` has led to.

        None where one of its pushes may be lost or does not fit, or its text may be another.
        """
        changes, owns, extent, found, shift = self._changes, self._owns, self._extent, list[Op](), 0
        # What others do right before pushes with `own` may end that, or come after them.
        margin = int(any(owns))
        for op in over:
            if op.op != "splice" or op.path != self._path:
                if not _is_apart(op, self._path, document):
                    return None
                found.append(op)
                continue
            at, remove, insert = region_of(op)
            if at - shift + remove + margin <= extent.start:
                found.append(op)
                shift += len(insert) - remove
            elif at - shift > extent.end:
                found.append(splice(self._path, at + extent.growth, remove, insert))
            else:
                changes, shift = _shift_all(changes, shift), 0
                owns, later = list(owns), [(at, remove, insert)]
                for index, each in enumerate(changes):
                    if len(each) + len(later) >= MOST_REGIONS:
                        return None
                    changes[index], later, owns[index] = _pass_all(each, later, own=owns[index])
                found += [splice(self._path, *region) for region in later]
                extent = _Extent(*(region for change in changes for region in in_order(change)))
        shifted = _shift_all(changes, shift)
        ops = [splices(self._path, change, own=own) for change, own in zip(shifted, owns, strict=True)]
        try:
            return Moved(ops, found, apply(document, compact(op for push in ops for op in push)))
        except PatchError:
            return None


class _Extent:
    """The combined change of successive splices, as long as one stretch of the text has all of them."""

    __slots__ = ("_length", "end", "start")

    def __init__(self, *regions: Region) -> None:
        # In the text before them.
        self.start = self.end = 0
        # How long the stretch is after them; -1 as long as there are none.
        self._length = -1
        for region in regions:
            self.add(region)

    @property
    def growth(self) -> int:
        """By how many characters the text is longer after them."""
        return max(self._length, 0) - (self.end - self.start)

    def touches(self, region: Region) -> bool:
        """Tell whether the next splice begins or ends in the stretch."""
        at, remove, _ = region
        return at <= self.start + self._length and at + remove >= self.start

    def add(self, region: Region) -> None:
        """Add the next splice."""
        at, remove, insert = region
        if self._length < 0:
            self.start, self.end, self._length = at, at + remove, len(insert)
            return
        before = max(self.start - at, 0)
        after = max(at + remove - self.start - self._length, 0)
        self.start -= before
        self.end += after
        self._length += before + after + len(insert) - remove


def _shift_all(changes: Sequence[Sequence[Region]], shift: int) -> list[Sequence[Region]]:
    return [[(at + shift, remove, insert) for at, remove, insert in each] if shift else each for each in changes]


def _pass_all(
    change: Sequence[Region], others: Iterable[Region], *, own: bool
) -> tuple[Sequence[Region], list[Region], bool]:
    """Bring others, carried out one after the other, before a change; return both as they are after, and `own`."""
    after: list[Region] = []
    for other in others:
        own = own and goes_on(change, [other])
        change, moved = transform_both(change, [other], yields=not own)
        after += in_order(moved)
    return change, after, own


def _is_apart(op: Op, path: str, document: Any) -> bool:
    """Tell whether an operation neither leads to a place, nor around it, nor moves an element that it is in."""
    if f"{path}/".startswith(f"{op.path}/"):
        return False
    container = op.path.rpartition("/")[0]
    may_move = op.op in ("add", "remove") and f"{path}/".startswith(f"{container}/")
    return not may_move or isinstance(find(document, parse(container)), dict)
