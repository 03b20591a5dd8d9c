"""Operations that were made on an older state, as they are to be carried out on a newer one.

Both sides of a socket do this: the server with a push that has an old base, a client with what it shows of its own
pushes. Places are compared by JSON pointer; the indices of arrays move with what others put in and took out
(operational transformation of insertions and deletions, Ellis & Gibbs 1989; of two insertions at one index the earlier
stays in front).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from plait_schemas.patch import Op
from plait_schemas.shape import Shape
from plait_schemas.step import Step, leads_through

__all__ = ["Rebased", "rebase"]


class Rebased(NamedTuple):
    """What became of operations; `conflicts` are the places, in the newer state, where others have changed the same."""

    ops: list[Op]
    conflicts: list[str]
    # Whether a place that they lead into is gone, so that they cannot be carried out.
    is_lost: bool
    # What they were rebased over, as it would be behind them: each operation, or None where nothing is left of it.
    over: list[Op | None]


def rebase(ops: Iterable[Op], over: Iterable[Op], document: Any) -> Rebased:
    """Return `ops` as they are on `document`, which is what `over` made of the state that both were made on."""
    over = list(over)
    if not over:
        return Rebased(list(ops), [], False, [])
    shape = Shape(document)
    others: list[Step] = []
    for op in reversed(over):
        others.append(other := Step(op))
        other.look_up(shape, has_happened=True)
        shape.undo(other.name, other.parts)
    others.reverse()
    steps: list[Step] = []
    for op in ops:
        steps.append(step := Step(op))
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


def _pass(mine: Step, other: Step) -> None:
    """Let `other` come before `mine`: each is afterwards as it is to be carried out behind the other."""
    place, other_place = mine.parts, other.parts
    is_same = place == other_place
    if is_same and mine.name == other.name == "remove":
        mine.is_gone = mine.is_done = other.is_gone = True
    elif leads_through(place, other) or leads_through(other_place, mine):
        moved = _behind(mine, other_place, other, yields=True)
        other_moved = _behind(other, place, mine, yields=False)
        mine.is_contested |= moved is None or other_moved is None
        mine.is_gone, other.is_gone = moved is None, other_moved is None
        mine.parts, other.parts = moved or place, other_moved or other_place
    elif place[: len(other_place)] == other_place[: len(place)]:
        mine.is_contested = True
        mine.is_gone = other.name == "remove" and len(other_place) < len(place)
        other.is_gone = len(place) <= len(other_place)
        if is_same and other.name == "remove":
            mine.name = "add"


def _behind(step: Step, place: Sequence[str], other: Step, *, yields: bool) -> list[str] | None:
    """Return the place of `step` behind `other`, which is at `place`; None when `other` has taken it away."""
    if not leads_through(step.parts, other) or "-" in (step.parts[len(place) - 1], place[-1]):
        return step.parts
    inserts = step.moves and step.name == "add" and len(step.parts) == len(place)
    return _shifted(step.parts, place, other, inserts=inserts, yields=yields)


def _shifted(parts: list[str], place: Sequence[str], other: Step, *, inserts: bool, yields: bool) -> list[str] | None:
    depth = len(place) - 1
    index, at = int(parts[depth]), int(place[depth])
    if other.name == "add":
        index += index > at or (index == at and (yields or not inserts))
    elif index == at and not inserts:
        return None
    else:
        index -= index > at
    return [*parts[:depth], str(index), *parts[depth + 1 :]]
