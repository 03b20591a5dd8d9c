"""`with step.transaction():` adds the state to the write of a step's result, as a plain function does by itself."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.server.parts.tasks.desk import Desk, Do, run
from tests.server.parts.workshop import FlakyStore, Workshop, open_workshop, until

from plait import Step, StepFailed, TaskRun
from plait.store.protocol import Write

Function = Any


def do_once(function: Function, **options: Any) -> Do:
    """Return a run of one step, which calls a function with the thread and the step."""

    async def do(desk: Desk, step: Step) -> Any:
        return await step.do("one", partial(function, desk, step), **{"attempts": 1, **options})

    return do


def find_step(store: FlakyStore) -> list[Write]:
    """Return the writes with the result of the step, or with a change of the state."""
    return [
        write
        for write in store.writes
        if write.changes or any("/s/" in record.key and record.value for record in write.records)
    ]


async def look(shop: Workshop) -> tuple[int, list[Any]]:
    """Return the count in the state, and what was pushed to the values."""
    desk = await shop.thread(Desk)
    return desk.state["count"], await desk.values.get("log", [])


def check_failed(ended: TaskRun, what: str) -> None:
    assert ended.status == "failed"
    assert what in str(ended.error)


async def test_the_state_the_parts_and_the_result_are_one_write(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step) -> str:
        await desk.values.push("log", "before")
        await asyncio.sleep(0)
        with step.transaction():
            desk.count()
            desk.values.push("log", "in")
        desk.count()
        return "added"

    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do_once(add))
        assert (ended.status, ended.result) == ("done", "added")
        assert await look(shop) == (2, ["before", "in"])
        (write,) = find_step(store)
        assert len(write.changes) == 1
        assert {record.part for record in write.records} == {"values", "tasks"}


async def test_a_plain_function_is_one_write_with_its_result(store: FlakyStore) -> None:
    def add(desk: Desk, step: Step) -> int:
        desk.values.push("log", "in")
        desk.count()
        desk.count()
        return 7

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do_once(add))).result == 7
        assert await look(shop) == (2, ["in"])
        (write,) = find_step(store)
        assert len(write.changes) == 1


async def test_a_plain_function_may_return_what_set_state_returns(store: FlakyStore) -> None:
    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do_once(lambda desk, _: desk.set_state({"count": 5})))
        assert (ended.status, ended.result) == ("done", None)
        ended = await run(shop, do_once(lambda desk, _: desk.values.push("log", "in")))
        assert (ended.status, ended.result) == ("done", None)
        assert await look(shop) == (5, ["in"])


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_raises_or_is_refused_leaves_nothing_of_the_step(is_async: bool, store: FlakyStore) -> None:
    def add(desk: Desk, by: int) -> None:
        desk.values.push("log", by)
        desk.count(by)
        if by > 0:
            raise ValueError("too much")

    async def add_later(desk: Desk, step: Step, by: int) -> None:
        await desk.values.push("log", "before")
        with step.transaction():
            add(desk, by)

    def begin(by: int) -> Do:
        return do_once((lambda desk, step: add_later(desk, step, by)) if is_async else (lambda desk, _: add(desk, by)))

    async with open_workshop(store, Desk) as shop:
        check_failed(await run(shop, begin(1)), "ValueError: too much")
        check_failed(await run(shop, begin(-1)), "the count is negative")
        assert await look(shop) == (0, [])


async def test_an_await_after_the_block_fails_the_step_and_rolls_it_back(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step) -> None:
        await desk.values.push("log", "before")
        with step.transaction():
            desk.count()
        await asyncio.sleep(0)

    async with open_workshop(store, Desk) as shop:
        check_failed(await run(shop, do_once(add)), "await before the block")
        assert await look(shop) == (0, [])


async def test_an_attempt_that_raises_after_the_block_is_repeated_and_counts_once(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step) -> None:
        desk.seen.append(step.key)
        with step.transaction():
            desk.count()
        if len(desk.seen) < 3:
            raise ValueError("once more")

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do_once(add, attempts=3, base=0.001))).status == "done"
        assert await look(shop) == (1, [])
        assert len(Desk.seen) == 3
        assert len(set(Desk.seen)) == 1


async def test_a_block_that_raised_may_be_followed_by_others(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step) -> str:
        await desk.values.push("log", "before")
        try:
            with step.transaction():
                desk.count(-1)
                raise LookupError
        except LookupError:
            await asyncio.sleep(0)
        with step.transaction():
            desk.count(10)
        with step.transaction(), desk.transaction():
            desk.count()
        return "ok"

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do_once(add))).result == "ok"
        assert await look(shop) == (11, ["before"])
        assert len(find_step(store)) == 1


async def test_steps_at_the_same_time_have_each_their_own_write(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step, pause: int) -> int:
        for _ in range(pause):
            await asyncio.sleep(0)
        with step.transaction():
            desk.count()
            desk.values.push("log", pause)
        return pause

    async def do(desk: Desk, step: Step) -> list[int]:
        pauses = enumerate((3, 0, 3, 1))
        return await asyncio.gather(*(step.do(f"{n}", partial(add, desk, step, pause)) for n, pause in pauses))

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do)).result == [3, 0, 3, 1]
        assert await look(shop) == (4, [0, 1, 3, 3])
        assert len(find_step(store)) == 4


async def test_only_the_function_of_a_step_itself_has_a_transaction(store: FlakyStore) -> None:
    def add(desk: Desk, step: Step) -> None:
        with step.transaction():
            desk.count()

    async def in_task(desk: Desk, step: Step) -> None:
        async def begin() -> None:
            add(desk, step)

        await asyncio.gather(begin(), begin())

    async def in_transaction(desk: Desk, step: Step) -> None:
        with desk.transaction():
            add(desk, step)

    async def in_method(desk: Desk, step: Step) -> None:
        add(desk, step)

    async with open_workshop(store, Desk) as shop:
        check_failed(await run(shop, do_once(in_task)), "the async def of a step itself")
        check_failed(await run(shop, do_once(in_transaction)), "another transaction")
        check_failed(await run(shop, in_method), "the async def of a step itself")
        assert await look(shop) == (0, [])


async def test_a_stored_message_that_was_changed_before_the_block_is_read_with_async_with(store: FlakyStore) -> None:
    async def edit(desk: Desk, step: Step, is_async: bool) -> None:
        (message,) = (await desk.messages.list()).messages
        await desk.messages.update(message.id, "hello")
        if is_async:
            async with step.transaction():
                desk.count()
        else:
            with step.transaction():
                desk.count()

    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        await desk.messages.inject("user", "helo")
        check_failed(await run(shop, do_once(lambda desk, step: edit(desk, step, False))), "use `async with")
        assert (await run(shop, do_once(lambda desk, step: edit(desk, step, True)))).status == "done"
        assert [each.content for each in (await desk.messages.list()).messages] == ["hello"]
        assert await look(shop) == (1, [])
        assert len(find_step(store)) == 2  # The failure of the first one, and the result.


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_crash_while_the_write_is_on_its_way_neither_loses_nor_doubles_it(
    is_stored: bool, store: FlakyStore
) -> None:
    async def add(desk: Desk, step: Step) -> None:
        with step.transaction():
            desk.count()
            desk.values.push("log", "in")

    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        Desk.do = staticmethod(do_once(add))  # type: ignore[assignment, method-assign]
        store.refuses = lambda write: not is_stored and bool(write.changes)
        run_id = (await desk.tasks.run("work")).id
        await until(lambda: any(write.changes for write in store.writes))
        await shop.crash()
    async with open_workshop(store, Desk) as shop:
        ended = await (await shop.thread(Desk)).tasks.wait(run_id)
        assert ended.status == "done"
        assert await look(shop) == (1, ["in"])


async def test_a_step_that_cancels_its_own_run_keeps_what_its_block_writes(store: FlakyStore) -> None:
    async def stop(desk: Desk, step: Step) -> None:
        with step.transaction():
            desk.count()
            desk.tasks.cancel(step.id)

    async def do(desk: Desk, step: Step) -> None:
        await step.do("one", partial(stop, desk, step))
        desk.seen.append("went on")

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do)).status == "cancelled"
        assert await look(shop) == (1, [])
        assert Desk.seen == []


async def test_a_result_that_is_no_json_fails_the_step_and_rolls_its_block_back(store: FlakyStore) -> None:
    async def add(desk: Desk, step: Step) -> object:
        with step.transaction():
            desk.count()
        return object()

    async def do(desk: Desk, step: Step) -> str:
        with pytest.raises(StepFailed):
            await step.do("one", partial(add, desk, step), attempts=1)
        desk.count(10)
        return "went on"

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do)).result == "went on"
        assert await look(shop) == (10, [])
