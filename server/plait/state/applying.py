"""Makes the next revision, by operations or from a value of the server; copies only the changed parts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from itertools import zip_longest
from typing import Any, Final, cast

import msgspec

from plait.limits import WEIGHT_PER_BYTE, Limits, check_weight
from plait.state.fields import check_fields, make_unknown_field_error
from plait.state.member_types import Field, NotTyped, find_fields, find_member_type, is_any_text, make_reader
from plait.state.revision import Revision
from plait.state.types import StateType, check_depth, decode_at, encode_value
from plait_schemas.codec import LARGE, NOT_JSON, decode_json, decoded, encode_json, weigh
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.patch import Op, Owned, PatchError, escape, find, index_in, own, parse, splice_text

__all__ = ["apply_ops", "apply_typed", "apply_value", "check_ops", "measure_op", "weigh_change"]

# Elements of tuples that operations may copy; above it, converting the whole state is faster.
_MOST_COPIED: Final = 1_000_000
# Moving this many elements of a list takes as long as copying one.
_MOVED_PER_COPIED: Final = 50
# Values that need no check.
_PLAIN_SCALARS: Final = frozenset({int, bool, type(None), msgspec.UnsetType})


def apply_ops(
    type_: StateType,
    before: Revision,
    ops: Sequence[Op],
    limits: Limits,
    *,
    drops_unknown: bool,
    most_moved: int | None,
) -> tuple[Revision, Sequence[Op]]:
    """Return the revision after the operations, and the operations with their values converted to the type.

    Raises PatchError if the operations do not fit the state, and InvalidState.
    """
    if not type_.is_document and before.has_state:
        try:
            state, ops = apply_typed(before.tree, type_.type, ops, drops_unknown=drops_unknown)
            return Revision(type_, tree=state), ops
        except NotTyped:
            ops = [*_add_omitted(before, ops), *map(_decode_value, ops)]
    # The document is not decoded if the first operation replaces all of it.
    is_replaced = bool(ops) and ops[0].path == "" and ops[0].op in ("add", "replace")
    tree = None if is_replaced else before.partial if type_.is_document else before.document
    patched = type_.apply(tree, ops, drops_unknown=drops_unknown, most_moved=most_moved)
    json = before.require_json() if before.has_state and type_.is_document and not type_.is_plain else b""
    state, document = type_.check(patched, limits, json, is_whole=any(op.path == "" for op in ops))
    if type_.is_plain:
        if type(document) is msgspec.Raw:
            return Revision(type_, json=bytes(document)), ops
        is_partial = before.is_partial or msgspec.Raw in [type(op.value) for op in ops]
        return Revision(type_, tree=document, is_partial=is_partial), ops
    if type_.is_document:
        # Validation may have changed the document; a different order of members is no change.
        if document is not patched and diff(patched, document, most=1):
            ops = [Op("add", "", document)]
            if before.has_state:
                ops = diff(before.tree, document, type_.keys, most=MOST_OPS)
        return Revision(type_, tree=document, copy=state), ops
    if not before.has_state:
        return Revision(type_, tree=state), [Op("add", "", state)]
    if any(op.op == "splice" for op in ops) and (data := encode_json(state)) == encode_json(document):
        return Revision(type_, json=data, tree=state), ops  # A diff may find other splices than these.
    return Revision(type_, tree=state), diff(before.tree, state, type_.keys, most=MOST_OPS)


def apply_value(
    type_: StateType, before: Revision, value: object, limits: Limits
) -> tuple[Revision, Sequence[Op]] | None:
    """Return the revision of a value that shares parts with the earlier state, and the differences.

    Returns None without an earlier state, or if the differences do not lead to the value. Raises InvalidState and
    TooLarge.
    """
    if not before.has_state:
        return None
    try:
        ops: Sequence[Op] = diff(before.tree, value, type_.keys, most=MOST_OPS)
        check_ops(ops, limits)
        state, ops = apply_typed(before.tree, type_.type, ops)
    except (NotTyped, TypeError, ValueError, RecursionError):
        return None
    return Revision(type_, tree=state), ops


def check_ops(ops: Sequence[Op], limits: Limits) -> Sequence[Op]:
    """Check the values and the inserted texts of operations. Raises InvalidState or TooLarge.

    Returns the operations. `moved` is dropped from an `add` that does not follow the `remove` of the moved element:
    after the operations of another change, this `add` would seem to move an element that the other change removed.
    """
    has_moved = False
    for op in ops:
        if type(op.value) is msgspec.Raw:
            check_depth(bytes(op.value), limits, op.path)
        elif type(op.value) not in _PLAIN_SCALARS:
            encode_value("value", op.value, limits, op.path)
        elif op.insert is not msgspec.UNSET:
            encode_value("text", op.insert, limits, op.path)
        has_moved = has_moved or op.moved is True
    if not has_moved:
        return ops
    before = [None, *ops]
    return [
        Op(op.op, op.path, op.value) if op.moved is True and not _is_moved(op, last) else op
        for last, op in zip(before, ops, strict=False)
    ]


def measure_op(op: Op) -> int:
    """Return the approximate number of bytes that an operation may add to a state's JSON."""
    if op.value is msgspec.UNSET:
        return 0 if op.insert is msgspec.UNSET else len(encode_json(op.insert))
    size = len(op.value) if type(op.value) is msgspec.Raw else len(encode_json(op.value))
    return size + len(op.path) - op.path.rfind("/") + 4


def weigh_change(before: Revision, after: Revision, limits: Limits) -> None:
    """Raise TooLarge if a change has made the state too heavy. A state that was too heavy before may become lighter."""
    most = limits.weight
    if before.weight is None:
        before.weight = weigh(before.json or b"", most)
    after.weight = before.weight + math.ceil((after.size - before.size) * WEIGHT_PER_BYTE)
    if after.weight > most:
        after.weight = weigh(after.require_json(), most)
        if after.weight > before.weight:
            check_weight("state", after.require_json(), limits)


def apply_typed(state: Any, type_: Any, ops: Sequence[Op], *, drops_unknown: bool = False) -> tuple[Any, list[Op]]:
    """Return the state after `ops`, and the operations with their values converted to the type.

    Unchanged parts are shared. Raises InvalidState for a value that does not fit the type of its place, and for an
    unknown field unless `drops_unknown`, PatchError when the operations do not fit the state, and NotTyped.
    """
    made: list[Op] = []
    owned: Owned = {}
    copied = 0
    for op, follower in zip_longest(ops, ops[1:]):
        # A text is checked as a whole, so check it only after the last of its consecutive splices.
        is_last = follower is None or follower.op != "splice" or follower.path != op.path
        place = _Place(op, parse(op.path), owned, drops_unknown=drops_unknown, checks_text=is_last)
        state = place.put(state, type_, 0)
        made.append(place.made)
        copied += place.copied
        if copied > _MOST_COPIED and op is not ops[-1]:
            raise NotTyped
    return state, made


class _Place:
    """Applies one operation at its place."""

    __slots__ = ("_checks_text", "_drops_unknown", "_op", "_owned", "_parts", "copied", "made")

    def __init__(self, op: Op, parts: list[str], owned: Owned, *, drops_unknown: bool, checks_text: bool) -> None:
        self._checks_text = checks_text
        self._drops_unknown = drops_unknown
        self._op = op
        self._parts = parts
        self._owned = owned
        # The operation with its value converted to the type.
        self.made = op
        # The cost, as a number of copied tuple elements.
        self.copied = 0

    def put(self, node: Any, type_: Any, depth: int) -> Any:
        """Return `node`, whose type is `type_`, after the operation."""
        if depth == len(self._parts):
            if self._op.op != "splice":
                raise NotTyped
            return self._splice(node, type_)
        if isinstance(node, msgspec.Struct) or is_dataclass(node):
            return self._into_object(node, depth)
        match node:
            case dict():
                return self._into_dict(node, find_member_type(type_, dict), depth)
            case list() | tuple() if type(node) in (list, tuple):
                return self._into_array(node, type_, depth)
            case None | bool() | int() | float() | str():
                raise PatchError(f"{self._op.path!r} leads into a value that has no members")
            case _:
                raise NotTyped  # A named tuple, for example.

    def _into_object(self, node: Any, depth: int) -> Any:
        fields = find_fields(cast("type", type(node)))
        name = self._parts[depth]
        field = fields.get(name)
        tag = node.__struct_config__.tag_field if isinstance(node, msgspec.Struct) else None
        if field is None and name != tag and not self._drops_unknown:
            raise make_unknown_field_error(name, fields, "".join(f"/{escape(part)}" for part in self._parts[:depth]))
        is_last = self._is_last(depth)
        if field is None or (is_last and self._op.op == "remove"):
            raise NotTyped  # The type may have a default for the removed field: convert the whole state.
        if not isinstance(node, msgspec.Struct) and field.name not in vars(node):
            raise NotTyped  # The document leaves the field out, or it is a property.
        if is_last and self._op.op != "splice":
            value = self._convert_value(field.type)
        else:
            value = self.put(getattr(node, field.name), field.type, depth + 1)
        if isinstance(node, msgspec.Struct):
            return _replace(node, fields.values(), field, value)
        # Like an object that msgspec decodes: without attributes that are no fields, and without running code of the
        # class.
        made = object.__new__(type(node))
        vars(made).update({each.name: vars(node)[each.name] for each in fields.values() if each.name in vars(node)})
        vars(made)[field.name] = value
        return made

    def _into_dict(self, node: dict[Any, Any], type_: Any, depth: int) -> Any:
        key = self._parts[depth]
        if key not in node and (self._op.op != "add" or not self._is_last(depth)):
            raise PatchError(f"{self._op.path!r} does not exist")
        value = self._change_member(node, key, type_, depth)
        copy: dict[Any, Any] = own(node, self._owned)
        if value is msgspec.UNSET:
            del copy[key]
        else:
            copy[key] = value
        return copy

    def _into_array(self, node: list[Any] | tuple[Any, ...], type_: Any, depth: int) -> Any:
        member = find_member_type(type_, type(node))
        is_last = self._is_last(depth)
        index = index_in(node, self._parts[depth], self._op, is_last=is_last)
        value = self._change_member(node, index, member, depth)
        is_tuple = isinstance(node, tuple)
        elements: list[Any] = list(node) if is_tuple else own(node, self._owned)
        if value is msgspec.UNSET:
            del elements[index]
        elif is_last and self._op.op == "add":
            elements.insert(index, value)
        else:
            elements[index] = value
        self.copied += len(elements) if is_tuple else len(elements) // _MOVED_PER_COPIED
        return tuple(elements) if is_tuple else elements

    def _change_member(self, node: Any, at: Any, type_: Any, depth: int) -> Any:
        """Return the new value for a key or an index, as an object of its type; UNSET if it is removed."""
        if not self._is_last(depth) or self._op.op == "splice":
            return self.put(node[at], type_, depth + 1)
        return msgspec.UNSET if self._op.op == "remove" else self._convert_value(type_)

    def _splice(self, text: Any, type_: Any) -> str:
        """Return a text after the operation, decoded by its type if that restricts it."""
        if type(text) is not str:
            raise NotTyped  # A value whose JSON is a string, such as an enum.
        after = splice_text(self._op, text)
        if self._checks_text and not is_any_text(type_):
            decode, _ = make_reader(type_)
            after = decode_at(decode, encode_json(after), self._op.path)
            if type(after) is not str:
                raise NotTyped
        return after

    def _is_last(self, depth: int) -> bool:
        return depth == len(self._parts) - 1

    def _convert_value(self, type_: Any) -> Any:
        """Return the operation's value as an object of a type."""
        if self._op.value is msgspec.UNSET:
            raise PatchError(f"{self._op.op} {self._op.path!r} has no value")
        decode, plan = make_reader(type_)
        if plan is not None and not self._drops_unknown:
            check_fields(plan, decoded(self._op.value), self._op.path)
        data = encode_json(self._op.value)
        try:
            value = decode(data)
        except NOT_JSON:
            value = decode_at(decode, data, self._op.path)  # Raises an error with the path.
        made = value if len(data) < LARGE else msgspec.Raw(encode_json(value))  # Measured first, then stored.
        self.made = Op(self._op.op, self._op.path, made, self._op.moved)
        return value


def _replace(node: msgspec.Struct, fields: Iterable[Field], field: Field, value: Any) -> msgspec.Struct:
    try:
        made = msgspec.structs.replace(node, **{field.name: value})
    except (TypeError, ValueError):  # Code of the class may accept the value after the next operation.
        raise NotTyped from None
    if hasattr(made, "__post_init__"):
        expected = (value if each is field else getattr(node, each.name) for each in fields)
        if any(getattr(made, each.name) is not other for each, other in zip(fields, expected, strict=True)):
            raise NotTyped  # Code of the class has changed more than the operation says.
    return made


def _decode_value(op: Op) -> Op:
    return msgspec.structs.replace(op, value=decode_json(op.value)) if type(op.value) is msgspec.Raw else op


def _is_moved(op: Op, last: Op | None) -> bool:
    lists = [each.path.rpartition("/")[0] for each in (op, last) if each is not None]
    return last is not None and op.op == "add" and last.op == "remove" and lists[0] == lists[1]


def _add_omitted(before: Revision, ops: Sequence[Op]) -> list[Op]:
    """Return operations that add the texts of splices to a document that leaves them out, as they are defaults."""
    paths = dict.fromkeys(op.path for op in ops if op.op == "splice")
    document = before.document if paths else None
    texts = [
        (path, find(before.tree, parts)) for path in paths if find(document, parts := parse(path)) is msgspec.UNSET
    ]
    return [Op("add", path, text) for path, text in texts if isinstance(text, str)]
