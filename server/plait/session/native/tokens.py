"""Asks a client for a new token before its token expires."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights
from plait.actor.transport import Frame, Transport
from plait.parts.queries.live_queries import find_queries
from plait.session.leases import PrincipalLease, find_seconds_left
from plait.session.native.follower import Follower
from plait_schemas.codes import FORBIDDEN
from plait_schemas.frames import encode
from plait_schemas.messages import AuthExpiring

__all__ = ["Tokens"]

# The client is asked for a new token this many seconds before the old one expires.
_NOTICE: Final = 30.0
# Minimum seconds between a new token and the next request for one.
_PAUSE: Final = 1.0

Renew = Callable[[str], Awaitable[Rights]]
"""Returns the principal of a token and its rights. Raises Unauthenticated or Forbidden."""


class Tokens:
    """Asks for a new token of one connection before the current one expires."""

    __slots__ = ("_actor", "_connection", "_lease", "_loop", "_next", "_renew", "_task", "_transport", "follower")

    def __init__(
        self, actor: Actor, connection: Connection, transport: Transport, lease: PrincipalLease, *, renew: Renew
    ) -> None:
        self._actor = actor
        self._connection = connection
        # Closes the socket when its token expires.
        self._lease = lease
        self._transport = transport
        self._renew = renew
        # Sends another picture if another principal of the user sees other places; None before the client has joined.
        self.follower: Follower | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._next: str | None = None

    def watch(self, *, is_renewed: bool = False) -> None:
        """Ask for a new token when the current one is about to expire.

        If the client has just sent a short-lived token, it is asked for the next one after half of the lifetime.
        """
        if (left := find_seconds_left(self._connection.principal)) is not None:
            pause = max(left - _NOTICE, max(left / 2, _PAUSE) if is_renewed else 0.0)
            if pause < left:
                self._lease.ask_before(left - pause, self._ask)

    def renew(self, token: str) -> None:
        """Check a new token; if several arrive during a check, check only the last of them."""
        if self._task is None:
            self._task = self._loop.create_task(self._check(token), name="plait token")
        else:
            self._next = token

    def close(self) -> None:
        """Stop any check."""
        self._next = None
        if self._task is not None:
            self._task.cancel()

    # Inside

    async def _check(self, token: str) -> None:
        before = self._connection.user
        try:
            rights = await self._renew(token)
        except Exception as failure:  # `authenticate` may raise any exception.
            error = self._actor.explain(failure)
            self._connection.close(error.close_code, str(error))
        else:
            if (None if rights.principal is None else rights.principal.id) != before:
                self._connection.close(FORBIDDEN, "the new token belongs to another user")
                return
            self._connection.rights = rights
            find_queries(self._actor).review(self._connection)
            if self.follower is not None:
                self.follower.review()
            self._lease.renew(rights.principal)
            self.watch(is_renewed=True)
        finally:
            self._task = None
            if (newer := self._next) is not None:
                self._next = None
                self.renew(newer)

    def _ask(self, left: float) -> None:
        self._transport.send(Frame(encode(AuthExpiring(round(left, 3)))))
