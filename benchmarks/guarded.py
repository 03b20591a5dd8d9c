"""A server with the default limits, for clients that cost as much as the limits allow."""

import asyncio
import time
from typing import Any

import msgspec

from benchmarks.agents import STORE, BenchAgent, Note
from plait import Context, Plait, Thread, rpc
from plait.adapters.ag_ui import AgUi

__all__ = ["Watch", "app"]

# They log or call without end, or return much: many lists, or a long text.
PROGRAMS = (
    "for (;;) console.log('')",
    "for (;;) report(1)",
    "export default Array.from({ length: 3.2e4 }, () => [])",
    "export default 'x'.repeat(1e6)",
)

# Seconds between two looks at the event loop.
TICK = 0.001


class Cells(msgspec.Struct):
    """A value beside a name, which clients leave out."""

    v: Any = None
    name: str = "cells"


class Table(Thread[Cells]):
    """A thread whose states have a type."""

    initial_state = Cells()


class Runner(Thread[None]):
    """Runs programs that want too much, as a client asks for them."""

    @rpc
    async def run(self, number: int) -> str:
        """Run one of them, and return how it has ended."""
        return (await self.run_code(PROGRAMS[number % len(PROGRAMS)], timeout=1)).status


class Watch(Thread[None]):
    """Measures the longest steps of the server's event loop, from one check of its timers to the next."""

    idle_timeout = None

    def on_start(self) -> None:
        self._step = self._held = 0.0
        self._task: asyncio.Task[None] | None = None

    @rpc
    def begin(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._watch())

    @rpc
    def longest(self) -> tuple[float, float]:
        """Return the longest step since, in milliseconds, and the most processor time of one."""
        return self._step * 1000, self._held * 1000

    async def _watch(self) -> None:
        while True:
            start, work = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK)
            self._step = max(self._step, time.perf_counter() - start - TICK)
            self._held = max(self._held, time.thread_time() - work)


app = Plait(BenchAgent, Note, Table, Runner, Watch, store=STORE)


@app.agent("echo", thread=Note)
async def echo(ctx: Context[Note]) -> None:
    """Do nothing: only the reading of the request is measured."""


app.mount("/ag-ui", AgUi(app))
