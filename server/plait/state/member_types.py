"""The types of the members of a state's type, and how their values are decoded."""

import types
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from plait.state.fields import FieldPlan, make_plan
from plait.state.types import is_immutable
from plait_schemas.codec import make_decoder
from plait_schemas.members import find_attributes

__all__ = ["Field", "NotTyped", "find_fields", "find_member_type", "is_any_text", "make_reader"]


class NotTyped(Exception):
    """An operation leads through a value whose members cannot be changed one by one."""


class Field(NamedTuple):
    """A field of a Struct or a dataclass: its attribute and its type."""

    name: str
    type: Any


_UNIONS: Final = (Union, types.UnionType)
_NO_STRINGS: Final = (inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType)


@lru_cache(maxsize=1024)
def make_reader(type_: Any) -> tuple[Callable[[bytes], Any], FieldPlan | None]:
    """Return the decoder of a type, and the plan that finds unknown fields in its JSON; None if it has no fields."""
    return make_decoder(type_), make_plan(type_)


@lru_cache(maxsize=1024)
def is_any_text(type_: Any) -> bool:
    """Return whether a type accepts any string, and decodes it to a string."""
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
def find_fields(cls: type) -> dict[str, Field]:
    """Return the fields of a Struct or a dataclass by their names in JSON.

    Raises NotTyped for other classes, if code of the class may change more than one field, and if its JSON omits
    fields.
    """
    config = getattr(cls, "__struct_config__", None)
    if getattr(cls, "__parameters__", None) or (hasattr(cls, "__post_init__") and not _may_be_replaced(cls)):
        raise NotTyped
    if config is None and (not is_dataclass(cls) or any(vars(each).get("__slots__") for each in cls.__mro__)):
        raise NotTyped
    if config is not None and (config.array_like or config.omit_defaults):
        raise NotTyped
    hints = get_type_hints(cls, include_extras=True)
    fields = {name: Field(attribute, hints[attribute]) for name, attribute in (find_attributes(cls) or {}).items()}
    if any(_is_open(field.type) for field in fields.values()):
        raise NotTyped
    return fields


@lru_cache(maxsize=1024)
def find_member_type(type_: Any, container: type) -> Any:
    """Return the type of a dict's values, or of the elements of a list or tuple. Raises NotTyped."""
    if type_ is Any or (type_ is container and container in (dict, list, tuple)):
        return Any
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in _UNIONS:
        found = [each for each in arguments if get_origin(each) is container or each is container]
        if len(found) == 1:
            return find_member_type(found[0], container)
    elif origin is dict is container and arguments[0] is str:
        return arguments[1]
    elif origin is container and (origin is list or (origin is tuple and arguments[1:] == (Ellipsis,))):
        return arguments[0]
    raise NotTyped


def _may_be_replaced(cls: type) -> bool:
    """Return whether the code of a class can only refuse its values, or set other fields."""
    return issubclass(cls, msgspec.Struct) and is_immutable(cls)


def _is_open(type_: Any) -> bool:
    """Return whether a type cannot be decoded on its own, as it contains a type variable or UNSET."""
    if isinstance(type_, TypeVar) or type_ is msgspec.UnsetType:
        return True
    arguments = get_args(type_)[:1] if get_origin(type_) is Annotated else get_args(type_)
    return any(_is_open(each) for each in arguments)
