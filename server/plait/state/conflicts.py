"""Conflict resolution, for a change and the changes of others that affect the same place."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from plait.errors import Conflict, InvalidState
from plait.state.budget import Budget
from plait_schemas.codec import decode_json, decoded, encode_json, encode_whole
from plait_schemas.elements import Id, Keys, id_of, ids_of
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.patch import Op, find, parse
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.step import is_place
from plait_schemas.trace import Origin, trace

__all__ = ["Policy", "Resolve", "drop_known", "drop_lost_moves", "may_meet", "merge"]

Policy = Literal["last-writer", "reject"]
Resolve = Callable[[Any, Any, Any, str], Any]
"""Takes the value that the change was made on, the current value and the proposed value (None for no value), and the
path; returns the value to set."""


def may_meet(ops: Iterable[Op], others: Iterable[Op]) -> bool:
    """Return whether two lists of operations may have a place in common, if elements of arrays may have moved."""
    there = {_kind_of_place(other.path) for other in others}
    around = {place[:depth] for place in there for depth in range(len(place))}
    places = [_kind_of_place(op.path) for op in ops] if there else []
    return any(place in around or any(place[:depth] in there for depth in range(len(place) + 1)) for place in places)


def _kind_of_place(path: str) -> tuple[str, ...]:
    return tuple("-" if is_place(part) else part for part in parse(path))


def drop_known(rebased: Rebased, theirs: Sequence[Op], document: Any, *, keys: Keys | None, budget: Budget) -> Rebased:
    """Return a write without the elements that others have also inserted, with the same ids: those of the others stay.

    So an element with an id is never doubled, even if the write was compared with a state that its client had not read.
    """
    known = {id for op in theirs if (id := _inserted_id(op, keys)) is not None}
    suspects = [at for at, op in enumerate(rebased.ops) if _inserted_id(op, keys) in known] if known else []
    if not suspects or rebased.is_lost:
        return rebased
    budget.charge_rebase(rebased.ops, len(theirs), traces=True)
    origins = trace(rebased.ops, theirs, document)
    there: dict[str, Counter[Any]] = {}
    ops = list(rebased.ops)
    for at in reversed(suspects):
        op, place = ops[at], (origins[at].now or "").rpartition("/")[0]
        if place not in there:
            elements = find(document, parse(place))
            elements = list(map(decoded, elements)) if isinstance(elements, list | tuple) else []
            budget.charge_elements(len(elements))
            there[place] = Counter(ids_of(elements, None if keys is None else keys.at(place)))
        if there[place][_inserted_id(op, keys)] == 1:
            # The later operations were made with the element in the list.
            budget.charge_rebase(ops[at + 1 :], 1)
            gone = Op("remove", op.path)
            ops[at:] = [*([gone] if op.op == "replace" else ()), *rebase(ops[at + 1 :], [gone], None).ops]
    return rebased._replace(ops=ops)


def drop_lost_moves(ops: Sequence[Op], theirs: Sequence[Op], *, budget: Budget) -> list[Op]:
    """Return a write without the moves of elements that others have removed, which stay removed.

    A client that writes whole states did not ask for these moves: they are differences from the state that it had read.
    """
    left, at = list(ops), 0
    while at < len(left):
        if left[at].moved is True:
            budget.charge_rebase(left[: at + 1], len(theirs))
            if rebase(left[: at + 1], theirs, None, budget.charge_places).is_lost:
                # The earlier `remove` stays; the later operations were made with the element in the list.
                budget.charge_rebase(left[at + 1 :], 1)
                left[at:] = rebase(left[at + 1 :], [Op("remove", left[at].path)], None).ops
                continue
        at += 1
    return left


def _inserted_id(op: Op, keys: Keys | None) -> Id | None:
    """Return the id of the value that an operation may insert into a list; None without an id."""
    place, _, part = op.path.rpartition("/")
    if op.op not in ("add", "replace") or op.moved is True or not is_place(part):
        return None
    return id_of(decoded(op.value), None if keys is None else keys.at(place))


def merge(
    rebased: Rebased, origins: Sequence[Origin], *, document: Any, policy: Policy | Resolve, base: Any
) -> list[Op]:
    """Return the operations to apply to `document`, for operations that have been `rebased` onto it.

    `origins` has, for each operation, its place in `base`, the state that it was made on, and whether others have
    changed that place; "last-writer" does not use it. Raises Conflict.
    """
    if rebased.is_lost:
        raise Conflict("the place to change no longer exists", path=next(iter(rebased.conflicts), None))
    if policy == "last-writer":
        return rebased.ops
    pairs = list(zip(rebased.ops, origins, strict=True))
    if not callable(policy):
        contested = [op.path for op, origin in pairs if origin.is_contested]
        if contested:
            raise Conflict("others have changed the same place", path=contested[0])
        return rebased.ops
    resolved = (
        # Neither a move, which keeps the element unchanged, nor a splice has a value to resolve.
        _resolve(op, origin, base, document, policy)
        if origin.is_contested and not origin.is_moved and op.op != "splice"
        else op
        for op, origin in pairs
    )
    return [op for op in resolved if op is not None]


def _resolve(op: Op, origin: Origin, base: Any, document: Any, resolve: Resolve) -> Op | None:
    before, current = _find_at(base, origin.before), _find_at(document, origin.now)
    is_inserted = op.op == "add" and isinstance(_find_at(document, op.path.rpartition("/")[0]), list | tuple)
    if is_inserted:
        before = current = msgspec.UNSET  # A different element is at this index now; it stays.
    value = resolve(_copy_json(before), _copy_json(current), _copy_json(op.value), op.path)
    if value is None and (is_inserted or op.op == "remove"):
        return None if is_inserted else op
    try:
        data = encode_given(value, encode_whole)
    except EncodeError as error:
        raise InvalidState(f"resolve_conflict: {error.message}", path=op.path + error.path) from None
    return Op("add" if op.op == "add" else "replace", op.path, decode_json(data))


def _find_at(document: Any, place: str | None) -> Any:
    return msgspec.UNSET if place is None else find(document, parse(place))


def _copy_json(value: Any) -> Any:
    """Return a copy of a value for the hook or from it, so that the state is not changed in place."""
    return None if value is msgspec.UNSET else decode_json(encode_json(value))
