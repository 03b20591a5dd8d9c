"""The thread, connection and request of the running code."""

from typing import Any, NamedTuple

from starlette.requests import Request

from plait.actor.connection import Connection
from plait.actor.thread import Thread
from plait.actor.turn import current_turn
from plait.errors import Unauthenticated
from plait.state.principal import Principal
from plait.state.reads import find_query

__all__ = ["Current", "current"]


class Current(NamedTuple):
    """The thread of the running turn, and the connection and the request that caused it, if any."""

    thread: Thread[Any]
    connection: Connection | None
    request: Request | None

    @property
    def principal(self) -> Principal:
        """The user of the connection or the request. Raises Unauthenticated if there is none, as for server code."""
        found: Principal | None = None
        if self.connection is not None:
            found = self.connection.principal
        elif self.request is not None:
            found = self.request.state.principal
        return _require(found)


class _InQuery(Current):
    """The thread of a running query, and the principal for whom it runs."""

    @property
    def connection(self) -> Connection | None:
        raise RuntimeError("a query runs for several readers at once: it has a principal, but no connection")

    @property
    def request(self) -> Request | None:
        raise RuntimeError("a query runs for several readers at once: it has a principal, but no request")

    @property
    def principal(self) -> Principal:
        return _require(None if (query := find_query()) is None else query.ask())


def _require(principal: Principal | None) -> Principal:
    if principal is None:
        raise Unauthenticated("only a user may do this")
    return principal


def current() -> Current:
    """Return the thread, connection and request of the running hook or rpc; `principal` of the result is the user.

    In a query, there is no connection and no request, and asking for them raises RuntimeError. Raises LookupError
    outside of a turn and a query, and in the code of a thread that a turn of another node calls.
    """
    if (query := find_query()) is not None:
        assert isinstance(query.thread, Thread)
        return _InQuery(query.thread, None, None)
    turn = current_turn()
    if turn is None:
        raise LookupError("current() can only be called while a hook or an rpc of a thread runs")
    thread = turn.actor.thread
    if not isinstance(thread, Thread):
        raise LookupError(f"this code was called by a turn of {turn.actor.key}, which runs in another process")
    return Current(thread, turn.connection, turn.request)
