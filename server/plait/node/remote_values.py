"""Encodes the data of calls to other nodes, except for the arguments and results of rpcs. Values travel as JSON."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any, Final, get_type_hints

from plait.agents.run import Interruption
from plait.node.json_calls import EncodedArguments, decode_value, find_decoder
from plait.node.remote_errors import decode_error, encode_error
from plait.parts.part import Part
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.encoding import encode_crossing
from plait_schemas.rpc import find_result_type

__all__ = [
    "decode_attributes",
    "decode_part_arguments",
    "decode_result",
    "encode_attributes",
    "encode_end",
    "encode_result",
    "find_part_result",
    "is_end",
]

# The first byte of a result or a chunk: a value, an Interruption, or the end of the chunks, perhaps with an error.
_VALUE: Final = b"v"
_INTERRUPTION: Final = b"i"
_END: Final = b"e"


# Results, and the arguments of parts


def encode_result(method: str, value: object) -> bytes:
    """Encode the result of a call. Raises TypeError and ValueError."""
    if isinstance(value, Interruption):
        return _INTERRUPTION + encode_crossing(f"the message of an interrupt of {method}", value)
    return _VALUE + encode_crossing(f"the result of {method}", value)


def encode_end(error: BaseException | None) -> bytes:
    """Return the last chunk of a stream; the call may run on after it."""
    return _END if error is None else _END + encode_error(error, None)


def is_end(chunk: bytes) -> bool:
    """Whether a chunk is the last one of its stream. Raises the error if one has ended the stream."""
    if chunk[:1] != _END:
        return False
    if len(chunk) > 1:
        raise decode_error(chunk[1:])
    return True


def decode_result(data: bytes, type_: Any, method: str) -> Any:
    """Return a result as a value of its annotation. Raises TypeError if it does not fit."""
    if data[:1] == _INTERRUPTION:
        found = decode_json(data[1:])
        return Interruption(
            found["message"], found["output"] and decode_value(encode_json(found["output"]), type_, method)
        )
    return decode_value(data[1:], type_, method)


def _decode_leniently(data: bytes, type_: Any) -> Any:
    """Return an argument as a value of its annotation, or else as plain JSON, which the method may refuse."""
    try:
        return find_decoder(type_)(data)
    except NOT_JSON:
        return decode_json(data)


def find_part_result(part: Part[Any], method: str) -> Any:
    """Return the type of the awaited result of a part's method."""
    function = getattr(_find_bound(part), method, None)
    return _find_parameters(function)["return"] if callable(function) else Any


@lru_cache(1024)
def _find_bound(part: Part[Any]) -> Any:
    """Return the class with the methods of a part; Any if the annotation of `bind` does not name it."""
    try:
        return get_type_hints(part.bind).get("return", Any)
    except NameError:
        return Any


@lru_cache(4096)
def _find_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a part's method; under "return", the type of the awaited result."""
    types = get_type_hints(function)
    return types | {"return": find_result_type(types.get("return", Any))}


def decode_part_arguments(part: Part[Any], method: str, given: EncodedArguments) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a part's method, as values of their annotations."""
    function = getattr(_find_bound(part), method, None)
    if not callable(function):
        return [*map(decode_json, given.positional)], {name: decode_json(each) for name, each in given.named.items()}
    types = _find_parameters(function)
    names = _find_names(function, len(given.positional))
    args = [_decode_leniently(data, types.get(name, Any)) for name, data in zip(names, given.positional, strict=True)]
    return args, {name: _decode_leniently(data, types.get(name, Any)) for name, data in given.named.items()}


def _find_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of a method's first parameters after `self`; the last one may be `*args`."""
    found = [
        each.name
        for each in list(inspect.signature(function).parameters.values())[1:]
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return [*found, *[found[-1] if found else ""] * count][:count]


# The attributes of runs


def encode_attributes(attributes: Mapping[str | type, Any]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the named attributes, and the typed attributes by module and name of their types. Raises TypeError."""
    named: dict[str, bytes] = {}
    typed: dict[str, bytes] = {}
    for key, value in attributes.items():
        what = f"the attribute {key.__name__ if isinstance(key, type) else repr(key)}"
        data = encode_crossing(what, value)
        if isinstance(key, type):
            name = f"{key.__module__}:{key.__qualname__}"
            if not _is_read_as(data, name, key):
                raise TypeError(f"{what} cannot be sent to another process, as its JSON cannot be read as its type")
            typed[name] = data
        else:
            if decode_json(data) != value:
                raise TypeError(f"{what} cannot be sent to another process, as it is not plain JSON: {value!r}")
            named[key] = data
    return named, typed


def decode_attributes(named: Mapping[str, bytes], typed: Mapping[str, bytes]) -> dict[str | type, Any]:
    """Return the attributes of a run. Raises TypeError for a type that this process does not have."""
    found: dict[str | type, Any] = {name: decode_json(data) for name, data in named.items()}
    for name, data in typed.items():
        if (cls := _find_type(name)) is None:
            raise TypeError(f"there is no type {name} in this process, for an attribute of a run")
        found[cls] = find_decoder(cls)(data)
    return found


def _is_read_as(data: bytes, name: str, cls: type) -> bool:
    try:
        return _find_type(name) is cls and isinstance(find_decoder(cls)(data), cls)
    except NOT_JSON:
        return False


def _find_type(name: str) -> type | None:
    module, _, path = name.partition(":")
    found = reduce(lambda at, part: getattr(at, part, None), path.split("."), sys.modules.get(module))
    return found if isinstance(found, type) else None
