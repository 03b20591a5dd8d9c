"""The agent that the loads drive; benchmarks/cloudflare/src/worker.ts is the same one for the published SDK."""

import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from benchmarks.boards import Board, FrozenBoard, size_of
from benchmarks.edits import passage
from benchmarks.shops import Shop
from plait import Plait, Stream, Text, Thread, rpc

__all__ = ["STORE", "BenchAgent", "Note", "Page", "app"]


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


class Writing(msgspec.Struct, frozen=True):
    """A text beside a number."""

    note: Text = ""
    n: int = 0


class Page(Thread[Writing]):
    """A text that begins with as many characters as the thread's name says."""

    initial_state = Writing()
    idle_timeout = 3600

    async def on_start(self) -> None:
        if not self.version:
            await self.set_state(Writing(passage(size_of(self.name))))

    @rpc
    async def stream(self, chunks: list[str]) -> None:
        """Append the chunks, sixteen at a time as a model's answer comes."""
        for number, chunk in enumerate(chunks):
            commit = self.append("/note", chunk)
            if number % 16 == 15:
                await commit


STORE = os.environ.get("BENCH_STORE", "sqlite:///bench.db")

app = Plait(BenchAgent, Note, Page, Board, FrozenBoard, Shop, store=STORE, limits=None)
