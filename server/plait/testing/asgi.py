"""Connects the Python client to an application in the same process."""

import asyncio
import logging
import math
from typing import Any, Final, Self
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from plait.state.principal import Principal
from plait.web.authentication import PRINCIPAL
from plait_client.errors import ClientError
from plait_client.target import ABNORMAL, NotOpened, Target
from plait_schemas import codes
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["HOST", "AsgiTarget"]

log = logging.getLogger("plait.testing")

HOST: Final = "localhost"
"""The host of all requests."""

# Seconds that the application gets to end after its socket was closed.
_ENDING: Final = 2.0
_CLOSED: Final = 1000


class AsgiTarget(Target, frozen=True, kw_only=True):
    """The target of a connection to an application in this process. The application gets the principal in the scope."""

    app: Any
    principal: Principal | None

    @property
    def quiet(self) -> float:
        return math.inf  # No connection is lost without notice.

    async def open(self, *, was_joined: bool = False) -> "_AsgiSocket":
        path = self.url.removeprefix(f"ws://{HOST}")
        headers = {"host": HOST, **self.headers}
        scope: Scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.5"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": (HOST, 80),
            "subprotocols": [SUBPROTOCOL],
            "state": {},
        }
        if self.principal is not None:
            scope[PRINCIPAL] = self.principal
        socket = _AsgiSocket(self.app, scope)
        try:
            await socket.wait_until_accepted()
        except BaseException:
            await socket.close()
            raise
        return socket


class _AsgiSocket:
    """A ClientSocket whose frames are ASGI messages."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self.subprotocol: str | None = None
        self.close_code: int | None = None
        self.close_reason: str | None = None
        self.transport = self
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._received: asyncio.Queue[Message] = asyncio.Queue()
        self._error: Exception | None = None
        self._sent.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.create_task(self._run(app, scope), name="plait testing socket")

    async def wait_until_accepted(self) -> None:
        """Wait until the application accepts the socket. Raises NotOpened, and ClientError for its exceptions."""
        message = await self._received.get()
        if message["type"] == "websocket.accept":
            self.subprotocol = message.get("subprotocol")
        elif self._error is not None:
            raise ClientError(f"the application raised {self._error!r}") from self._error
        else:
            raise NotOpened(codes.FORBIDDEN, "the application has refused the request")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str | bytes:
        if self.close_code is None:
            message = await self._received.get()
            if message["type"] == "websocket.send":
                text: str | None = message.get("text")
                data: bytes = message.get("bytes", b"")
                return data if text is None else text
            self.close_code, self.close_reason = message.get("code", _CLOSED), message.get("reason")
        raise StopAsyncIteration

    async def send(self, message: bytes, *, text: bool | None = None) -> None:
        if text:
            self._sent.put_nowait({"type": "websocket.receive", "text": message.decode()})
        else:
            self._sent.put_nowait({"type": "websocket.receive", "bytes": message})

    async def close(self) -> None:
        self._end(_CLOSED)
        _, late = await asyncio.wait([self._task], timeout=_ENDING)
        for task in late:
            task.cancel()
            await asyncio.wait([task])

    def abort(self) -> None:
        """Close the socket like a lost connection."""
        self._end(ABNORMAL)

    # Inside

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._sent.get, self._received.put)
        except Exception as error:
            self._error = error
            log.exception("the application has raised")
        self._received.put_nowait({"type": "websocket.close", "code": ABNORMAL})

    def _end(self, code: int) -> None:
        """Tell both sides that the socket is closed."""
        self._sent.put_nowait({"type": "websocket.disconnect", "code": code})
        self._received.put_nowait({"type": "websocket.close", "code": code})
