"""Everything that plait raises.

PlaitError
├── InvalidState        a value is not a state of the thread's type
├── InvalidArguments    an rpc was called with arguments it does not take
├── Reject              validate_state_change refused, for a reason of the author's
├── Readonly            the connection may not change the state
├── TooLarge            a frame, a state or its nesting is over a limit
├── TooMany             messages or connections came faster, or in greater number, than a limit allows
├── Unauthenticated     nobody is known behind the request
├── Forbidden           the principal may not do this
├── NotFound            there is no such kind, name or version
├── MethodNotFound      there is no such rpc
├── Conflict            the state has another version than the one asked for, or others have changed the same
├── Gap                 a push came before the ones in front of it
├── Unanswerable        a push came again, so late that nobody knows what became of it
├── Outdated            the client was built for another schema of the state
├── TurnTimeout         a hook or an rpc ran longer than the thread's turn_timeout
├── Unavailable         the server is shutting down, or plait is not running
├── CallFailed          an rpc raised something that is not plait's
└── StoreError          the store could not read or write
    ├── CorruptThread   what is stored of a thread cannot be read
    ├── MigrationFailed a stored state could not be brought to its class's state_version
    ├── NewerState      a state was stored by newer code
    └── Fenced          a write does not follow the stored version
"""

import asyncio
import logging
from typing import ClassVar

from plait_schemas import codes
from plait_schemas.codec import printable

__all__ = [
    "CallFailed",
    "Conflict",
    "CorruptThread",
    "Fenced",
    "Forbidden",
    "Gap",
    "InvalidArguments",
    "InvalidState",
    "MethodNotFound",
    "MigrationFailed",
    "NewerState",
    "NotFound",
    "Outdated",
    "PlaitError",
    "Readonly",
    "Reject",
    "StoreError",
    "TooLarge",
    "TooMany",
    "TurnTimeout",
    "Unanswerable",
    "Unauthenticated",
    "Unavailable",
    "escape_traceback",
    "operator_message",
    "public_message",
]


class PlaitError(Exception):
    """Base of all errors: `code` is stable on the wire, and `str()` may be shown to clients.

    `status` is for HTTP, `close_code` for a socket that it closes.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    close_code: ClassVar[int] = codes.INTERNAL_ERROR

    def __init__(self, message: str, *, path: str | None = None, detail: str = "") -> None:
        message = printable(message)
        super().__init__(message)
        self.message = message
        # JSON pointer to what was wrong, where there is one.
        self.path = None if path is None else printable(path)
        # What only the operator is told: it may quote what an author's code raised, or a state.
        self.detail = detail
        # Whether whoever raised it logs it, so that nobody else need.
        self.is_logged = False

    def __str__(self) -> str:
        return self.message


class InvalidState(PlaitError):
    """A value is not a state of the thread's type."""

    code = "invalid_state"
    status = 422


class InvalidArguments(PlaitError):
    """An rpc was called with arguments it does not take."""

    code = "invalid_arguments"
    status = 422


class Reject(PlaitError):
    """Raised by `validate_state_change` to refuse a change."""

    code = "rejected"
    status = 409


class Readonly(PlaitError):
    """The connection may not change the state."""

    code = "readonly"
    status = 403


class TooLarge(PlaitError):
    """A frame, a state or its nesting is over a limit."""

    code = "too_large"
    status = 413


class TooMany(PlaitError):
    """Messages or connections came faster, or in greater number, than a limit allows."""

    code = "rate_limited"
    status = 429
    close_code = codes.TRY_AGAIN_LATER

    def __init__(
        self, message: str, *, path: str | None = None, detail: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, path=path, detail=detail)
        # Seconds to wait before it may come again, where that is known.
        self.retry_after = retry_after


class Unauthenticated(PlaitError):
    """Nobody is known behind the request."""

    code = "unauthenticated"
    status = 401
    close_code = codes.UNAUTHENTICATED


class Forbidden(PlaitError):
    """The principal may not do this."""

    code = "forbidden"
    status = 403
    close_code = codes.FORBIDDEN


class NotFound(PlaitError):
    """There is no such kind, name or version."""

    code = "not_found"
    status = 404
    close_code = codes.NOT_FOUND


class MethodNotFound(PlaitError):
    """There is no such rpc."""

    code = "method_not_found"
    status = 404


class Conflict(PlaitError):
    """The state has another version than the one asked for, or others have changed the same."""

    code = "conflict"
    status = 412


class Gap(PlaitError):
    """A push came before the ones in front of it."""

    code = "gap"
    status = 409


class Unanswerable(PlaitError):
    """A push came again, so late that nobody knows what became of it."""

    code = "unanswerable"
    status = 409


class Outdated(PlaitError):
    """The client was built for another schema of the state, with which it cannot live."""

    code = "outdated"
    status = 409
    close_code = codes.OUTDATED


class TurnTimeout(PlaitError):
    """A hook or an rpc ran longer than the thread's `turn_timeout`."""

    code = "turn_timeout"
    status = 504


class Unavailable(PlaitError):
    """The server is shutting down, or plait is not running."""

    code = "unavailable"
    status = 503
    close_code = codes.TRY_AGAIN_LATER


class CallFailed(PlaitError):
    """An rpc raised something that is not plait's; the message is that of the exception."""

    code = "call_failed"
    status = 500


class StoreError(PlaitError):
    """The store could not read or write."""

    code = "store_error"
    status = 503
    close_code = codes.TRY_AGAIN_LATER


class CorruptThread(StoreError):
    """What is stored of a thread cannot be read; it is left as it is."""

    code = "corrupt_thread"
    status = 500
    close_code = codes.INTERNAL_ERROR


class MigrationFailed(StoreError):
    """A stored state could not be brought to its class's `state_version`; it is left as it is."""

    code = "migration_failed"
    status = 500
    close_code = codes.INTERNAL_ERROR


class NewerState(StoreError):
    """A state was stored by newer code, which this code cannot read; it is left as it is."""

    code = "newer_state"
    status = 500
    close_code = codes.INTERNAL_ERROR


class Fenced(StoreError):
    """A write does not follow the stored version: somebody else wrote this thread."""

    code = "fenced"


def operator_message(error: BaseException) -> str:
    """Return what an operator may be told of an error: its message, and what clients are not told."""
    return f"{error}: {error.detail}" if isinstance(error, PlaitError) and error.detail else str(error)


def public_message(error: BaseException) -> str:
    """Return what a client may be told of an error: its message, unless the system wrote that one."""
    if isinstance(error, OSError | SystemError | MemoryError | asyncio.CancelledError):
        return "Internal error"
    return printable(str(error)) or type(error).__name__


def escape_traceback(record: logging.LogRecord) -> bool:
    """Escape halves of surrogate pairs in the traceback of a log record: a file in UTF-8 does not take them.

    A filter for loggers that are given what an author's code raised, as that may quote what a client has sent.
    """
    if record.exc_info:
        traceback = logging.Formatter().formatException(record.exc_info)
        if (escaped := printable(traceback)) != traceback:
            record.exc_text = escaped
    return True
