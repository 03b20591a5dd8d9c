"""Servers for tests: in this process, or in one of their own that can be killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
import uvicorn.server
from tests.commands import Command
from tests.fronts import Front, put_front
from tests.ports import hold_port

from plait import Plait, Thread, ThreadKey
from plait.web.addresses import Addresses
from plait.web.serve import listen, make_http_protocol
from plait.web.sockets.handshake import Handshake

__all__ = ["Process", "begin", "running"]


class _Quick:
    """`asyncio` for uvicorn's server, which looks ten times a second for what it waits for, and here more often."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        """Sleep for a twentieth of the time."""
        await asyncio.sleep(delay / 20)


setattr(uvicorn.server, "asyncio", _Quick())  # noqa: B010


async def begin(app: Plait, cls: type[Thread[Any]], name: str = "one") -> None:
    """Store a new thread of a running app, with its initial state."""
    actor = await app._node.actor(ThreadKey(cls._kind.name, name))
    await actor.state.store_thread()


@asynccontextmanager
async def running(app: Callable[..., Any], *, ws: Any = Handshake, request_timeout: float = 10.0) -> AsyncIterator[str]:
    """Serve `app` in this process, as `plait serve` does; yields its address, `127.0.0.1:port`.

    With another `ws`, it is served as by uvicorn itself.
    """
    bound = listen("127.0.0.1", 0)
    app = put_front(app)
    addresses = app.addresses if isinstance(app, Plait | Front) else Addresses(1000)
    http = make_http_protocol(addresses, request_timeout) if ws is Handshake else "auto"
    config = uvicorn.Config(app, http=http, ws=ws, log_config=None, lifespan="on", timeout_graceful_shutdown=10)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([bound]))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.005)
        yield f"127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        bound.close()


class Process:
    """`plait serve TARGET` in a process of its own, which keeps its port over restarts."""

    def __init__(
        self, target: str, *, cwd: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        self._target = target
        self.cwd = cwd
        self._options = options
        self._environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(environment or {})}
        self._process: Command | None = None
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]
        self.log = cwd / "server.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        self._held.close()

    @property
    def address(self) -> str:
        """Where it listens: `127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        arguments = ["serve", self._target, "--port", str(self.port), *self._options]
        self._process = Command(arguments, cwd=self.cwd, environment=self._environment, stderr=self.log)
        line = self._process.stdout.readline()
        assert f":{self.port} " in line, f"the server did not start: {line!r} {self.log.read_text()}"

    def end(self, by: signal.Signals = signal.SIGTERM, *, timeout: float = 30) -> int:
        """Send it a signal, wait until it is gone, and return its exit code."""
        self.signal(by)
        return self.wait(timeout=timeout)

    def signal(self, by: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        os.kill(self._process.pid, by)

    def wait(self, *, timeout: float = 30) -> int:
        """Wait until it is gone, as a signal has asked it to be; return its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.wait(timeout)
