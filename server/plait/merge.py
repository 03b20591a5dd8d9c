"""What is done where a change and those of others meet: the thread's class decides."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from plait.errors import Conflict
from plait_schemas.patch import Op, find, parse
from plait_schemas.rebase import Rebased

__all__ = ["Policy", "Resolve", "merge"]

Policy = Literal["last-writer", "reject"]
Resolve = Callable[[Any, Any, Any, str], Any]
"""Given what was at a path, what is there now and what is proposed (None for nothing), returns what is to be there."""


def merge(
    ops: Sequence[Op],
    rebased: Rebased,
    *,
    contested: Sequence[str],
    document: Any,
    policy: Policy | Resolve,
    base: Any,
) -> list[Op]:
    """Return what is to be carried out on `document` for `ops`, which have been `rebased` to it.

    `contested` are further places that others have changed. A Resolve is told what they were in `base`, the state
    that the operations were made on. Raises Conflict.
    """
    conflicts = {*rebased.conflicts, *contested}
    if rebased.is_lost:
        raise Conflict("what was to be changed is gone", path=next(iter(rebased.conflicts), None))
    if not conflicts or policy == "last-writer":
        return rebased.ops
    if not callable(policy):
        raise Conflict("somebody else has changed the same", path=min(conflicts))
    origins = ops if len(ops) == len(rebased.ops) else rebased.ops
    return [
        _resolve(op, origin, base, document, policy) if op.path in conflicts else op
        for op, origin in zip(rebased.ops, origins, strict=True)
    ]


def _resolve(op: Op, origin: Op, base: Any, document: Any, resolve: Resolve) -> Op:
    before, current = find(base, parse(origin.path)), find(document, parse(op.path))
    value = resolve(_given(before), _given(current), _given(op.value), op.path)
    if value is None and op.op == "remove":
        return op
    return Op("add" if op.op == "add" else "replace", op.path, value)


def _given(value: Any) -> Any:
    return None if value is msgspec.UNSET else value
