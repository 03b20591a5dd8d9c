"""Applies operations to a state of Structs, tuples, lists and dicts, copying only the parts that change."""

import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from plait.errors import InvalidState
from plait.state.fields import Plan, check_fields, make_plan, make_unknown_field_error
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, encode_json
from plait_schemas.patch import Op, Owned, PatchError, escape, index_in, own, parse, splice_text

__all__ = ["NotTyped", "apply_typed"]


class NotTyped(Exception):
    """An operation leads through a value whose members cannot be changed one by one."""


class _Field(NamedTuple):
    name: str
    type: Any


_UNIONS: Final = (Union, types.UnionType)
_NO_STRINGS: Final = (inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType)
# Elements of tuples that operations may copy; above it, converting the whole state is faster.
_MOST_COPIED: Final = 1_000_000
# Moving this many elements of a list takes as long as copying one.
_MOVED_PER_COPIED: Final = 50


def apply_typed(state: Any, type_: Any, ops: Sequence[Op], *, drops_unknown: bool = False) -> tuple[Any, list[Op]]:
    """Return the state after `ops`, and the operations with their values as the type encodes them.

    Unchanged parts are shared. Raises InvalidState for a value that does not fit the type of its place, and for an
    unknown field unless `drops_unknown`, PatchError when the operations do not fit the state, and NotTyped.
    """
    made: list[Op] = []
    owned: Owned = {}
    copied = 0
    for op, follower in zip_longest(ops, ops[1:]):
        # To check a text of which more is changed right away would take time for all of it again and again.
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
        # The operation with its value as the type encodes it.
        self.made = op
        # The cost, as a number of copied tuple elements.
        self.copied = 0

    def put(self, node: Any, type_: Any, depth: int) -> Any:
        """Return `node`, whose type is `type_`, after the operation."""
        if depth == len(self._parts):
            if self._op.op != "splice":
                raise NotTyped
            return self._splice(node, type_)
        if isinstance(node, msgspec.Struct):
            return self._into_struct(node, depth)
        match node:
            case dict():
                return self._into_dict(node, _find_member_type(type_, dict), depth)
            case list() | tuple() if type(node) in (list, tuple):
                return self._into_array(node, type_, depth)
            case None | bool() | int() | float() | str():
                raise PatchError(f"{self._op.path!r} leads into a value that has no members")
            case _:
                raise NotTyped  # A dataclass or a named tuple, for example.

    def _into_struct(self, node: msgspec.Struct, depth: int) -> Any:
        fields = _find_fields(type(node))
        name = self._parts[depth]
        field = fields.get(name)
        if field is None and name != node.__struct_config__.tag_field and not self._drops_unknown:
            raise make_unknown_field_error(name, fields, "".join(f"/{escape(part)}" for part in self._parts[:depth]))
        if field is None or (self._is_last(depth) and self._op.op == "remove"):
            raise NotTyped  # The type may have a default for it: convert the whole state.
        if self._is_last(depth) and self._op.op != "splice":
            value = self._convert_value(field.type)
        else:
            value = self.put(getattr(node, field.name), field.type, depth + 1)
        try:
            return msgspec.structs.replace(node, **{field.name: value})
        except (TypeError, ValueError) as error:  # Raised by the author's __post_init__.
            raise InvalidState(str(error), path=self._op.path) from None

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
        member = _find_member_type(type_, type(node))
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
        """Return a text after the operation; one that is checked by its type is read as that."""
        if type(text) is not str:
            raise NotTyped  # It may be one in JSON.
        after = splice_text(self._op, text)
        if self._checks_text and not _is_any_text(type_):
            decode, _ = _make_reader(type_)
            try:
                after = decode(encode_json(after))
            except NOT_JSON as error:
                raise InvalidState(parse_json_error(error)[0], path=self._op.path) from None
            if type(after) is not str:
                raise NotTyped
        return after

    def _is_last(self, depth: int) -> bool:
        return depth == len(self._parts) - 1

    def _convert_value(self, type_: Any) -> Any:
        """Return the operation's value as an object of a type."""
        if self._op.value is msgspec.UNSET:
            raise PatchError(f"{self._op.op} {self._op.path!r} has no value")
        decode, plan = _make_reader(type_)
        if plan is not None and not self._drops_unknown:
            check_fields(plan, self._op.value, self._op.path)
        data = encode_json(self._op.value)
        try:
            value = decode(data)
        except NOT_JSON as error:
            message, where = parse_json_error(error)
            raise InvalidState(message, path=self._op.path + where) from None
        self.made = Op(self._op.op, self._op.path, value, self._op.moved)
        return value


@lru_cache(maxsize=1024)
def _make_reader(type_: Any) -> tuple[Callable[[bytes], Any], Plan | None]:
    return msgspec.json.Decoder(type_).decode, make_plan(type_)


@lru_cache(maxsize=1024)
def _is_any_text(type_: Any) -> bool:
    """Tell whether a type takes any string, and makes nothing else of it."""
    return _takes_any_text(inspect.type_info(type_))


def _takes_any_text(info: inspect.Type) -> bool:
    match info:
        case inspect.Metadata(type=inner):
            return _takes_any_text(inner)
        case inspect.UnionType(types=members):
            return all(_takes_any_text(each) or isinstance(each, _NO_STRINGS) for each in members)
        case _:
            return info in (inspect.StrType(), inspect.AnyType())


@lru_cache(maxsize=1024)
def _find_fields(cls: type[msgspec.Struct]) -> dict[str, _Field]:
    """Return the fields of a Struct by their names in JSON. Raises NotTyped."""
    config = cls.__struct_config__
    if config.array_like or config.omit_defaults or getattr(cls, "__parameters__", None):
        raise NotTyped
    hints = get_type_hints(cls, include_extras=True)
    pairs = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
    fields = {name: _Field(attribute, hints[attribute]) for name, attribute in pairs}
    if any(_is_open(field.type) for field in fields.values()):
        raise NotTyped
    return fields


@lru_cache(maxsize=1024)
def _find_member_type(type_: Any, container: type) -> Any:
    """Return the type of a dict's values, or of the elements of a list or tuple. Raises NotTyped."""
    if type_ is Any or (type_ is container and container in (dict, list, tuple)):
        return Any
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in _UNIONS:
        found = [each for each in arguments if get_origin(each) is container or each is container]
        if len(found) == 1:
            return _find_member_type(found[0], container)
    elif origin is dict is container and arguments[0] is str:
        return arguments[1]
    elif origin is container and (origin is list or (origin is tuple and arguments[1:] == (Ellipsis,))):
        return arguments[0]
    raise NotTyped


def _is_open(type_: Any) -> bool:
    """Whether a type cannot be decoded by itself, as it has a type variable or UNSET."""
    if isinstance(type_, TypeVar) or type_ is msgspec.UnsetType:
        return True
    arguments = get_args(type_)[:1] if get_origin(type_) is Annotated else get_args(type_)
    return any(_is_open(each) for each in arguments)
