"""The types of pictures: the type of a state, in which members that not all clients see are optional."""

import dataclasses
import functools
import operator
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints

import msgspec

from plait.state.places import FindPlaces, Node, Places, step
from plait_schemas.models import is_model

__all__ = ["find_undecodable", "make_picture_type"]

_Nodes = Sequence[Node] | None
"""The patterns of the places that all clients see below a place; None if the client and the state decide."""


class _Field(NamedTuple):
    """A member of an object."""

    name: str
    type: Any
    is_required: bool


def make_picture_type(type_: Any, readable: Places | FindPlaces | None, prefix: str) -> Any:
    """Return the type of what clients see of a state; the names of new types begin with `prefix`."""
    if readable is None:
        return type_
    return _Pictures(prefix).make(type_, readable.roots if isinstance(readable, Places) else None)


def find_undecodable(type_: Any, readable: Places | FindPlaces | None) -> str | None:
    """Return the place of a member without a default that not all clients see: they cannot decode their pictures.

    Returns None without one, and if a method finds the places.
    """
    if not isinstance(readable, Places):
        return None
    pictures = _Pictures("")
    pictures.make(type_, readable.roots)
    return pictures.hidden


class _Pictures:
    """Makes the types of pictures, each once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._made: dict[Any, Any] = {}
        self._names: set[str] = set()
        # The place of the first member without a default that not all clients see; None without one.
        self.hidden: str | None = None

    def make(self, type_: Any, nodes: _Nodes, path: str = "") -> Any:
        """Return the type of what all clients see of a place, with all else as optional members."""
        if nodes is not None and any(node.is_end for node in nodes):
            return type_
        origin, args = get_origin(type_), get_args(type_)
        if origin is Annotated:
            return self.make(args[0], nodes, path)
        if origin in (Union, types.UnionType):
            return _union(self.make(each, nodes, path) for each in args)
        if origin is dict and len(args) == 2:
            return types.GenericAlias(dict, (args[0], self.make(args[1], _of_members(nodes), f"{path}/*")))
        if origin in (list, tuple, set, frozenset) and args:
            elements = (self.make(each, _of_elements(nodes), f"{path}/*") for each in args if each is not ...)
            return types.GenericAlias(list, (_union(elements),))
        if (fields := _fields(type_)) is None:
            return type_
        key = (type_, nodes and frozenset(nodes))
        if key not in self._made:
            self._made[key] = type_  # A type that contains itself is not written out again.
            members = {field.name: self._make_member(field, nodes, path) for field in fields}
            self._made[key] = TypedDict(self._find_name(type_), members)  # type: ignore[operator]
        return self._made[key]

    def _make_member(self, field: _Field, nodes: _Nodes, path: str) -> Any:
        below = None if nodes is None else step(nodes, field.name, None, lambda: False)
        path = f"{path}/{field.name}"
        if not below and field.is_required:
            self.hidden = self.hidden or path
        shown = field.type if below == () else self.make(field.type, below, path)
        return shown if below else NotRequired[shown]

    def _find_name(self, type_: Any) -> str:
        name = wanted = f"{self._prefix}{type_.__name__}Picture"
        number = 1
        while name in self._names:
            name = f"{wanted}{(number := number + 1)}"
        self._names.add(name)
        return name


def _union(options: Iterable[Any]) -> Any:
    return functools.reduce(operator.or_, options)


def _of_members(nodes: _Nodes) -> _Nodes:
    """Return what all clients see below each member that they see of a mapping."""
    if nodes is None:
        return None
    if any(node.any for node in nodes):
        return tuple(node.any for node in nodes if node.any is not None)
    named = [each for node in nodes for each in (*node.members.values(), node.user) if each is not None]
    return named if all(each.is_end for each in named) else None


def _of_elements(nodes: _Nodes) -> _Nodes:
    return nodes and tuple(node.any for node in nodes if node.any is not None)


def _fields(type_: Any) -> list[_Field] | None:
    """Return the members of an object; None for other types, and for objects that are arrays in JSON."""
    plain = get_origin(type_) or type_
    if not isinstance(plain, type):
        return None
    if issubclass(plain, msgspec.Struct):
        if plain.__struct_config__.array_like:
            return None
        return [_Field(each.encode_name, each.type, each.required) for each in msgspec.structs.fields(type_)]
    if dataclasses.is_dataclass(plain):
        hints = get_type_hints(plain, include_extras=True)
        missing = dataclasses.MISSING
        return [
            _Field(each.name, hints[each.name], each.default is each.default_factory is missing)
            for each in dataclasses.fields(plain)
        ]
    if is_model(plain):
        fields: Any = plain.model_fields  # type: ignore[attr-defined]
        return [
            _Field(each.serialization_alias or each.alias or name, each.annotation, each.is_required())
            for name, each in fields.items()
        ]
    if hasattr(plain, "__required_keys__"):
        required = plain.__required_keys__
        return [_Field(name, hint, name in required) for name, hint in get_type_hints(plain).items()]
    return None
