"""The type of a thread's state: values and JSON made into states, or refused."""

import re
from typing import Any, Final

import msgspec
from msgspec import inspect

from plait.errors import InvalidState, TooLarge
from plait.limits import Limits
from plait_schemas.codec import encode_json, has_non_finite, nests_deeper

__all__ = ["StateType", "json_error"]

_LOCATION: Final = re.compile(r"^(?P<message>.*?)(?: - at `(?:key in )?\$(?P<where>.*)`)?$", re.DOTALL)
_PART: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def json_error(error: Exception) -> tuple[str, str]:
    """Return what msgspec said of a value, and where, as a JSON pointer (`*` where it does not say which key)."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deep", ""
    match = _LOCATION.match(str(error))
    if match is None or match["where"] is None:
        return str(error), ""
    parts = [(key or index).replace("...", "*") for key, index in _PART.findall(match["where"])]
    return match["message"], "".join(f"/{part}" for part in parts)


class StateType:
    """Makes states of one type: a Struct, a dataclass, a TypedDict, or any other type that msgspec knows."""

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self.decode = msgspec.json.Decoder(type_).decode
        # Whether a state can never change in place, so that it may be shared and compared by identity.
        self.is_immutable = _is_immutable(type_)

    def from_json(self, data: bytes | msgspec.Raw, limits: Limits) -> tuple[Any, bytes]:
        """Return the state that a client sent as JSON, and the JSON that it is stored as.

        Raises InvalidState or TooLarge.
        """
        if nests_deeper(bytes(data), limits.depth):
            raise _too_deep(limits)
        try:
            state = self.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            message, path = json_error(error)
            raise InvalidState(message, path=path) from None
        return state, _check_size(encode_json(state), limits)

    def from_value(self, value: object, limits: Limits) -> tuple[Any, bytes]:
        """Return the state that server code set, and its JSON. Raises InvalidState or TooLarge."""
        try:
            data = encode_json(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as error:
            raise InvalidState(f"the state is not JSON: {error}") from None
        if b"null" in data and has_non_finite(value):
            raise InvalidState("the state is not JSON: it has a number that is infinite or not a number")
        state, data = self.from_json(data, limits)
        # Keeps the author's objects where they say the same, so that unchanged parts stay identical.
        return (value if self.is_immutable and state == value else state), data


def _check_size(data: bytes, limits: Limits) -> bytes:
    if len(data) > limits.state:
        raise TooLarge(f"the state has {len(data)} bytes of JSON, the limit is {limits.state}")
    return data


def _too_deep(limits: Limits) -> TooLarge:
    return TooLarge(f"JSON may be nested {limits.depth} deep at the most")


def _is_immutable(type_: Any) -> bool:
    try:
        return _never_changes(inspect.type_info(type_), set())
    except (TypeError, NotImplementedError):
        return False


def _never_changes(info: inspect.Type, seen: set[type]) -> bool:
    match info:
        case inspect.StructType(cls=cls) | inspect.DataclassType(cls=cls):
            if cls in seen:
                return True
            seen.add(cls)
            frozen = _is_frozen(cls)
            return frozen and all(_never_changes(field.type, seen) for field in info.fields)
        case inspect.TupleType(item_types=types) | inspect.UnionType(types=types):
            return all(_never_changes(each, seen) for each in types)
        case inspect.VarTupleType(item_type=item) | inspect.FrozenSetType(item_type=item) | inspect.Metadata(type=item):
            return _never_changes(item, seen)
        case _:
            return isinstance(info, _SCALAR_TYPES)


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__struct_config__.frozen if issubclass(cls, msgspec.Struct) else cls.__dataclass_params__.frozen)


_SCALAR_TYPES: Final = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)
