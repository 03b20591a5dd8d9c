"""Holds the answers to HTTP requests while this node may not serve."""

import asyncio
from functools import partial
from typing import Final

from starlette.types import Message, Send

from plait.cluster.gate import Gate
from plait.errors import Unavailable
from plait_schemas.codec import encode_json

__all__ = ["GatedSend"]

_LOST: Final = encode_json(
    {"error": {"code": Unavailable.code, "message": "this server was cut off from the others; try again"}}
)
_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_LOST)),
    (b"retry-after", b"1"),
]


class GatedSend:
    """A `send` of ASGI for one request or socket, which waits while the gate is closed.

    It drops an answer if this node was dead for the others since the request: it may be an old one.
    """

    def __init__(self, gate: Gate, send: Send) -> None:
        self._gate = gate
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
        elif not self._has_begun and message["type"] == "http.response.start":
            await self._send({"type": "http.response.start", "status": Unavailable.status, "headers": _HEADERS})
            await self._send({"type": "http.response.body", "body": _LOST})


def _finish(opened: asyncio.Future[None]) -> None:
    if not opened.done():
        opened.set_result(None)
