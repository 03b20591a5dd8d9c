"""The opening of WebSockets under uvicorn.

`uvicorn --ws plait.web.sockets.handshake:Handshake`, or `plait serve`, makes one for each socket. The request passes
through the ASGI app like any other, so that mounts and middleware see it. The endpoint of a thread finds this object in
`scope["extensions"]["plait.handshake"]` and takes the socket over, without ASGI messages.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.utils import accept_key

from plait.web.sockets.entrance import CHANNELS, add_entrance
from plait.web.sockets.frame_reader import ABNORMAL
from plait.web.sockets.socket import Socket
from plait_schemas.messages import ANSWER_HEADER, SUBPROTOCOL

__all__ = ["EXTENSION", "Handshake"]

EXTENSION: Final = "plait.handshake"

log = logging.getLogger("plait.sockets")

RawHeaders = list[tuple[bytes, bytes]]


class Handshake(asyncio.Protocol):
    """One upgrade request, until the app accepts or refuses it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server = server_state
        # The open connections, which the server closes when it stops.
        self.connections = cast(set[object], server_state.connections)
        self._app_state = app_state
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._key = ""
        # Data that the peer sent before the answer.
        self._early = b""
        # Whether the request is answered, or the peer has disconnected.
        self.is_over = False
        # Whether the app has received `websocket.connect`, and whether the peer has disconnected.
        self._is_connected = False
        self._lost = asyncio.Event()
        # The app's response so far.
        self._denial: tuple[int, RawHeaders] = (500, [])
        self._body = b""

    def accept(self, socket: Socket, subprotocol: str | None = None) -> None:
        """Accept the request; `socket` continues with the transport."""
        self.is_over = True
        self.connections.discard(self)
        self.connections.add(socket)
        self.transport.set_protocol(socket)
        chosen = b"" if subprotocol is None else b"Sec-WebSocket-Protocol: %b\r\n" % subprotocol.encode()
        socket.greet(_SWITCHING % (accept_key(self._key).encode(), chosen))
        if self._early:
            socket.data_received(self._early)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Receive the request; uvicorn has parsed it and serialized it again."""
        if self._key:
            self.transport.pause_reading()
            self._early += data
            return
        line, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        method, target, *_ = line.decode("latin-1").split(" ")
        headers = [(name.lower(), value) for name, _, value in (each.partition(b":") for each in lines)]
        self.open(
            method,
            target,
            headers,
            is_secure=is_ssl(self.transport),
            server=get_local_addr(self.transport),
            client=get_remote_addr(self.transport),
        )

    def open(
        self,
        method: str,
        target: str,
        headers: RawHeaders,
        *,
        is_secure: bool,
        server: tuple[str, int | None] | None,
        client: tuple[str, int] | None,
    ) -> None:
        """Receive the parsed request; header names are in lower case."""
        headers = [(name, value.strip()) for name, value in headers]
        if problem := self._check(method, headers):
            self._answer(*problem)
            return
        scope = self._scope(target, headers)
        scope.update(scheme="wss" if is_secure else "ws", server=server, client=client)
        app = cast(ASGIApp, self._config.loaded_app)
        if CHANNELS in scope["subprotocols"]:
            scope = add_entrance(app, scope)
        task = asyncio.Task(self._run(app, scope), name="plait handshake")
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._lost.set()
        self.connections.discard(self)

    def shutdown(self) -> None:
        """Called by uvicorn when the server shuts down."""
        self._answer(503, [], b"the server is shutting down\n")

    # Inside

    def _check(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, RawHeaders, bytes] | None:
        """Return the error response for an invalid opening request (RFC 6455, section 4.2.1), or None."""
        if method != "GET":
            return 405, [(b"allow", b"GET")], b"use GET to open a WebSocket\n"
        found = dict(headers)
        if found.get(b"sec-websocket-version") != b"13":
            return 426, [(b"sec-websocket-version", b"13")], b"only WebSocket version 13 is supported\n"
        key = found.get(b"sec-websocket-key", b"")
        try:
            is_key = len(base64.b64decode(key, validate=True)) == 16
        except binascii.Error:
            is_key = False
        if not is_key:
            return 400, [], b"Sec-WebSocket-Key is missing or invalid\n"
        self._key = key.decode()
        return None

    def _scope(self, target: str, headers: RawHeaders) -> Scope:
        raw_path, _, query = target.partition("?")
        root_path = self._config.root_path
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "root_path": root_path,
            "path": root_path + unquote(raw_path),
            "raw_path": (root_path + raw_path).encode(),
            "query_string": query.encode(),
            "headers": headers,
            "subprotocols": [
                each.strip().decode("latin-1")
                for name, value in headers
                if name == b"sec-websocket-protocol"
                for each in value.split(b",")
            ],
            "state": self._app_state.copy(),
            "extensions": {"websocket.http.response": {}, EXTENSION: self},
        }

    # ASGI

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            log.exception("the app raised while opening a WebSocket")
        finally:  # Answer even after a CancelledError of the app's code, as nothing else closes the connection.
            self._answer(500, [], b"Internal Server Error\n")

    async def _receive(self) -> Message:
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        await self._lost.wait()
        return {"type": "websocket.disconnect", "code": ABNORMAL}

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "websocket.http.response.start":
                self._denial = (message["status"], list(message["headers"]))
            case "websocket.http.response.body":
                self._body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._answer(*self._denial, self._body)
            case "websocket.close":
                self._answer(403, [], b"Forbidden\n")
            case _:
                raise RuntimeError(
                    "this app has WebSocket routes of its own besides plait's threads: run it under uvicorn's own "
                    "WebSocket implementation (`uvicorn module:app`)"
                )

    def _answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Answer the request with an HTTP response, unless it is already answered."""
        if self.is_over:
            return
        self.is_over = True
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode()]
        lines += [b"%b: %b" % header for header in headers if header[0].lower() != b"content-length"]
        lines += [_HEADERS, b"content-length: %d" % len(body), b"connection: close", b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()


_HEADERS: Final = f"{ANSWER_HEADER}: {SUBPROTOCOL}\r\ncache-control: no-store".encode()
_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}
_SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\n%b\r\n"
)
