"""Steps of tasks."""

import asyncio
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.tasks.desks import Desk, find_row, keys, open_desk, rest_at_once, sleeps
from tests.server.parts.workshop import FlakyStore, until

from plait.parts.tasks.step import Step


async def run(desk: Desk, name: str = "work") -> Any:
    """Run a task to its end, and return the result, or the error."""
    ended = await desk.tasks.wait((await desk.tasks.run(name)).id)
    return ended.result if ended.status == "done" else ended.error


async def test_a_step_is_tried_again_with_pauses_and_its_result_is_stored(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        def fetch() -> int:
            desk.seen.append("fetch")
            if len(desk.seen) < 3:
                raise ConnectionError("away")
            return 5

        return await step.do("fetch", fetch, base=10)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        for number in (1, 2):
            await until(lambda number=number: len(desk.seen) == number)
            await sleeps(desk, id)
            assert clock.now < find_row(desk, id).due <= clock.now + 10_000_000 * number
            clock.move(20)
        assert (await desk.tasks.wait(id)).result == 5
        assert desk.errors == []


async def test_a_def_is_stored_in_one_write_with_its_result(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        def show() -> None:
            desk.set_state(7)
            desk.values.set("shown", True)

        await step.do("show", show)
        await step.do("set", lambda: desk.set_state(lambda state: state + 1))

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None
        show, set_ = [write for write in store.writes if write.changes][-2:]
        assert [record.key.split("/")[-1] for record in show.records if record.part == "tasks"] == ["show"]
        assert any(record.part == "values" for record in show.records)
        assert [record.key.split("/")[-1] for record in set_.records] == ["set"]
        assert desk.state == 8


async def test_a_status_is_shown_while_the_run_goes_on(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> None:
        step.status({"done": 1, "of": 2})
        await step.do("wait", gate.wait)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: bytes(find_row(desk, id).value) == b'{"done":1,"of":2}')
        found = await desk.tasks.get(id)
        assert found is not None
        assert (found.status, found.value) == ("running", {"done": 1, "of": 2})
        gate.set()
        assert (await desk.tasks.wait(id)).value == {"done": 1, "of": 2}


async def test_an_event_counts_once_and_may_come_before_it_is_asked_for(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> Any:
        await step.do("wait", gate.wait)
        return [await step.event("early"), await step.event("late")]

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert await desk.tasks.send(id, "early", [1])
        assert not await desk.tasks.send(id, "early", [2])
        gate.set()
        assert await desk.tasks.send(id, "late", {"a": 1})
        assert (await desk.tasks.wait(id)).result == [[1], {"a": 1}]
        assert not await desk.tasks.send(id, "early")
        assert not await desk.tasks.send(id, "other")
        assert not await desk.tasks.send("none", "other")
        assert await keys(store) == ["e"]


async def test_a_replay_begins_with_the_value_of_the_last_checkpoint_without_the_steps_before_it(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        first = step.value or 0
        for number in range(first, 3):
            await step.do("page", lambda number=number: desk.seen.append(f"page {number}"))
            step.checkpoint(number + 1)
        desk.seen.append(f"from {first}")
        await step.sleep("rest", 60)
        return step.value

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert await keys(store) == ["j/c", "j/s/rest", "r"]
        clock.move(61)
        assert (await desk.tasks.wait(id)).result == 3
        assert desk.seen == ["page 0", "page 1", "page 2", "from 0", "from 3"]
