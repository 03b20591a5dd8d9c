"""The way of a channel's request: through the whole app, with the headers of its carrier."""

import logging
import re
from typing import Final, Protocol
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_schemas.codes import INTERNAL_ERROR
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["CHANNEL", "CHANNELS", "ChannelsMiddleware", "Entrance", "add_entrance", "find_entrance"]

CHANNELS: Final = "plait.channels.v1"
"""The subprotocol of a carrier."""

CHANNEL: Final = "plait.channel"
"""The extension in the scope of a channel's request: its `Channel`."""

_ENTRANCE: Final = "plait.entrance"
# The end of a thread's path.
_THREAD: Final = re.compile(rb"(/[^/]*){3}/?$")

log = logging.getLogger("plait.sockets")


class Request(Protocol):
    """The request of a channel, until the app accepts it."""

    async def receive(self) -> Message:
        """Return the next message for the app."""
        ...

    async def answer(self, message: Message) -> None:
        """Handle a message of the app."""
        ...

    def refuse(self, code: int, reason: str) -> None:
        """Close the channel, unless it was accepted."""
        ...


class Entrance:
    """The app that a carrier's request came to, and the scope of the request, which its channels repeat."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self._app = app
        self._scope = {**scope}
        raw = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
        # The path below which the threads are, without that of the carrier's own thread.
        self._base = _THREAD.sub(b"", raw).decode("latin-1")

    async def open(self, target: str, channel: Request) -> None:
        """Pass the request of a channel through the app."""
        path, _, query = (self._base + target).partition("?")
        scope = {
            **self._scope,
            "path": unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode(),
            "subprotocols": [SUBPROTOCOL],
            "state": dict(self._scope.get("state") or {}),
            "extensions": {"websocket.http.response": {}, CHANNEL: channel},
        }
        try:
            await self._app(scope, channel.receive, channel.answer)
        except Exception:
            log.exception("the app raised while opening a channel")
        finally:
            channel.refuse(INTERNAL_ERROR, "the app did not answer")


class ChannelsMiddleware:
    """Makes channels possible under a server other than `plait serve`. It must be the outermost app.

    The requests of channels pass through `app`, so they would miss a middleware outside of it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(add_entrance(self._app, scope), receive, send)


def add_entrance(app: ASGIApp, scope: Scope) -> Scope:
    """Return the scope of a request with the entrance of its channels, if it asks for them."""
    if CHANNELS not in scope.get("subprotocols", ()):
        return scope
    extensions = scope.get("extensions") or {}
    return {**scope, "extensions": {_ENTRANCE: Entrance(app, scope), **extensions}}


def find_entrance(scope: Scope) -> Entrance | None:
    """Return the entrance for the channels of a request; None if it does not ask for them, or can have none."""
    if CHANNELS not in scope.get("subprotocols", ()):
        return None
    entrance: Entrance | None = scope.get("extensions", {}).get(_ENTRANCE)
    return entrance
