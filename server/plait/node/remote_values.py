"""Encodes what a call to another node carries: arguments, results and errors. Values travel as JSON."""

import builtins
import collections.abc
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from plait import errors
from plait.actor.logs import log_internal
from plait.actor.rpc import Method
from plait.agents.run import Interrupted, Interruption
from plait.errors import CallFailed, MigrationFailed, PlaitError, TooMany
from plait.node.remote_requests import Arguments
from plait.parts.part import Part
from plait.store.protocol import ThreadKey
from plait_schemas.codec import NOT_JSON, UNENCODABLE, decode_json, encode_finite, encode_json, printable

__all__ = [
    "decode_attributes",
    "decode_error",
    "decode_leniently",
    "decode_result",
    "encode_arguments",
    "encode_attributes",
    "encode_error",
    "encode_result",
    "encode_value",
    "find_bound",
    "find_parameters",
    "find_result_type",
]

_STREAMS: Final = (AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)
_PLAIT_ERRORS: Final[Mapping[str, type[PlaitError]]] = {
    each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PlaitError)
}
# An exception of one of these would end the code that raises it again.
_NOT_RAISED: Final = (StopIteration, StopAsyncIteration, ExceptionGroup)
# The first byte of a result: a value, or an Interruption.
_VALUE: Final = b"v"
_INTERRUPTION: Final = b"i"


# Arguments and results


def encode_value(what: str, value: object) -> bytes:
    """Return a value as JSON. Raises TypeError, or ValueError for a number that is infinite or not a number."""
    try:
        return encode_finite(value)
    except ValueError as error:
        if type(error) is ValueError:
            raise ValueError(f"{what} cannot be sent to another process: {error}") from None
        raise
    except UNENCODABLE as error:
        text = "a function" if callable(value) else str(error)
        raise TypeError(f"{what} cannot be sent to another process, as it is not JSON: {text}") from None


def encode_arguments(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call. Raises TypeError and ValueError."""
    positional = [encode_value(f"argument {place} of {method}", value) for place, value in enumerate(args, 1)]
    return Arguments(positional, {name: encode_value(f"{name!r} of {method}", value) for name, value in kwargs.items()})


def encode_result(method: str, value: object) -> bytes:
    """Return the result of a call. Raises TypeError and ValueError."""
    if isinstance(value, Interruption):
        return _INTERRUPTION + encode_value(f"the message of an interrupt of {method}", value)
    return _VALUE + encode_value(f"the result of {method}", value)


def decode_result(data: bytes, type_: Any, method: str) -> Any:
    """Return a result as a value of its annotation. Raises TypeError if it is none."""
    if data[:1] == _INTERRUPTION:
        found = decode_json(data[1:])
        return Interruption(found["message"], found["output"] and _decode(encode_json(found["output"]), type_, method))
    return _decode(data[1:], type_, method)


def decode_leniently(data: bytes, type_: Any) -> Any:
    """Return an argument as a value of its annotation, or as plain JSON, which the method may refuse."""
    try:
        return _find_decoder(type_)(data)
    except NOT_JSON:
        return decode_json(data)


def find_result_type(method: Method) -> Any:
    """Return the type of what an rpc or an agent returns, or of each chunk of one that streams."""
    return _find_result_type(method)


def find_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a method of a part; under "return", what awaiting its result returns."""
    return _find_parameters(function)


@lru_cache(1024)
def find_bound(part: Part[Any]) -> Any:
    """Return the class whose methods a part has; Any if its `bind` does not tell."""
    try:
        return get_type_hints(part.bind).get("return", Any)
    except NameError:
        return Any


@lru_cache(4096)
def _find_result_type(method: Method) -> Any:
    _, types = method.read_types()
    found = types.get("return", Any)
    if method.is_stream:
        found = get_args(found)[0] if get_origin(found) in _STREAMS else Any
    return found


@lru_cache(4096)
def _find_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    types = get_type_hints(function)
    returned = types.get("return", Any)
    origin = get_origin(returned) or returned
    if isinstance(origin, type) and issubclass(origin, collections.abc.Awaitable):
        arguments = get_args(returned)
        returned = arguments[0] if arguments else _find_awaited(origin)
    return types | {"return": returned}


def _find_awaited(cls: type) -> Any:
    """Return what awaiting an object of a class returns, such as a subclass of Result[str]."""
    for base in getattr(cls, "__orig_bases__", ()):
        if get_args(base):
            return get_args(base)[0]
    return Any


@lru_cache(4096)
def _find_decoder(type_: Any) -> Callable[[bytes], Any]:
    try:
        return msgspec.json.Decoder(type_).decode
    except TypeError:  # A type that JSON does not have, such as a type variable: its value travels as plain JSON.
        return decode_json


def _decode(data: bytes, type_: Any, method: str) -> Any:
    try:
        return _find_decoder(type_)(data)
    except NOT_JSON as error:
        raise TypeError(f"{method} has returned a value that does not fit its annotation: {error}") from None


# The attributes of runs


def encode_attributes(attributes: Mapping[str | type, Any]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the attributes that have names, and those that have types, by module and name. Raises TypeError."""
    named: dict[str, bytes] = {}
    typed: dict[str, bytes] = {}
    for key, value in attributes.items():
        what = f"the attribute {key.__name__ if isinstance(key, type) else repr(key)}"
        data = encode_value(what, value)
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
        found[cls] = _find_decoder(cls)(data)
    return found


def _is_read_as(data: bytes, name: str, cls: type) -> bool:
    try:
        return _find_type(name) is cls and isinstance(_find_decoder(cls)(data), cls)
    except NOT_JSON:
        return False


def _find_type(name: str) -> type | None:
    module, _, path = name.partition(":")
    found = reduce(lambda at, part: getattr(at, part, None), path.split("."), sys.modules.get(module))
    return found if isinstance(found, type) else None


# Errors


class _Error(msgspec.Struct, frozen=True, array_like=True):
    """An exception. `code` is that of a PlaitError, and `name` that of a built-in exception."""

    message: str
    code: str | None = None
    name: str | None = None
    path: str | None = None
    limit: str | None = None
    detail: str = ""
    retry_after: float | None = None
    lost: list[str] = []
    is_logged: bool = False
    is_private: bool = False
    # The arguments of a built-in exception, or the message of an interrupt, as JSON.
    arguments: bytes = b""


_decode_error: Final = msgspec.msgpack.Decoder(_Error).decode


def encode_error(error: BaseException, key: ThreadKey | None) -> bytes:
    """Return an exception for the caller; one that can only travel as text is logged with its traceback."""
    return msgspec.msgpack.encode(_describe(error, key))


def decode_error(data: bytes) -> BaseException:
    """Return the exception to raise."""
    found = _decode_error(data)
    if found.code is not None:
        return _make_plait_error(found)
    if found.name == Interrupted.__name__:
        return Interrupted(decode_json(found.arguments))
    if found.name is not None:
        made: Exception = getattr(builtins, found.name)(*decode_json(found.arguments))
        return made
    error = CallFailed(found.message)
    error.is_private = True
    return error


def _describe(error: BaseException, key: ThreadKey | None) -> _Error:
    if isinstance(error, PlaitError):
        known = {*_PLAIT_ERRORS.values()}
        code = next(each.code for each in type(error).__mro__ if issubclass(each, PlaitError) and each in known)
        return _Error(
            error.message,
            code,
            path=error.path,
            limit=error.limit,
            detail=printable(error.detail),
            retry_after=error.retry_after if isinstance(error, TooMany) else None,
            lost=list(error.lost) if isinstance(error, MigrationFailed) else [],
            is_logged=error.is_logged,
            is_private=error.is_private,
        )
    text = printable(f"{type(error).__name__}: {error}")
    if isinstance(error, Interrupted):
        message = encode_value("the message of the interrupt", error.message)
        return _Error(text, name=Interrupted.__name__, arguments=message)
    if _is_builtin(error):
        try:
            return _Error(text, name=type(error).__name__, arguments=encode_json(error.args))
        except UNENCODABLE:
            pass
    log_internal(error, key)
    return _Error(text)


def _is_builtin(error: BaseException) -> bool:
    """Whether an exception can be made again from its type, which is built in, and its arguments."""
    cls = type(error)
    if getattr(builtins, cls.__name__, None) is not cls or not isinstance(error, Exception):
        return False
    if isinstance(error, _NOT_RAISED):
        return False
    try:
        again = cls(*decode_json(encode_json(error.args)))
    except Exception:  # Such as UnicodeDecodeError, whose arguments are of certain types.
        return False
    return str(again) == str(error)


def _make_plait_error(found: _Error) -> PlaitError:
    cls = _PLAIT_ERRORS.get(found.code or "", PlaitError)
    more: dict[str, Any] = {}
    if issubclass(cls, TooMany):
        more["retry_after"] = found.retry_after
    if issubclass(cls, MigrationFailed):
        more["lost"] = found.lost
    error = cls(found.message, path=found.path, detail=found.detail, limit=found.limit, **more)
    error.is_logged, error.is_private = found.is_logged, found.is_private
    return error
