"""Logging, with the thread and the connection in each line."""

import logging
import os
from typing import Final

from plait.actor.connection import Connection
from plait.actor.turn import current_turn
from plait.errors import CallFailed, PlaitError, escape_traceback, operator_message
from plait.store.thread_rows import ThreadKey

__all__ = ["ContextFilter", "Failures", "QueryFilter", "about", "log_error", "log_internal"]

log = logging.getLogger("plait.thread")
log.addFilter(escape_traceback)

# The attribute of a logged exception that holds its id.
_ID: Final = "__plait_id__"


def about(key: ThreadKey | None, connection: Connection | None = None) -> dict[str, str | None]:
    """Return the `extra` of a log record about a thread, and one of its connections."""
    return {
        "plait_thread": None if key is None else str(key),
        "plait_connection": connection.id if connection else None,
    }


def log_error(error: BaseException, key: ThreadKey | None, connection: Connection | None) -> None:
    """Log an exception from a hook or an rpc: a PlaitError in one line, any other once, with its id and traceback."""
    if isinstance(error, PlaitError):
        place = f", at {error.path}" if error.path else ""
        level = logging.DEBUG if error.is_logged else logging.WARNING
        log.log(level, "%s: %s%s", error.code, operator_message(error), place, extra=about(key, connection))
    else:
        log_internal(error, key, connection)


def log_internal(error: BaseException, key: ThreadKey | None = None, connection: Connection | None = None) -> str:
    """Log an exception with its traceback, and return a message for clients, with an id that is also in the log."""
    # Use `vars`, as a class may refuse to set attributes.
    id: str | None = vars(error).get(_ID)
    if id is not None:
        log.debug("internal error %s was handled again", id, extra=about(key, connection))
    else:
        id = vars(error)[_ID] = os.urandom(6).hex()
        name = type(error).__name__
        log.error("internal error %s: unexpected %s", id, name, exc_info=error, extra=about(key, connection))
    return f"internal error {id}"


class Failures:
    """Turns exceptions into the errors that clients get: an exception that is not plait's becomes an id in the log."""

    def __init__(self) -> None:
        # Whether clients get the text of every exception, as in development.
        self.shows_text = False

    def explain(self, error: BaseException, key: ThreadKey | None, connection: Connection | None = None) -> PlaitError:
        """Return the error that a client gets: a PlaitError as it is; any other exception is logged and replaced."""
        if isinstance(error, PlaitError):
            return error
        message = log_internal(error, key, connection)
        return CallFailed(f"{message}: {type(error).__name__}: {error}" if self.shows_text else message)


class QueryFilter(logging.Filter):
    """Removes query strings from uvicorn's access log, as they may contain tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"{each.partition('?')[0]}?…" if isinstance(each, str) and "?" in each else each for each in record.args
            )
        return True


class ContextFilter(logging.Filter):
    """Adds the thread and the connection to each record, by default of the logging turn, and both as `context`."""

    def filter(self, record: logging.LogRecord) -> bool:
        turn = current_turn()
        fields = about(turn.actor.key, turn.connection) if turn else {}
        for name, value in fields.items():
            vars(record).setdefault(name, value)
        found = [getattr(record, name, None) for name in ("plait_thread", "plait_connection")]
        record.context = "".join(f" [{each}]" for each in found if each)
        return True
