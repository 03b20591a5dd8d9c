"""What a clock that is set does to the threads of a node."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.clocks import Clock
from tests.schedules import in_soak
from tests.server.parts.workshop import SECOND, FlakyStore, Workshop, make_store, open_workshop, until

from plait.actor.thread import Thread
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import Schedule
from plait.store.thread_rows import ThreadKey

HOUR = 3600.0
YEAR = 365 * 24 * HOUR
# A time at which a minute begins.
BEGIN = 1_800_000_000 * SECOND


class Bell(Thread[int]):
    """Counts what has run."""

    initial_state = 0
    schedule = Schedule()

    @effect
    def ring(self) -> None:
        self.set_state(self.state + 1)

    @effect(base=10, most=10)
    def fail_once(self) -> None:
        self.set_state(self.state + 1)
        if self.state == 1:
            raise ValueError("broken")


class Sleepy(Bell):
    """Falls asleep at once."""

    idle_timeout = 0.0


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


async def has_run(shop: Workshop, cls: type[Bell], count: int) -> None:
    """Wait until effects have run so often and all is stored, without waking a thread."""

    async def has() -> bool:
        found = await shop.store.find(ThreadKey(cls._kind.name, "one"))
        return found is not None and found.version == count

    await until(has)


def plan(bell: Bell, name: str) -> None:
    match name:
        case "every":
            bell.schedule.every(60, "ring")
        case "cron":
            bell.schedule.cron("* * * * *", "ring")
        case _:
            bell.schedule.after(60, "ring")


@pytest.mark.parametrize("name", ["every", "cron", "after"])
async def test_a_clock_that_is_set_back_delays_nothing(store: FlakyStore, clock: Clock, name: str) -> None:
    clock.set(BEGIN)
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        plan(bell, name)
        clock.jump(-HOUR)
        clock.move(60)
        await has_run(shop, Bell, 1)
        if name == "after":
            plan(bell, name)
        clock.jump(-YEAR)
        clock.move(60)
        await has_run(shop, Bell, 2)


@pytest.mark.parametrize("name", ["every", "cron", "after"])
async def test_a_clock_that_is_set_back_does_not_delay_a_sleeping_thread(
    store: FlakyStore, clock: Clock, name: str
) -> None:
    clock.set(BEGIN)
    async with open_workshop(store, Sleepy) as shop:
        plan(await shop.thread(Sleepy), name)
        await until(lambda: shop.is_asleep(Sleepy))
        clock.jump(-HOUR)
        clock.move(60)
        await has_run(shop, Sleepy, 1)


async def test_a_retry_does_not_wait_for_a_clock_that_is_set_back(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.after(0, "fail_once")

        async def is_tried_again_later() -> bool:
            return [each.attempt for each in await bell.schedule.list()] == [2]

        await until(is_tried_again_later)
        clock.jump(-HOUR)
        clock.move(10)
        await has_run(shop, Bell, 2)


@pytest.mark.parametrize("cls", [Bell, Sleepy])
async def test_a_jump_forward_is_noticed_before_the_timers_would_look(
    store: FlakyStore, clock: Clock, cls: type[Bell]
) -> None:
    async with open_workshop(store, cls, timer_interval=HOUR) as shop:
        bell = await shop.thread(cls)
        await bell.schedule.after(1800, "ring")
        if cls is Sleepy:
            del bell
            await until(lambda: shop.is_asleep(cls))
        clock.jump(HOUR)
        shop.node.look_at_clock()  # As the app does at each beat of its loop.
        await has_run(shop, cls, 1)


async def test_every_goes_on_while_a_clock_is_an_hour_ahead_and_when_it_is_right_again(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.every(60, "ring")
        clock.jump(HOUR)
        await has_run(shop, Bell, 1)
        clock.jump(-HOUR)
        for count in (2, 3):
            clock.move(60)
            await has_run(shop, Bell, count)


@pytest.mark.parametrize("name", ["every", "cron"])
async def test_after_a_restart_what_recurs_does_not_wait_for_a_clock_that_was_a_year_ahead(
    store: FlakyStore, clock: Clock, name: str
) -> None:
    clock.set(BEGIN)
    async with open_workshop(store, Sleepy) as shop:
        plan(await shop.thread(Sleepy), name)
        clock.jump(YEAR)
        await has_run(shop, Sleepy, 1)
    clock.set(BEGIN + 600 * SECOND)
    async with open_workshop(store, Sleepy) as shop:  # No caller wakes the thread.

        async def is_corrected() -> bool:
            return await shop.due() == {ThreadKey("sleepy", "one"): BEGIN + 660 * SECOND}

        await until(is_corrected)
        clock.move(60)
        await has_run(shop, Sleepy, 2)


async def test_what_runs_once_keeps_its_time_when_a_clock_was_ahead(store: FlakyStore, clock: Clock) -> None:
    clock.set(BEGIN)
    async with open_workshop(store, Sleepy) as shop:
        await (await shop.thread(Sleepy)).schedule.after(YEAR, "ring")
    async with open_workshop(store, Sleepy) as shop:
        clock.move(60)
        assert await shop.due() == {ThreadKey("sleepy", "one"): BEGIN + int(YEAR) * SECOND}
