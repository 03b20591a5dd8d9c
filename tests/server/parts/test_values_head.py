"""The values of a thread in memory: how they are loaded, and written."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.server.parts.workshop import FlakyStore, open_workshop

from plait import Thread, Values
from plait.actor.actor import Actor
from plait.errors import CorruptThread, StoreError
from plait.parts.values_draft import ValuesDraft
from plait.parts.values_head import ValuesHead
from plait.store.thread_rows import Record, RecordRange

MANY = 3_000


class Room(Thread[dict[str, Any]]):
    values = Values()


async def fill(actor: Actor, count: int = MANY) -> None:
    thread = actor.thread
    assert isinstance(thread, Room)
    with thread.transaction():
        for number in range(count):
            thread.values.set(f"key {number}", number)
    await thread.values.set("last", [1, 2])


def make_head(actor: Actor) -> ValuesHead:
    return ValuesHead("values", actor.records, actor.state, actor.limits)


async def read_records(store: FlakyStore, actor: Actor) -> list[Record]:
    return await store.records(actor.key, RecordRange("values", limit=100_000))


def count_pauses(work: Coroutine[Any, Any, object]) -> int:
    """Run a coroutine that waits for nothing else than other tasks; return how often they could run."""
    pauses = 0
    while True:
        try:
            work.send(None)
        except StopIteration:
            return pauses
        pauses += 1


async def test_other_tasks_run_while_a_thread_with_many_values_wakes(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(actor := await workshop.actor(Room), 9_000)
        assert count_pauses(make_head(actor).load(await read_records(store, actor))) == 4


async def test_other_tasks_run_between_many_values_that_are_read(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(actor := await workshop.actor(Room))
        thread = actor.thread
        assert isinstance(thread, Room)
        for read in (thread.values.values, thread.values.items):
            assert count_pauses(read()) >= MANY // 1_000


async def test_many_values_are_read_as_they_were_at_one_moment(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(actor := await workshop.actor(Room))
        thread = actor.thread
        assert isinstance(thread, Room)
        before = await thread.values.items()
        reading = asyncio.create_task(thread.values.items())
        await asyncio.sleep(0)
        with thread.transaction():
            thread.values.set("key 0", "new")
            thread.values.set("key 2999", "new")
            thread.values.delete("key 2998")
            thread.values.push("last", 3)
        assert await reading == before
        assert len(await thread.values.values()) == len(before) - 1


async def test_a_value_that_a_run_removes_while_it_reads_all_is_not_written_again(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(actor := await workshop.actor(Room))
        thread = actor.thread
        assert isinstance(thread, Room)
        draft = ValuesDraft(thread.values._head)
        await draft.load()
        reading = asyncio.create_task(draft.items())
        await asyncio.sleep(0)
        draft.delete("last")
        last = dict(await reading)["last"]
        assert last == [1, 2]
        last.append(3)
        assert draft.is_dirty
        assert not draft.has("last")


async def test_a_value_whose_write_fails_while_all_are_read_is_read_as_it_is_stored(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(await workshop.actor(Room))
    async with open_workshop(store, Room) as workshop:
        values = (await workshop.thread(Room)).values
        reading = asyncio.create_task(values.items())
        await asyncio.sleep(0)
        store.refuses = lambda _: True
        written, removed = values.set("key 1000", "new"), values.delete("key 1001")
        for refused in (written, removed):
            with pytest.raises(StoreError, match="the disk is full"):
                await refused
        store.refuses = lambda _: False
        wanted = [*((f"key {number}", number) for number in range(MANY)), ("last", [1, 2])]
        assert await reading == wanted
        assert await values.items() == wanted
        assert [await values.get(key) for key in ("key 1000", "key 1001")] == [1000, 1001]


async def test_changes_in_place_are_stored_of_values_that_others_replace_while_a_run_reads_all(
    store: FlakyStore,
) -> None:
    async with open_workshop(store, Room) as workshop:
        thread = await workshop.thread(Room)
        with thread.transaction():
            for number in range(MANY):
                thread.values.set(f"key {number}", [number])
        draft = ValuesDraft(thread.values._head)
        await draft.load()
        draft.set("first", 0)
        reading = asyncio.create_task(draft.items())
        await asyncio.sleep(0)
        thread.values.set("key 2998", ["other"])
        thread.values.delete("key 2999")
        draft.write()
        for _, value in await reading:
            if isinstance(value, list):
                value.append("more")
        assert draft.is_dirty
        draft.write()
        assert await thread.values.items() == [
            *((f"key {number}", [number, "more"]) for number in range(MANY - 2)),
            ("key 2998", ["other", "more"]),
            ("first", 0),
        ]


async def test_many_keys_are_in_order_after_a_wake(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(await workshop.actor(Room))
        before = await workshop.handle(Room).values.items()
    async with open_workshop(store, Room) as workshop:
        assert await workshop.handle(Room).values.items() == before
    assert [key for key, _ in before] == [*(f"key {number}" for number in range(MANY)), "last"]


async def test_a_write_after_a_wake_keeps_the_other_keys_of_its_record(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(await workshop.actor(Room), 600)
    async with open_workshop(store, Room) as workshop:
        values = (await workshop.thread(Room)).values
        values.set("key 300", "longer than before")
        values.delete("key 301")
        await values.set("new", 1)
        before = await values.items()
    async with open_workshop(store, Room) as workshop:
        assert await workshop.handle(Room).values.items() == before
    expected = {**{f"key {number}": number for number in range(600)}, "last": [1, 2], "new": 1}
    del expected["key 301"]
    assert dict(before) == {**expected, "key 300": "longer than before"}


async def test_a_write_writes_only_the_records_of_its_keys(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(await workshop.actor(Room))
    async with open_workshop(store, Room) as workshop:
        thread = await workshop.thread(Room)
        store.writes.clear()
        await thread.values.set("key 300", "longer than before")
        await thread.values.push("last", 3)
    written = [(record.key, record.value) for write in store.writes for record in write.records]
    assert written == [
        ("value/000000000300", b'["key 300","longer than before"]'),
        (f"value/{MANY:012d}", b'["last",[1,2,3]]'),
    ]


async def test_a_damaged_record_is_an_error_of_the_values_and_stays(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as workshop:
        await fill(actor := await workshop.actor(Room), 3)
        records = await read_records(store, actor)
        head = make_head(actor)
        await head.load([*records[:1], Record("values", "value/000000000001", b'["key 1",'), *records[2:]])
        for _ in range(2):
            with pytest.raises(CorruptThread, match="the values of a thread are damaged"):
                head.edit()
