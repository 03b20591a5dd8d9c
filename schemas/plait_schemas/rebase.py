"""Rebases operations that were made on an older state, so that they can be applied to a newer one.

Both sides of a socket do this: the server rebases a push with an old base, a client the pushes that it already shows.
Places are compared by JSON pointer. The indices of arrays move with the elements that others inserted and removed
(operational transformation of insertions and deletions, Ellis & Gibbs 1989; of two insertions at one index the earlier
stays before the later), and so do the characters of texts. An operation on an element that others moved follows it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from plait_schemas.inverse import taking_back
from plait_schemas.patch import Op
from plait_schemas.shape import Shape
from plait_schemas.step import Step, is_of, is_pair, leads_through

__all__ = ["Rebased", "rebase"]


class Rebased(NamedTuple):
    """The result of a rebase; `conflicts` are the places, in the newer state, that others have changed, too."""

    ops: list[Op]
    conflicts: list[str]
    # Whether a place that they lead into is gone, so that they cannot be applied.
    is_lost: bool
    # The operations that they were rebased over, to be applied after them, without those that have lost their effect.
    # If `ops` are lost, they are undone in here, just before the operation that removed their place.
    over: list[Op]
    # For each operation of `over`, the index of the given one that it comes from, or before which it undoes something.
    indices: list[int]


def rebase(
    ops: Iterable[Op], over: Iterable[Op], document: Any, charge: Callable[[int], None] = lambda _: None
) -> Rebased:
    """Rebase `ops` over `over`, which were made on the same state and lead from there to `document`.

    `charge` is called before two splices are transformed that have more than one region each, with the number of their
    regions. It may raise.
    """
    ops, over = list(ops), list(over)
    if not over:
        return Rebased(ops, [], False, [], [])
    shape = Shape(document)
    others = _undo_on(shape, over, is_exact="remove" in [op.op for op in ops])
    steps = _do_on(shape, ops)
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
        _leave_out(ops, over, lost_at, document, charge)
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
"""One operation, or the `remove` and the `add` that move an element."""


def _undo_on(shape: Shape, over: Sequence[Op], *, is_exact: bool = True) -> list[Step]:
    """Return the steps of the operations that led to a shape, and undo them on it."""
    steps = [Step(op) for op in over]
    index = len(steps)
    while index:
        index -= 1
        step = steps[index]
        if step.name == "splice":
            continue  # A text is one value for a shape.
        step.look_up(shape, has_happened=True, is_exact=is_exact)
        if step.is_moved and index and is_pair(steps[index - 1], step):
            index -= 1
            shape.undo_move(steps[index].parts, step.parts)
        else:
            shape.undo(step.name, step.parts)
    return steps


def _units(steps: Sequence[Step]) -> list[tuple[int, _Unit]]:
    """Return the units of operations, each with the index of its first operation."""
    units: list[tuple[int, _Unit]] = []
    for index, step in enumerate(steps):
        if units and len(units[-1][1]) == 1 and is_pair(units[-1][1][0], step):
            units[-1][1].append(step)
        else:
            units.append((index, [step]))
    return units


def _do_on(shape: Shape, ops: Sequence[Op]) -> list[Step]:
    """Return the steps of operations, and do them on a shape."""
    steps: list[Step] = []
    for op in ops:
        steps.append(step := Step(op))
        step.look_up(shape)
        shape.do(step.name, step.parts, op.value)
    return steps


def _leave_out(
    ops: Sequence[Op], over: Sequence[Op], lost_at: int, document: Any, charge: Callable[[int], None]
) -> list[tuple[int, Op]]:
    """Return `over`, with the inverse of `ops` before the operation at `lost_at`; each operation with its index."""
    shape = Shape(document)
    rest = _undo_on(shape, over[lost_at:])
    document = shape.look(())
    before = rebase(ops, over[:lost_at], document, charge)
    return [
        *zip(before.indices, before.over, strict=True),
        *((lost_at, op) for op in taking_back(before.ops, document)),
        *((index, op) for index, step in enumerate(rest, lost_at) for op in step.ops()),
    ]


def _pass_all(mine: Step, others: Sequence[Step], charge: Callable[[int], None]) -> int:
    """Transform `mine` and `others`, which come before it.

    Returns the index of the operation that removes the place of `mine`, the number of others if there is none.
    """
    for index, other in enumerate(others):
        if not other.is_gone:
            _pass(mine, other, charge)
            if mine.is_gone:
                return len(others) if mine.is_done else index
    return len(others)


def _pass_units(mine: _Unit, others: Sequence[tuple[int, _Unit]], count: int, charge: Callable[[int], None]) -> int:
    """Transform `mine` and `others`, which come before it and are `count` operations.

    Returns the index of the operation that removes the place of `mine`, `count` if there is none.
    """
    for index, other in others:
        if not all(step.is_gone for step in other):
            _pass_unit(mine, other, charge)
            if any(step.is_gone and not step.is_done for step in mine):
                return index
            if any(step.is_done for step in mine):
                break
    return count


def _pass_unit(mine: _Unit, other: _Unit, charge: Callable[[int], None]) -> None:
    """Transform `mine` and `other`, which comes before it, so that each can be applied after the other."""
    if len(mine) == len(other) == 2 and mine[0].parts == other[0].parts:
        # If both move the element, the later move wins.
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
    """Apply `mine` to the element at the place to which `other` has moved it."""
    depth = len(other[0].parts)
    rest = mine.parts[depth:]
    if mine.name == "remove" and not rest:
        other[0].is_gone = other[1].is_gone = True
    else:
        other[1].take_along(mine, rest)
    mine.parts = [*other[1].parts, *rest]


def _take_along(mine: _Unit, other: Step) -> None:
    """Make `mine` move the element with the change that `other` has made to it."""
    rest = other.parts[len(mine[0].parts) :]
    is_whole = not rest and other.name in ("remove", "replace")
    if is_whole or not (other.name == "remove" or other.has_value):
        # The element is gone, may be another one, or has an unknown value, as when an operation is undone.
        mine[0].is_contested = mine[0].is_gone = True
    else:
        mine[1].take_along(other, rest)
        other.parts = [*mine[1].parts, *rest]


def _pass(mine: Step, other: Step, charge: Callable[[int], None]) -> None:
    """Transform `mine` and `other`, which comes before it, so that each can be applied after the other."""
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
            # Others have replaced the text, or a container of it.
            mine.is_gone = True
        elif len(other_place) < len(place):
            other.take_in(mine)
        else:
            other.is_gone = True
            if is_same and other.name == "remove":
                mine.name = "add"


def _shift_after(step: Step, place: Sequence[str], other: Step, *, yields: bool) -> list[str] | None:
    """Return the place of `step` after `other`, which is at `place`; None if `other` has removed it."""
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
