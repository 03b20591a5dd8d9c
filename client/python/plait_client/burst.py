"""Letters that were typed one after the other at one place of a text, which are rebased all at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op, PatchError, apply, region_of, splice

__all__ = ["Burst", "Rebased", "shift_splice"]


class Rebased(NamedTuple):
    """What became of a burst."""

    # With the burst carried out.
    document: Any
    # What it was rebased over, as it is to be applied after the burst.
    over: Sequence[Op]
    # How many characters further on each of its splices is.
    shift: int


class Burst:
    """Splices of one text that follow each other, where each one touches what those before it have changed.

    What others do elsewhere moves all of them alike, and is moved by what all of them do. So it need not be brought
    past each of them, which takes seconds where thousands of letters were typed without a connection.
    """

    def __init__(self, op: Op) -> None:
        self._path = op.path
        # What it changes in the text before it: from where on, and how many characters.
        self._at, self._removed, insert = region_of(op)
        # What is there after it, in parts.
        self._inserted = [insert]
        self._length = len(insert)

    def take(self, op: Op) -> bool:
        """Add a splice; return False if it is elsewhere."""
        at, remove, insert = region_of(op)
        end = self._at + self._length
        if op.path != self._path or at > end or at + remove < self._at:
            return False
        if at == end:
            self._removed += remove
            self._inserted.append(insert)
            self._length += len(insert)
            return True
        text = "".join(self._inserted)
        text = text[: max(at - self._at, 0)] + insert + text[max(at + remove - self._at, 0) :]
        self._removed += max(self._at - at, 0) + max(at + remove - end, 0)
        self._at, self._inserted, self._length = min(self._at, at), [text], len(text)
        return True

    def rebase(self, over: Sequence[Op], document: Any) -> Rebased | None:
        """Return what becomes of it on `document`, which `over` has led to; None where that touches it, or may."""
        at = self._at
        found: list[Op] = []
        for op in over:
            if op.op == "splice" and op.path == self._path:
                place, remove, insert = region_of(op)
                if place + remove <= at:
                    found.append(op)
                    at += len(insert) - remove
                elif place > at + self._removed:
                    found.append(shift_splice(op, self._length - self._removed))
                else:
                    return None
            elif _is_apart(op, self._path):
                found.append(op)
            else:
                return None
        try:
            after = apply(document, [splice(self._path, at, self._removed, "".join(self._inserted))])
        except PatchError:
            return None
        return Rebased(after, found, at - self._at)


def shift_splice(op: Op, shift: int) -> Op:
    """Return a splice so many characters further on in its text."""
    at, remove, insert = region_of(op)
    return splice(op.path, at + shift, remove, insert)


def _is_apart(op: Op, path: str) -> bool:
    """Tell whether an operation neither leads to a place, nor around it, nor to a list in which it has an index."""
    place = op.path if op.op in ("replace", "splice") else op.path.rpartition("/")[0]
    return not f"{path}/".startswith(f"{place}/")
