"""HTTP requests of this node whose threads other nodes own: the gateway's end."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from starlette.types import Message, Receive, Scope, Send

from plait.actor.transport import Frame
from plait.cluster.owners import NodeId
from plait.store.protocol import ThreadKey
from plait.web.links.link import LOST, Link
from plait.web.links.links import RETRY, Links
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
    ROOM,
    TAKEN,
    SentScope,
    pack_size,
    unpack_head,
    unpack_owner,
    unpack_size,
)
from plait.web.relay.window import PIECE, SizeCounter, Window

__all__ = ["SentRequest", "relay_request"]

# Seconds after which the gateway watches for a disconnect of the client; most requests are answered earlier.
_SOON: Final = 0.1


class Relaying(Protocol):
    """The links of a node, and what it relays."""

    links: Links
    relays: Relays


class SentRequest(NamedTuple):
    """The first receiver of a request, its thread, and the endpoint that answers it."""

    link: Link
    key: ThreadKey
    endpoint: int


class _Moved(Exception):
    """The node that was asked does not own the thread, and has done nothing."""


async def relay_request(context: Relaying, target: SentRequest, scope: Scope, receive: Receive, send: Send) -> None:
    """Forward a request to the owner of its thread; follow the thread if it moves.

    Raises Unavailable if the owner of the thread is away for too long, and Unavailable or Indeterminate if it is lost
    before it has answered.
    """
    link, key, until = target.link, target.key, context.links.begin_hold()
    message = await receive()
    if message["type"] == "http.disconnect":
        return
    body, is_whole = message.get("body", b""), not message.get("more_body", False)
    first, rest = body[:PIECE], body[PIECE:]
    sent = SentScope.of(
        scope, endpoint=target.endpoint, kind=key.kind, thread=key.name, body=first, is_whole=is_whole and not rest
    )
    if link.is_away or link.is_closed:
        link = await context.links.reach(key, until)
    while True:
        relayed = _RelayedRequest(link, scope, receive, send, first)
        context.relays.add(relayed)
        try:
            await relayed.run(sent, rest, is_whole=is_whole)
            return
        except _Moved:
            context.links.correct(key, relayed.owner)
        finally:
            context.relays.discard(relayed)
        await asyncio.sleep(RETRY)
        link = await context.links.reach(key, until)


class _RelayedRequest:
    """One request at its gateway."""

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        self._link = link
        self._scope = scope
        self._receive = receive
        self._send = send
        self._number = 0
        # Begins to read what the client sends after the first part of the body.
        self._watch: Callable[[], None] = lambda: None
        self._window = Window(len(body))
        self._used = SizeCounter()
        # The messages of the owner, and the waiter for them.
        self._messages: deque[tuple[int, bytes]] = deque()
        self._arrived = asyncio.Event()
        self._has_begun = False
        # Whether the answer is a stream of events that does not end by itself, and whether this node has ended it.
        self._is_endless = False
        self._is_left = False
        # The owner of the thread, if the node that was asked has said that it is another one.
        self.owner: NodeId | None = None
        self._is_disconnected = False

    async def run(self, sent: SentScope, rest: bytes, *, is_whole: bool) -> None:
        """Send the request, and the answer to the client. Raises Unavailable and Indeterminate."""
        loop = asyncio.get_running_loop()
        self._number = self._link.open(
            REQUEST, sent.encode(), _RequestStream(self._messages, self._arrived, self._window)
        )
        upload: asyncio.Task[None] | None = None

        def watch() -> None:
            nonlocal upload
            upload = loop.create_task(self._upload(rest, is_whole=is_whole), name="plait upload")

        self._watch = watch
        # A client that has sent all can only disconnect; the rest is read when the owner has taken the request.
        timer = loop.call_later(_SOON, watch) if sent.is_whole else None
        is_complete = False
        try:
            is_complete = await self._answer()
        finally:
            if timer is not None:
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
        self._messages.append((LOST, b""))
        self._arrived.set()

    # Inside

    async def _answer(self) -> bool:
        """Send the answer; return whether the owner has ended the stream."""
        while True:
            while self._messages:
                kind, data = self._messages.popleft()
                if kind == TAKEN:
                    self._watch()
                elif kind == NOT_OWNER:
                    self.owner, self._is_disconnected = unpack_owner(data), True
                    raise _Moved
                elif kind == HEAD:
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
                    if used := self._used.use(len(data)):
                        self._link.put(ROOM, self._number, pack_size(used))
                else:
                    await self._fail(is_lost=kind == LOST)
                    return kind == FAILED
            self._arrived.clear()
            await self._arrived.wait()

    async def _fail(self, *, is_lost: bool) -> None:
        """End the answer; one that has begun without its last part."""
        if self._is_left:
            await self._send({"type": "http.response.body", "body": b""})
        elif self._has_begun:
            abort(self._scope)
        elif self._is_disconnected:
            return
        elif not is_lost:
            # The owner has logged the exception.
            text = b"Internal Server Error"
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
            await self._send({"type": "http.response.start", "status": 500, "headers": headers})
            await self._send({"type": "http.response.body", "body": text})
        else:
            raise make_lost(self._scope["method"], "the process that owns this thread has stopped")

    async def _upload(self, rest: bytes, *, is_whole: bool) -> None:
        """Send the rest of the body, and whether the client disconnects."""
        if rest:
            await self._put_body(rest, is_last=is_whole)
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self._disconnect()
                return
            await self._put_body(message.get("body", b""), is_last=not message.get("more_body", False))

    async def _put_body(self, body: bytes, *, is_last: bool) -> None:
        for at in range(0, max(len(body), 1), PIECE):
            piece = body[at : at + PIECE]
            await self._window.take(len(piece))
            is_end = is_last and at + PIECE >= len(body)
            self._link.put(LAST_BODY if is_end else BODY, self._number, piece)

    def _disconnect(self) -> None:
        if not self._is_disconnected:
            self._is_disconnected = True
            self._link.put(DISCONNECT, self._number)


class _RequestStream:
    """The messages of the owner for one request."""

    __slots__ = ("_arrived", "_messages", "_window")

    def __init__(self, messages: deque[tuple[int, bytes]], arrived: asyncio.Event, window: Window) -> None:
        self._messages = messages
        self._arrived = arrived
        self._window = window

    def receive(self, kind: int, data: bytes) -> None:
        """Handle a message."""
        if kind == ROOM:
            self._window.give(unpack_size(data))
        else:
            self._messages.append((kind, data))
            self._arrived.set()

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
        """End the answer, as the link is lost."""
        self._window.close()
        self._messages.append((LOST, b""))
        self._arrived.set()
