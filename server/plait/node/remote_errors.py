"""Encodes the exceptions with which calls to other nodes end."""

import builtins
import traceback
from collections.abc import Mapping
from typing import Final

import msgspec

from plait import errors
from plait.actor.logs import log_internal
from plait.author_code import Interrupted
from plait.errors import CallFailed, MigrationFailed, PlaitError
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import UNENCODABLE, decode_json, encode_json, printable
from plait_schemas.encoding import encode_crossing

__all__ = ["decode_error", "encode_error"]

_PLAIT_ERRORS: Final[Mapping[str, type[PlaitError]]] = {
    each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PlaitError)
}
# Exceptions that must not be raised again: they would end the raising code.
_NOT_RAISED: Final = (StopIteration, StopAsyncIteration, ExceptionGroup)


class _Error(msgspec.Struct, frozen=True, array_like=True):
    """An exception. `code` is the code of a PlaitError, and `name` the name of a built-in exception."""

    message: str
    code: str | None = None
    name: str | None = None
    path: str | None = None
    limit: str | None = None
    detail: str = ""
    retry_after: float | None = None
    lost: list[str] = []
    is_logged: bool = False
    # The place at which a built-in exception was raised.
    traceback: str = ""
    # The arguments of a built-in exception, or the message of an interrupt, as JSON.
    arguments: bytes = b""


_decode_error: Final = msgspec.msgpack.Decoder(_Error).decode


def encode_error(error: BaseException, key: ThreadKey | None) -> bytes:
    """Encode an exception for the caller. An exception that can travel only as text is logged with its traceback."""
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
        made.add_note(f"It was raised in another process:\n{found.traceback}")
        return made
    return CallFailed(found.message, detail=found.detail)


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
            retry_after=error.retry_after,
            lost=list(error.lost) if isinstance(error, MigrationFailed) else [],
            is_logged=error.is_logged,
        )
    text = printable(f"{type(error).__name__}: {error}")
    if isinstance(error, Interrupted):
        message = encode_crossing("the message of the interrupt", error.message)
        return _Error(text, name=Interrupted.__name__, arguments=message)
    if _is_builtin(error):
        try:
            place = printable("".join(traceback.format_exception(error)))
            return _Error(text, name=type(error).__name__, arguments=encode_json(error.args), traceback=place)
        except UNENCODABLE:
            pass
    # Clients may see the message, so the text goes into the detail.
    return _Error(log_internal(error, key), detail=text)


def _is_builtin(error: BaseException) -> bool:
    """Whether an exception can be rebuilt from its arguments and its type, which must be built in."""
    cls = type(error)
    if getattr(builtins, cls.__name__, None) is not cls or not isinstance(error, Exception):
        return False
    if isinstance(error, _NOT_RAISED):
        return False
    try:
        again = cls(*decode_json(encode_json(error.args)))
    except Exception:  # An exception with special arguments, such as UnicodeDecodeError.
        return False
    return str(again) == str(error)


def _make_plait_error(found: _Error) -> PlaitError:
    cls = _PLAIT_ERRORS.get(found.code or "", PlaitError)
    error = cls(found.message, path=found.path, detail=found.detail, limit=found.limit, retry_after=found.retry_after)
    if isinstance(error, MigrationFailed):
        error.lost = found.lost
    error.is_logged = found.is_logged
    return error
