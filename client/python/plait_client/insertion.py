"""The last insertion of this client in a text; the next insertion after it is marked as its continuation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from plait_schemas.patch import Op, find, parse, region_of
from plait_schemas.step import is_place

__all__ = ["LastInsertion"]


class _Range(NamedTuple):
    """Characters of a text that were all inserted by this client."""

    path: str
    start: int
    end: int


class LastInsertion:
    """The last contiguous insertion of this client, in the shown state."""

    def __init__(self) -> None:
        self._range: _Range | None = None

    def add(self, op: Op) -> Op:
        """Note an operation of this client; return it, with `own` if it inserts right after or inside the range."""
        if op.op != "splice" or op.insert is msgspec.UNSET or not op.insert:
            self._move(op)
            return op
        at, remove, insert = region_of(op)
        path, start, end = self._range or ("", 0, 0)
        if path == op.path and start < at <= end:
            removed = max(min(end, at + remove) - at, 0)
            self._range = _Range(path, start, end - removed + len(insert))
            return msgspec.structs.replace(op, own=True)
        self._range = _Range(op.path, at, at + len(insert))
        return op

    def follow(self, ops: Sequence[Op], before: Any, after: Any) -> None:
        """Move the range after changes of others to the shown state; without `ops`, the new place is not known."""
        for op in ops:
            self._move(op)
        if self._range is not None and not ops:
            parts = parse(self._range.path)
            if find(before, parts) != find(after, parts):
                self._range = None

    def _move(self, op: Op) -> None:
        if self._range is None:
            return
        path, start, end = self._range
        if op.op != "splice":
            if _may_touch(op, path):
                self._range = None
        elif op.path == path:
            at, remove, insert = region_of(op)
            inside = max(min(end, at + remove) - max(start, at), 0)
            if at <= start:
                shift = len(insert) - min(remove, start - at)
                self._range = _Range(path, start + shift, end + shift - inside)
            elif at < end and insert:
                self._range = _Range(path, at + len(insert), end + len(insert) - inside)
            else:
                self._range = _Range(path, start, end - inside)


def _may_touch(op: Op, path: str) -> bool:
    """Tell whether an operation is below or above a place, or may move an element of a list that the place is in."""
    if f"{path}/".startswith(f"{op.path}/"):
        return True
    container, _, part = op.path.rpartition("/")
    return op.op != "replace" and is_place(part) and path.startswith(f"{container}/")
