"""Operations that were made on an older state, as they are to be carried out on a newer one.

Both sides of a socket do this: the server with a push that has an old base, a client with what it shows of its own
pushes. Places are compared by JSON pointer; the indices of arrays move with what others put in and took out
(operational transformation of insertions and deletions, Ellis & Gibbs 1989; of two insertions at one index the earlier
stays before the later), and so do the characters of texts. What is done to an element that others have moved follows
it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from plait_schemas.inverse import taking_back
from plait_schemas.patch import Op
from plait_schemas.shape import Shape
from plait_schemas.step import Step, is_of, is_pair, leads_through

__all__ = ["Rebased", "rebase"]


class Rebased(NamedTuple):
    """What became of operations; `conflicts` are the places, in the newer state, where others have changed the same."""

    ops: list[Op]
    conflicts: list[str]
    # Whether a place that they lead into is gone, so that they cannot be carried out.
    is_lost: bool
    # What they were rebased over, as it is to be applied after them, without operations that have no effect left. If
    # they are lost, it also takes them back, just before the operation that removed their place.
    over: list[Op]
    # What each operation of `over` has come from, or at what it is done, as an index of those that were given.
    indices: list[int]


def rebase(
    ops: Iterable[Op], over: Iterable[Op], document: Any, charge: Callable[[int], None] = lambda _: None
) -> Rebased:
    """Return `ops` as they are on `document`, which is what `over` made of the state that both were made on.

    `charge` is called with the number of places at which two splices are brought past each other, if that is more than
    one each, and may raise.
    """
    ops, over = list(ops), list(over)
    if not over:
        return Rebased(ops, [], False, [], [])
    shape = Shape(document)
    others = _undone(over, shape, is_exact="remove" in [op.op for op in ops])
    steps = _done(ops, shape)
    lost_at = len(others)
    if True in [step.is_moved for step in others] or True in [step.is_moved for step in steps]:
        theirs = _units(others)
        for _, unit in _units(steps):
            lost_at = min(lost_at, _pass_units(unit, theirs, len(others), charge))
    else:
        for step in steps:
            lost_at = min(lost_at, _pass_all(step, others, charge))
    is_lost = lost_at < len(others)
    after = (
        _without(ops, over, lost_at, document, charge)
        if is_lost
        else [(index, op) for index, other in enumerate(others) if not other.is_gone for op in other.ops()]
    )
    return Rebased(
        [op for step in steps if not step.is_done for op in step.ops()],
        [step.pointer for step in steps if step.is_contested],
        is_lost,
        [op for _, op in after],
        [index for index, _ in after],
    )


# Inside


_Unit = list[Step]
"""One operation, or the two that move an element."""


def _undone(over: Sequence[Op], shape: Shape, *, is_exact: bool = True) -> list[Step]:
    """Return operations that have led to a shape, which is led back to where it was before them."""
    steps = [Step(op) for op in over]
    index = len(steps)
    while index:
        index -= 1
        step = steps[index]
        if step.name == "splice":
            continue  # A text is one value, whatever is done inside of it.
        step.look_up(shape, has_happened=True, is_exact=is_exact)
        if step.is_moved and index and is_pair(steps[index - 1], step):
            index -= 1
            shape.undo_move(steps[index].parts, step.parts)
        else:
            shape.undo(step.name, step.parts)
    return steps


def _units(steps: Sequence[Step]) -> list[tuple[int, _Unit]]:
    """Return the units of operations, each with the index of its first."""
    units: list[tuple[int, _Unit]] = []
    for index, step in enumerate(steps):
        if units and len(units[-1][1]) == 1 and is_pair(units[-1][1][0], step):
            units[-1][1].append(step)
        else:
            units.append((index, [step]))
    return units


def _done(ops: Sequence[Op], shape: Shape) -> list[Step]:
    """Return operations that are carried out on a shape."""
    steps: list[Step] = []
    for op in ops:
        steps.append(step := Step(op))
        step.look_up(shape)
        shape.do(step.name, step.parts, op.value)
    return steps


def _without(
    ops: Sequence[Op], over: Sequence[Op], lost_at: int, document: Any, charge: Callable[[int], None]
) -> list[tuple[int, Op]]:
    """Return, with their indices, `over` and what takes `ops` back before the one at `lost_at`."""
    shape = Shape(document)
    rest = _undone(over[lost_at:], shape)
    document = shape.look(())
    before = rebase(ops, over[:lost_at], document, charge)
    return [
        *zip(before.indices, before.over, strict=True),
        *((lost_at, op) for op in taking_back(before.ops, document)),
        *((index, op) for index, step in enumerate(rest, lost_at) for op in step.ops()),
    ]


def _pass_all(mine: Step, others: Sequence[Step], charge: Callable[[int], None]) -> int:
    """Let `others` come before `mine`; return the index of the one that takes its place away, or how many they are."""
    for index, other in enumerate(others):
        if not other.is_gone:
            _pass(mine, other, charge)
            if mine.is_gone:
                return len(others) if mine.is_done else index
    return len(others)


def _pass_units(mine: _Unit, others: Sequence[tuple[int, _Unit]], count: int, charge: Callable[[int], None]) -> int:
    """Let `others` come before `mine`; return the index of the one that takes its place away, or how many they are."""
    for index, other in others:
        if not all(step.is_gone for step in other):
            _pass_unit(mine, other, charge)
            if any(step.is_gone and not step.is_done for step in mine):
                return index
            if any(step.is_done for step in mine):
                break
    return count


def _pass_unit(mine: _Unit, other: _Unit, charge: Callable[[int], None]) -> None:
    """Let `other` come before `mine`: transform each so that it is to be applied after the other."""
    if len(mine) == len(other) == 2 and mine[0].parts == other[0].parts:
        # Of two who move one element the later has it.
        mine[1].is_contested = True
        mine[0].parts = other[1].parts
        other[0].is_gone = other[1].is_gone = True
    elif len(other) == 2 and is_of(mine[0], other[0]):
        for step in mine:
            _follow(step, other)
    elif len(mine) == 2 and is_of(other[0], mine[0]):
        for step in other:
            _take_along(mine, step)
    else:
        for step in mine:
            for each in other:
                if not (step.is_gone or each.is_gone):
                    _pass(step, each, charge)
        if len(other) == 2 and other[0].is_gone != other[1].is_gone:
            other[1].is_moved = False


def _follow(mine: Step, other: _Unit) -> None:
    """Let `mine` be done to the element where `other` has moved it to."""
    depth = len(other[0].parts)
    rest = mine.parts[depth:]
    if mine.name == "remove" and not rest:
        other[0].is_gone = other[1].is_gone = True
    else:
        other[1].take_along(mine, rest)
    mine.parts = [*other[1].parts, *rest]


def _take_along(mine: _Unit, other: Step) -> None:
    """Let `mine` move the element as `other` has changed it."""
    rest = other.parts[len(mine[0].parts) :]
    is_whole = not rest and other.name in ("remove", "replace")
    if is_whole or not (other.name == "remove" or other.has_value):
        # It is gone or may be another, or what has become of it is not known, as where something is taken back.
        mine[0].is_contested = mine[0].is_gone = True
    else:
        mine[1].take_along(other, rest)
        other.parts = [*mine[1].parts, *rest]


def _pass(mine: Step, other: Step, charge: Callable[[int], None]) -> None:
    """Let `other` come before `mine`: transform each so that it is to be applied after the other."""
    place, other_place = mine.parts, other.parts
    is_same = place == other_place
    if is_same and mine.name == other.name == "splice":
        if (places := len(mine.regions) + len(other.regions)) > 2:
            charge(places)
        mine.pass_text(other)
    elif is_same and mine.name == other.name == "remove":
        mine.is_gone = mine.is_done = other.is_gone = True
    elif is_same and other.name == "replace" and other.is_element and mine.may_mean_another(other):
        mine.is_contested = mine.is_gone = True
    elif leads_through(place, other) or leads_through(other_place, mine):
        moved = _shift_after(mine, other_place, other, yields=True)
        other_moved = _shift_after(other, place, mine, yields=False)
        mine.is_contested |= moved is None or other_moved is None
        mine.is_gone, other.is_gone = moved is None, other_moved is None
        mine.parts, other.parts = moved or place, other_moved or other_place
    elif place[: len(other_place)] == other_place[: len(place)]:
        mine.is_contested = True
        if mine.name == "splice":
            # What others have put there, or around it, is not the text that was meant.
            mine.is_gone = True
        elif len(other_place) < len(place):
            other.take_in(mine)
        else:
            other.is_gone = True
            if is_same and other.name == "remove":
                mine.name = "add"


def _shift_after(step: Step, place: Sequence[str], other: Step, *, yields: bool) -> list[str] | None:
    """Return the place of `step` after `other`, which is at `place`; None when `other` has removed it."""
    if not leads_through(step.parts, other) or "-" in (step.parts[len(place) - 1], place[-1]):
        return step.parts
    inserts = step.moves and step.name == "add" and len(step.parts) == len(place)
    return _shift_index(step.parts, place, other, inserts=inserts, yields=yields)


def _shift_index(
    parts: list[str], place: Sequence[str], other: Step, *, inserts: bool, yields: bool
) -> list[str] | None:
    depth = len(place) - 1
    index, at = int(parts[depth]), int(place[depth])
    if other.name == "add":
        index += index > at or (index == at and (yields or not inserts))
    elif index == at and not inserts:
        return None
    else:
        index -= index > at
    return [*parts[:depth], str(index), *parts[depth + 1 :]]
