"""Encodes the arguments of a part's methods, so that they can be read when the thread wakes."""

from typing import Final, TypeVar

import msgspec

from plait.clock import MOST_SECONDS
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, UNENCODABLE, check_json, find_decoder, nests_deeper
from plait_schemas.encoding import encode_given

__all__ = ["DEEPEST", "check_seconds", "check_type", "encode_key", "encode_named", "read_back"]

DEEPEST: Final = 500
"""The maximum depth of stored values, whatever `Limits.depth` is, so that any call can decode them."""

S = TypeVar("S", bound=msgspec.Struct)


def check_type(name: str, value: object, *types: type) -> None:
    """Raise TypeError for an argument that is of none of some types."""
    if not isinstance(value, types):
        raise TypeError(f"{name} must be {' or '.join(each.__name__ for each in types)}, not {type(value).__name__}")


def check_seconds(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless a value is a finite number of seconds."""
    check_type(name, value, int, float)
    assert isinstance(value, (int, float))
    if not abs(value) <= MOST_SECONDS:
        raise ValueError(f"{name} must be a finite number of seconds, at most {MOST_SECONDS:.0e}, not {value!r}")


def encode_key(key: str) -> str:
    """Return a key if it is valid. Raises TypeError or ValueError."""
    check_type("a key", key, str)
    encode_named(key, key)
    return key


def encode_named(name: str, value: object) -> bytes:
    """Return a value as JSON. Raises TypeError or ValueError that names it."""
    try:
        data = _encode(value)
        if type(value) is not str:
            check_json(data)  # A msgspec.Raw in the value may be anything.
        return data
    except UNENCODABLE as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the value {name!r} is not JSON: {error}") from None


def read_back(record: S, cls: type[S]) -> S:
    """Return a record as it will be read, which is as one of a class, even if it is one of a subclass.

    Raises TypeError or ValueError that names the field which it cannot have.
    """
    try:
        found: S = find_decoder(cls)(_encode(record))
        return found
    except msgspec.ValidationError as error:
        message, place = parse_json_error(error)
        kind = TypeError if ", got `" in message else ValueError
        raise kind(f"{place[1:]} cannot be stored: {message}") from None
    except (*UNENCODABLE, *NOT_JSON):
        for field in record.__struct_fields__:
            encode_named(field, getattr(record, field))
        raise


def _encode(value: object) -> bytes:
    data = encode_given(value)
    if nests_deeper(data, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    return data
