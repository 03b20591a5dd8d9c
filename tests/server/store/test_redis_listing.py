"""Listings of a store in Redis are read in pages, between which it is written."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from tests.redis import Redis, new_store
from tests.server.store.contract import ROOM, beginning
from tests.server.store.contract_records import delete

from plait.store.protocol import DueThread, ThreadKey, ThreadQuery
from plait.store.redis.listing import list_due, list_threads
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl

Run = Callable[..., Awaitable[list[Any]]]


def write_between(run: Run, write: Callable[[], Awaitable[None]]) -> Run:
    """Return a function that runs commands, and writes once after the first of them."""
    is_first = True

    async def run_and_write(*commands: Any) -> list[Any]:
        nonlocal is_first
        found = await run(*commands)
        if is_first:
            is_first = False
            await write()
        return found

    return run_and_write


async def test_threads_that_are_due_at_the_same_time_are_all_found_while_some_are_done(redis_server: Redis) -> None:
    keys = [ThreadKey("room", f"{number:04}") for number in range(1500)]
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        due = store._keys("due")
        rows = [value for key in keys for value in (10, f"{key.kind}\0{key.name}")]
        await store._run(("ZADD", due, *rows))

        async def write() -> None:
            await store._run(("ZREM", due, *rows[1:1000:2]))

        run = write_between(store._run, write)
        found = await list_due(run, store._keys, until=30, after=DueThread(10, keys[0]), limit=5000)
        assert found == [DueThread(10, key) for key in keys[1:]]


async def test_a_listing_by_time_has_each_thread_once_while_others_are_made_and_deleted(redis_server: Redis) -> None:
    keys = [ThreadKey("other" if number % 3 == 1 else "room", f"{number:03}") for number in range(240)]
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fences = {key: await store.claim(key) for key in [*keys, ROOM]}

        async def make(key: ThreadKey, at: int) -> None:
            await store.submit(msgspec.structs.replace(beginning(key=key), created_at=at, fence=fences[key]))

        for number, key in enumerate(keys):
            await make(key, number + 1)

        async def list_while(write: Callable[[], Awaitable[None]]) -> list[ThreadKey]:
            query = ThreadQuery(kind="room", order="created", limit=150)
            rows = await list_threads(write_between(store._run, write), store._keys, query)
            return [row.key for row in rows]

        async def remove() -> None:
            key = keys[-1]  # Of the first page.
            await store.submit(msgspec.structs.replace(delete(0, key=key), fence=fences[key]))

        wanted = [key for key in reversed(keys) if key.kind == "room"]
        assert await list_while(lambda: make(ROOM, 500)) == wanted[:150]
        assert await list_while(remove) == [ROOM, *wanted[1:150]]
