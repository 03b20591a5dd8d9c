"""Which ended runs are kept, and in which records."""

from typing import Any

from tests.clocks import Clock
from tests.server.parts.tasks.desk import Desk, records
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import Step
from plait.parts.tasks.ended import KEPT_DAYS, MOST_ENDED

DAY = 86_400


async def end_at_once(desk: Desk, step: Step) -> None:
    await step.do("one", lambda: None)
    if desk.seen == ["fail"]:
        raise ValueError("no")


def use(do: Any) -> None:
    Desk.do = staticmethod(do)  # type: ignore[method-assign]


async def run(desk: Desk, *seen: str) -> str:
    """Run a task to its end, and return its id."""
    desk.seen[:] = seen
    id = (await desk.tasks.run("work")).id
    await desk.tasks.wait(id)
    return id


async def shown(desk: Desk) -> set[str]:
    return {run.id for run in await desk.tasks.list()}


def add(desk: Desk, count: int, prefix: str = "r") -> None:
    """Note that runs have ended, without anything else of them."""
    kept = desk.tasks._runner.kept
    for number in range(count):
        desk._actor.records.put(kept.add({f"{prefix}{number}": "done"}))


async def test_each_run_is_removed_7_days_after_its_end_with_its_journal(store: FlakyStore, clock: Clock) -> None:
    use(end_at_once)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        first = await run(desk)
        clock.move(DAY)
        second, third = await run(desk, "fail"), await run(desk)
        assert len(await records(desk, "j/")) == 1
        clock.move((KEPT_DAYS - 1) * DAY - 1)
        assert await shown(desk) == {first, second, third}
        clock.move(1)
        await until(lambda: is_shown(desk, {second, third}))
        assert await desk.tasks.get(first) is None
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert await shown(desk) == {second, third}
        clock.move(DAY)
        await until(lambda: is_shown(desk, set()))
        assert await records(desk) == []
        assert await shop.due() == {}


async def is_shown(desk: Desk, ids: set[str]) -> bool:
    return await shown(desk) == ids


async def test_a_thread_that_sleeps_wakes_to_remove_what_it_keeps_no_longer(store: FlakyStore, clock: Clock) -> None:
    use(end_at_once)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        await run(desk)
        key = desk._actor.key
    clock.move(KEPT_DAYS * DAY)
    async with open_workshop(store, Desk) as shop:

        async def is_gone() -> bool:
            return await shop.due() == {} and await store.record(key, "tasks", "x/00000000") is None

        await until(is_gone)


async def test_of_many_ended_runs_the_last_1000_are_kept(store: FlakyStore) -> None:
    use(end_at_once)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        first = await run(desk)
        add(desk, MOST_ENDED + 98)
        kept = desk.tasks._runner.kept
        assert len(kept) == MOST_ENDED + 99
        assert await shown(desk) == {first}
        last = await run(desk)
        await until(lambda: len(kept) == MOST_ENDED)
        await desk._actor.state.wait_until_durable()
        assert await shown(desk) == {last}
        assert await records(desk, "x/") == [f"x/{number:08x}" for number in range(1, 11)]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert len(desk.tasks._runner.kept) == MOST_ENDED
        add(desk, 300, "s")
        await until(lambda: len(desk.tasks._runner.kept) == MOST_ENDED)


async def test_what_could_not_be_removed_is_removed_later(store: FlakyStore, clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr("plait.parts.tasks.ended._PAUSE", 0.01)
    use(end_at_once)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        first = await run(desk, "fail")
        store.refuses = lambda write: any(record.key.startswith("e/") for record in write.records)
        tried = len(store.writes)
        clock.move(KEPT_DAYS * DAY)
        await until(lambda: len(store.writes) > tried + 1)
        assert await shown(desk) == {first}
        store.refuses = lambda _: False
        await until(lambda: is_shown(desk, set()))
        assert await records(desk) == []


async def test_a_run_that_is_tried_again_is_kept_from_its_last_end(store: FlakyStore, clock: Clock) -> None:
    use(end_at_once)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        again, other = await run(desk, "fail"), await run(desk, "fail")
        clock.move(DAY)
        desk.seen.clear()
        assert await desk.tasks.retry(again)
        assert (await desk.tasks.wait(again)).status == "done"
        clock.move((KEPT_DAYS - 1) * DAY)
        await until(lambda: is_shown(desk, {again}))
        assert await desk.tasks.get(other) is None
        clock.move(DAY)
        await until(lambda: is_shown(desk, set()))


async def test_a_run_that_is_tried_again_and_waits_keeps_its_journal(store: FlakyStore, clock: Clock) -> None:
    async def do(desk: Desk, step: Step) -> str:
        await step.do("one", lambda: desk.seen.append("one"))
        if len(desk.ends) == 0:
            raise ValueError("no")
        return str(await step.event("go"))

    use(do)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = await run(desk)
        await until(lambda: len(Desk.ends) == 1)
        assert await desk.tasks.retry(id)
        clock.move(KEPT_DAYS * DAY)
        await until(lambda: len(desk.tasks._runner.kept) == 0)
        await desk._actor.state.wait_until_durable()
        await desk.tasks.send(id, "go", "on")
        assert (await desk.tasks.wait(id)).result == "on"
        assert Desk.seen == ["one"]
