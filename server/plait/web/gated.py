"""Holds the answers to HTTP requests while this node may not serve."""

import asyncio
from contextlib import suppress

from starlette.requests import empty_receive
from starlette.responses import JSONResponse
from starlette.types import Message, Scope, Send

from plait.cluster.gate import Gate
from plait.errors import PlaitError, Unavailable
from plait.web.lost import abort, make_lost

__all__ = ["GatedSend", "wait_until_open"]


async def wait_until_open(gate: Gate, hold: float) -> None:
    """Hold a new request while the gate is closed. Raises Unavailable if that takes too long."""
    while not gate.is_open:
        if (rest := hold - gate.closed_for) <= 0:
            raise Unavailable("this server is cut off from its store; try again")
        await _wait(gate, rest)


class GatedSend:
    """A `send` of ASGI for one request or socket, which waits while the gate is closed.

    Once the gate has been closed for `hold` seconds, a refusal replaces an answer that has not begun. If the other
    nodes took this node for dead since the request, the answer is dropped, as it may be outdated.
    """

    def __init__(self, gate: Gate, scope: Scope, send: Send, *, hold: float) -> None:
        self._gate = gate
        self._scope = scope
        self._send = send
        self._hold = hold
        self._generation = gate.generation
        self._has_begun = False
        self._is_refused = False

    async def __call__(self, message: Message) -> None:
        may_refuse = message["type"] == "http.response.start"
        while not (self._gate.is_open or self._is_refused):
            rest = self._hold - self._gate.closed_for
            if may_refuse and rest <= 0:
                await self._refuse(make_lost(self._scope["method"], "this server is cut off from its store"))
            else:
                await _wait(self._gate, rest if may_refuse else None)
        if self._is_refused:
            return
        if self._gate.generation == self._generation or message["type"] == "websocket.close":
            self._has_begun = True
            await self._send(message)
        elif self._has_begun:
            abort(self._scope)
        elif may_refuse:
            await self._refuse(make_lost(self._scope["method"], "this server was cut off from the others"))

    async def _refuse(self, error: PlaitError) -> None:
        self._is_refused = True
        body = {"error": {"code": error.code, "message": str(error)}}
        headers = {"retry-after": "1"} if error.status == Unavailable.status else None
        await JSONResponse(body, error.status, headers=headers)(self._scope, empty_receive, self._send)


async def _wait(gate: Gate, timeout: float | None) -> None:
    opened = asyncio.Event()
    gate.call_when_open(opened.set)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await opened.wait()
