"""HTTP requests that gateways relay to the threads of this node: the owner's end."""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Scope

from plait.actor.logs import log_internal
from plait.web.links.link import Link
from plait.web.links.pipe import WINDOW, Pipe
from plait.web.relay.messages import DISCONNECT, FAILED, HEAD, LAST_BODY, LAST_PART, PART, pack_head

__all__ = ["RemoteRequest"]


class RemoteRequest(Pipe):
    """One request of a gateway: the stream `number` of a link, and `receive` and `send` of ASGI."""

    def __init__(self, link: Link, number: int, body: bytes, *, is_whole: bool) -> None:
        super().__init__(link, number, room=WINDOW)
        # Parts of the body, and whether each is the last.
        self._body: deque[tuple[bytes, bool]] = deque([(body, is_whole)])
        self._arrived = asyncio.Event()
        # Whether the whole answer has been sent.
        self._is_answered = False
        if not is_whole:
            self.give_room()

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have an app answer the request."""
        try:
            await app(scope, self._receive_message, self._send_message)
        except Exception as error:
            log_internal(error)
        finally:
            if not self._is_answered:
                self.put(FAILED)
            self._link.forget(self._number)

    # Pipe

    def take(self, kind: int, data: bytes) -> None:
        """Handle a message of the gateway."""
        if kind == DISCONNECT:
            self.end()
        else:
            self._body.append((data, kind == LAST_BODY))
            self._arrived.set()

    def end(self) -> None:
        """Tell the app that the client has disconnected."""
        super().end()
        self._arrived.set()

    # ASGI

    async def _receive_message(self) -> Message:
        while not self._body or self._is_over:
            if self._is_over:
                return {"type": "http.disconnect"}
            self._arrived.clear()
            await self._arrived.wait()
        body, is_last = self._body.popleft()
        self.use(len(body))
        return {"type": "http.request", "body": body, "more_body": not is_last}

    async def _send_message(self, message: Message) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self.put(HEAD, pack_head(message["status"], message.get("headers", ())))
        elif message["type"] == "http.response.body":
            is_last = not message.get("more_body", False)
            await self.send(PART, bytes(message.get("body", b"")), last=LAST_PART if is_last else PART)
            if is_last:
                self._is_answered = True
                self.end()  # As under a server, the app sees a disconnect.
