"""What a thread schedules, and when it runs."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.clocks import Clock
from tests.server.parts.workshop import SECOND, SOON, FlakyStore, make_store, open_workshop, until
from tests.server.rooms import Client

from plait.actor.connection import Connection
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.actor.turn import current_turn
from plait.agents.context import find_context
from plait.clock import read_due_clock
from plait.errors import InvalidArguments, TooLarge, TooMany
from plait.parts.files.thread_files import Files
from plait.parts.schedule import effects
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import MOST_ROWS, Schedule
from plait.parts.values import Values
from plait.store.thread_rows import ThreadKey

HOUR = 3600.0


class Bell(Thread[dict[str, int]]):
    """Rings, and remembers it."""

    @staticmethod
    def initial_state() -> dict[str, int]:
        return {"rings": 0}

    values = Values()
    schedule = Schedule()

    def __init__(self) -> None:
        self.errors: list[str] = []

    @effect
    async def ring(self, what: str = "") -> None:
        await self.values.push("rings", what)

    @effect(attempts=3, base=10.0, most=15.0)
    def crack(self, what: str = "") -> None:
        self.values.push("cracks", what)
        raise RuntimeError(f"cracked {what}".strip())

    @rpc
    async def plan(self, *, seconds: float) -> str:
        return await self.schedule.after(seconds, "ring", "rpc")

    @rpc
    async def plan_now(self) -> str:
        return await self.schedule.after(0, "ring")

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(str(error))


async def rings(bell: Bell) -> list[str]:
    found: list[str] = await bell.values.get("rings", [])
    return found


def rung(bell: Bell, *expected: str) -> Any:
    async def has_rung() -> bool:
        return await rings(bell) == [*expected]

    return has_rung


async def watched() -> None:
    """Give timers the time to read the clock several times."""
    await asyncio.sleep(4 * SOON)


# Once


async def test_after_returns_an_id_that_the_list_shows_with_name_arguments_and_times(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        id = await bell.schedule.after(60, "ring", "a", key="k")
        (found,) = await bell.schedule.list()
        assert (found.id, found.name, found.args, found.key) == (id, "ring", ["a"], "k")
        assert (found.created_at, found.due) == (clock.now, clock.now + 60 * SECOND)
        assert (found.status, found.attempt, found.every, found.cron) == ("pending", 1, None, None)
        assert await shop.due() == {ThreadKey("bell", "one"): found.due}


async def test_an_effect_runs_no_earlier_than_due_and_once(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.after(60, "ring", "a")
        clock.move(59.999)
        await watched()
        assert await rings(bell) == []
        clock.move(0.001)
        await until(rung(bell, "a"))
        clock.move(HOUR)
        await watched()
        assert await rings(bell) == ["a"]
        assert await bell.schedule.list() == []
        # The thread knows of the end before it is stored.
        async with asyncio.timeout(30):
            while await shop.due():  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_at_takes_a_time_in_any_zone_and_refuses_one_without(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        when = datetime.fromtimestamp(clock.now // SECOND + 60, timezone(timedelta(hours=5)))
        await bell.schedule.at(when, "ring", "a")
        with pytest.raises(ValueError, match="no time zone"):
            bell.schedule.at(when.replace(tzinfo=None), "ring", "b")
        assert [each.due for each in await bell.schedule.list()] == [(clock.now // SECOND + 60) * SECOND]
        await bell.schedule.at(datetime(2000, 1, 1, tzinfo=UTC), "ring", "past")
        await until(rung(bell, "past"))


@pytest.mark.parametrize("passed", [-(10**9), 0, 1])
async def test_a_time_at_the_epoch_or_before_it_is_due_at_once(passed: int, store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await shop.node._alarms.stop()
        await bell.schedule.at(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=passed), "ring", "past")
        assert [each.due for each in await bell.schedule.list()] in ([clock.now], [])
        await shop.crash()
        assert await shop.due() in ({ThreadKey("bell", "one"): clock.now}, {})
    clock.move(60)
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await until(rung(bell, "past"))


async def test_what_was_due_while_the_server_was_down_runs_once_after_the_restart(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.after(60, "ring", "once")
        await bell.schedule.every(60, "ring", "again")
        await bell.schedule.after(HOUR, "ring", "later")
        before = await bell.schedule.list()
    clock.move(1000)
    async with open_workshop(store, Bell) as shop:  # No caller wakes the thread.
        await until(lambda: not shop.is_asleep(Bell))
        bell = await shop.thread(Bell)
        await until(lambda: _has(bell, 2))
        await watched()
        assert sorted(await rings(bell)) == ["again", "once"]
        left = await bell.schedule.list()
        assert [(each.args, each.due) for each in left] == [
            (["again"], before[1].due + 960 * SECOND),
            (["later"], before[2].due),
        ]


async def _has(bell: Bell, count: int) -> bool:
    return len(await rings(bell)) >= count


async def test_a_cancelled_schedule_does_not_run_and_is_cancelled_once(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        id = await bell.schedule.after(60, "ring", "a")
        assert await bell.schedule.cancel(id) is True
        assert await bell.schedule.cancel(id) is False
        assert await bell.schedule.cancel("nothing") is False
        assert await shop.due() == {}
        clock.move(HOUR)
        await watched()
        assert await rings(bell) == []


async def test_the_list_of_a_name_has_only_those_that_may_still_run(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        late = await bell.schedule.after(120, "ring")
        early = await bell.schedule.after(60, "ring")
        other = await bell.schedule.after(90, "crack")
        assert [each.id for each in await bell.schedule.list("ring")] == [early, late]
        assert [each.id for each in await bell.schedule.list()] == [early, other, late]
        assert await bell.schedule.list("plan") == []


@each_case(
    ("call", "error", "why"),
    [
        (lambda s: s.after(1, "rang"), ValueError, "there is no effect 'rang'; there are: crack, ring"),
        (lambda s: s.after(1, "plan"), ValueError, "no effect"),
        (lambda s: s.queue("on_start"), ValueError, "no effect"),
        (lambda s: s.after(1, "ring", 5), InvalidArguments, "Expected `str`"),
        (lambda s: s.after(1, "ring", "a", "b"), InvalidArguments, "takes 1 arguments"),
        (lambda s: s.after(1, "ring", object()), TypeError, "not JSON"),
        (lambda s: s.after(1, "ring", float("nan")), ValueError, "not JSON"),
        (lambda s: s.after(-1, "ring"), ValueError, "at least 0"),
        (lambda s: s.after(float("nan"), "ring"), ValueError, "at least 0"),
        (lambda s: s.after(float("inf"), "ring"), ValueError, "at least 0"),
        (lambda s: s.after(1e13, "ring"), ValueError, "year 10000"),
        (lambda s: s.after(253402300799, "ring"), ValueError, "year 9999"),
        (lambda s: s.at(datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "ring"), ValueError, "year 9999"),
        (lambda s: s.every(1e13, "ring"), ValueError, "year 9999"),
        (lambda s: s.every(float("inf"), "ring"), ValueError, "year 9999"),
        (lambda s: s.after(1, "ring", key=""), ValueError, "must not be empty"),
        (lambda s: s.after(1, "ring", key=5), TypeError, "key"),
        (lambda s: s.after(1, "ring", replace=True), ValueError, "replace needs a key"),
        (lambda s: s.after(1, "ring", key="k", replace="yes"), TypeError, "replace must be bool"),
        (lambda s: s.after(1, "ring", key="\ud800"), ValueError, "key"),
        (lambda s: s.every(0.5, "ring"), ValueError, "shortest interval"),
        (lambda s: s.cron("* *", "ring"), ValueError, "not valid"),
        (lambda s: s.cron("0 0 * * *", "ring", tz="Europe/Atlantis"), ValueError, "no time zone"),
        (lambda s: s.after(1, "ring", "x" * 2_000_000), TooLarge, "the limit is"),
    ],
)
async def test_what_could_not_run_is_refused_when_it_is_scheduled(call: Any, error: type[Exception], why: str) -> None:
    async with make_store("memory", Path()) as store, open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        with pytest.raises(error, match=why):
            call(bell.schedule)
        assert await bell.schedule.list() == []


async def test_while_one_with_a_key_waits_nothing_is_added(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        first = await bell.schedule.after(60, "ring", "a", key="k")
        assert await bell.schedule.after(30, "ring", "b", key="k") == first
        assert await bell.schedule.after(30, "ring", "c", key="other") != first
        assert await bell.schedule.after(90, "crack", key="k") != first
        assert len(await bell.schedule.list()) == 3
        clock.move(60)
        await until(rung(bell, "c", "a"))
        assert await bell.schedule.after(30, "ring", "d", key="k") != first


async def test_what_waits_is_replaced_with_another_time_and_other_arguments(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        first = await bell.schedule.after(60, "ring", "a", key="k", replace=True)
        await bell.schedule.after(60, "ring", "other", key="other")
        clock.move(50)
        second = bell.schedule.after(60, "ring", "b", key="k", replace=True)
        assert await second == second.id != first
        assert {each.id: each.due for each in await bell.schedule.list()}[second.id] == clock.now + 60 * SECOND
        assert await bell.schedule.cancel(first) is False
        clock.move(59)
        await until(rung(bell, "other"))
        when = datetime.fromtimestamp(clock.now / 1e6 + 30, UTC)
        third = await bell.schedule.at(when, "ring", "c", key="k", replace=True)
        clock.move(20)
        await watched()
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        assert [each.id for each in await bell.schedule.list()] == [third]
        clock.move(10)
        await until(rung(bell, "other", "c"))


async def test_a_replaced_schedule_begins_its_attempts_again_but_not_its_crashes(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.after(0, "crack", key="k")

        async def has_failed() -> bool:
            return [each.attempt for each in await bell.schedule.list()] == [2]

        await until(has_failed)
        await bell.schedule.after(60, "crack", key="k", replace=True)
        assert [(each.attempt, each.due) for each in await bell.schedule.list()] == [(1, clock.now + 60 * SECOND)]
        ((id, row),) = bell.schedule._runner.agenda.rows.items()
        await bell.schedule._runner.store({id: msgspec.structs.replace(row, crashes=1)})
        await bell.schedule.after(60, "crack", key="k", replace=True)
        assert [each.attempt for each in await bell.schedule.list()] == [2]


async def test_one_that_runs_is_not_replaced(store: FlakyStore, clock: Clock) -> None:
    class Slow(Bell):
        gate, began = asyncio.Event(), asyncio.Event()

        @effect
        async def wait(self, what: str) -> None:
            self.schedule.after(60, "wait", "next", key="k", replace=True)
            self.began.set()
            await self.gate.wait()
            await self.values.push("rings", what)

    async with open_workshop(store, Slow) as shop:
        bell = await shop.thread(Slow)
        first = await bell.schedule.after(0, "wait", "a", key="k")
        await bell.began.wait()
        second = await bell.schedule.after(30, "wait", "b", key="k", replace=True)
        assert [each.id for each in await bell.schedule.list()] == [first, second]
        bell.gate.set()
        await until(rung(bell, "a"))
        # What the run has staged under the key does not replace what was added while it ran.
        assert [each.id for each in await bell.schedule.list()] == [second]


def _replace_and_fail(bell: Bell) -> None:
    bell.schedule.after(90, "ring", "b", key="k", replace=True)
    bell.schedule.after(90, "ring", "b", replace=True)


async def test_a_replacement_is_undone_with_its_transaction(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        first = await bell.schedule.after(60, "ring", "a", key="k")
        with pytest.raises(ValueError, match="replace"), bell.transaction():
            _replace_and_fail(bell)
        assert await bell.schedule.after(30, "ring", key="k") == first
        with bell.transaction():
            for seconds in (70, 80, 90):
                bell.schedule.after(seconds, "ring", "b", key="k", replace=True)
        assert [each.due for each in await bell.schedule.list()] == [clock.now + 90 * SECOND]


async def test_after_without_a_key_in_on_start_logs_a_warning(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Hasty(Bell):
        def on_start(self) -> None:
            self.schedule.after(60, "ring", key="once")
            self.schedule.every(60, "ring")
            if self.name == "hasty":
                self.schedule.after(60, "ring")

    async with open_workshop(store, Hasty) as shop:
        await shop.thread(Hasty, "careful")
        assert caplog.messages == []
        await shop.thread(Hasty, "hasty")
        (message,) = caplog.messages
        assert "without a key in on_start" in message


async def test_a_thread_has_at_most_10000_schedules(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        with bell.transaction():
            for number in range(MOST_ROWS):
                bell.schedule.after(60 + number, "ring", key=f"{number}")
        with pytest.raises(TooMany, match="10,000 schedules") as caught:
            bell.schedule.after(1, "ring")
        assert caught.value.code == "rate_limited"
        assert bell.schedule.after(1, "ring", key="5").id  # It is there already.
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        found = await bell.schedule.list()
        assert len(found) == MOST_ROWS
        await bell.schedule.cancel(found[0].id)
        await bell.schedule.after(60, "ring")


async def test_a_thread_loads_all_rows_even_above_the_limit(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        id = bell.schedule.after(60, "ring").id
        row = bell.schedule._runner.agenda.rows[id]
        # As runs do that end at the same time.
        await bell.schedule._runner.store(
            {f"{n}": msgspec.structs.replace(row, id=f"{n}") for n in range(2 * MOST_ROWS)}
        )
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        assert len(await bell.schedule.list()) == 2 * MOST_ROWS + 1


async def test_a_server_handle_schedules_lists_and_cancels(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        handle = shop.handle(Bell)
        id = await handle.schedule.after(60, "ring", "a")
        assert [each.id for each in await handle.schedule.list()] == [id]
        assert await handle.schedule.cancel(id) is True
        assert await handle.plan(seconds=60) in [each.id for each in await handle.schedule.list()]


# Again and again


async def test_every_runs_at_each_interval_and_makes_one_of_missed_runs(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        begin = clock.now
        await bell.schedule.every(60, "ring", "a")
        for count in (1, 2):
            clock.move(60)
            await until(lambda count=count: _has(bell, count))
        clock.move(600)
        await until(lambda: _has(bell, 3))
        await watched()
        assert len(await rings(bell)) == 3
        assert [each.due - begin for each in await bell.schedule.list()] == [13 * 60 * SECOND]


async def test_cron_runs_in_its_time_zone(store: FlakyStore, clock: Clock) -> None:
    clock.set(int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()) * SECOND)
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        await bell.schedule.cron("30 2 * * *", "ring", "berlin", tz="Europe/Berlin")
        await bell.schedule.cron("30 2 * * *", "ring", "utc")
        (first, second) = await bell.schedule.list()
        assert (first.cron, first.tz, second.tz) == ("30 2 * * *", "Europe/Berlin", "UTC")
        # The clock is changed at 1:00 UTC, and 2:30 is skipped there.
        assert first.due == int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()) * SECOND
        clock.set(first.due)
        await until(rung(bell, "berlin"))
        clock.set(second.due)
        await until(rung(bell, "berlin", "utc"))
        (first, second) = await bell.schedule.list()
        assert first.due == int(datetime(2026, 3, 30, 0, 30, tzinfo=UTC).timestamp()) * SECOND


async def test_every_and_cron_are_the_same_by_name_arguments_and_rule(store: FlakyStore, clock: Clock) -> None:
    for _ in range(2):  # Also after a restart.
        async with open_workshop(store, Bell) as shop:
            bell = await shop.thread(Bell)
            ids = [
                await bell.schedule.every(60, "ring", "a"),
                await bell.schedule.every(60.0, "ring", "a"),
                await bell.schedule.cron("0 9 * * *", "ring"),
                await bell.schedule.cron("0  9 * * *", "ring", tz="UTC"),
            ]
            assert (ids[0], ids[2]) == (ids[1], ids[3])
            others = [
                await bell.schedule.every(61, "ring", "a"),
                await bell.schedule.every(60, "ring", "b"),
                await bell.schedule.every(60, "crack", "a"),
                await bell.schedule.cron("0 9 * * *", "ring", tz="Europe/Berlin"),
                await bell.schedule.cron("1 9 * * *", "ring"),
            ]
            assert len({*ids, *others}) == 7
            assert len(await bell.schedule.list()) == 7


async def test_what_recurs_goes_on_after_a_failure(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        begin = clock.now
        await bell.schedule.every(600, "crack", "a")
        for number in range(1, 3):
            clock.move(600)
            for _ in range(2):
                await until(lambda: _is_retried(bell))
                clock.move(20)
            await until(lambda number=number: len(bell.errors) == number)
            clock.move(-40)
            (found,) = await bell.schedule.list()
            assert (found.attempt, found.status, found.due - begin) == (1, "pending", (number + 1) * 600 * SECOND)


async def _is_retried(bell: Bell) -> bool:
    (found,) = await bell.schedule.list()
    return found.attempt > 1 and found.due > 0 and found.status == "pending" and not _is_due(found.due)


def _is_due(at: int) -> bool:
    return at <= read_due_clock()


# Transactions


async def test_an_effect_runs_at_its_time_after_a_transaction_that_cancelled_it_was_rolled_back(
    store: FlakyStore,
) -> None:
    class Safe(Bell):
        files = Files()

    async with open_workshop(store, Safe, timer_interval=HOUR) as shop:
        bell = await shop.thread(Safe)
        await bell.files.write("plan.txt", b"old")
        upload = await bell.files.receive(b"new")
        id = await bell.schedule.after(0.2, "ring", "still")
        with pytest.raises(KeyError), bell.transaction():  # noqa: PT012
            bell.schedule.cancel(id)
            bell.files.put("plan.txt", upload)
            bell.files.unlink("plan.txt")
            raise KeyError
        await until(rung(bell, "still"))


async def test_a_transaction_schedules_with_its_state_and_values_or_not_at_all(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        kept = await bell.schedule.after(600, "ring", "kept")

        def fail() -> None:
            with bell.transaction():
                bell.set_state({"rings": 1})
                bell.values.set("rings", ["never"])
                bell.schedule.after(1, "ring", "never")
                bell.schedule.every(1, "ring", "never")
                bell.schedule.cancel(kept)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert bell.state == {"rings": 0}
        assert [each.id for each in await bell.schedule.list()] == [kept]
        with bell.transaction():
            bell.set_state({"rings": 1})
            bell.values.set("topic", "bells")
            planned = bell.schedule.after(60, "ring", "a")
            bell.schedule.cancel(kept)
        assert await planned == planned.id
        assert bell.version == 1
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        assert (bell.state, await bell.values.get("topic")) == ({"rings": 1}, "bells")
        assert [each.id for each in await bell.schedule.list()] == [planned.id]


# Effects


async def test_an_effect_is_a_turn_of_its_thread_and_no_run_of_an_agent(store: FlakyStore, clock: Clock) -> None:
    seen: list[Any] = []

    class Curious(Bell):
        @effect
        def look(self) -> None:
            turn = current_turn()
            assert turn is not None
            seen.extend([turn.name, turn.parent, turn.connection, find_context(), self.state, self.name])

    async with open_workshop(store, Curious) as shop:
        curious = await shop.thread(Curious)
        await curious.schedule.after(0, "look")
        await until(lambda: len(seen) == 6)
        assert seen == ["effect look", None, None, None, {"rings": 0}, "one"]


async def test_arguments_are_converted_to_their_annotations(store: FlakyStore, clock: Clock) -> None:
    seen: list[Any] = []

    class Careful(Bell):
        @effect
        def take(self, when: datetime, names: tuple[str, ...], given: Any = None) -> None:
            seen.append((when, names, given))

    async with open_workshop(store, Careful) as shop:
        careful = await shop.thread(Careful)
        when = datetime(2026, 1, 2, tzinfo=UTC)
        await careful.schedule.after(0, "take", when, ("a", "b"))
        await until(lambda: seen == [(when, ("a", "b"), None)])


async def test_what_an_effect_writes_is_there_with_its_end_and_not_before(store: FlakyStore, clock: Clock) -> None:
    gate = asyncio.Event()

    class Slow(Bell):
        @effect
        async def work(self) -> None:
            await self.values.set("done", 1)
            await self.schedule.after(60, "ring", "next")
            assert await self.values.get("done") == 1
            assert {each.name for each in await self.schedule.list()} == {"work", "ring"}
            await gate.wait()

    async with open_workshop(store, Slow) as shop:
        slow = await shop.thread(Slow)
        id = await slow.schedule.after(0, "work")
        await until(lambda: _status(slow, id, "running"))
        assert await slow.values.get("done") is None
        assert [each.name for each in await slow.schedule.list()] == ["work"]
        gate.set()
        await until(lambda: _is_gone(slow, id))
        assert await slow.values.get("done") == 1
        assert [each.name for each in await slow.schedule.list()] == ["ring"]


async def _status(bell: Bell, id: str, status: str) -> bool:
    return [each.status for each in await bell.schedule.list() if each.id == id] == [status]


async def _is_gone(bell: Bell, id: str) -> bool:
    return id not in [each.id for each in await bell.schedule.list()]


async def test_a_run_that_raises_leaves_nothing_and_is_tried_as_often_as_it_says(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Bell) as shop:
        bell = await shop.thread(Bell)
        id = await bell.schedule.after(0, "crack", "x")
        for attempt in (2, 3):
            await until(lambda attempt=attempt: _is_at(bell, id, attempt))
            (found,) = await bell.schedule.list()
            longest = (10 if attempt == 2 else 15) * SECOND
            assert longest / 2 <= found.due - clock.now <= longest
            assert bell.errors == []
            clock.set(found.due)
        await until(lambda: _is_gone(bell, id))
        await until(lambda: bell.errors == ["cracked x"])
        assert await bell.values.get("cracks") is None


async def _is_at(bell: Bell, id: str, attempt: int) -> bool:
    return [(each.attempt, each.status) for each in await bell.schedule.list() if each.id == id] == [
        (attempt, "pending")
    ]


async def test_an_effect_knows_its_run_and_the_run_has_the_same_id_in_each_attempt(
    store: FlakyStore, clock: Clock
) -> None:
    seen: list[Any] = []

    class Aware(Bell):
        @effect(attempts=2, base=0.001)
        def look(self) -> None:
            seen.append(self.schedule.current)
            if len(seen) % 2:
                raise RuntimeError

    async with open_workshop(store, Aware) as shop:
        aware = await shop.thread(Aware)
        assert aware.schedule.current is None
        id = await aware.schedule.every(60, "look")
        for count in range(1, 5):
            clock.move(0.1 if count % 2 == 0 else 60)
            await until(lambda count=count: len(seen) == count)
            await until(lambda: _status(aware, id, "pending"))
        assert {each.id for each in seen} == {id}
        assert [each.attempt for each in seen] == [1, 2, 1, 2]
        assert seen[0].run_id == seen[1].run_id != seen[2].run_id == seen[3].run_id
        assert seen[0].due == seen[1].due == seen[2].due - 60 * SECOND


async def test_two_runs_of_one_schedule_never_overlap(store: FlakyStore, clock: Clock) -> None:
    running, most, count = 0, 0, 0

    class Long(Bell):
        @effect
        async def work(self) -> None:
            nonlocal running, most, count
            running, count = running + 1, count + 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(SOON)
            running -= 1

    async with open_workshop(store, Long) as shop:
        long = await shop.thread(Long)
        await long.schedule.every(1, "work")

        def has_run() -> bool:
            clock.move(1)
            return count >= 4

        await until(has_run)
        assert most == 1


async def test_a_hung_effect_is_reported_with_its_stack_and_cancelled(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Hung(Bell):
        @effect(attempts=1, timeout=0.01)
        async def hang(self) -> None:
            self.values.set("hung", 1)
            await asyncio.Event().wait()

    async with open_workshop(store, Hung) as shop:
        hung = await shop.thread(Hung)
        id = await hung.schedule.after(0, "hang")
        await until(lambda: hung.errors == ["effect hang took too long"])
        assert await _is_gone(hung, id)
        assert await hung.values.get("hung") is None
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "effect hang has run for 0.01 s and is cancelled" in record.getMessage()
    assert "in hang" in record.getMessage()


async def test_an_effect_without_a_timeout_that_takes_very_long_is_reported_and_goes_on(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_LONG", 0.01)
    gate = asyncio.Event()

    class Slow(Bell):
        @effect
        async def work(self) -> None:
            await gate.wait()

    async with open_workshop(store, Slow) as shop:
        slow = await shop.thread(Slow)
        id = await slow.schedule.after(0, "work")
        await until(lambda: "effect work has run for 0.01 s; its stack" in caplog.text)
        gate.set()
        await until(lambda: _is_gone(slow, id))
        assert slow.errors == []


async def test_a_client_that_may_only_read_schedules_nothing(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Bell) as shop:
        actor = await shop.actor(Bell)
        await actor.state.store_thread()
        client = Client(actor, "reader")
        client.open()
        await client.joined()
        client.connection.readonly = True
        client.call("1", "plan_now")
        answer = await client.next()
        assert (answer["success"], answer["error"]) == (False, "Connection is readonly")
        assert await (await shop.thread(Bell)).schedule.list() == []


async def test_the_queue_runs_one_at_a_time_in_order_and_goes_on_after_one_that_failed(
    store: FlakyStore, clock: Clock
) -> None:
    running = 0

    class Queue(Bell):
        @effect(attempts=2, base=5)
        async def step(self, number: int) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await self.values.push("tried", number)
            await asyncio.sleep(0)
            running -= 1
            if number == 2:
                raise RuntimeError("2 fails")
            await self.values.push("steps", number)

    async with open_workshop(store, Queue) as shop:
        queue = await shop.thread(Queue)
        await queue.schedule.queue("step", 1)
        with queue.transaction():
            for number in range(2, 6):
                queue.schedule.queue("step", number)
            queue.schedule.after(0, "ring", "beside")
        await until(lambda: _is_waiting(queue, 2))
        assert await queue.values.get("steps") == [1]
        await until(rung(queue, "beside"))  # Others do not wait for the queue.
        clock.move(5)
        await until(lambda: _are_steps(queue, [1, 3, 4, 5]))
        assert queue.errors == ["2 fails"]
        assert await queue.schedule.list() == []


async def _is_waiting(bell: Bell, attempt: int) -> bool:
    return (attempt, "pending") in [(each.attempt, each.status) for each in await bell.schedule.list()]


async def _are_steps(bell: Bell, steps: list[int]) -> bool:
    return bool(await bell.values.get("steps") == steps)


async def test_an_effect_that_cancels_itself_runs_no_more(store: FlakyStore, clock: Clock) -> None:
    class Modest(Bell):
        @effect
        async def once(self) -> None:
            assert self.schedule.current is not None
            assert await self.schedule.cancel(self.schedule.current.id)
            await self.values.set("done", 1)

    async with open_workshop(store, Modest) as shop:
        modest = await shop.thread(Modest)
        id = await modest.schedule.every(60, "once")
        clock.move(60)
        await until(lambda: _is_gone(modest, id))
        assert await modest.values.get("done") == 1


async def test_an_effect_may_schedule_itself_again_with_its_key(store: FlakyStore, clock: Clock) -> None:
    class Chain(Bell):
        @effect
        async def link(self, number: int) -> None:
            await self.values.set("links", number)
            self.schedule.after(60, "link", number + 1, key="link")

    async with open_workshop(store, Chain) as shop:
        chain = await shop.thread(Chain)
        chain.schedule.after(0, "link", 1, key="link")
        for number in (1, 2, 3):
            await until(lambda number=number: _has_links(chain, number))
            (found,) = await chain.schedule.list()
            assert (found.args, found.key) == ([number + 1], "link")
            clock.move(60)


async def _has_links(bell: Bell, number: int) -> bool:
    return bool(await bell.values.get("links") == number)


async def test_an_effect_may_begin_its_own_intervals_again(store: FlakyStore, clock: Clock) -> None:
    class Restarting(Bell):
        @effect
        async def work(self) -> None:
            run = self.schedule.current
            assert run is not None
            await self.schedule.cancel(run.id)
            await self.schedule.every(60, "work")

    async with open_workshop(store, Restarting) as shop:
        restarting = await shop.thread(Restarting)
        id = await restarting.schedule.every(60, "work")
        clock.move(100)
        await until(lambda: _is_gone(restarting, id))
        (found,) = await restarting.schedule.list()
        assert found.due == clock.now + 60 * SECOND


async def test_a_schedule_that_is_cancelled_while_it_runs_is_not_tried_again(store: FlakyStore, clock: Clock) -> None:
    gate, count = asyncio.Event(), 0

    class Slow(Bell):
        @effect
        async def work(self) -> None:
            nonlocal count
            count += 1
            await gate.wait()
            raise RuntimeError("too late")

    async with open_workshop(store, Slow) as shop:
        slow = await shop.thread(Slow)
        id = await slow.schedule.after(0, "work")
        await until(lambda: count == 1)
        assert await slow.schedule.cancel(id) is True
        gate.set()
        await until(lambda: slow.errors == ["too late"])
        clock.move(HOUR)
        await watched()
        assert count == 1


async def test_an_effect_that_the_class_does_not_have_waits_for_one_that_has(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Old(Thread[Any]):
        kind = "bell"
        values = Values()
        schedule = Schedule()

        @effect
        def toll(self) -> None:
            self.values.set("tolled", 1)

    class New(Thread[Any]):
        kind = "bell"
        values = Values()
        schedule = Schedule()

    async with open_workshop(store, Old) as shop:
        await (await shop.thread(Old)).schedule.after(60, "toll")
    clock.move(HOUR)
    async with open_workshop(store, New) as shop:
        new = await shop.thread(New)
        await watched()
        assert [each.name for each in await new.schedule.list()] == ["toll"]
        await new.values.set("other", 1)
        assert "there are no effects with these names: toll" in caplog.text
    async with open_workshop(store, Old) as shop:
        await until(lambda: not shop.is_asleep(Old))
        old = await shop.thread(Old)
        await until(lambda: _is_tolled(old))


async def _is_tolled(thread: Any) -> bool:
    return bool(await thread.values.get("tolled") == 1)


# Declaring


def declare(function: Any) -> None:
    """Declare a class with an effect."""
    name = function.__name__
    try:
        type("Declared", (Thread,), {"schedule": Schedule(), name: effect(function)})
    except RuntimeError as error:  # Python 3.11 hides the error that it is about.
        raise error.__cause__ or error from None


def test_an_effect_that_could_not_run_is_refused_when_its_class_is_made() -> None:
    async def stream(self: Any) -> Any:
        yield 1

    def many(self: Any, *args: int) -> None: ...

    def on_start(self: Any) -> None: ...

    for function, why in (
        (stream, "effect 'stream' must not stream"),
        (many, r"effect 'many'.*not supported"),
        (on_start, "is an attribute of Thread"),
    ):
        with pytest.raises(TypeError, match=why):
            declare(function)


@each_case("options", [{"attempts": 0}, {"attempts": 1.5}, {"base": 0}, {"most": -1}, {"timeout": 0}])
def test_options_of_an_effect_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        effect(**options)
