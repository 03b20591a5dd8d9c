"""The routes of a server: threads, runs, health, metrics, the JavaScript client and the app's own pages."""

from collections.abc import Awaitable, Callable, Mapping
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

from plait.agents.identity import HEADER, ThreadIds
from plait.errors import StoreError
from plait.instruments.prometheus import Family, Metrics
from plait.settings import Settings, make_setting_error
from plait.store.protocol import Store
from plait.web.context import ServerContext, error_body, error_response
from plait.web.hosts import Hosts
from plait.web.http.endpoint import Endpoint, PathRoute
from plait.web.http.routes import ThreadRequests
from plait.web.http.runs import RunRequests
from plait.web.thread_urls import find_thread, is_run_path, is_thread_path

__all__ = ["Site"]

# The JavaScript client, and its part for messages, for pages without a build step.
_CLIENT: Final = ("client.js", "messages.js")


# The names of reports.
_METRICS: Final = "metrics"
_READINESS: Final = "readiness"


class _Refusal(msgspec.Struct, frozen=True):
    """Why a process is not ready."""

    code: str
    message: str


_decode_refusal: Final = msgspec.msgpack.Decoder(_Refusal | None).decode
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
        # `/metrics` asks for no credentials, even with `authenticate`.
        self._metrics_hosts = Hosts(settings.allowed_hosts, is_guarded=False)
        threads, runs = ThreadRequests(context), RunRequests(context, thread_ids)
        self._threads = Endpoint(context, find_thread, threads.answer)
        self._runs = Endpoint(context, runs.find_place, runs.answer, locate=runs.locate)
        self.asgi = Starlette(
            routes=self._routes(),
            middleware=self._middleware(),
            lifespan=lifespan,
            exception_handlers={HTTPException: _answer_error},
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

    def find_endpoint(self, scope: Scope) -> Endpoint | None:
        """Return the endpoint that answers a request directly, without middleware; None if there is none."""
        if self._settings.allowed_origins:
            return None
        if is_thread_path(scope):
            return self._threads
        return self._runs if self._is_run_path(scope) else None

    # Inside

    def _routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            PathRoute(self._threads, is_thread_path),
            PathRoute(self._runs, self._is_run_path),
            Route("/healthz", _get_health),
            Route("/readyz", self._get_readiness),
            *(Route(f"/plait/{name}", partial(_get_client, Path(__file__).parent / name)) for name in _CLIENT),
        ]
        if self._metrics is not None:
            routes.append(Route("/metrics", partial(self._get_metrics, self._metrics)))
        if (folder := self._settings.static) is not None:
            if not folder:
                raise make_setting_error("static", "'' is not a folder; pass a folder or None")
            if not Path(folder).is_dir():
                remedy = f"make it with `mkdir {Path(folder).resolve()}`, or name another"
                raise make_setting_error("static", f"{folder!r} is not a folder: {remedy}")
            routes.append(Mount("/", StaticFiles(directory=folder, html=True)))
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

    @property
    def reports(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        """What this process tells the other nodes about itself."""
        return {_METRICS: self._report_metrics, _READINESS: self._report_readiness}

    async def _get_readiness(self, request: Request) -> Response:
        refusal = await self._find_refusal()
        nodes = self._context.node.everywhere.nodes
        for node, found in (await nodes.report(_READINESS)).items() if refusal is None else ():
            number = nodes.owners.server.get(node)
            if found is None:
                refusal = _Refusal("unavailable", f"worker {number} does not answer")
            elif (told := _decode_refusal(found)) is not None:
                refusal = _Refusal(told.code, f"worker {number}: {told.message}")
        if refusal is not None:
            return JSONResponse(error_body(refusal.code, refusal.message), 503)
        return JSONResponse({"status": "ok", "durability": self._store.durability})

    async def _find_refusal(self) -> "_Refusal | None":
        """Return why this process is not ready; None if it is."""
        if not self._context.node.is_serving:
            return _Refusal("unavailable", "the server is starting or shutting down")
        if not self._context.owners.gate.is_open:
            return _Refusal("unavailable", "this server is cut off from its store")
        try:
            await self._store.check_writes()
        except StoreError:  # Its message is for the log only.
            return _Refusal("store_error", "the store cannot store changes; see the server's log")
        return None

    async def _report_readiness(self) -> bytes:
        return msgspec.msgpack.encode(await self._find_refusal())

    async def _get_metrics(self, metrics: Metrics, request: Request) -> Response:
        self._metrics_hosts.check(request)
        nodes, workers = self._context.node.everywhere.nodes, None
        if len(server := nodes.owners.server) > 1:
            found = await nodes.report(_METRICS)
            workers = {server[node]: None if data is None else _decode_families(data) for node, data in found.items()}
            workers[server[nodes.owners.node]] = metrics.snapshot()
        text, content_type = metrics.read(request.headers.get("accept", ""), workers=workers)
        return Response(text, headers={"content-type": content_type})

    async def _report_metrics(self) -> bytes:
        return msgspec.msgpack.encode([] if self._metrics is None else self._metrics.snapshot())


async def _get_client(file: Path, request: Request) -> Response:
    return FileResponse(file, media_type="text/javascript", headers={"cache-control": "no-cache"})


async def _get_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error)


async def _answer_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error_body("not_found", "there is nothing at this URL"), 404)(scope, receive, send)
