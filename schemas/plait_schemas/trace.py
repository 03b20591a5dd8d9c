"""Finds where the places of operations were before other operations, and whether those changed them."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op
from plait_schemas.shape import Shape
from plait_schemas.step import Step, is_pair, leads_through, pointer

__all__ = ["Origin", "go_back", "trace"]


class Origin(NamedTuple):
    """A place before the other operations and after them; None if it did not exist."""

    before: str | None
    now: str | None
    # Whether others have changed it.
    is_contested: bool
    # Whether the operation moves the element at this place; changes of others inside the element move with it.
    is_moved: bool = False


def trace(ops: Sequence[Op], over: Sequence[Op], document: Any, *, own: Collection[int] = ()) -> list[Origin]:
    """Return, for each of `ops`, where its place is in `document`, and where it was before `over`, which led there.

    `own` are the indices in `over` of the operations of the client that made `ops`. They do not contest a place, and
    neither does an earlier operation at the same place, which that client had seen.
    """
    shape = Shape(document)
    mine: list[Step] = []
    traces: list[_Trace] = []
    last: Step | None = None
    for op in ops:
        step = Step(op)
        step.look_up(shape, has_happened=False)
        shape.do(step.name, step.parts, op.value)
        found = _Trace(step)
        if last is not None and is_pair(last, step):
            traces[-1].is_moved = found.is_moved = True
        traces.append(found)
        last = step
        found.go_back_all(mine)
        found.set_now()
        if step.moves:
            mine.append(step)
    shape = Shape(document)
    others = [Step(op) for op in over]
    index = len(others)
    while index:
        index -= 1
        other = others[index]
        other.look_up(shape, has_happened=True)
        moves = other.is_moved and index > 0 and is_pair(others[index - 1], other)
        if moves:
            shape.undo_move(others[index - 1].parts, other.parts)
        else:
            shape.undo(other.name, other.parts)
        for found in traces:
            found.meet(other, is_own=index in own, moves=moves)
            found.go_back_all(others[index - moves : index + 1])
        index -= moves
    return [found.origin for found in traces]


def go_back(place: Sequence[str], steps: Sequence[Step]) -> list[str] | None:
    """Return where a place was before operations that were looked up; None if they inserted it into an array."""
    found = _Trace(Step(Op("replace", pointer(place))))
    found.go_back_all(steps)
    return found.parts


class _Trace:
    """One place on its way back."""

    __slots__ = ("_inserts", "_is_contested", "_is_known", "_is_splice", "_now", "_parts", "is_moved")

    def __init__(self, step: Step) -> None:
        self._parts: list[str] | None = list(step.parts)
        self._now: list[str] | None = None
        # Whether the place is between elements, and not an element.
        self._inserts = step.moves and step.name == "add"
        # Whether the place is inside a text, which others may change, too.
        self._is_splice = step.name == "splice"
        self._is_contested = False
        # Whether the client has seen the value here, so that earlier changes do not matter.
        self._is_known = False
        # Whether the operation moves the element at this place.
        self.is_moved = False

    @property
    def origin(self) -> Origin:
        return Origin(_pointer(self._parts), _pointer(self._now), self._is_contested, self.is_moved)

    @property
    def parts(self) -> list[str] | None:
        return self._parts

    def set_now(self) -> None:
        """Record the current place as the one in the document."""
        self._now = self._parts

    def meet(self, other: Step, *, is_own: bool, moves: bool = False) -> None:
        """Note whether an operation has changed the place; `moves` says whether it inserts an element that it moves."""
        place = self._parts
        if place is None or self._is_known:
            return
        if moves and self.is_moved and not self._inserts and place == other.parts:
            self._is_contested, self._is_known = not is_own, is_own  # Both have moved one element.
            return
        if leads_through(place, other) or (self.is_moved and len(place) < len(other.parts)):
            return
        if self._inserts and len(place) <= len(other.parts):
            return  # Changes of the elements around it do not matter.
        if place[: len(other.parts)] == other.parts[: len(place)]:
            if other.name == "splice" and (self._is_splice or is_own):
                return  # A client that changes a part of a text may not have seen earlier changes of other parts.
            if not is_own:
                self._is_contested = True
            elif len(other.parts) <= len(place):
                self._is_known = True

    def go_back_all(self, steps: Sequence[Step]) -> None:
        """Move back to where the place was before operations."""
        index = len(steps)
        while index:
            index -= 1
            if index and is_pair(steps[index - 1], steps[index]):
                index -= 1
                self._go_back_moved(steps[index], steps[index + 1])
            else:
                self.go_back(steps[index])

    def _go_back_moved(self, out: Step, into: Step) -> None:
        depth = len(into.parts)
        place = self._parts
        if place is not None and place[:depth] == into.parts and not (self._inserts and len(place) == depth):
            self._parts = [*out.parts, *place[depth:]]
        else:
            self.go_back(into)
            self.go_back(out)

    def go_back(self, other: Step) -> None:
        """Move back to where the place was before an operation."""
        place = self._parts
        if place is None or not leads_through(place, other) or "-" in (place[len(other.parts) - 1], other.parts[-1]):
            return
        depth = len(other.parts) - 1
        index, at = int(place[depth]), int(other.parts[depth])
        inserts = self._inserts and len(place) == len(other.parts)
        if other.name == "add" and index == at and not inserts:
            self._parts = None
        else:
            shift = -(index > at) if other.name == "add" else index > at or (index == at and not inserts)
            self._parts = [*place[:depth], str(index + shift), *place[depth + 1 :]]


def _pointer(parts: list[str] | None) -> str | None:
    return None if parts is None else pointer(parts)
