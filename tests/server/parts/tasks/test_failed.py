"""The record that names the failed runs of a thread."""

from typing import Any

import msgspec
import pytest
from tests.server.parts.tasks.desks import Desk, tell
from tests.server.parts.workshop import FlakyStore, Workshop, open_workshop, until

from plait.errors import StoreError
from plait.parts.tasks.ended import FAILED
from plait.parts.tasks.step import Step
from plait.store.thread_rows import ThreadKey


async def fail(desk: Desk, step: Step) -> Any:
    raise ValueError("no such shop")


async def read_failed(shop: Workshop) -> list[str] | None:
    data = await shop.store.record(ThreadKey("desk", "one"), "tasks", FAILED)
    return None if data is None else msgspec.json.decode(data)


async def test_a_failed_run_is_named_with_its_end_and_no_longer_when_it_begins_again(store: FlakyStore) -> None:
    tell(fail)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert (await desk.tasks.wait((await desk.tasks.run("add", 1)).id)).status == "done"
        assert await read_failed(shop) is None
        ids = [(await desk.tasks.run("work")).id for _ in range(2)]
        assert [(await desk.tasks.wait(id)).status for id in ids] == ["failed", "failed"]
        assert sorted(await read_failed(shop) or ()) == sorted(ids)
        # The write that ends a run names it.
        (write,) = [each for each in shop.store.writes if any(record.key == f"e/{ids[0]}" for record in each.records)]
        assert FAILED in [record.key for record in write.records]

        async def succeed(desk: Desk, step: Step) -> Any:
            return 1

        tell(succeed)
        assert await desk.tasks.retry(ids[0])
        assert (await desk.tasks.wait(ids[0])).status == "done"
        assert await read_failed(shop) == [ids[1]]


async def test_the_names_are_still_known_after_the_thread_has_slept(store: FlakyStore) -> None:
    tell(fail)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        first = (await desk.tasks.run("work")).id
        await desk.tasks.wait(first)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        second = (await desk.tasks.run("work")).id
        await desk.tasks.wait(second)
        assert await read_failed(shop) == [first, second]


async def test_a_run_whose_end_is_not_stored_is_not_named(store: FlakyStore) -> None:
    tell(fail)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        shop.store.refuses = lambda write: any(record.key.startswith("e/") for record in write.records)
        id = (await desk.tasks.run("work")).id
        await until(lambda: len(shop.store.writes) > 2)
        assert await read_failed(shop) is None
        shop.store.refuses = lambda _: False
        assert await desk.tasks.cancel(id)
        assert await read_failed(shop) is None


async def test_a_run_that_could_not_begin_again_is_still_named(store: FlakyStore) -> None:
    tell(fail)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        ids = [(await desk.tasks.wait((await desk.tasks.run("work")).id)).id for _ in range(2)]
        shop.store.refuses = lambda _: True
        with pytest.raises(StoreError):
            await desk.tasks.retry(ids[0])
        shop.store.refuses = lambda _: False
        third = (await desk.tasks.run("work")).id
        await desk.tasks.wait(third)
        assert await read_failed(shop) == [*ids, third]
