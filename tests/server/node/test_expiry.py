"""Threads that are destroyed when they have been unused for long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cases import each_case
from tests.clocks import Clock
from tests.server.fakes import TroubledStore
from tests.server.node.test_destroying import Gate, is_gone, key_of, outcome, settle
from tests.server.owning import submit
from tests.server.rooms import House, open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.clock import read_wall_clock
from plait.errors import Indeterminate, StoreError
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import Schedule
from plait.parts.values import Values
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Snapshot, ThreadKey

PATIENCE = 10.0
HOUR = 3600.0
SOON = 0.01
# Seconds by which a time may differ: by the clock of the loop, a thread is idle before it is stopped.
MARGIN = 5.0


class Draft(Thread[Any]):
    """Expires an hour after its last use."""

    initial_state = 0
    idle_timeout = 0.0
    expires_after = HOUR

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)

    @rpc
    def look(self) -> int:
        return int(self.state)


class Kept(Draft):
    """Never expires."""

    expires_after = None


def time_in(seconds: float) -> int:
    """Return an odd due time: that of a thread which expires in some seconds."""
    return read_wall_clock() + int(seconds * 1e6) | 1


async def put(store: TroubledStore, key: ThreadKey, expires_in: float | None, *, changed_at: int = 1) -> None:
    """Store a thread that is asleep, and was changed long ago."""
    due = None if expires_in is None else time_in(expires_in)
    snapshots = (Snapshot(0, b"5"),)
    await submit(store.inner, Write(key, "e1", None, 0, snapshots=snapshots, due=due, changed_at=changed_at))


async def opened_with(store: TroubledStore, *threads: tuple[ThreadKey, float | None]) -> None:
    async with store:
        for key, expires_in in threads:
            await put(store, key, expires_in)


async def due_of(store: TroubledStore, cls: type[Thread[Any]], name: str = "one") -> int:
    """Return when a stored thread is due."""
    found = await store.find(key_of(cls, name))
    assert found is not None
    return found.due


def is_in(due: int, seconds: float) -> bool:
    """Whether a thread expires in some seconds."""
    return bool(due & 1) and abs(due - time_in(seconds)) < MARGIN * 1e6


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def asleep(house: House) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return not house.node._threads._slots

    return check


# The end


async def test_a_thread_expires_though_it_is_not_asked_for_and_others_are_kept() -> None:
    starts: list[str] = []

    class Watched(Draft):
        def on_start(self) -> None:
            starts.append(self.name)

    store = TroubledStore()
    old, new = ThreadKey("watched", "old"), ThreadKey("watched", "new")
    await opened_with(store, (old, -HOUR), (new, HOUR / 2), (ThreadKey("kept", "one"), -8 * HOUR))
    async with open_house(Watched, Kept, store=store, timer_interval=SOON) as house:
        await until(lambda: is_gone(house, Watched, "old"))
        assert await store.find(new) is not None
        assert await store.find(ThreadKey("kept", "one")) is not None
        assert starts == []


async def test_a_thread_that_expires_after_an_hour_is_there_at_59_minutes_and_not_at_61(clock: Clock) -> None:
    reads = list[int]()

    class Counted(TroubledStore):
        async def due_threads(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().due_threads(*args, **kwargs)
            reads.append(clock.now)
            return found

    async def has_been_looked_at() -> bool:
        return clock.now in reads

    async with open_house(Draft, store=Counted(), timer_interval=SOON) as house:
        draft = house.handle(Draft)
        for total in (1, 2, 3):  # Each use restarts the hour.
            assert await draft.add(1) == total
            await until(asleep(house))
            clock.move(59 * 60)
            await until(has_been_looked_at)
        assert await draft.look() == 3
        await until(asleep(house))
        clock.move(61 * 60)
        await until(lambda: is_gone(house, Draft))
        assert await draft.add(1) == 1


async def test_many_expire_in_pages() -> None:
    store = TroubledStore()
    await opened_with(store, *((ThreadKey("draft", str(n)), -HOUR) for n in range(250)))
    async with open_house(Draft, store=store):

        async def is_empty() -> bool:
            return await store.threads() == []

        await until(is_empty)


async def test_on_destroyed_of_an_expired_thread_reads_its_state_and_a_caller_waits_for_its_end() -> None:
    gate, told = Gate(), list[Any]()

    class Mourned(Draft):
        async def on_destroyed(self) -> None:
            told.append(self.state)
            await gate.wait()

    store = TroubledStore()
    await opened_with(store, (key_of(Mourned), -HOUR))
    async with open_house(Mourned, store=store) as house:
        await outcome(gate.reached.wait())
        adding = asyncio.create_task(house.handle(Mourned).add(1))
        await settle()
        assert not adding.done()
        gate.opened.set()
        assert await outcome(adding) == 1
        assert told == [5]


async def test_an_expired_thread_that_cannot_be_loaded_is_deleted_and_one_that_cannot_start_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Draft):
        def on_start(self) -> None:
            if self.name == "broken":
                raise RuntimeError("no start")

        def on_destroyed(self) -> None:
            pass

    store = TroubledStore()
    await opened_with(store, *((ThreadKey("broken", name), -HOUR) for name in ("broken", "one")))
    async with store:
        row = ChangeRow(1, b"no operations", "server", 0)
        key = ThreadKey("broken", "damaged")
        damaged = Write(key, "e", None, 1, (row,), (Snapshot(0, b"1"),), due=3, changed_at=1)
        await submit(store.inner, damaged)
    async with open_house(Broken, store=store, timer_interval=SOON) as house:
        await until(lambda: is_gone(house, Broken, "one"))
        await until(lambda: is_gone(house, Broken, "damaged"))

        async def is_told() -> bool:
            return "broken/broken is due, but could not be woken or destroyed" in caplog.text

        await until(is_told)
        assert await store.find(ThreadKey("broken", "broken")) is not None


async def test_a_thread_that_is_used_as_it_expires_is_either_kept_or_replaced_by_a_new_one() -> None:
    store = TroubledStore()
    keys = [ThreadKey("draft", str(n)) for n in range(60)]
    await opened_with(store, *((key, -HOUR) for key in keys))
    async with open_house(Draft, store=store) as house:

        async def use(key: ThreadKey, turns: int) -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return int(await house.handle(Draft, key.name).add(1))

        counts = await outcome(asyncio.gather(*(use(key, n % 20) for n, key in enumerate(keys))))
        assert set(counts) <= {1, 6}
        for key, count in zip(keys, counts, strict=True):
            assert await house.handle(Draft, key.name).state() == count


async def test_a_thread_that_was_used_after_it_was_found_is_kept(clock: Clock) -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), HOUR / 2))
    async with open_house(Draft, store=store) as house:
        await outcome(house.node._endings.expire(key_of(Draft), HOUR))
        assert await store.find(key_of(Draft)) is not None
        clock.move(HOUR)
        await outcome(house.node._endings.expire(key_of(Draft), HOUR))
        assert await is_gone(house, Draft)


async def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), -HOUR))
    store.fail_next()
    async with open_house(Draft, store=store, timer_interval=SOON) as house:
        await until(lambda: is_gone(house, Draft))
        assert "draft/one is due, but could not be woken or destroyed: the disk is full" in caplog.text


async def test_an_expired_thread_that_did_not_start_to_be_destroyed_is_destroyed_at_the_next_try() -> None:
    class Mourned(Draft):
        failures = 2

        def on_start(self) -> None:
            if type(self).failures > 0:
                type(self).failures -= 1
                raise RuntimeError("no start")

        def on_destroyed(self) -> None:
            pass

    store = TroubledStore()
    await opened_with(store, (key_of(Mourned), -HOUR))
    async with open_house(Mourned, store=store, timer_interval=SOON) as house:
        await until(lambda: is_gone(house, Mourned))
        assert Mourned.failures == 0


# What is stored


async def test_a_used_thread_expires_in_twice_its_time_and_one_that_goes_to_sleep_in_its_time(clock: Clock) -> None:
    async with open_house(Draft, Kept) as house:
        client = await house.join(Draft, "a")
        await house.handle(Draft).add(1)
        await house.handle(Kept).add(1)
        assert is_in(await due_of(house.store, Draft), 2 * HOUR)
        client.leave()
        await until(asleep(house))
        assert is_in(await due_of(house.store, Draft), HOUR)
        assert await due_of(house.store, Kept) == 0
        assert await house.handle(Draft).look() == 1
        assert is_in(await due_of(house.store, Draft), 2 * HOUR)
    async with house.store:
        assert is_in(await due_of(house.store, Draft), HOUR)


async def test_the_first_write_of_a_thread_says_when_it_expires(clock: Clock) -> None:
    class Writing(Draft):
        async def on_start(self) -> None:
            await self.set_state(7)
            assert is_in(await due_of(store, Writing), 2 * HOUR)

    store = TroubledStore()
    async with open_house(Writing, store=store) as house:
        assert await house.handle(Writing).look() == 7


async def test_the_time_of_a_used_thread_is_stored_again_when_half_of_it_is_over_and_not_before() -> None:
    class Busy(Draft):
        idle_timeout = 60.0

    async with open_house(Busy) as house:
        actor = await house.actor(Busy)
        await house.handle(Busy).add(1)
        submitted = house.store.submitted
        for _ in range(2):
            before = len(submitted)
            for _ in range(3):
                await house.handle(Busy).look()
            assert len(submitted) == before
            actor.usage.marked_until = actor.usage.last_used  # Half of the time is over.
            for _ in range(3):
                await house.handle(Busy).look()
            assert [write.due is not None for write in submitted[before:]] == [True]
            assert is_in(await due_of(house.store, Busy), 2 * HOUR)


async def test_an_open_socket_uses_its_thread_though_nothing_is_sent() -> None:
    class Watched(Draft):
        idle_timeout = 0.1
        expires_after = 0.1

    async with open_house(Watched, timer_interval=SOON) as house:
        client = await house.join(Watched, "a")
        first = await due_of(house.store, Watched)

        async def is_later() -> bool:
            return await due_of(house.store, Watched) > first + 500_000

        await until(is_later)
        assert client.transport.closed is None


async def test_a_use_is_answered_when_it_is_durable_that_the_thread_does_not_expire() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), HOUR / 2))
    async with open_house(Draft, store=store) as house:
        store.is_held = True
        looking = asyncio.create_task(house.handle(Draft).look())
        await settle()
        assert not looking.done()
        store.resume()
        assert await outcome(looking) == 5
        assert is_in(await due_of(store, Draft), 2 * HOUR)


async def test_a_use_that_could_not_be_stored_is_stored_with_the_next_one() -> None:
    class Busy(Draft):
        idle_timeout = 60.0

    store = TroubledStore()
    await opened_with(store, (key_of(Busy), HOUR / 2))
    async with open_house(Busy, store=store) as house:
        await house.handle(Busy).state()
        store.fail_next()
        with pytest.raises(StoreError, match="the disk is full"):
            await house.handle(Busy).look()
        assert is_in(await due_of(store, Busy), HOUR / 2)
        assert await house.handle(Busy).look() == 5
        assert is_in(await due_of(store, Busy), 2 * HOUR)


async def test_a_thread_that_was_dropped_expires_after_twice_its_time_at_most() -> None:
    class Busy(Draft):
        idle_timeout = 60.0

    async with open_house(Busy) as house:
        await house.handle(Busy).add(1)
        house.store.fail_next(Indeterminate("who knows"))
        with pytest.raises(Indeterminate):
            await house.handle(Busy).add(1)
        await until(asleep(house))
        assert is_in(await due_of(house.store, Busy), 2 * HOUR)
        assert await house.handle(Busy).look() == 1


async def test_the_work_of_parts_is_stored_with_even_times_in_every_class(clock: Clock) -> None:
    class Planned(Kept):
        schedule = Schedule()

        @effect
        def ring(self) -> None: ...

    class Expiring(Planned):
        expires_after = HOUR

    async with open_house(Planned, Expiring) as house:
        for cls in (Planned, Expiring):
            for at in (clock.now + 60_000_000 | 1, clock.now + 50_000_000 & ~1):
                actor = await house.actor(cls)
                await actor.thread.schedule.after((at - clock.now) / 1e6, "ring")  # type: ignore[attr-defined]
                assert await due_of(house.store, cls) == at & ~1


async def test_a_thread_with_work_at_an_odd_time_is_woken_and_not_destroyed(clock: Clock) -> None:
    rings: list[str] = []

    class Planned(Draft):
        schedule = Schedule()

        @effect
        def ring(self) -> None:
            rings.append(self.name)

    async with open_house(Planned, timer_interval=SOON) as house:
        for name in map(str, range(10)):
            actor = await house.actor(Planned, name)
            await actor.thread.schedule.after(10 + 1e-6 * int(name), "ring")  # type: ignore[attr-defined]
        await until(asleep(house))
        clock.move(3 * HOUR)

        async def have_rung() -> bool:
            return len(rings) == 10

        await until(have_rung)
        assert len(await house.store.threads()) == 10


# Reading


class Noted(Draft):
    values = Values()
    idle_timeout = 60.0


async def read_all(handle: Any) -> None:
    """Read what a handle can read."""
    assert await handle.state() == 5
    await handle.history()
    assert await handle.values.items() == []
    assert await handle.values.metadata() == {}


async def test_what_is_only_read_through_a_handle_expires_as_if_it_had_not_been_read() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Noted), HOUR / 2))
    async with open_house(Noted, store=store) as house:
        at = await due_of(store, Noted)
        await read_all(house.handle(Noted))
        assert await due_of(store, Noted) == at
        await read_all(house.handle(Noted))
    async with store:
        assert await due_of(store, Noted) == at


async def test_a_thread_that_is_read_all_the_time_expires_too() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Noted), 0.2))
    async with open_house(Noted, store=store, timer_interval=SOON) as house:
        handle = house.handle(Noted)
        await read_all(handle)

        async def is_new() -> bool:
            return await handle.state() != 5

        await until(is_new)


async def test_a_slow_start_of_a_thread_that_is_only_read_is_no_use() -> None:
    gate = Gate()

    class Slow(Noted):
        async def on_start(self) -> None:
            await gate.wait()

    store = TroubledStore()
    await opened_with(store, (key_of(Slow), HOUR / 2))
    async with open_house(Slow, store=store) as house:
        at = await due_of(store, Slow)
        reading = asyncio.create_task(house.handle(Slow).state())
        await outcome(gate.reached.wait())
        await house.node._sweeper._look()
        gate.opened.set()
        assert await outcome(reading) == 5
        assert await due_of(store, Slow) == at


@each_case("use", ["call", "write", "join", "value"])
async def test_a_thread_that_was_read_and_is_then_used_counts_from_its_use(use: str) -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Noted), HOUR / 2))
    async with open_house(Noted, store=store) as house:
        handle = house.handle(Noted)
        await read_all(handle)
        match use:
            case "call":
                await handle.look()
            case "write":
                await handle.set_state(7)
            case "join":
                await house.join(Noted, "a")
            case _:
                await handle.values.set("n", 1)

        async def is_stored() -> bool:
            return is_in(await due_of(store, Noted), 2 * HOUR)

        await until(is_stored)  # Also when the server is killed.
        await handle.state()
    async with store:
        assert is_in(await due_of(store, Noted), HOUR)


async def test_a_thread_with_a_socket_does_not_expire_whatever_the_store_says() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), HOUR / 2))
    async with open_house(Draft, store=store, timer_interval=SOON) as house:
        client = await house.join(Draft, "a")
        history = (await house.actor(Draft)).state.history
        version = history.durable.version
        past = Write(key_of(Draft), history.epoch, version, version, fence=history.fence, due=time_in(-HOUR))
        await submit(store.inner, past)
        await put(store, ThreadKey("draft", "later"), -HOUR)
        await until(lambda: is_gone(house, Draft, "later"))
        assert client.transport.closed is None
        assert await house.handle(Draft).add(1) == 6


# Classes and clocks that change


async def test_a_raised_expires_after_saves_sleeping_threads_by_the_time_of_their_last_change(clock: Clock) -> None:
    starts: list[str] = []

    class Raised(Draft):
        expires_after = 3 * HOUR

        def on_start(self) -> None:
            starts.append(self.name)

    store = TroubledStore()
    async with store:  # By a class that expires after an hour.
        await put(store, key_of(Raised), 0, changed_at=clock.now - int(HOUR * 1e6))
        await put(store, key_of(Raised, "older"), 0, changed_at=clock.now - int(3 * HOUR * 1e6))
    async with open_house(Raised, store=store, timer_interval=SOON) as house:
        clock.move(1e-6)
        await until(lambda: is_gone(house, Raised, "older"))

        async def is_put_off() -> bool:
            return is_in(await due_of(store, Raised), 2 * HOUR)

        await until(is_put_off)
        clock.move(2 * HOUR)
        await until(lambda: is_gone(house, Raised))
        assert starts == []


async def test_a_thread_that_has_changed_does_not_expire_before_its_time_by_a_clock_that_was_set_back(
    clock: Clock,
) -> None:
    async with open_house(Draft, timer_interval=SOON) as house:
        await house.handle(Draft).add(1)
        await until(asleep(house))
        clock.jump(-HOUR / 2)
        clock.move(1.01 * HOUR)

        async def is_put_off() -> bool:
            # In half an hour, by the clock of due times, which has not gone back.
            return is_in(await due_of(house.store, Draft) - int(HOUR / 2 * 1e6), 0.49 * HOUR)

        await until(is_put_off)
        clock.move(0.48 * HOUR)
        await settle()
        assert not await is_gone(house, Draft)
        clock.move(0.02 * HOUR)
        await until(lambda: is_gone(house, Draft))


async def test_a_class_that_gets_expires_after_reaches_a_thread_when_it_is_used_and_not_when_it_is_read() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), None))
    async with open_house(Draft, store=store) as house:
        assert await house.handle(Draft).state() == 5
        await until(asleep(house))
        assert await due_of(store, Draft) == 0
        assert await house.handle(Draft).look() == 5
        await until(asleep(house))
        assert is_in(await due_of(store, Draft), HOUR)


async def test_a_thread_whose_class_expires_no_longer_is_woken_once_and_kept() -> None:
    starts: list[str] = []

    class Waking(Kept):
        def on_start(self) -> None:
            starts.append(self.name)

    store = TroubledStore()
    await opened_with(store, (key_of(Waking), -HOUR))
    async with open_house(Waking, store=store, timer_interval=SOON):

        async def is_told() -> bool:
            return await due_of(store, Waking) == 0

        await until(is_told)
        assert starts == ["one"]


@each_case(("expires", "idle"), [(59, 60.0), (0, 1), (5, None)])
def test_a_class_that_expires_before_it_is_idle_is_an_error(expires: float, idle: float | None) -> None:
    with pytest.raises(TypeError, match=r"expires_after is .* below its idle_timeout"):
        type("Wrong", (Thread,), {"expires_after": expires, "idle_timeout": idle})


@each_case("expires", ["1", -1, True])
def test_an_expires_after_that_is_no_number_of_seconds_is_an_error(expires: Any) -> None:
    with pytest.raises(TypeError, match="expires_after must be a number of seconds"):
        type("Wrong", (Thread,), {"expires_after": expires})
