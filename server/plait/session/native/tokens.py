"""Asks a client for a new token before its token expires, and closes the socket if none comes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from plait.actor.connection import Connection, Principal, Rights
from plait.actor.transport import Frame
from plait.clock import read_wall_clock
from plait.errors import PlaitError
from plait_schemas.codes import FORBIDDEN, UNAUTHENTICATED
from plait_schemas.messages import AuthExpiring, encode

__all__ = ["Tokens", "seconds_left"]

# How many seconds before a token expires the client is asked for a new one.
_NOTICE: Final = 30.0
# Minimum seconds between a new token and the next request for one.
_PAUSE: Final = 1.0

Explain = Callable[[BaseException], PlaitError]
"""Returns the error to tell a client."""

Renew = Callable[[str], Awaitable[Rights]]
"""Returns the principal of a token and its rights. Raises Unauthenticated or Forbidden."""


class Tokens:
    """Has the token of one connection renewed before it expires."""

    __slots__ = ("_connection", "_explain", "_loop", "_next", "_renew", "_task", "_timer", "_transport_send")

    def __init__(self, connection: Connection, send: Callable[[Frame], None], renew: Renew, explain: Explain) -> None:
        self._connection = connection
        self._transport_send = send
        self._renew = renew
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._next: str | None = None

    def watch(self, *, is_renewed: bool = False) -> None:
        """Ask for a new token when the current one is about to expire, and close the socket when it has expired.

        If the client has just sent a short-lived token, it is asked again after half of its lifetime.
        """
        self._stop_timer()
        left = seconds_left(self._connection.principal)
        if left is None:
            return
        pause = max(left - _NOTICE, max(left / 2, _PAUSE) if is_renewed else 0.0)
        if pause < left:
            self._wait(pause, self._ask)
        else:
            self._wait(left, self._expire)

    def renew(self, token: str) -> None:
        """Check a new token; if several arrive during a check, check only the last of them."""
        if self._task is None:
            self._task = self._loop.create_task(self._check(token), name="plait token")
        else:
            self._next = token

    def close(self) -> None:
        """Stop the timer and any check."""
        self._stop_timer()
        self._next = None
        if self._task is not None:
            self._task.cancel()

    # Inside

    async def _check(self, token: str) -> None:
        before = self._connection.principal
        try:
            rights = await self._renew(token)
        except Exception as failure:  # `authenticate` may raise anything.
            error = self._explain(failure)
            self._connection.close(error.close_code, str(error))
        else:
            if _get_id(rights.principal) != _get_id(before):
                self._connection.close(FORBIDDEN, "the new token belongs to another user")
                return
            self._connection.grant(rights)
            self.watch(is_renewed=True)
        finally:
            self._task = None
            if (newer := self._next) is not None:
                self._next = None
                self.renew(newer)

    def _ask(self) -> None:
        left = seconds_left(self._connection.principal)
        assert left is not None
        self._transport_send(Frame(encode(AuthExpiring(round(left, 3)))))
        self._wait(left, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._connection.close(UNAUTHENTICATED, "the token has expired")

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _get_id(principal: Principal | None) -> str | None:
    return None if principal is None else principal.id


def seconds_left(principal: Principal | None) -> float | None:
    """Return the seconds until a principal expires, or None if it does not."""
    if principal is None or principal.expires_at is None:
        return None
    return max(0.0, principal.expires_at - read_wall_clock() / 1e6)
