"""What comes for a run at a bad moment: while its journal is read, while it is being paused, before it is asked for."""

import asyncio
import contextlib
from typing import Any

import pytest
from tests.server.parts.tasks.desk import Desk
from tests.server.parts.workshop import FlakyMemory, open_workshop, until

from plait import Step
from plait.store.thread_rows import Record, RecordRange, ThreadKey


class SlowMemory(FlakyMemory):
    """Holds what it has read of journals until a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = None
        self.is_reading = asyncio.Event()

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        found = await super().records(key, wanted)
        if self.gate is not None and wanted.prefix.startswith("j/"):
            self.is_reading.set()
            await self.gate.wait()
        return found


def use(do: Any) -> None:
    Desk.do = staticmethod(do)  # type: ignore[method-assign]


async def test_an_event_that_comes_while_the_journal_is_read_continues_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.parts.tasks.waits._REST", 3600)  # A run that leaves the memory looks again.

    async def do(desk: Desk, step: Step) -> list[Any]:
        desk.seen.append("begun")
        return [await step.event("first"), await step.event("second")]

    use(do)
    async with SlowMemory() as store:
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            id = (await desk.tasks.run("work")).id
            await until(lambda: Desk.seen == ["begun"])
            await shop.crash()
        store.gate = asyncio.Event()
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            assert await desk.tasks.send(id, "first", 1)
            await store.is_reading.wait()
            assert await desk.tasks.send(id, "second", 2)
            store.gate.set()
            async with asyncio.timeout(10):
                assert (await desk.tasks.wait(id)).result == [1, 2]


@pytest.mark.parametrize("is_new", [False, True])
async def test_an_event_that_comes_while_the_run_is_being_paused_continues_it(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.tasks.waits._REST", 0.01)
    leaving, gate = asyncio.Event(), asyncio.Event()

    async def do(desk: Desk, step: Step) -> list[Any]:
        try:
            return [await step.event("first"), await step.event("second")]
        finally:
            if not gate.is_set():
                leaving.set()
                await gate.wait()

    use(do)
    async with FlakyMemory() as store, open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        if is_new:
            await desk.tasks.send(id, "first", 1)
        await leaving.wait()
        assert await desk.tasks.send(id, "second" if is_new else "first", 2)
        gate.set()
        if not is_new:
            assert await desk.tasks.send(id, "second", 3)
        async with asyncio.timeout(10):
            assert (await desk.tasks.wait(id)).result == ([1, 2] if is_new else [2, 3])


async def test_an_event_may_come_before_it_is_asked_for_and_the_first_of_a_name_counts() -> None:
    gate = asyncio.Event()

    async def do(desk: Desk, step: Step) -> Any:
        await gate.wait()
        return await step.event("go")

    use(do)
    async with FlakyMemory() as store, open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        assert await desk.tasks.send(id, "go", 1)
        assert not await desk.tasks.send(id, "go", 2)
        gate.set()
        assert (await desk.tasks.wait(id)).result == 1
        assert not await desk.tasks.send(id, "go", 3)
        assert not await desk.tasks.send("none", "go", 3)


async def test_a_step_that_returned_none_is_finished() -> None:
    async def do(desk: Desk, step: Step) -> None:
        await step.do("none", lambda: desk.seen.append("none"))
        await step.event("go")

    use(do)
    async with FlakyMemory() as store:
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            id = (await desk.tasks.run("work")).id
            await until(lambda: Desk.seen == ["none"])
            await desk._actor.state.wait_until_durable()
            await shop.crash()
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            await desk.tasks.send(id, "go")
            assert (await desk.tasks.wait(id)).status == "done"
    assert Desk.seen == ["none"]


@pytest.mark.parametrize("rest", [0.0, 3600.0])
async def test_what_a_run_waits_for_is_told_at_once_and_until_it_has_come(
    rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.tasks.waits._SOON", rest)  # Whether the run leaves the memory.
    monkeypatch.setattr("plait.parts.tasks.waits._REST", rest)

    async def do(desk: Desk, step: Step) -> list[Any]:
        first = await asyncio.gather(step.event("a"), step.event("b"))
        with contextlib.suppress(TimeoutError):
            await step.event("late", timeout=0.0)
        return [*first, await step.event("c")]

    use(do)
    async with FlakyMemory() as store, open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        told = list[list[str]]()
        stop = desk.tasks.follow(lambda run: told.append([*desk.tasks.find_awaited(run.id)]))
        id = (await desk.tasks.run("work")).id
        await until(lambda: told[-1:] == [["a", "b"]] and desk.tasks.only_waits(id))
        assert await desk.tasks.send(id, "b", 2)
        await until(lambda: told[-1] == ["a"] and desk.tasks.only_waits(id))
        assert await desk.tasks.send(id, "a", 1)
        await until(lambda: told[-1] == ["c"] and desk.tasks.only_waits(id))
        assert await desk.tasks.send(id, "c", 3)
        async with asyncio.timeout(10):
            assert (await desk.tasks.wait(id)).result == [1, 2, 3]
        assert told[-1] == []
        stop()


async def test_what_a_run_waits_for_is_known_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.parts.tasks.waits._REST", 3600)

    async def do(desk: Desk, step: Step) -> Any:
        return await step.event("a")

    use(do)
    async with SlowMemory() as store:
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            id = (await desk.tasks.run("work")).id
            await desk.tasks.wait_until(id, lambda run: desk.tasks.only_waits(run.id))
            await shop.crash()
        store.gate = asyncio.Event()
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            assert desk.tasks.find_awaited(id) == ("a",)
            await store.is_reading.wait()
            assert desk.tasks.find_awaited(id) == ("a",)
            store.gate.set()
            assert await desk.tasks.send(id, "a", 1)
            async with asyncio.timeout(10):
                assert (await desk.tasks.wait(id)).result == 1
