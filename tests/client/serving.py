"""A server for one thread on a real socket, which does as it is told: it refuses, holds back and drops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from ssl import SSLContext
from typing import Any

from tests.client.peer import Link, Peer
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.asyncio.server import serve as serve_sockets
from websockets.exceptions import ConnectionClosedError
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from plait_client.loop import LoopThread
from plait_schemas import messages
from plait_schemas.codec import decode_json
from plait_schemas.frames import decode_client, encode
from plait_schemas.messages import SUBPROTOCOL, ClientMessage, ServerMessage

__all__ = ["TIMEOUT", "Server", "serve"]

TIMEOUT = 60.0


def validate(state: Any) -> str | None:
    return "n cannot be negative" if state["n"] < 0 else None


class Server:
    """The sockets of one Peer. `received` is every frame of every client."""

    def __init__(self) -> None:
        self.url = ""
        self.peer = Peer({"n": 1, "tags": ["a"], "by": {}}, validate=validate)
        self.received: list[ClientMessage | bytes] = []
        # The close code for each join, and the HTTP status for each request.
        self.refuses: int | None = None
        self.status: HTTPStatus | None = None
        # Whether these answers are those of plait, or else of a proxy.
        self.answers = True
        # The location of a redirect, if the status is one.
        self.location: str | None = None
        # How many have come.
        self.requests = 0
        # The close code for each client after it has joined.
        self.drops: int | None = None
        # Whether pushes and calls are kept back.
        self.is_holding = False
        # Whether nothing is read from clients that have joined.
        self.is_deaf = False
        self.loop: LoopThread | None = None
        self._held: list[tuple[Link, ClientMessage]] = []
        self._sockets: dict[ServerConnection, Link] = {}
        self._news = asyncio.Event()

    @property
    def sockets(self) -> int:
        return len(self._sockets)

    def frames(self, kind: type[ClientMessage]) -> list[Any]:
        """Return the frames of a kind that have come."""
        return [frame for frame in self.received if isinstance(frame, kind)]

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(TIMEOUT):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    def release(self) -> None:
        """Answer the requests that were held back."""
        self.is_holding = False
        held, self._held = self._held, []
        for link, frame in held:
            self.peer.receive(link, frame)

    def send_all(self, frame: ServerMessage | bytes) -> None:
        """Send to every socket."""
        data = frame if isinstance(frame, bytes) else encode(frame).decode()
        broadcast(self._sockets, data)

    async def close_all(self, code: int | None = None, reason: str = "") -> None:
        """Close every socket, without a word when there is no code."""
        sockets = tuple(self._sockets)
        for socket in sockets:
            if code is None:
                socket.transport.abort()
            else:
                await socket.close(code, reason)
        await self.until(lambda: self._sockets.keys().isdisjoint(sockets))

    async def handle(self, socket: ServerConnection) -> None:
        """Serve one socket."""
        link = Link(lambda frame: broadcast([socket], encode(frame).decode()))
        try:
            async for data in socket:
                frame = data if isinstance(data, bytes) else decode_client(data)
                self.received.append(frame)
                if isinstance(frame, messages.Join):
                    if self.refuses is not None:
                        await socket.close(self.refuses, "as told")
                        return
                    self._sockets[socket] = link
                self._receive(link, frame)
                self._news.set()
                if self.drops is not None:
                    await socket.close(self.drops, "as told")
                if self.is_deaf:
                    await socket.wait_closed()
        except ConnectionClosedError:
            return
        finally:
            self.peer.leave(link)
            self._sockets.pop(socket, None)
            self._news.set()

    def _receive(self, link: Link, frame: ClientMessage | bytes) -> None:
        match frame:
            case bytes():
                self.send_all(frame)
            case messages.Presence(data=data):
                self.send_all(messages.PresenceDiff(updated={link.id: data}))
            case messages.Message(data=data) if isinstance(decode_json(data), dict):
                self.send_all(messages.Event(name=decode_json(data)["event"], data=data))
            case messages.Push() | messages.Call() if self.is_holding:
                self._held.append((link, frame))
            case _:
                self.peer.receive(link, frame)

    def greet(self, connection: ServerConnection, request: Request) -> Response | None:
        """Accept a request or refuse it."""
        self.requests += 1
        self._news.set()
        if self.status is None:
            return None
        response = connection.respond(self.status, "as told\n")
        if self.answers:
            response.headers[messages.ANSWER_HEADER] = messages.SUBPROTOCOL
        if self.location is not None:
            response.headers["Location"] = self.location
        return response


@asynccontextmanager
async def serve(*, tls: SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve on a free port as long as the block lasts."""
    server = Server()
    async with serve_sockets(
        server.handle,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        process_request=server.greet,
        close_timeout=1,
        ssl=tls,
    ) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        server.url = f"{'ws' if tls is None else 'wss'}://127.0.0.1:{port}/threads/note/a"
        yield server
        await server.close_all()
