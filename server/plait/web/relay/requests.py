"""HTTP requests of this node whose threads other nodes own: the gateway's end."""

import asyncio
from typing import Final, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from plait.cluster.owners import NodeId
from plait.store.protocol import ThreadKey
from plait.web.links.link import LOST, Link
from plait.web.links.links import RETRY, Links
from plait.web.links.pipe import PIECE, Pipe
from plait.web.links.relays import Relays
from plait.web.lost import abort, make_lost
from plait.web.relay.messages import (
    BODY,
    DISCONNECT,
    FAILED,
    HEAD,
    LAST_BODY,
    LAST_PART,
    NOT_OWNER,
    PART,
    REQUEST,
    SentScope,
    unpack_head,
    unpack_owner,
)

__all__ = ["SentRequest", "relay_request"]

# Seconds after which the gateway watches for a disconnect of the client; most requests are answered earlier.
_SOON: Final = 0.1


class SentRequest(NamedTuple):
    """The first receiver of a request, its thread, and the endpoint that answers it."""

    link: Link
    key: ThreadKey
    endpoint: int


class _Moved(Exception):
    """The node that was asked does not own the thread, and has done nothing."""


async def relay_request(
    target: SentRequest, scope: Scope, receive: Receive, send: Send, *, links: Links, relays: Relays
) -> None:
    """Forward a request to the owner of its thread; follow the thread if it moves.

    Raises Unavailable if the owner of the thread is away for too long, and Unavailable or Indeterminate if it is lost
    before it has answered.
    """
    link, key, until = target.link, target.key, links.begin_hold()
    message = await receive()
    if message["type"] == "http.disconnect":
        return
    body, is_whole = message.get("body", b""), not message.get("more_body", False)
    first, rest = body[:PIECE], body[PIECE:]
    sent = SentScope.of(
        scope, endpoint=target.endpoint, kind=key.kind, thread=key.name, body=first, is_whole=is_whole and not rest
    )
    if link.is_away or link.is_closed:
        link = await links.reach(key, until)
    while True:
        relayed = _RelayedRequest(link, scope, receive, send, sent)
        relays.add(relayed)
        try:
            await relayed.run(rest, is_whole=is_whole)
            return
        except _Moved:
            links.correct(key, relayed.owner)
        finally:
            relays.discard(relayed)
        await asyncio.sleep(RETRY)
        link = await links.reach(key, until)


class _RelayedRequest(Pipe):
    """One request at its gateway."""

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, sent: SentScope) -> None:
        super().__init__(link, room=-len(sent.body))
        self._scope = scope
        self._receive = receive
        self._send = send
        self._sent = sent
        # What the owner has sent.
        self._messages: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._has_begun = False
        # Whether the answer is a stream of events that does not end by itself, and whether this node has ended it.
        self._is_endless = False
        self._is_left = False
        # Who owns the thread, if the node that was asked has said that it does not.
        self.owner: NodeId | None = None
        self._is_disconnected = False

    async def run(self, rest: bytes, *, is_whole: bool) -> None:
        """Send the request, and the answer to the client. Raises Unavailable and Indeterminate."""
        loop = asyncio.get_running_loop()
        self._number = self._link.open(REQUEST, self._sent.encode(), self)
        upload: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal upload
            upload = loop.create_task(self._upload(rest, is_whole=is_whole), name="plait upload")

        # A client that has sent all can only disconnect.
        timer = loop.call_later(_SOON if self._sent.is_whole else 0, begin)
        is_complete = False
        try:
            is_complete = await self._answer()
        finally:
            timer.cancel()
            if upload is not None:
                upload.cancel()
            if not is_complete:
                self._disconnect()
            self._link.forget(self._number)

    def leave(self) -> None:
        """End a stream of events, as this node is shutting down; other answers end by themselves."""
        if self._is_endless:
            self._is_left = True
            self._disconnect()

    def cut_off(self) -> None:
        """End the answer, as if the link was lost."""
        self.lose()

    # Pipe

    def take(self, kind: int, data: bytes) -> None:
        """Handle a message of the owner."""
        self._messages.put_nowait((kind, data))

    def lose(self) -> None:
        """End the answer, as the link is lost."""
        super().lose()
        self.take(LOST, b"")

    # Inside

    async def _answer(self) -> bool:
        """Send the answer; return whether the owner has ended the stream."""
        while True:
            kind, data = await self._messages.get()
            if kind == NOT_OWNER:
                self.owner, self._is_disconnected = unpack_owner(data), True
                raise _Moved
            if kind == HEAD:
                status, headers = unpack_head(data)
                self._is_endless = self._scope["method"] == "GET" and any(
                    name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
                )
                self._has_begun = True
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
            elif kind in (PART, LAST_PART):
                await self._send({"type": "http.response.body", "body": data, "more_body": kind == PART})
                if kind == LAST_PART:
                    return True
                self.use(len(data))
            else:
                await self._fail()
                return kind == FAILED

    async def _fail(self) -> None:
        """End the answer; one that has begun without its last part."""
        if self._is_left:
            await self._send({"type": "http.response.body", "body": b""})
        elif self._has_begun:
            abort(self._scope)
        elif not self._is_disconnected:
            raise make_lost(self._scope["method"], "the process that owns this thread has stopped")

    async def _upload(self, rest: bytes, *, is_whole: bool) -> None:
        """Send the rest of the body when the owner has taken the request, and whether the client disconnects."""
        if not self._sent.is_whole:
            await self.wait_for_room(1)
        if rest:
            await self.send(BODY, rest, last=LAST_BODY if is_whole else BODY)
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self._disconnect()
                return
            last = BODY if message.get("more_body", False) else LAST_BODY
            await self.send(BODY, message.get("body", b""), last=last)

    def _disconnect(self) -> None:
        if not self._is_disconnected:
            self._is_disconnected = True
            self.put(DISCONNECT)
