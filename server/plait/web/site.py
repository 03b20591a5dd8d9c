"""The routes of a server: threads, runs, health, metrics, the JavaScript client and the app's own pages."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.agents.thread_ids import HEADER, ThreadIds
from plait.cluster.gate import OPEN
from plait.errors import PlaitError, StoreError
from plait.instruments.prometheus import Family, Metrics
from plait.settings import Settings, make_setting_error
from plait.store.protocol import Store
from plait.web.hosts import Hosts
from plait.web.http.endpoint import Endpoint, PathRoute, keep_private
from plait.web.http.routes import ThreadRequests
from plait.web.http.run_routes import RunRequests
from plait.web.operators import Operators
from plait.web.server_context import ServerContext, error_body, error_response
from plait.web.thread_urls import is_run_path, is_thread_path

__all__ = ["Site"]

# The JavaScript client, and what is used with it, for pages without a build step.
_PARTS: Final = ("messages", "tasks", "queries", "optimistic", "files", "cache")
_CLIENT: Final = ("client.js", "listing.js", "store.js", *(f"{part}.js" for part in _PARTS))

# Seconds that the engine of a shared store gets to answer.
_CHECK: Final = 1.0

_decode_families: Final = msgspec.msgpack.Decoder(list[Family]).decode


class Site:
    """The routes of a Plait, in the Starlette application `asgi`. Raises ValueError for an invalid `static`."""

    def __init__(
        self,
        context: ServerContext,
        store: Store,
        settings: Settings,
        thread_ids: ThreadIds,
        *,
        metrics: Metrics | None,
        lifespan: Callable[[Any], AbstractAsyncContextManager[None]],
    ) -> None:
        self._context = context
        self._store = store
        self._settings = settings
        # Served at `/metrics`, unless they are None.
        self._metrics = metrics
        # The latest check whether the store accepts writes; it may still be running.
        self._check: asyncio.Task[bool] | None = None
        # `/metrics` asks for no credentials but the operator's token, even with `authenticate`.
        self._metrics_hosts = Hosts(settings.allowed_hosts, is_guarded=bool(settings.operator_token))
        self._threads, self._runs = ThreadRequests(context), RunRequests(context, thread_ids)
        self.asgi = Starlette(
            routes=self._routes(),
            middleware=self._middleware(),
            lifespan=lifespan,
            exception_handlers={HTTPException: _answer_error, PlaitError: _answer_error},
        )
        self.asgi.router.default = _answer_not_found
        self.asgi.router.redirect_slashes = False

    def listen(self, host: str, *, warns: bool) -> None:
        """Accept requests to the host that a server listens on; log the accepted hosts if there are many."""
        self._context.hosts.listen(host, warns=warns)
        self._metrics_hosts.listen(host, warns=False)

    def mount(self, path: str, app: ASGIApp) -> None:
        """Serve another ASGI application under a path."""
        self.asgi.router.routes.insert(0, Mount(path, app))

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request. Only static files may be kept by proxies, unless an answer has a `Cache-Control`."""
        scope["app"] = self.asgi
        if (endpoint := self._find_endpoint(scope)) is not None:
            return endpoint(scope, receive, send)
        return self.asgi(scope, receive, keep_private(send, scope))

    async def stop(self) -> None:
        """End the check of the store, before the store is closed."""
        check, self._check = self._check, None  # The app may be started again, in another loop.
        if check is not None:
            check.cancel()
            await asyncio.wait([check])

    # Inside

    def _find_endpoint(self, scope: Scope) -> Endpoint | None:
        """Return the endpoint that answers a request directly, without middleware; None if there is none."""
        if self._settings.allowed_origins:
            return None
        if is_thread_path(scope):
            return self._threads
        return self._runs if self._is_run_path(scope) else None

    def _routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            PathRoute(self._threads, is_thread_path),
            PathRoute(self._runs, self._is_run_path),
            Route("/healthz", _get_health),
            Route("/readyz", self._get_readiness),
            *(Route(f"/plait/{name}", partial(_get_client, Path(__file__).parent / name)) for name in _CLIENT),
        ]
        operators = Operators(self._context, token) if (token := self._settings.operator_token) else None
        routes += [] if operators is None else operators.routes
        if self._metrics is not None:
            answer = partial(self._get_metrics, self._metrics)
            routes.append(Route("/metrics", answer if operators is None else partial(operators.let_in, answer)))
        if (folder := self._settings.static) is not None:
            if not folder:
                raise make_setting_error("static", "'' is not a folder; pass a folder or None")
            routes.append(Mount("/", _Pages(directory=folder, html=True, check_dir=False)))
        return routes

    def _middleware(self) -> list[Middleware]:
        if not self._settings.allowed_origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=tuple(self._context.identity.allowed_origins),
                allow_methods=["GET", "PUT", "POST", "PATCH", "DELETE"],
                allow_headers=["Authorization", "Content-Type", "If-Match", "If-None-Match", "Last-Event-ID", HEADER],
                expose_headers=["ETag", HEADER],
            )
        ]

    def _is_run_path(self, scope: Scope) -> bool:
        return bool(self._context.runs.agents) and is_run_path(scope)

    async def _get_readiness(self, request: Request) -> Response:
        """Answer 503 while this process cannot answer requests. Refused writes are only a field of the answer."""
        context, gate = self._context, self._context.owners.gate
        has_stopped, accepts = not context.node.is_serving, True
        if not has_stopped and gate.is_open:
            accepts = await self._accepts_writes()
            has_stopped = not context.node.is_serving
        if has_stopped:
            return JSONResponse(error_body("unavailable", "the server is starting or shutting down"), 503)
        if gate.closed_for >= context.links.hold:  # For a shorter time, requests are held: the store may come back.
            return JSONResponse(error_body("unavailable", "this server is cut off from its store"), 503)
        writes = "accepted" if accepts else "refused"
        return JSONResponse({"status": "ok", "writes": writes, "durability": self._store.durability})

    async def _accepts_writes(self) -> bool:
        """Whether the store accepts writes; True if it gives no answer in time."""
        gate = self._context.owners.gate
        if (check := self._check) is None or check.done():
            check = self._check = asyncio.create_task(self._try_to_write(), name="plait store check")
        # The check is not cancelled after the timeout, as that would end a write that waits for a standby.
        done, _ = await asyncio.wait([check], timeout=None if gate is OPEN else _CHECK)
        return not done or check.cancelled() or check.result()

    async def _try_to_write(self) -> bool:
        try:
            await self._store.check_writes()
        except StoreError:
            return False
        return True

    async def _get_metrics(self, metrics: Metrics, request: Request) -> Response:
        self._metrics_hosts.check(request)
        nodes, workers = self._context.node.everywhere.nodes, None
        if len(server := nodes.owners.server) > 1:
            found = await nodes.read_metrics()
            own = dict.fromkeys(server.keys() - found.keys(), metrics.snapshot())
            others = {number: None if data is None else _decode_families(data) for number, data in found.items()}
            workers = own | others
        text, content_type = metrics.read(request.headers.get("accept", ""), workers=workers)
        return Response(text, headers={"content-type": content_type})

    def read_metrics(self) -> bytes:
        """Return the metrics of this node, for the other nodes."""
        return msgspec.msgpack.encode([] if self._metrics is None else self._metrics.snapshot())


class _Pages(StaticFiles):
    """The app's own pages, without files and folders whose names begin with a dot."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        parts = path.replace(os.sep, "/").split("/")
        if any(part.startswith(".") for part in (parts[1:] if parts[0] == ".well-known" else parts) if part != "."):
            return "", None
        return super().lookup_path(path)


async def _get_client(file: Path, request: Request) -> Response:
    return FileResponse(file, media_type="text/javascript", headers={"cache-control": "no-cache"})


async def _get_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException | PlaitError)
    return error_response(error)


async def _answer_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error_body("not_found", "there is nothing at this URL"), 404)(scope, receive, send)
