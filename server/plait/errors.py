"""The exceptions that plait raises.

PlaitError
├── InvalidState        a value does not fit the type of the thread's state
├── InvalidArguments    the arguments of an rpc do not match its signature
├── Reject              validate_state_change refused the change
├── Readonly            the connection may not change the state
├── TooLarge            a frame, a state or its nesting is over a limit
├── TooMany             a limit on messages, connections or turns is exceeded
├── Unauthenticated     authentication required
├── Forbidden           the principal may not do this
├── NotFound            there is no such kind, thread, name or version
├── Destroyed           the thread was destroyed
├── Terminated          the thread was terminated, and takes no new work
├── MethodNotFound      there is no such rpc
├── Conflict            the state has changed, and a change based on an older version no longer fits
├── Gap                 an earlier push of the same client is missing, or was refused
├── Unanswerable        a push was sent again after the server had forgotten its outcome
├── Outdated            the client was built for an incompatible schema of the state
├── TurnTimeout         a hook or an rpc ran longer than the thread's turn_timeout, or other code than its own timeout
├── Busy                a run was refused because another one is running
├── Unavailable         the server is shutting down, plait is not running, or the thread is being destroyed
├── SqlError            a statement failed that a thread ran on its tables
├── CallFailed          an rpc raised an exception that is not a PlaitError, or its result is not JSON
└── StoreError          the store could not read or write
    ├── CorruptThread   the stored data of a thread is damaged or cannot be decoded
    ├── MigrationFailed a stored state could not be migrated to its class's state_version
    ├── NewerState      a state was stored by newer code
    ├── Fenced          another process has written this thread
    ├── Indeterminate   it is not known whether a change was stored, or only a part of it was
    └── RolledBack      a change was made in a transaction that was rolled back
"""

import logging
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from plait_schemas import codes
from plait_schemas.codec import printable

__all__ = [
    "Busy",
    "CallFailed",
    "Conflict",
    "CorruptThread",
    "Destroyed",
    "Fenced",
    "Forbidden",
    "Gap",
    "Indeterminate",
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
    "RolledBack",
    "SqlError",
    "StoreError",
    "Terminated",
    "TooLarge",
    "TooMany",
    "TurnTimeout",
    "Unanswerable",
    "Unauthenticated",
    "Unavailable",
    "admit_change",
    "escape_traceback",
    "is_outage",
    "operator_message",
]

E = TypeVar("E", bound=BaseException)


class PlaitError(Exception):
    """Base of all errors: `code` is stable on the wire, and `str()` may be shown to clients.

    `status` is the HTTP status, `close_code` the close code of a WebSocket that is closed because of the error.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    close_code: ClassVar[int] = codes.INTERNAL_ERROR

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        detail: str = "",
        limit: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        message = printable(message)
        super().__init__(message)
        self.message = message
        # JSON pointer to the invalid value, if there is one.
        self.path = None if path is None else printable(path)
        # For the log only: it may quote a state, or an exception from the author's code.
        self.detail = detail
        # The field of `Limits` that was exceeded, if one was.
        self.limit = limit
        # Seconds to wait before trying again, if known.
        self.retry_after = retry_after
        # Whether the error has been logged already.
        self.is_logged = False

    def __str__(self) -> str:
        return self.message


class InvalidState(PlaitError):
    """A value does not fit the type of the thread's state."""

    code = "invalid_state"
    status = 422


class InvalidArguments(PlaitError):
    """The arguments of an rpc do not match its signature."""

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
    """A limit on the number of messages, connections, turns or threads is exceeded."""

    code = "rate_limited"
    status = 429
    close_code = codes.TRY_AGAIN_LATER


class Unauthenticated(PlaitError):
    """Authentication is required: the request has no credentials, or they are not valid."""

    code = "unauthenticated"
    status = 401
    close_code = codes.UNAUTHENTICATED


class Forbidden(PlaitError):
    """The principal may not do this."""

    code = "forbidden"
    status = 403
    close_code = codes.FORBIDDEN


class NotFound(PlaitError):
    """There is no such kind, thread, name or version."""

    code = "not_found"
    status = 404
    close_code = codes.NOT_FOUND


class Destroyed(PlaitError):
    """The thread was destroyed; a new thread may use its name."""

    code = "destroyed"
    status = 410
    close_code = codes.DESTROYED


class Terminated(PlaitError):
    """The thread was terminated: it can be read, and takes no new work."""

    code = "terminated"
    status = 409


class MethodNotFound(PlaitError):
    """There is no such rpc."""

    code = "method_not_found"
    status = 404


class Conflict(PlaitError):
    """The state has changed, and a change that was based on an older version no longer fits."""

    code = "conflict"
    status = 412


class Gap(PlaitError):
    """An earlier push of the same client is missing, or was refused."""

    code = "gap"
    status = 409


class Unanswerable(PlaitError):
    """A push was sent again after the server had forgotten its outcome."""

    code = "unanswerable"
    status = 409


class Outdated(PlaitError):
    """The client was built for a schema of the state that is not compatible with the current one."""

    code = "outdated"
    status = 409
    close_code = codes.OUTDATED


class TurnTimeout(PlaitError):
    """A hook or an rpc exceeded the thread's `turn_timeout`, or a run, a step or a tool its own timeout."""

    code = "turn_timeout"
    status = 504


class Busy(PlaitError):
    """A run was refused because another one is running in its thread, and its agent does not wait."""

    code = "busy"
    status = 409


class Unavailable(PlaitError):
    """The server is shutting down, plait is not running, or the thread is being destroyed."""

    code = "unavailable"
    status = 503
    close_code = codes.TRY_AGAIN_LATER


class SqlError(PlaitError):
    """A statement on a thread's tables has failed; `detail`, hidden from clients, has the reason and the statement."""

    code = "sql_error"
    status = 500


class CallFailed(PlaitError):
    """An rpc raised an exception that is not a PlaitError; the message has the id of its line in the log."""

    code = "call_failed"
    status = 500


class StoreError(PlaitError):
    """The store could not read or write; nothing of the requested write was stored."""

    code = "store_error"
    status = 503
    close_code = codes.TRY_AGAIN_LATER


class CorruptThread(StoreError):
    """The stored data of a thread is damaged or cannot be decoded; it is left unchanged."""

    code = "corrupt_thread"
    status = 500
    close_code = codes.INTERNAL_ERROR


class MigrationFailed(StoreError):
    """A stored state could not be migrated to its class's `state_version`; it is left unchanged."""

    code = "migration_failed"
    status = 500
    close_code = codes.INTERNAL_ERROR
    # JSON pointers to the members that the state has and its type lacks; `*` is any element or key.
    lost: Sequence[str] = ()


class NewerState(StoreError):
    """A state was stored by newer code, and this code cannot read it; it is left unchanged."""

    code = "newer_state"
    status = 500
    close_code = codes.INTERNAL_ERROR


class Fenced(StoreError):
    """A write does not follow the stored version: another process has written this thread."""

    code = "fenced"


class Indeterminate(StoreError):
    """It is not known whether a change was stored, or only a part of it was: check before repeating it."""

    code = "indeterminate"
    status = 500


class RolledBack(StoreError):
    """A change is not stored, because the block of its transaction raised or awaited something."""

    code = "rolled_back"
    status = 500


def admit_change(error: E, name: str) -> E | Indeterminate:
    """Return the error of work that may have stored a part of its changes.

    An Indeterminate replaces an error that says that nothing was done.
    """
    if isinstance(error, Indeterminate) or not isinstance(error, StoreError | Unavailable):
        return error
    made = Indeterminate(f"some changes of {name} are stored, or may be: {error}")
    made.__cause__ = error
    return made


def is_outage(error: BaseException) -> bool:
    """Whether an error means only that the store or the server was away, and is no fault of the code that it ended."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_outage, error.exceptions))
    if isinstance(error, Indeterminate) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, StoreError):
        return not isinstance(error, CorruptThread | MigrationFailed | NewerState | RolledBack)
    return isinstance(error, Unavailable)


def operator_message(error: BaseException) -> str:
    """Return the message of an error for the log, with the detail that clients must not see."""
    return f"{error}: {error.detail}" if isinstance(error, PlaitError) and error.detail else str(error)


def escape_traceback(record: logging.LogRecord) -> bool:
    """Escape halves of surrogate pairs in the traceback of a log record, as UTF-8 cannot encode them.

    A filter for loggers of exceptions from the author's code, which may quote data of a client.
    """
    if record.exc_info:
        traceback = logging.Formatter().formatException(record.exc_info)
        if (escaped := printable(traceback)) != traceback:
            record.exc_text = escaped
    return True
