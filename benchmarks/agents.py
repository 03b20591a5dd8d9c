"""The agent that the loads drive; benchmarks/cloudflare/src/worker.ts is the same one for the published SDK."""

import os
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.boards import Board, FrozenBoard
from plait import Plait, Stream, Thread, rpc

__all__ = ["BenchAgent", "Note", "app"]


class BenchAgent(Thread[dict[str, Any]]):
    """A counter, an echo and a stream."""

    initial_state = staticmethod(lambda: {"n": 0})

    @rpc
    async def echo(self, value: int) -> int:
        return value

    @rpc
    async def add(self, by: int) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + by})
        return int(self.state["n"])

    @rpc
    async def count(self, upto: int, stream: Stream) -> None:
        for i in range(upto):
            stream.send(i)
        stream.end()

    @rpc
    async def generate(self, upto: int) -> AsyncIterator[int]:
        for i in range(upto):
            yield i


class Note(Thread[dict[str, Any]]):
    """A thread that stays awake while its memory is measured."""

    initial_state = staticmethod(lambda: {"text": ""})
    idle_timeout = 3600


app = Plait(
    BenchAgent, Note, Board, FrozenBoard, store=os.environ.get("BENCH_STORE", "sqlite:///bench.db"), limits=None
)
