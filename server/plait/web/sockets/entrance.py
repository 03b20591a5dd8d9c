"""The way of a channel's request: through the whole app, with the headers of its carrier."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_schemas.codes import INTERNAL_ERROR, NOT_FOUND
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["CHANNEL", "CHANNELS", "ENTRANCE", "ChannelRequest", "ChannelsMiddleware", "Entrance", "add_entrance"]

CHANNELS: Final = "plait.channels.v1"
"""The subprotocol of a carrier."""

CHANNEL: Final = "plait.channel"
"""The extension in the scope of a channel's request: its `Channel`."""

ENTRANCE: Final = "plait.entrance"
"""The extension in the scope of a request that may become a carrier: its `Entrance`."""

# The end of a thread's path.
_THREAD: Final = re.compile(rb"(/[^/]*){3}/?$")
_ABNORMAL: Final = 1006

log = logging.getLogger("plait.sockets")


class Entrance:
    """The app that a carrier's request came to, and the scope of the request, which its channels repeat."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self.app = app
        self._scope = {**scope}
        raw = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
        # The path below which the threads are, without that of the carrier's own thread.
        self._base = _THREAD.sub(b"", raw).decode("latin-1")

    def make_scope(self, target: str, channel: object) -> Scope:
        """Return the scope of a channel's request."""
        path, _, query = (self._base + target).partition("?")
        return {
            **self._scope,
            "path": unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode(),
            "headers": [*self._scope["headers"]],
            "subprotocols": [SUBPROTOCOL],
            "state": dict(self._scope.get("state") or {}),
            "extensions": {"websocket.http.response": {}, CHANNEL: channel},
        }


class ChannelRequest:
    """The request of a channel, until the app accepts or refuses it; `refuse` does nothing afterwards."""

    def __init__(self, refuse: Callable[[int, str], None]) -> None:
        self._refuse = refuse
        # Whether the app has received `websocket.connect`, and whether the channel is closed.
        self._is_connected = False
        self._lost = asyncio.Event()

    async def run(self, entrance: Entrance, target: str, channel: object) -> None:
        """Pass the request through the app."""
        try:
            await entrance.app(entrance.make_scope(target, channel), self._receive, self._send)
        except Exception:
            log.exception("the app raised while opening a channel")
        finally:
            self._refuse(INTERNAL_ERROR, "the app did not answer")

    def lose(self) -> None:
        """Tell the app that the channel is closed."""
        self._lost.set()

    async def _receive(self) -> Message:
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        await self._lost.wait()
        return {"type": "websocket.disconnect", "code": _ABNORMAL}

    async def _send(self, message: Message) -> None:
        """Refuse the request, as a middleware does, or as there is no thread at this path."""
        if message["type"] == "websocket.accept":
            self._refuse(NOT_FOUND, "there is no thread at this path")
        elif message["type"] in ("websocket.http.response.start", "websocket.close"):
            # The code of a browser's socket whose request is refused.
            self._refuse(_ABNORMAL, f"the request was refused ({message.get('status', 403)})")


class ChannelsMiddleware:
    """Makes channels possible under a server other than `plait serve`. It must be the outermost app.

    The requests of channels pass through `app`, so they would miss a middleware outside of it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if CHANNELS in scope.get("subprotocols", ()):
            scope = add_entrance(self._app, scope)
        await self._app(scope, receive, send)


def add_entrance(app: ASGIApp, scope: Scope) -> Scope:
    """Return the scope of a request with the entrance of its channels, unless there is one already."""
    return {**scope, "extensions": {ENTRANCE: Entrance(app, scope), **(scope.get("extensions") or {})}}
