"""A run that is cancelled in each phase stores nothing more, and `retry` begins it again from its journal."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec import ValidationError
from tests.server.parts.tasks.desk import Desk, records, run
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import GiveUp, Step, StepFailed

Phase = Callable[[Desk, Step], Awaitable[Any]]


async def hang(desk: Desk) -> None:
    """Write to a part, and wait for ever."""
    desk.seen.append("there")
    await desk.values.push("log", "hang")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        desk.seen.append("cancelled")
        raise


async def in_step(desk: Desk, step: Step) -> None:
    await step.do("there", lambda: hang(desk))


async def in_method(desk: Desk, step: Step) -> None:
    await hang(desk)


async def in_both_of_two(desk: Desk, step: Step) -> None:
    await asyncio.gather(step.do("there", lambda: hang(desk)), step.do("too", lambda: hang(desk)))


async def in_sleep(desk: Desk, step: Step) -> None:
    desk.seen.append("there")
    await step.sleep("there", 3600)


async def in_event(desk: Desk, step: Step) -> None:
    desk.seen.append("there")
    await step.event("there", timeout=3600)


async def in_pause(desk: Desk, step: Step) -> None:
    """Wait for another attempt."""

    def fail() -> None:
        desk.seen.append("there")
        raise ValueError

    await step.do("there", fail, base=3600, most=3600)


PHASES: list[Phase] = [in_step, in_method, in_both_of_two, in_sleep, in_event, in_pause]


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_run_that_is_cancelled_stores_nothing_more_and_can_be_tried_again(
    phase: Phase, rests: bool, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rests:
        monkeypatch.setattr("plait.parts.tasks.waits._REST", 0.001)

    async def do(desk: Desk, step: Step) -> str:
        await step.do("first", lambda: desk.values.push("log", "first"))
        if not Desk.ends:
            await phase(desk, step)
        await step.do("last", lambda: desk.values.push("log", "last"))
        return "done"

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        await until(lambda: "there" in Desk.seen)
        if rests and phase in (in_sleep, in_event, in_pause):
            await until(lambda: not desk.tasks._runner._steps)
        assert await desk.tasks.cancel(id)
        assert not await desk.tasks.cancel(id)
        ended = await desk.tasks.wait(id)
        assert (ended.status, ended.result, ended.due) == ("cancelled", None, 0)
        await until(lambda: Desk.ends == [ended])
        assert await desk.values.get("log") == ["first"]
        assert desk.tasks._runner.times == (0, 0)
        count = len(Desk.seen)
        assert await desk.tasks.retry(id)
        assert (await desk.tasks.wait(id)).result == "done"
        assert len(Desk.seen) <= count + 2
        assert await desk.values.get("log") == ["first", "last"]
    assert Desk.errors == []


async def test_a_run_that_has_not_begun_is_cancelled(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> None:
        desk.seen.append("begun")

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        with desk.transaction():
            id = desk.tasks.run("work").id
            assert desk.tasks.cancel(id).value
        assert (await desk.tasks.wait(id)).status == "cancelled"
    assert Desk.seen == []


async def test_a_run_that_is_over_is_not_cancelled(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> int:
        return 1

    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do)
        desk = await shop.thread(Desk)
        assert not await desk.tasks.cancel(ended.id)
        assert await desk.tasks.get(ended.id) == ended
        assert not await desk.tasks.retry(ended.id)


async def test_a_failed_run_is_tried_again_from_the_step_that_failed(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> str:
        await step.do("first", lambda: desk.seen.append("first"))
        return await step.do("weak", fail, attempts=2, base=0.001)

    def fail() -> str:
        Desk.seen.append("weak")
        if len(Desk.seen) < 4:
            raise ValueError("no")
        return "ok"

    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do)
        assert ended.status == "failed"
        assert "ValueError: no" in str(ended.error)
        desk = await shop.thread(Desk)
        assert await desk.tasks.retry(ended.id)
        assert (await desk.tasks.wait(ended.id)).result == "ok"
    assert Desk.seen == ["first", "weak", "weak", "weak"]


async def test_a_failed_run_is_tried_again_after_a_restart(store: FlakyStore) -> None:
    def give_up() -> None:
        Desk.seen.append("tried")
        if len(Desk.seen) == 1:
            raise GiveUp("never")

    async def do(desk: Desk, step: Step) -> None:
        try:
            await step.do("weak", give_up)
        except StepFailed as error:
            raise RuntimeError("so be it") from error

    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do)
        assert ended.status == "failed"
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert await desk.tasks.retry(ended.id)
        assert (await desk.tasks.wait(ended.id)).status == "done"
    assert Desk.seen == ["tried", "tried"]


async def test_a_retry_waits_again_for_an_event_that_was_not_of_its_type(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> bool:
        await step.do("first", lambda: desk.seen.append("first"))
        with suppress(ValidationError):  # Raised by each replay, too.
            await step.event("caught", type=int)
        return (await step.approval("publish")).approved

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        await desk.tasks.send(id, "caught", "text")
        await desk.tasks.send(id, "publish", {"approved": "yes"})
        ended = await desk.tasks.wait(id)
        assert ended.status == "failed"
        assert "Expected `bool`, got `str`" in str(ended.error)
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert await desk.tasks.retry(id)
        assert await desk.tasks.send(id, "caught", 1)
        assert await desk.tasks.send(id, "publish", {"approved": True})
        assert not await desk.tasks.send(id, "publish", {"approved": False})
        assert (await desk.tasks.wait(id)).result is True
        assert [key for key in await records(desk) if key.startswith("j/")] == []
    assert Desk.seen == ["first"]


async def test_a_cancel_that_is_rolled_back_lets_the_run_go_on(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> Any:
        desk.seen.append("begun")
        return await step.event("go")

    def cancel_and_raise(desk: Desk, id: str) -> None:
        with desk.transaction():
            desk.tasks.cancel(id)
            raise KeyError

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        await until(lambda: Desk.seen == ["begun"])
        with pytest.raises(KeyError):
            cancel_and_raise(desk, id)
        await asyncio.sleep(0.01)
        assert await desk.tasks.send(id, "go", 1)
        async with asyncio.timeout(8):
            assert (await desk.tasks.wait(id)).result == 1
    assert Desk.ends[-1].status == "done"


async def test_a_run_that_is_only_staged_cannot_be_waited_for(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> str:
        if desk.seen:
            return "inner"
        desk.seen.append("outer")

        async def begin() -> str:
            id = desk.tasks.run("work").id
            with pytest.raises(RuntimeError, match="begins when what has begun it commits"):
                await desk.tasks.wait(id)
            return id

        id = await step.do("begin", begin, attempts=1)
        return str((await desk.tasks.wait(id)).result)

    async with open_workshop(store, Desk) as shop:
        async with asyncio.timeout(10):
            assert (await run(shop, do)).result == "inner"
