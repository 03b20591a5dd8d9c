"""What is done where a change and those of others meet: the thread's class decides."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from plait.errors import Conflict, InvalidState
from plait_schemas.codec import decode_json, encode_json, has_non_finite
from plait_schemas.patch import Op, find, parse
from plait_schemas.rebase import Rebased
from plait_schemas.step import is_place
from plait_schemas.trace import Origin

__all__ = ["Policy", "Resolve", "may_meet", "merge"]

Policy = Literal["last-writer", "reject"]
Resolve = Callable[[Any, Any, Any, str], Any]
"""Given what was at a path, what is there now and what is proposed (None for nothing), returns what is to be there."""


def may_meet(ops: Iterable[Op], others: Iterable[Op]) -> bool:
    """Tell whether any of two lists of operations may be at one place, wherever the elements of arrays have moved."""
    there = {_kind_of_place(other.path) for other in others}
    around = {place[:depth] for place in there for depth in range(len(place))}
    places = [_kind_of_place(op.path) for op in ops] if there else []
    return any(place in around or any(place[:depth] in there for depth in range(len(place) + 1)) for place in places)


def _kind_of_place(path: str) -> tuple[str, ...]:
    return tuple("-" if is_place(part) else part for part in parse(path))


def merge(
    rebased: Rebased, origins: Sequence[Origin], *, document: Any, policy: Policy | Resolve, base: Any
) -> list[Op]:
    """Return what is to be carried out on `document` for operations that have been `rebased` to it.

    `origins` say of each of them where it comes from and whether others have changed the same; of the last writer's
    that is not asked. A Resolve is told what was there in `base`, the state that they were made on. Raises Conflict.
    """
    if rebased.is_lost:
        raise Conflict("what was to be changed is gone", path=next(iter(rebased.conflicts), None))
    if policy == "last-writer":
        return rebased.ops
    pairs = list(zip(rebased.ops, origins, strict=True))
    if not callable(policy):
        contested = [op.path for op, origin in pairs if origin.is_contested]
        if contested:
            raise Conflict("somebody else has changed the same", path=contested[0])
        return rebased.ops
    resolved = (
        # There is no value to be made of a move: the element is taken out and put in as it is.
        _resolve(op, origin, base, document, policy) if origin.is_contested and not origin.is_moved else op
        for op, origin in pairs
    )
    return [op for op in resolved if op is not None]


def _resolve(op: Op, origin: Origin, base: Any, document: Any, resolve: Resolve) -> Op | None:
    before, current = _at(base, origin.before), _at(document, origin.now)
    is_inserted = op.op == "add" and isinstance(_at(document, op.path.rpartition("/")[0]), list | tuple)
    if is_inserted:
        before = current = msgspec.UNSET  # What is at its index is another element, which stays.
    value = resolve(_given(before), _given(current), _given(op.value), op.path)
    if value is None and (is_inserted or op.op == "remove"):
        return None if is_inserted else op
    if has_non_finite(value):
        raise InvalidState("resolve_conflict returned a number that is infinite or not a number", path=op.path)
    value = _given(value)
    return Op("add" if op.op == "add" else "replace", op.path, value)


def _at(document: Any, place: str | None) -> Any:
    return msgspec.UNSET if place is None else find(document, parse(place))


def _given(value: Any) -> Any:
    """Return a value as JSON of its own, for the hook or from it: the thread's is not to be changed in place."""
    return None if value is msgspec.UNSET else decode_json(encode_json(value))
