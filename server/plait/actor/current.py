"""The thread, connection and request of the running code."""

from typing import Any, NamedTuple

from starlette.requests import Request

from plait.actor.connection import Connection
from plait.actor.mailbox import current_turn
from plait.actor.thread import Thread

__all__ = ["Current", "current"]


class Current(NamedTuple):
    """The thread of the running turn, and the connection and the request that caused it, if any."""

    thread: Thread[Any]
    connection: Connection | None
    request: Request | None


def current() -> Current:
    """Return the thread, connection and request of the running hook or rpc. Raises LookupError outside of a turn."""
    turn = current_turn()
    if turn is None:
        raise LookupError("current() can only be called while a hook or an rpc of a thread runs")
    return Current(turn.actor.thread, turn.connection, turn.request)
