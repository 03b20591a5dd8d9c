"""Operations that were made on an older state, as they are to be carried out on a newer one.

Both sides of a socket do this: the server with a push that has an old base, a client with what it shows of its own
pushes. Places are compared by JSON pointer; the indices of arrays move with what others put in and took out
(operational transformation of insertions and deletions, Ellis & Gibbs 1989; of two insertions at one index the earlier
stays in front).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from plait_schemas.patch import Op, escape, is_index, parse
from plait_schemas.shape import Shape

__all__ = ["Rebased", "rebase"]


class Rebased(NamedTuple):
    """What became of operations; `conflicts` are the places, in the newer state, where others have changed the same."""

    ops: list[Op]
    conflicts: list[str]
    # Whether a place that they lead into is gone, so that they cannot be carried out.
    is_lost: bool
    # What they were rebased over, as it would be behind them: each operation, or None where nothing is left of it.
    over: list[Op | None]


def rebase(ops: Iterable[Op], over: Iterable[Op], document: Any, *, own: Collection[int] = ()) -> Rebased:
    """Return `ops` as they are on `document`, which is what `over` made of the state that both were made on.

    `own` are the indices in `over` of what is no change of others, and so not in conflict with anything.
    """
    over = list(over)
    if not over:
        return Rebased(list(ops), [], False, [])
    shape = Shape(document)
    others: list[_Step] = []
    for index in range(len(over) - 1, -1, -1):
        others.append(other := _Step(over[index], is_own=index in own))
        other.look_up(shape, has_happened=True)
        shape.undo(other.name, other.parts)
    others.reverse()
    steps: list[_Step] = []
    for op in ops:
        steps.append(step := _Step(op))
        step.look_up(shape)
        shape.do(step.name, step.parts, op.value)
        for other in others:
            if not other.is_gone and not step.is_gone:
                _pass(step, other)
    return Rebased(
        [step.op() for step in steps if not step.is_done],
        [step.pointer for step in steps if step.is_contested],
        any(step.is_gone and not step.is_done for step in steps),
        [None if other.is_gone else other.op() for other in others],
    )


class _Step:
    """One operation on its way, with its place taken apart."""

    __slots__ = ("_value", "is_contested", "is_done", "is_gone", "is_own", "moves", "name", "parts")

    def __init__(self, op: Op, *, is_own: bool = False) -> None:
        self._value = op.value
        self.name: Literal["add", "remove", "replace"] = op.op
        self.parts = parse(op.path)
        # Whether it puts an element into an array or takes one out, so that the elements behind it move. Where
        # nothing is known of the array, the look of an index decides.
        self.moves = op.op != "replace" and bool(self.parts) and _is_index(self.parts[-1])
        self.is_own = is_own
        self.is_contested = False
        # Nothing is left to be done, as the place is gone or has been overwritten; or the very same has been done.
        self.is_gone = False
        self.is_done = False

    @property
    def pointer(self) -> str:
        return "".join(f"/{escape(part)}" for part in self.parts)

    def op(self) -> Op:
        return Op(self.name, self.pointer, self._value)

    def look_up(self, shape: Shape, *, has_happened: bool = False) -> None:
        """See what it puts an element into.

        The end of an array that has been appended to is given its index: `-` would be another behind others who append.
        """
        if not self.moves:
            return
        container = shape.look(self.parts[:-1])
        self.moves = not isinstance(container, dict | msgspec.Struct)
        if has_happened and self.parts[-1] == "-" and isinstance(container, list | tuple):
            self.parts[-1] = str(len(container) - 1)


def _pass(mine: _Step, other: _Step) -> None:
    """Let `other` come before `mine`: each is afterwards as it is to be carried out behind the other."""
    place, other_place = mine.parts, other.parts
    is_same = place == other_place
    if is_same and mine.name == other.name == "remove":
        mine.is_gone = mine.is_done = other.is_gone = True
    elif _leads_through(place, other) or _leads_through(other_place, mine):
        moved = _behind(mine, other_place, other, yields=True)
        other_moved = _behind(other, place, mine, yields=False)
        mine.is_contested |= not other.is_own and (moved is None or other_moved is None)
        mine.is_gone, other.is_gone = moved is None, other_moved is None
        mine.parts, other.parts = moved or place, other_moved or other_place
    elif place[: len(other_place)] == other_place[: len(place)]:
        mine.is_contested |= not other.is_own
        mine.is_gone = other.name == "remove" and len(other_place) < len(place)
        other.is_gone = len(place) <= len(other_place)
        if is_same and other.name == "remove":
            mine.name = "add"


def _leads_through(place: Sequence[str], other: _Step) -> bool:
    """Tell whether a place is an element of the array whose elements `other` moves, or in one."""
    depth = len(other.parts) - 1
    return other.moves and len(place) > depth and place[:depth] == other.parts[:depth] and _is_index(place[depth])


def _behind(step: _Step, place: Sequence[str], other: _Step, *, yields: bool) -> list[str] | None:
    """Return the place of `step` behind `other`, which is at `place`; None when `other` has taken it away."""
    if not _leads_through(step.parts, other) or "-" in (step.parts[len(place) - 1], place[-1]):
        return step.parts
    inserts = step.moves and step.name == "add" and len(step.parts) == len(place)
    return _shifted(step.parts, place, other, inserts=inserts, yields=yields)


def _shifted(parts: list[str], place: Sequence[str], other: _Step, *, inserts: bool, yields: bool) -> list[str] | None:
    depth = len(place) - 1
    index, at = int(parts[depth]), int(place[depth])
    if other.name == "add":
        index += index > at or (index == at and (yields or not inserts))
    elif index == at and not inserts:
        return None
    else:
        index -= index > at
    return [*parts[:depth], str(index), *parts[depth + 1 :]]


def _is_index(part: str) -> bool:
    return part == "-" or is_index(part)
