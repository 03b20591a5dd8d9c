"""Holds the answers to HTTP requests while this node may not serve."""

import asyncio
from functools import partial

from starlette.types import Message, Scope, Send

from plait.cluster.gate import Gate
from plait.errors import PlaitError, Unavailable
from plait.web.lost import abort, make_lost
from plait_schemas.codec import encode_json

__all__ = ["GatedSend"]


class GatedSend:
    """A `send` of ASGI for one request or socket, which waits while the gate is closed.

    It drops an answer if this node was dead for the others since the request: it may be an old one.
    """

    def __init__(self, gate: Gate, scope: Scope, send: Send) -> None:
        self._gate = gate
        self._scope = scope
        self._send = send
        self._generation = gate.generation
        self._has_begun = False

    async def __call__(self, message: Message) -> None:
        while not self._gate.is_open:
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._gate.call_when_open(partial(_finish, opened))
            await opened
        if self._gate.generation == self._generation or message["type"] == "websocket.close":
            self._has_begun = True
            await self._send(message)
        elif self._has_begun:
            abort(self._scope)
        elif message["type"] == "http.response.start":
            await self._refuse(make_lost(self._scope["method"], "this server was cut off from the others"))

    async def _refuse(self, error: PlaitError) -> None:
        body = encode_json({"error": {"code": error.code, "message": str(error)}})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if error.status == Unavailable.status:
            headers.append((b"retry-after", b"1"))
        await self._send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _finish(opened: asyncio.Future[None]) -> None:
    if not opened.done():
        opened.set_result(None)
