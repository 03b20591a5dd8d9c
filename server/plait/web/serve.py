"""Running an ASGI app with plait in it under uvicorn."""

import faulthandler
import gc
import logging.config
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn

from plait.web.handshake import Handshake

__all__ = ["LogLevel", "configure_logging", "listen", "serve"]

LogLevel = Literal["debug", "info", "warning", "error"]

# With a short backlog, a burst of connections waits a second for TCP to send again what was dropped.
_BACKLOG = 4096
# When a hook keeps the whole loop busy for this many seconds, the stack of every thread is written to standard error.
_STALL = 30.0
# What uvicorn waits, beyond the seconds that turns may take, before it gives up what is open.
_GRACE = 8


def configure_logging(level: LogLevel) -> None:
    """Send the logs of plait and uvicorn to standard error, each line with its thread and connection."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {
                "context": {"()": "plait.logs.ContextFilter"},
                "startup": {"()": "plait.web.lifespan.StartupFilter"},
            },
            "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s%(context)s: %(message)s"}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "line",
                    "filters": ["context", "startup"],
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {"aiosqlite": {"level": "WARNING"}, "asyncio": {"level": "WARNING"}},
        }
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def serve(
    app: Callable[..., Any],
    bound: socket.socket,
    *,
    started: Callable[[], None],
    ending: Callable[[], None],
    log_level: LogLevel,
    shutdown_timeout: float,
    certificate: str | None = None,
    key: str | None = None,
    proxy_headers: bool = False,
    trusted_proxies: str = "127.0.0.1",
) -> bool:
    """Serve until the process is asked to end; tells whether it could.

    `started` is called when it can, and `ending` when it has been asked to end, before it waits for what is open.
    """
    config = uvicorn.Config(
        app,
        ws=Handshake,
        loop="auto",
        log_config=None,
        log_level=log_level,
        access_log=log_level == "debug",
        lifespan="on",
        backlog=_BACKLOG,
        proxy_headers=proxy_headers,
        forwarded_allow_ips=trusted_proxies,
        server_header=False,
        timeout_graceful_shutdown=int(shutdown_timeout) + _GRACE,
        callback_notify=_watch_for_stalls,
        timeout_notify=5,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = _Server(config, started, ending)
    # States are trees, which reference counting frees; what was made up to here stays for good. With its default
    # thresholds the collector would walk every state in memory over and over.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    server.run(sockets=[bound])
    faulthandler.cancel_dump_traceback_later()
    return server.started


class _Server(uvicorn.Server):
    """A server that says when it has started, and whose process exits with 0 when it ends as it is asked to."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = started
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._say()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        former = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in former.items():
                signal.signal(each, handler)


async def _watch_for_stalls() -> None:
    faulthandler.dump_traceback_later(_STALL)
