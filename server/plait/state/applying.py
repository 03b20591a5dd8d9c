"""The revision that operations, or a value of the server, make of another."""

from collections.abc import Sequence

import msgspec

from plait.limits import Limits
from plait.state.revision import Revision
from plait.state.typed import NotTyped, apply_typed
from plait.state.types import MOST_OPS, StateType, check_op
from plait_schemas.codec import encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import Op, find, parse

__all__ = ["apply_ops", "apply_value", "drop_unpaired_moves", "measure_op"]


def apply_ops(
    type_: StateType, before: Revision, ops: Sequence[Op], *, drops_unknown: bool, most_moved: int | None
) -> tuple[Revision, Sequence[Op]]:
    """Return the revision after operations, and the operations with their values as the type encodes them.

    Raises PatchError when they do not fit, and InvalidState.
    """
    if not type_.is_plain and before.has_state:
        try:
            state, ops = apply_typed(before.base, type_.type, ops, drops_unknown=drops_unknown)
            return Revision(type_, state=state), ops
        except NotTyped:
            ops = [*_add_omitted(before, ops), *ops]
    state, document = type_.apply(before.document, ops, drops_unknown=drops_unknown, most_moved=most_moved)
    if type_.is_plain:
        return Revision(type_, document=document), ops
    if not before.has_state:
        return Revision(type_, state=state), [Op("add", "", state)]
    if any(op.op == "splice" for op in ops) and (data := encode_json(state)) == encode_json(document):
        return Revision(type_, json=data, state=state), ops  # A difference may not tell what is inside of a text.
    return Revision(type_, state=state), diff(before.base, state, type_.keys, most=MOST_OPS)


def apply_value(
    type_: StateType, before: Revision, value: object, limits: Limits
) -> tuple[Revision, Sequence[Op]] | None:
    """Return the revision of a value that shares parts with the state before, and the differences.

    None if there is no state before, or if it cannot be made of the differences. Raises InvalidState and TooLarge.
    """
    if not before.has_state:
        return None
    try:
        ops: Sequence[Op] = diff(before.base, value, type_.keys, most=MOST_OPS)
        for op in ops:
            check_op(op, limits)
        state, ops = apply_typed(before.base, type_.type, ops)
    except (NotTyped, TypeError, ValueError, RecursionError):
        return None
    return Revision(type_, state=state), ops


def drop_unpaired_moves(ops: Sequence[Op]) -> Sequence[Op]:
    """Return the operations, with `moved` dropped from those that do not follow the `remove` of the moved element.

    After the operations of another change, such an `add` would seem to move an element that the other one removed.
    """
    if True not in [op.moved for op in ops]:
        return ops
    before = [None, *ops]
    return [
        Op(op.op, op.path, op.value) if op.moved is True and not _is_moved(op, last) else op
        for last, op in zip(before, ops, strict=False)
    ]


def measure_op(op: Op) -> int:
    """Return about how many bytes an operation may add to a state's JSON."""
    if op.value is msgspec.UNSET:
        return 0 if op.insert is msgspec.UNSET else len(encode_json(op.insert))
    return len(encode_json(op.value)) + len(op.path) - op.path.rfind("/") + 4


def _is_moved(op: Op, last: Op | None) -> bool:
    lists = [each.path.rpartition("/")[0] for each in (op, last) if each is not None]
    return last is not None and op.op == "add" and last.op == "remove" and lists[0] == lists[1]


def _add_omitted(before: Revision, ops: Sequence[Op]) -> list[Op]:
    """Return what puts the texts of splices in the document that a state has and its JSON leaves out, as defaults."""
    found: list[Op] = []
    for path in dict.fromkeys(op.path for op in ops if op.op == "splice"):
        parts = parse(path)
        text = find(before.tree, parts)
        if isinstance(text, str) and find(before.document, parts) is msgspec.UNSET:
            found.append(Op("add", path, text))
    return found
