"""Tools for tests of an app: clients without a port, and a clock that a test turns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack
from urllib.parse import quote

from starlette.types import ASGIApp

from plait.actor.kind import check_name
from plait.actor.thread import Thread
from plait.app import Plait
from plait.state.principal import Principal
from plait.store.memory import MemoryStore
from plait.testing.asgi import HOST, AsgiTarget
from plait.testing.clock import Clock
from plait_client.client import Connecting, Options

__all__ = ["Served", "serve"]

S = TypeVar("S")


class Served:
    """An app that runs in a test."""

    def __init__(self, app: Plait, clock: Clock, asgi: ASGIApp, path: str) -> None:
        self.app = app
        self.clock = clock
        self._asgi = asgi
        self._path = path

    def connect(
        self, thread: type[Thread[S]], name: str, *, principal: Principal | None = None, **options: Unpack[Options]
    ) -> Connecting[S]:
        """Connect to a thread, as the Python client does: `async with t.connect(GameRoom, "x") as room:`.

        The client has the given `principal`, without authentication. With None, the app's `authenticate` gets the
        `token` and `headers`. The other options are the options of `plait_client.connect`.
        """
        kind = thread._kind
        path = f"{self._path}/threads/{quote(kind.name)}/{quote(check_name(name), safe='')}"
        headers = dict(options.get("headers", {}))
        target = AsgiTarget(f"ws://{HOST}{path}", options.get("token"), headers, app=self._asgi, principal=principal)
        return Connecting(target, kind.state_type.type, options)


@asynccontextmanager
async def serve(app: Plait, *, asgi: ASGIApp | None = None, path: str = "") -> AsyncIterator[Served]:
    """Run an app in a test, with a store in memory, which is emptied first: `async with serve(app) as t:`.

    If clients should come through an application in which the app is mounted, `asgi` is that application and `path` the
    path there. Raises ValueError if the app has another store, and RuntimeError if the event loop is not asyncio's own.
    """
    if not isinstance(app, Plait):
        what = f"serve takes a Plait, not {app!r}; pass the application that it is mounted in as `asgi=`"
        raise TypeError(what)
    store = app._store
    if not isinstance(store, MemoryStore):
        raise ValueError(
            f'plait.testing needs an app with the store "memory://", not one with a {type(store).__name__}: '
            "set PLAIT_STORE=memory:// before the app is made, in conftest.py"
        )
    with Clock.turning() as clock:
        store.clear()
        app.prepare_serving(HOST, in_development=True)
        async with app:
            yield Served(app, clock, asgi or app, path)
