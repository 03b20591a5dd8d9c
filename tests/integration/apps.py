"""Apps for servers in processes of their own."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from plait import Connection, Plait, Reject, Source, Thread, rpc

__all__ = ["Disk", "Gauge", "Slow", "Tally", "app"]


class Tally(Thread[dict[str, Any]]):
    """Counts: each change makes the count one greater, so that the count is the version."""

    clients_may_destroy = True
    initial_state = {"count": 0, "stamp": ""}  # noqa: RUF012

    def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
        if next_state["count"] != self.state["count"] + 1:
            raise Reject("a count goes up by one")

    @rpc
    def add(self, stamp: str) -> int:
        self.set_state(lambda state: {"count": state["count"] + 1, "stamp": stamp})
        count: int = self.state["count"]
        return count

    @rpc
    def add_in_steps(self, stamp: str) -> int:
        """Add as a transaction of two steps, after one that is taken back."""
        with suppress(LookupError), self.transaction():
            self.update("/stamp", "taken back")
            raise LookupError
        with self.transaction():
            self.update("/stamp", stamp)
            count: int = self.state["count"] + 1
            self.update("/count", count)
        return count

    @rpc
    def sync(self) -> int:
        return self.version


class Gauge(Thread[Any]):
    """Takes any state, and tells how the server is."""

    initial_state = ""

    def __init__(self) -> None:
        self._codes: list[int] = []

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._codes.append(code)

    @rpc
    def memory(self) -> int:
        """Return the resident bytes of the process."""
        return psutil.Process().memory_info().rss

    @rpc
    def closed(self) -> list[int]:
        """Return the codes that connections were closed with."""
        return self._codes


class Disk(Thread[dict[str, Any]]):
    """Takes any state, and can be told that its disk is full."""

    initial_state = {"n": 0}  # noqa: RUF012

    @rpc
    def fill(self, size: int | None) -> None:
        """Limit the files of the process to `size` bytes, or to the limit of the system."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))

    @rpc
    def set(self, state: dict[str, Any]) -> int:
        self.set_state(state)
        return self.version

    @rpc
    def sync(self) -> int:
        return self.version


class Slow(Thread[dict[str, Any]]):
    """Runs turns that end when a file is there, in the working directory, or never."""

    initial_state = {"n": 0, "stops": 0}  # noqa: RUF012

    def on_stop(self) -> None:
        Path("stopped").touch()
        self.set_state(lambda state: {**state, "stops": state["stops"] + 1})

    @rpc
    async def add_late(self, file: str) -> int:
        """Say that the turn runs, and change the state when the file is there."""
        self.broadcast("running")
        while not Path(file).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        self.set_state(lambda state: {**state, "n": state["n"] + 1})
        n: int = self.state["n"]
        return n

    @rpc
    async def stream_late(self, file: str) -> AsyncIterator[int]:
        """Stream on when the file is there."""
        yield await self.add_late(file)


app = Plait(Tally, Gauge, Disk, Slow)
