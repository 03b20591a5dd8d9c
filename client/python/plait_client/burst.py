"""Letters that were typed one after the other at one place of a text, which are rebased all at once."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op, PatchError, apply, compact, find, parse, region_of, splice, splices
from plait_schemas.step import MOST_REGIONS
from plait_schemas.text import Region, goes_on, in_order, transform_both

__all__ = ["Burst", "Moved"]


class Moved(NamedTuple):
    """The outcome of a burst."""

    # The operations of each push.
    ops: Sequence[Sequence[Op]]
    # The operations of others, as they apply after the burst.
    over: list[Op]
    # The document after the burst.
    document: Any


class Burst:
    """Pushes with one splice each of the same text, where each splice touches the changes of those before it.

    A change of others elsewhere in the text moves all these splices alike, and is moved by their total. So a burst is
    not rebased splice by splice, which takes seconds for thousands of letters that were typed offline.
    """

    def __init__(self, op: Op) -> None:
        self._path = op.path
        # The change of each push, in the text after the pushes before it.
        self._changes: list[Sequence[Region]] = []
        # Whether each push continues an insertion of the client.
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
        """Return the outcome of the burst on `document`, the state after `over`.

        Returns None if one of its pushes may be lost or does not fit, or if its text may be another one.
        """
        changes, owns, extent, found, shift = self._changes, self._owns, self._extent, list[Op](), 0
        # A change of others right before pushes with `own` may end the insertion, or come after it.
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
    """The combined change of successive splices, as long as they are all in one stretch of the text."""

    __slots__ = ("_length", "end", "start")

    def __init__(self, *regions: Region) -> None:
        # The stretch in the text before the splices.
        self.start = self.end = 0
        # The length of the stretch after the splices; -1 while there are none.
        self._length = -1
        for region in regions:
            self.add(region)

    @property
    def growth(self) -> int:
        """The number of characters that the splices have added to the text."""
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
    """Move the changes of others, one after the other, before a change; return both after that, and `own`."""
    after: list[Region] = []
    for other in others:
        own = own and goes_on(change, [other])
        change, moved = transform_both(change, [other], yields=not own)
        after += in_order(moved)
    return change, after, own


def _is_apart(op: Op, path: str, document: Any) -> bool:
    """Tell whether an operation is not below or above a place, and does not move an element around the place."""
    if f"{path}/".startswith(f"{op.path}/"):
        return False
    container = op.path.rpartition("/")[0]
    may_move = op.op in ("add", "remove") and f"{path}/".startswith(f"{container}/")
    return not may_move or isinstance(find(document, parse(container)), dict)
