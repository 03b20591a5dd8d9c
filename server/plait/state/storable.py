"""Checks that the states of a Thread class can be stored as JSON, when the class is defined."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect as types

from plait.errors import InvalidState, TooLarge
from plait.limits import UNLIMITED, Limits
from plait.state.model_type import ModelType
from plait.state.texts import check_texts
from plait.state.types import StateType, explain_invalid_state
from plait_schemas.codec import make_decoder
from plait_schemas.models import is_model, types_in

__all__ = ["accepts_arguments", "check_initial_state", "find_initial_state", "read_state_type"]

# The types of values decoded from JSON.
_JSON_TYPES: Final = (dict, list, str, int, float, bool, type(None))
# Types that cannot be keys of a JSON object.
_NO_KEYS: Final = (
    types.CollectionType,
    types.DictType,
    types.TupleType,
    types.StructType,
    types.DataclassType,
    types.TypedDictType,
    types.NamedTupleType,
)


def read_state_type(cls: type[Any], type_: Any, list_keys: Mapping[str, str]) -> StateType:
    """Return the type of a class's states. Raises TypeError when its values cannot be stored as JSON."""
    try:
        found = next(_find_unstorable(types.type_info(type_), "", frozenset()), None)
        make_decoder(type_)
    except (TypeError, NameError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise TypeError(
            f"{cls.__name__}: states of type {_name(type_)} cannot be stored: {why}; use a msgspec.Struct, "
            "a dataclass, a Pydantic model, a TypedDict, or dicts and lists, defined above the class"
        ) from None
    if found is not None:
        path, part = found
        place = f", which has {part} at {path or 'the top level'}," if part != _name(type_) else ""
        raise TypeError(
            f"{cls.__name__}: states of type {_name(type_)}{place} cannot be stored as JSON; use a msgspec.Struct, "
            "a dataclass, a Pydantic model, a TypedDict, or dicts and lists"
        )
    make = ModelType if any(map(_is_model, types_in(types.type_info(type_)))) else StateType
    return make(type_, list_keys, check_texts(f"{cls.__name__}.texts", cls.texts, type_))


def find_initial_state(cls: type) -> Any:
    """Return the `initial_state` of a class: a value, or a function without arguments. Raises TypeError."""
    initial = inspect.getattr_static(cls, "initial_state")
    if isinstance(initial, staticmethod | classmethod):
        initial = getattr(cls, "initial_state")  # noqa: B009
    remedy = "make it a value, or a @staticmethod that returns one"
    if isinstance(initial, property):
        raise TypeError(f"{cls.__name__}.initial_state must not be a property: {remedy}")
    if inspect.iscoroutinefunction(initial) or inspect.isasyncgenfunction(initial):
        raise TypeError(f"{cls.__name__}.initial_state must not be `async def`: {remedy}")
    if callable(initial) and not accepts_arguments(initial, 0):
        raise TypeError(f"{cls.__name__}.initial_state must not take arguments: {remedy}")
    return initial


def check_initial_state(cls: type, state_type: StateType, value: object, limits: Limits = UNLIMITED) -> None:
    """Raise TypeError for an initial state that does not fit its type, and ValueError if it exceeds a limit."""
    try:
        state_type.from_value(value, limits)
    except InvalidState as error:
        place = f", at {error.path}" if error.path else ""
        raise TypeError(
            f"{cls.__name__}.initial_state does not fit {_name(state_type.type)}: {error.message}{place}"
        ) from None
    except TooLarge as error:
        raise ValueError(f"{cls.__name__}.initial_state: {error.message}") from None
    except BaseException as error:  # The type may have code of its author's, such as `__post_init__`.
        raise TypeError(
            f"{cls.__name__}.initial_state does not fit {_name(state_type.type)}: {explain_invalid_state(error)}"
        ) from error


def accepts_arguments(function: Callable[..., Any], count: int, *names: str) -> bool:
    """Whether a function accepts `count` positional arguments and some by name; True if it has no signature."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _find_unstorable(info: types.Type, path: str, seen: frozenset[Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts of a type that JSON cannot represent, each with its path."""
    cls = getattr(info, "cls", None)
    if isinstance(info, types.ExtType):
        yield path, _name(msgspec.msgpack.Ext)
    elif isinstance(info, types.DictType) and isinstance(info.key_type, _NO_KEYS):
        yield path, "keys that are neither strings nor numbers"
    elif isinstance(info, types.CustomType):
        if not _is_model(info) and not any(issubclass(each, info.cls) for each in _JSON_TYPES):
            yield path, _name(info.cls)
    elif cls is None or cls not in seen:
        for name, part in _parts(info):
            yield from _find_unstorable(part, path + name, seen | {cls})


def _is_model(info: types.Type) -> bool:
    return isinstance(info, types.CustomType) and is_model(info.cls)


def _parts(info: types.Type) -> Iterator[tuple[str, types.Type]]:
    """Yield the types that a type consists of, each with its part of a JSON pointer."""
    match info:
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
            for field in info.fields:
                yield f"/{field.encode_name}", field.type
        case types.DictType():
            yield "", info.key_type
            yield "/*", info.value_type
        case types.TupleType():
            for index, item in enumerate(info.item_types):
                yield f"/{index}", item
        case types.UnionType():
            for part in info.types:
                yield "", part
        case types.Metadata():
            yield "", info.type
        case types.CollectionType():
            yield "/*", info.item_type
        case _:
            pass


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)
