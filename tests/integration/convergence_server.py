"""The server of the convergence tests: in a process of its own, to be killed at any moment."""

import asyncio
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.socket_client import http
from tests.running import Process

from plait.store.thread_rows import ThreadKey

__all__ = ["Server", "get_state"]


async def get_state(address: str, key: ThreadKey) -> tuple[str, Any]:
    """Return epoch and version of a thread, with a colon between, and its state."""
    async with http(address) as client:
        answer = await client.get(f"/threads/{key}")
    return answer.headers["etag"].strip('"'), answer.json()


class Server:
    """`plait serve` with the pads and a store file, `pads.db`, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "pads.db"
        environment = {"PLAIT_LIMITS": "none", "PLAIT_STORE": f"sqlite:///{self.store}"}
        self._process = Process("tests.integration.convergence_app:app", cwd=folder, environment=environment)
        self._restart: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._process.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A thread cannot be cancelled: what it starts must be there to be ended.
        if self._restart is not None:
            await asyncio.wait([self._restart])
        self._process.__exit__()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._process.address

    @property
    def port(self) -> int:
        """The port of that."""
        return self._process.port

    async def restart(self) -> None:
        """Kill it, and start it again."""
        self._restart = asyncio.ensure_future(asyncio.to_thread(self._kill_and_start))
        await asyncio.shield(self._restart)

    async def get(self, key: ThreadKey) -> tuple[str, Any]:
        """Return epoch and version of a thread, with a colon between, and its state."""
        return await get_state(self.address, key)

    def _kill_and_start(self) -> None:
        self._process.end(signal.SIGKILL)
        self._process.start()
