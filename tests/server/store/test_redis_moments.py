"""Reads of several steps of a store in Redis, between which it is written."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.redis import Redis, new_store
from tests.server.store.contract import ROOM, beginning, change
from tests.server.store.contract_records import delete, put_records
from tests.server.store.writing import begin

from plait.store.protocol import DueThread, ThreadQuery
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl
from plait.store.thread_rows import RecordRange, ThreadKey


class Between:
    """Makes a write after the next step of a store's reads."""

    def __init__(self, store: RedisStore, patch: pytest.MonkeyPatch) -> None:
        self.write: Callable[[], Awaitable[object]] | None = None
        run = store.engine.run

        async def run_and_write(*commands: Any) -> list[Any]:
            found: list[Any] = await run(*commands)
            if self.write is not None:
                write, self.write = self.write, None
                await write()
            return found

        patch.setattr(store.engine, "run", run_and_write)


async def test_threads_that_are_due_at_the_same_time_are_all_found_while_some_are_done(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [ThreadKey("room", f"{number:04}") for number in range(1500)]
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fences = await begin(store, *keys)

        async def set_due(due: int, *some: ThreadKey) -> None:
            writes = [msgspec.structs.replace(beginning(key=key), after=0, due=due, snapshots=()) for key in some]
            await asyncio.gather(
                *(store.submit(msgspec.structs.replace(each, fence=fences[each.key])) for each in writes)
            )

        await set_due(10, *keys)
        between = Between(store, monkeypatch)
        between.write = lambda: set_due(0, *keys[1:500:2])
        found = await store.due_threads(until=30, after=DueThread(10, keys[0]), limit=5000)
        assert between.write is None
        assert found == [DueThread(10, key) for key in keys[1:]]


async def test_a_listing_by_time_has_each_thread_once_while_others_are_made_and_deleted(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [ThreadKey("other" if number % 3 == 1 else "room", f"{number:03}") for number in range(240)]
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fences = {key: await store.claim(key) for key in [*keys, ROOM]}

        async def make(key: ThreadKey, at: int) -> None:
            await store.submit(msgspec.structs.replace(beginning(key=key), created_at=at, fence=fences[key]))

        for number, key in enumerate(keys):
            await make(key, number + 1)
        between = Between(store, monkeypatch)

        async def list_while(write: Callable[[], Awaitable[None]]) -> list[ThreadKey]:
            between.write = write
            rows = await store.threads(ThreadQuery(kind="room", order="created", limit=150))
            assert between.write is None
            return [row.key for row in rows]

        async def remove() -> None:
            key = keys[-1]  # Of the first step.
            await store.submit(msgspec.structs.replace(delete(0, key=key), fence=fences[key]))

        wanted = [key for key in reversed(keys) if key.kind == "room"]
        assert await list_while(lambda: make(ROOM, 500)) == wanted[:150]
        assert await list_while(remove) == [ROOM, *wanted[1:150]]


async def test_a_load_begins_again_if_changes_that_it_needs_are_pruned_in_between(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fence = (await begin(store, ROOM))[ROOM]
        for version in range(1, 101):
            await store.submit(msgspec.structs.replace(change(version), fence=fence))
        between = Between(store, monkeypatch)
        pruning = msgspec.structs.replace(change(101, snapshot=b"101", prune=101), fence=fence)
        between.write = lambda: store.submit(pruning)
        stored = await store.load(ROOM)
        assert between.write is None
        assert stored is not None
        assert (stored.version, stored.snapshot, list(stored.changes)) == (101, b"101", [])


async def test_a_load_does_not_begin_again_for_later_changes(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fence = (await begin(store, ROOM))[ROOM]
        for version in range(1, 101):
            await store.submit(msgspec.structs.replace(change(version), fence=fence))
        between = Between(store, monkeypatch)
        between.write = lambda: store.submit(msgspec.structs.replace(change(101), fence=fence))
        stored = await store.load(ROOM)
        assert between.write is None
        assert stored is not None
        assert (stored.version, len(stored.changes)) == (100, 100)


async def test_a_view_of_a_thread_that_is_made_again_in_between_has_no_record_of_the_former_one(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fence = (await begin(store, ROOM))[ROOM]
        await store.submit(msgspec.structs.replace(put_records(("former", b"1")), fence=fence))
        between = Between(store, monkeypatch)

        async def make_again() -> None:
            for write in (delete(0), beginning(epoch="f")):
                await store.submit(msgspec.structs.replace(write, fence=fence))

        between.write = make_again
        async with store.view(ROOM) as view:
            assert between.write is None
            assert view is not None
            assert view.thread.epoch == "f"
            assert await view.records() == []


async def test_a_record_that_gets_an_empty_value_has_it(redis_server: Redis) -> None:
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fence = (await begin(store, ROOM))[ROOM]
        for value in (b"1", b""):
            await store.submit(msgspec.structs.replace(put_records(("a", value)), fence=fence))
            assert await store.record(ROOM, "values", "a") == value
            assert [each.value for each in await store.records(ROOM, RecordRange("values"))] == [value]
        await store.submit(msgspec.structs.replace(put_records(("a", None)), fence=fence))
        assert await store.record(ROOM, "values", "a") is None
