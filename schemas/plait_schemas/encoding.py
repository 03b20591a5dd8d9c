"""Encodes values that code hands over as JSON, or finds the values that JSON does not have."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import msgspec

from plait_schemas import models
from plait_schemas.codec import HALF_PAIR, UNENCODABLE, decode_json, encode_json, printable
from plait_schemas.members import attributes
from plait_schemas.patch import escape

__all__ = ["EncodeError", "EncodeTypeError", "encode_crossing", "encode_given"]

_NON_FINITE: Final = "it has a number that is infinite or not a number"
# Such a number in msgpack. No text in UTF-8 has these bytes, but other values may.
_PACKED: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
# A key that ends with a digit, in JSON with 0 for each digit.
_NUMBER_KEY: Final = b'0":'
_ZEROS: Final = bytes(ord("0") if 48 <= at < 58 else at for at in range(256))
# A key that a number, a time or a UUID may have become.
_MADE_KEY: Final = re.compile(rb'"[-+.:TZE0-9a-f]*[0-9]":')

_SIMPLE: Final = frozenset({str, int, bool, type(None)})

Encode = Callable[[Any], bytes]


class EncodeError(ValueError):
    """Why a value cannot be JSON; `path` is the JSON pointer to the place in it."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{message}, at {path}" if path else message)
        self.message = message
        self.path = path


class EncodeTypeError(EncodeError, TypeError):
    """A value of a type that JSON does not have."""


def encode_given(value: Any, encode: Encode = encode_json) -> bytes:
    """Return a value as JSON with the same meaning.

    Raises EncodeError for numbers that are infinite or NaN, values that contain themselves, half surrogates, and equal
    keys such as 1 and "1"; EncodeTypeError for values of other types.
    """
    try:
        data = encode(value)
    except UNENCODABLE as error:
        raise _make_error(value, encode, error) from None
    if type(value) in _SIMPLE:
        return data
    if (_may_lose(value, data) or _may_repeat(data)) and (fault := _locate(value, encode)) is not None:
        raise fault
    return data


def encode_crossing(what: str, value: object) -> bytes:
    """Return a value that crosses between threads as JSON; `what` names it in errors. Raises TypeError, ValueError."""
    try:
        return encode_given(value)
    except EncodeError as error:
        text = "a function" if callable(value) else str(error)
        kind = TypeError if isinstance(error, TypeError) else ValueError  # They also travel.
        raise kind(f"{what} cannot be sent, as it is not JSON: {text}") from None


def _may_lose(value: Any, data: bytes) -> bool:
    """Tell whether JSON may have null for a number; False is certain."""
    if data.rfind(b"null") < 0:  # Twice as fast as `in`.
        return False
    try:
        return _PACKED.search(_pack(value)) is not None
    except UNENCODABLE:
        return True


def _may_repeat(data: bytes) -> bool:
    """Tell whether an object in JSON has two members with the same name, after a number became a text."""
    if data.translate(_ZEROS).rfind(_NUMBER_KEY) < 0 or _MADE_KEY.search(data) is None:
        return False
    if len(encode_json(decode_json(data))) == len(data):
        return False
    repeated: list[bool] = []
    json.loads(data, object_pairs_hook=lambda pairs: repeated.append(len(dict(pairs)) < len(pairs)))
    return True in repeated


def _make_error(value: Any, encode: Encode, error: Exception) -> EncodeError:
    return _locate(value, encode) or _describe(error)


def _locate(value: Any, encode: Encode) -> EncodeError | None:
    """Return the first fault of a value."""
    try:
        return _find(value, "", frozenset(), encode)
    except RecursionError:
        return EncodeError("it is nested too deep")


def _find(value: Any, path: str, above: AbstractSet[int], encode: Encode) -> EncodeError | None:
    if models.is_model(type(value)):
        return _find_in_model(value, path, above, encode)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float):
        return None if math.isfinite(value) else EncodeError(_NON_FINITE, path)
    if id(value) in above:
        return EncodeError("it contains itself", path)
    names = set[str]()
    for name, member in _members(value):
        if name in names:
            return EncodeError(f"two of its keys are {name!r} in JSON", path)
        names.add(name)
        if _is_suspect(member, encode):
            place = f"{path}/{escape(printable(name))}"
            if (found := _find(member, place, above | {id(value)}, encode)) is not None:
                return found
    try:
        encode(value)
    except UNENCODABLE as error:
        return _describe(error, path)
    return None


def _find_in_model(model: Any, path: str, above: AbstractSet[int], encode: Encode) -> EncodeError | None:
    try:
        if (found := _find(models.dump_python(model), path, above, encode)) is not None:
            return found
    except UNENCODABLE as error:
        return _describe(error, path)
    # Other models, in fields of any type, are written by their own configuration, perhaps as null.
    for name, value in models.fields(model):
        place = f"{path}/{escape(name)}" if name else path
        for inner, each in _find_models(value, place):
            if isinstance(each, EncodeError):
                return each
            if (found := _find_in_model(each, inner, above, encode)) is not None:
                return found
    return None


def _find_models(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the models in a value with their places, or an error for two keys that are the same in JSON."""
    if models.is_model(type(value)):
        yield path, value
    else:
        names = set[str]()
        for name, member in _members(value):
            if name in names:
                yield path, EncodeError(f"two of its keys are {name!r} in JSON", path)
            names.add(name)
            yield from _find_models(member, f"{path}/{escape(printable(name))}")


def _is_suspect(value: Any, encode: Encode) -> bool:
    try:
        data = encode(value)
    except UNENCODABLE:
        return True
    return _may_lose(value, data) or _may_repeat(data)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of a value, each with its name in JSON."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            name = key
            if not isinstance(key, str):
                with suppress(*UNENCODABLE):  # With an impossible key, the object itself cannot be encoded.
                    (name,) = decode_json(encode_json({key: None}))
            yield str(name), member
    elif isinstance(value, list | tuple | set | frozenset):
        for index, member in enumerate(value):
            yield str(index), member
    elif (names := attributes(value)) is not None:
        for name, attribute in names.items():
            if (member := getattr(value, attribute, msgspec.UNSET)) is not msgspec.UNSET:
                yield name, member


def _describe(error: Exception, path: str = "") -> EncodeError:
    if isinstance(error, TypeError):
        return EncodeTypeError(str(error), path)
    if isinstance(error, RecursionError):
        return EncodeError("it is nested too deep")
    return EncodeError(HALF_PAIR if isinstance(error, UnicodeError) else str(error), path)


def _replace_for_pack(value: Any) -> Any:
    return value.model_dump(warnings=False) if models.is_model(type(value)) else None


_pack: Final = msgspec.msgpack.Encoder(enc_hook=_replace_for_pack).encode
