"""Logging, with the thread and the connection in each line."""

import logging
from typing import Any

from plait.actor.connection import Connection
from plait.actor.mailbox import current_turn
from plait.errors import PlaitError, escape_traceback, operator_message
from plait.store.protocol import ThreadKey

__all__ = ["ContextFilter", "QueryFilter", "about", "log_error"]

log = logging.getLogger("plait.thread")
log.addFilter(escape_traceback)


def about(key: ThreadKey | None, connection: Connection | None = None) -> dict[str, Any]:
    """Return the `extra` of a log record about a thread, and one of its connections."""
    return {
        "plait_thread": None if key is None else str(key),
        "plait_connection": connection.id if connection else None,
    }


def log_error(error: BaseException, key: ThreadKey | None, connection: Connection | None) -> None:
    """Log an exception from a hook or an rpc: a PlaitError in one line, any other with its traceback."""
    if isinstance(error, PlaitError):
        place = f", at {error.path}" if error.path else ""
        level = logging.DEBUG if error.is_logged else logging.WARNING
        log.log(level, "%s: %s%s", error.code, operator_message(error), place, extra=about(key, connection))
    else:
        log.error("unexpected %s", type(error).__name__, exc_info=error, extra=about(key, connection))


class QueryFilter(logging.Filter):
    """Removes query strings from uvicorn's access log, as they may contain tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"{each.partition('?')[0]}?…" if isinstance(each, str) and "?" in each else each for each in record.args
            )
        return True


class ContextFilter(logging.Filter):
    """Adds `context` to each record: its thread and connection, or those of the turn that logged it."""

    def filter(self, record: logging.LogRecord) -> bool:
        turn = current_turn()
        fields = about(turn.owner.key, turn.connection) if turn else {}
        thread = getattr(record, "plait_thread", fields.get("plait_thread"))
        connection = getattr(record, "plait_connection", fields.get("plait_connection"))
        record.context = "".join(f" [{each}]" for each in (thread, connection) if each)
        return True
