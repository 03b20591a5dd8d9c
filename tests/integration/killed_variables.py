"""A variable that is set until its process is killed: `python -m tests.integration.killed_variables URL`."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plait import Env, SqliteStore, Thread, ThreadKey
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.parts.env.app_env import AppEnv
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl

__all__ = ["VALUE", "read_number"]

VALUE = "sk-7f3Qx0Zz9leak"


class Counter(Thread[int]):
    """Has a number in its state and in a variable."""

    initial_state = 0
    idle_timeout = None
    env = Env()


@asynccontextmanager
async def _open(url: str) -> AsyncIterator[Counter]:
    """Open a store without a table of nodes, in which a killed one would be missed only after seconds."""
    store = PostgresStore(PostgresUrl.parse(url)) if url.startswith("postgresql") else SqliteStore(url)
    async with store:
        node = Node([Counter._kind], store, DEFAULT_LIMITS, env=AppEnv(None, ["x" * 32]))
        node.start()
        try:
            counter = (await node.actor(ThreadKey("counter", "one"))).thread
            assert isinstance(counter, Counter)
            yield counter
        finally:
            await node.stop(1.0)


async def read_number(url: str) -> tuple[int, str]:
    """Return the number in the state, and the value of the variable."""
    async with _open(url) as counter:
        return counter.state, (await counter.env.get("KEY")).reveal()


async def _write(url: str) -> None:
    async with _open(url) as counter:
        while True:
            n = counter.state + 1
            with counter.transaction():
                counter.set_state(n)
                written = counter.env.set("KEY", f"{VALUE} {n}")
            await written
            os.write(1, b"n %d\n" % n)


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1]))
