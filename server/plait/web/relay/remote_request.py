"""HTTP requests that gateways relay to the threads of this node: the owner's end."""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Scope

from plait.actor.logs import log_internal
from plait.actor.transport import Frame
from plait.web.links.link import Link
from plait.web.relay.messages import (
    BODY,
    DISCONNECT,
    FAILED,
    HEAD,
    LAST_BODY,
    LAST_PART,
    PART,
    ROOM,
    pack_head,
    pack_size,
    unpack_size,
)
from plait.web.relay.window import PIECE, SizeCounter, Window

__all__ = ["RemoteRequest"]


class RemoteRequest:
    """One request of a gateway: the stream `number` of a link, and `receive` and `send` of ASGI."""

    def __init__(self, link: Link, number: int, body: bytes, *, is_whole: bool) -> None:
        self._link = link
        self._number = number
        self._window = Window()
        self._used = SizeCounter()
        # Parts of the body, and whether each is the last.
        self._body: deque[tuple[bytes, bool]] = deque([(body, is_whole)])
        self._arrived = asyncio.Event()
        self._is_disconnected = False
        # Whether the whole answer has been sent.
        self._is_answered = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have an app answer the request."""
        try:
            await app(scope, self._receive_message, self._send_message)
        except Exception as error:
            log_internal(error)
        finally:
            if not self._is_answered:
                self._link.put(FAILED, self._number)
            self._link.forget(self._number)

    # The Stream of the link

    def receive(self, kind: int, data: bytes) -> None:
        """Handle a message of the gateway."""
        if kind == ROOM:
            self._window.give(unpack_size(data))
        elif kind in (BODY, LAST_BODY):
            self._body.append((data, kind == LAST_BODY))
            self._arrived.set()
        elif kind == DISCONNECT:
            self.lose()

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        """Fail, as requests have no frames."""
        raise AssertionError("a request has no frames")

    def pause(self) -> None:
        """Send nothing, as the link is full."""
        self._window.set_link_full(is_full=True)

    def resume(self) -> None:
        """Send, as the link has room."""
        self._window.set_link_full(is_full=False)

    def lose(self) -> None:
        """Tell the app that the client has disconnected."""
        self._is_disconnected = True
        self._window.close()
        self._arrived.set()

    # ASGI

    async def _receive_message(self) -> Message:
        while not self._body or self._is_disconnected:
            if self._is_disconnected:
                return {"type": "http.disconnect"}
            self._arrived.clear()
            await self._arrived.wait()
        body, is_last = self._body.popleft()
        if used := self._used.use(len(body)):
            self._link.put(ROOM, self._number, pack_size(used))
        return {"type": "http.request", "body": body, "more_body": not is_last}

    async def _send_message(self, message: Message) -> None:
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._link.put(HEAD, self._number, pack_head(message["status"], message.get("headers", ())))
        elif message["type"] == "http.response.body":
            body, is_last = message.get("body", b""), not message.get("more_body", False)
            if not isinstance(body, bytes):
                body = bytes(body)
            for at in range(0, max(len(body), 1), PIECE):
                piece = body[at : at + PIECE]
                await self._window.take(len(piece))
                is_end = is_last and at + PIECE >= len(body)
                self._link.put(LAST_PART if is_end else PART, self._number, piece)
            if is_last:
                self._is_answered = True
                self.lose()  # As under a server, the app sees a disconnect.
