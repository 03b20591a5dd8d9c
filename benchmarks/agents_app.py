"""The agents that the runs drive; benchmarks/agents_bare.py and benchmarks/agentuity/serve.mjs have the same ones."""

import os
import time
from typing import Any

import msgspec

from plait import Context, Plait, Thread, Values

__all__ = ["Chat", "Step", "app"]


class Step(msgspec.Struct):
    """By how much to count."""

    by: int


class Chat(Thread[dict[str, Any]]):
    """A conversation that keeps a number."""

    values = Values()


app = Plait(Chat, store=os.environ.get("BENCH_STORE", "sqlite:///bench.db"), limits=None)


@app.agent("none", thread=Chat)
async def none(ctx: Context[Chat], input: Step) -> int:
    """Use no values."""
    return input.by + 1


@app.agent("put", thread=Chat)
async def put(ctx: Context[Chat], input: Step) -> int:
    """Only write."""
    await ctx.thread.values.set("last", time.time())
    return input.by


@app.agent("add", thread=Chat)
async def add(ctx: Context[Chat], input: Step) -> int:
    """Read, add and write."""
    n = int(await ctx.thread.values.get("n", 0)) + input.by
    await ctx.thread.values.set("n", n)
    return n
