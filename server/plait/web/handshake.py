"""The opening of WebSockets under uvicorn.

`uvicorn --ws plait.web.handshake:Handshake`, which is what `plait serve` does, makes one a socket. The request goes
through the ASGI app like any other, so that mounts and middleware see it; the endpoint of a thread finds this object
in `scope["extensions"]["plait.handshake"]` and takes the socket over, past ASGI's messages.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.server import ServerProtocol

from plait.web.sockets import Socket

__all__ = ["EXTENSION", "Handshake"]

EXTENSION: Final = "plait.handshake"

log = logging.getLogger("plait.sockets")

# websockets would log each socket that opens or closes.
_protocol_log = logging.getLogger("plait.sockets.protocol")
_protocol_log.setLevel(logging.WARNING)


class Handshake(asyncio.Protocol):
    """One upgrade request, until the app has accepted or refused it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server = server_state
        self._app_state = app_state
        self._protocol = ServerProtocol(max_size=config.ws_max_size, logger=_protocol_log)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._request: Request | None = None
        self._is_over = False
        self._denial: tuple[int, list[tuple[bytes, bytes]]] | None = None

    def accept(
        self, *, max_size: int, write_buffer: int, ended: Callable[[Socket], None], shutdown: Callable[[], None]
    ) -> Socket | None:
        """Accept the request and return the open socket, None if the request is not one that can be accepted."""
        assert self._request is not None
        if self._is_over:
            return None
        response = self._protocol.accept(self._request)
        self._protocol.send_response(response)
        self._flush()
        self._is_over = True
        if self._protocol.handshake_exc is not None:
            self._transport.close()
            return None
        self._protocol.max_message_size = max_size

        def gone(socket: Socket) -> None:
            self._server.connections.discard(cast(Any, socket))
            ended(socket)

        socket = Socket(self._transport, self._protocol, write_buffer=write_buffer, ended=gone, shutdown=shutdown)
        self._server.connections.discard(cast(Any, self))
        self._server.connections.add(cast(Any, socket))
        self._transport.set_protocol(socket)
        self._transport.resume_reading()
        return socket

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(cast(Any, self))

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._request = event
                self._transport.pause_reading()
                task = asyncio.get_running_loop().create_task(self._run(event), name="plait handshake")
                self._server.tasks.add(task)
                task.add_done_callback(self._server.tasks.discard)
        if self._protocol.parser_exc is not None or self._protocol.handshake_exc is not None:
            self._flush()
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._server.connections.discard(cast(Any, self))

    def shutdown(self) -> None:
        """Called by uvicorn when the server is to end."""
        self._answer(503, [], b"the server is shutting down\n")

    # ASGI

    async def _run(self, request: Request) -> None:
        app = cast(Any, self._config.loaded_app)
        try:
            await app(self._scope(request), self._receive, self._send)
        except Exception:
            log.exception("the app failed to answer the opening of a WebSocket")
            self._answer(500, [], b"Internal Server Error\n")
        if not self._is_over:
            self._answer(500, [], b"Internal Server Error\n")

    def _scope(self, request: Request) -> dict[str, Any]:
        raw_path, _, query = request.path.partition("?")
        root_path = self._config.root_path
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": root_path,
            "path": root_path + unquote(raw_path),
            "raw_path": (root_path + raw_path).encode(),
            "query_string": query.encode(),
            "headers": [(key.lower().encode(), value.encode("latin-1")) for key, value in request.headers.raw_items()],
            "subprotocols": [
                each.strip() for line in request.headers.get_all("Sec-WebSocket-Protocol") for each in line.split(",")
            ],
            "state": self._app_state.copy(),
            "extensions": {"websocket.http.response": {}, EXTENSION: self},
        }

    async def _receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def _send(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "websocket.http.response.start":
                self._denial = (message["status"], list(message["headers"]))
            case "websocket.http.response.body":
                assert self._denial is not None
                self._answer(*self._denial, message.get("body", b""))
            case "websocket.close":
                self._answer(403, [], b"Forbidden\n")
            case _:
                raise RuntimeError(
                    "this app has WebSocket routes of its own beside plait's threads: run it under uvicorn's own "
                    "WebSocket implementation (`uvicorn module:app`)"
                )

    def _answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        response = self._protocol.reject(status, body.decode())
        for key, value in headers:
            if key.lower() != b"content-length":
                name = key.decode("latin-1")
                del response.headers[name]
                response.headers[name] = value.decode("latin-1")
        self._protocol.send_response(response)
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
