"""Agents that change the state faster than it is stored."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.agents.lab import Conversation, make_store, open_lab
from tests.server.agents.test_runs import ended

from plait import Context, SqliteStore

CHUNKS = 300


@pytest.mark.parametrize("way", ["checkpoint", "yield"])
async def test_an_agent_is_at_most_64_versions_ahead_of_the_store(tmp_path: Path, way: str) -> None:
    made = 0

    async def work(ctx: Context[Conversation]) -> AsyncIterator[int]:
        nonlocal made
        for made in range(1, CHUNKS + 1):
            ctx.thread.append("/answer", "x" * 20)
            if way == "checkpoint":
                await ctx.checkpoint()
            else:
                yield made

    store = make_store("sqlite", tmp_path)
    assert isinstance(store, SqliteStore)
    async with open_lab(store) as lab, asyncio.timeout(30):
        thread = lab.app.thread(Conversation, "one")
        await thread.set_state({"answer": ""})
        with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # Nothing can be stored until the end of this block.
            task = asyncio.create_task(lab.app.run("stream", work, thread="one"))
            before = -1
            while made > before or not made:
                before = made
                for _ in range(1000):
                    await asyncio.sleep(0)
            assert made == 65
        await ended(task)
        assert made == CHUNKS
        assert await thread.state() == {"answer": "x" * 20 * CHUNKS}
