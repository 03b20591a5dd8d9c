"""The gateway's end of relayed HTTP requests: requests of this node whose threads other nodes own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from plait.store.thread_rows import ThreadKey
from plait.web.links.link import Link
from plait.web.links.links import Attempts, Links
from plait.web.links.pipe import PIECE, Lost, Outgoing, Refused
from plait.web.links.relays import Relays
from plait.web.lost import abort, make_lost
from plait.web.relay.messages import REQUEST, SentScope, unpack_head

__all__ = ["relay_request"]

# Seconds after which the gateway watches for a disconnect of the client; most requests are answered earlier.
_SOON: Final = 0.1


async def relay_request(
    key: ThreadKey, endpoint: int, scope: Scope, receive: Receive, send: Send, *, links: Links, relays: Relays
) -> None:
    """Forward a request to the `endpoint` of the owner of its thread; follow the thread if it moves.

    Raises Unavailable if the owner of the thread is away for too long, and Unavailable or Indeterminate if it is lost
    before it has answered.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        return
    body, is_whole = message.get("body", b""), not message.get("more_body", False)
    first, rest = body[:PIECE], body[PIECE:]
    sent = SentScope.of(
        scope, endpoint=endpoint, kind=key.kind, thread=key.name, body=first, is_whole=is_whole and not rest
    )
    attempts = Attempts(links, key)
    while True:
        relayed = _RelayedRequest(await attempts.reach(), scope, receive, send, sent)
        relays.add(relayed)
        try:
            await relayed.run(rest, is_whole=is_whole)
            return
        except Refused as refusal:
            attempts.correct(refusal.owner)
        finally:
            relays.discard(relayed)
        await attempts.pause()


class _RelayedRequest(Outgoing):
    """The gateway's end of one request."""

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, sent: SentScope) -> None:
        super().__init__(link, REQUEST, sent.encode(), room=-len(sent.body))
        self._scope = scope
        self._receive = receive
        self._send = send
        self._sent = sent
        self._has_begun = False
        # Whether the answer is a stream of events that does not end by itself, and whether this node has ended it.
        self._is_endless = False
        self._is_left = False
        self._is_disconnected = False

    async def run(self, rest: bytes, *, is_whole: bool) -> None:
        """Send the rest of the body, and the answer to the client. Raises Refused, Unavailable and Indeterminate."""
        loop = asyncio.get_running_loop()
        upload: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal upload
            upload = loop.create_task(self._upload(rest, is_whole=is_whole), name="plait upload")

        # A client that has sent its whole request can only disconnect.
        timer = loop.call_later(_SOON if self._sent.is_whole else 0, begin)
        try:
            await self._answer()
        except Lost:
            await self._fail()
        finally:
            timer.cancel()
            if upload is not None:
                upload.cancel()
            self.cancel()

    def leave(self) -> None:
        """End a stream of events, as this node is shutting down; other answers end by themselves."""
        if self._is_endless:
            self._is_left = True
            self.cancel()

    def cut_off(self) -> None:
        """End the answer, as if the link was lost."""
        self.cancel()
        self.lose()

    # Inside

    async def _answer(self) -> None:
        """Send the answer. Raises Refused and Lost."""
        head, _ = await self.next()
        status, headers = unpack_head(head)
        self._is_endless = self._scope["method"] == "GET" and any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        is_last = False
        while not is_last:
            data, is_last = await self.next()
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
            self.use(len(data))

    async def _fail(self) -> None:
        """End the answer with an error, or, if it has begun, without its last part."""
        if self._is_left:
            await self._send({"type": "http.response.body", "body": b""})
        elif self._has_begun:
            abort(self._scope)
        elif not self._is_disconnected:
            raise make_lost(self._scope["method"], "the process that owns this thread has stopped")

    async def _upload(self, rest: bytes, *, is_whole: bool) -> None:
        """Send the rest of the body; cancel the request if the client disconnects."""
        try:
            if not self._sent.is_whole:
                await self.send_body(self._read_body(rest, is_whole=is_whole))
            if not self._is_over:
                await self._read_message()
        except ClientDisconnect:
            self._is_disconnected = True
            self.cancel()

    async def _read_body(self, rest: bytes, *, is_whole: bool) -> AsyncIterator[bytes]:
        yield rest
        while not is_whole:
            body, is_whole = await self._read_message()
            yield body

    async def _read_message(self) -> tuple[bytes, bool]:
        """Return a piece of the body, and whether it is the last one. Raises ClientDisconnect."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return message.get("body", b""), not message.get("more_body", False)
