"""What the running code was called for."""

from typing import Any, NamedTuple

from starlette.requests import Request

from plait.actor.connection import Connection
from plait.actor.mailbox import current_turn
from plait.actor.thread import Thread

__all__ = ["Current", "current"]


class Current(NamedTuple):
    """The thread of the running turn, and the connection and request that caused it, where there is one."""

    thread: Thread[Any]
    connection: Connection | None
    request: Request | None


def current() -> Current:
    """Return what the running hook, rpc or request is about. Raises LookupError outside of a turn."""
    turn = current_turn()
    if turn is None:
        raise LookupError("current() is for code that a thread's hook, rpc or request runs")
    return Current(turn.owner.thread, turn.connection, turn.request)
