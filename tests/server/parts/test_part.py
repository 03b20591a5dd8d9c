"""What holds for each part of a thread."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cases import each_case
from tests.clocks import Clock
from tests.server.parts.workshop import FlakyStore, open_workshop

from plait.actor.thread import Thread, ThreadActor
from plait.parts.messages.thread_messages import Messages
from plait.parts.part import Part
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import Schedule
from plait.parts.values import Values
from plait.store.thread_rows import Record, RecordRange, ThreadKey

PARTS = ("values", "messages", "schedule")


class Study(Thread[Any]):
    """Has all parts."""

    initial_state = 0
    values = Values()
    messages = Messages()
    schedule = Schedule()

    @effect
    def read(self, page: int = 0) -> None:
        """Do nothing."""


async def fill(study: Any) -> None:
    await study.values.set("topic", "tea")
    await study.values.push("log", {"a": None})
    await study.messages.inject("user", "a", metadata={"x": 1})
    await study.messages.queue("b")
    await study.schedule.after(600, "read", 1)
    await study.schedule.cron("0 9 * * *", "read", 2, tz="Europe/Berlin")


async def seen(study: Any) -> tuple[Any, ...]:
    return await study.values.items(), (await study.messages.list()).messages, await study.schedule.list()


async def test_two_threads_of_a_kind_see_nothing_of_each_other(store: FlakyStore) -> None:
    async with open_workshop(store, Study) as shop:
        await fill(shop.handle(Study, "one"))
        assert await seen(shop.handle(Study, "two")) == ([], [], [])
        before = await seen(shop.handle(Study, "one"))
        two = shop.handle(Study, "two")
        await two.values.set("topic", "other")
        assert await two.messages.get(before[1][0].id) is None
        assert await two.messages.delete(before[1][0].id) is False
        assert await two.schedule.cancel(before[2][0].id) is False
        assert await seen(shop.handle(Study, "one")) == before


class Shelf(Part[list[str]]):
    """Has a list of the keys with which it was loaded in each thread."""

    def __init__(self, *, loads_none: bool) -> None:
        super().__init__()
        self.loads_none = loads_none  # type: ignore[misc]

    def bind(self, actor: ThreadActor) -> list[str]:
        return ["made"]

    def ranges(self) -> list[RecordRange]:
        return [RecordRange(self.name, "a"), RecordRange(self.name, "b")]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor).append(" ".join([each.key for found in records for each in found]))


class Library(Thread[Any]):
    """Has shelves."""

    lazy = Shelf(loads_none=False)
    eager = Shelf(loads_none=True)


async def test_a_part_is_loaded_if_it_has_records_or_wants_to_be_loaded_without(store: FlakyStore) -> None:
    async with open_workshop(store, Library) as shop:
        library = await shop.thread(Library)
        assert (library.lazy, library.eager) == (["made"], ["made", ""])
        await library._actor.records.write([Record("lazy", "b1", b"1")])
    async with open_workshop(store, Library) as shop:
        library = await shop.thread(Library)
        assert (library.lazy, library.eager) == (["made", "b1"], ["made", ""])


async def test_all_parts_are_unchanged_after_a_restart(store: FlakyStore) -> None:
    async with open_workshop(store, Study) as shop:
        await fill(shop.handle(Study))
        before = await seen(shop.handle(Study))
        assert [len(each) for each in before] == [2, 2, 2]
    async with open_workshop(store, Study) as shop:
        assert await seen(shop.handle(Study)) == before


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_cannot_be_replaced(store: FlakyStore, part: str) -> None:
    async with open_workshop(store, Study) as shop:
        study = await shop.thread(Study)
        with pytest.raises(AttributeError, match=f"Study.{part} is a part of the thread and cannot be replaced"):
            setattr(study, part, {})
        await fill(study)


async def test_a_thread_is_created_once_now(store: FlakyStore) -> None:
    began = time.time_ns() // 1000
    async with open_workshop(store, Study) as shop:
        await fill(shop.handle(Study))
        (row,) = await store.threads()
        assert began <= row.created_at <= time.time_ns() // 1000
        assert row.user is None
    async with open_workshop(store, Study) as shop:
        await shop.handle(Study).values.set("topic", "later")
        assert [each.created_at for each in await store.threads()] == [row.created_at]


async def test_nothing_is_left_of_a_destroyed_thread(store: FlakyStore) -> None:
    key = ThreadKey("study", "one")
    async with open_workshop(store, Study) as shop:
        await fill(shop.handle(Study))
        assert [len(await store.records(key, RecordRange(part))) > 0 for part in PARTS] == [True] * 3
        await shop.handle(Study).destroy()
        assert [await store.records(key, RecordRange(part)) for part in PARTS] == [[]] * 3
        assert await shop.due() == {}
        assert await seen(shop.handle(Study)) == ([], [], [])


def _make_cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@each_case("bad", [float("nan"), [float("inf")], {"a": _make_cycle()}, object()])
async def test_a_value_that_is_no_json_raises_and_leaves_the_old_one(store: FlakyStore, clock: Clock, bad: Any) -> None:
    async with open_workshop(store, Study) as shop:
        study = await shop.thread(Study)
        await study.values.set("topic", "old")
        with pytest.raises((TypeError, ValueError), match="topic"):
            study.values.set("topic", bad)

        def set_both() -> None:
            with study.transaction():
                study.values.set("other", 1)
                study.values.set("topic", bad)

        with pytest.raises((TypeError, ValueError), match="topic"):
            set_both()
        with pytest.raises((TypeError, ValueError), match="topic"):
            await study.values.update("topic", lambda _: bad)
        assert await study.values.items() == [("topic", "old")]


async def test_none_is_a_value_and_a_deleted_one_is_gone(store: FlakyStore) -> None:
    async with open_workshop(store, Study) as shop:
        handle = shop.handle(Study)
        await handle.values.set("topic", None)
        assert await handle.values.items() == [("topic", None)]
        assert await handle.values.get("topic", "default") is None
        await handle.values.delete("topic")
        assert await handle.values.has("topic") is False
        assert await handle.values.get("topic", "default") == "default"
