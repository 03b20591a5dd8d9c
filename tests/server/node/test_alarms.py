"""Threads that are asleep when they are due."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import Clock
from tests.schedules import in_soak
from tests.server.parts.workshop import SECOND, SOON, FlakyStore, Workshop, make_store, open_workshop, until

from plait.actor.thread import Thread
from plait.backoff import Backoff
from plait.cluster.owners import ALONE, Owners
from plait.errors import NotFound, StoreError
from plait.node.alarms import Alarms
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import Schedule
from plait.parts.values import Values
from plait.store.protocol import DueThread, ThreadQuery
from plait.store.thread_rows import ThreadKey

HOUR = 3600.0


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


class Sleeper(Thread[Any]):
    """Falls asleep at once."""

    idle_timeout = 0.0
    values = Values()
    schedule = Schedule()
    # The names of threads, and when each was started, by the clock of the loop.
    starts: list[str]
    times: list[tuple[str, float]]

    @effect
    async def ring(self) -> None:
        await self.values.update("rings", lambda rings: rings + 1, 0)

    @effect
    async def plan(self, seconds: float) -> None:
        await self.schedule.after(seconds, "ring")

    def on_start(self) -> None:
        self.starts.append(self.name)
        self.times.append((self.name, asyncio.get_running_loop().time()))


class Draft(Sleeper):
    """Expires an hour after its last use."""

    expires_after = HOUR


@pytest.fixture(autouse=True)
def fresh() -> None:
    Sleeper.starts, Sleeper.times = [], []


def rest(name: str) -> float:
    """Return the seconds between the first two starts of a thread."""
    first, second = [at for each, at in Sleeper.times if each == name][:2]
    return second - first


async def rings(shop: Workshop, name: str = "one", cls: type[Sleeper] = Sleeper) -> int:
    found: int = await (await shop.thread(cls, name)).values.get("rings", 0)
    return found


def has_rung(shop: Workshop, cls: type[Sleeper]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await rings(shop, cls=cls) == 1

    return check


async def plan(shop: Workshop, *names: str, seconds: float = 60, cls: type[Sleeper] = Sleeper) -> None:
    """Schedule a ring in each thread, and wait until they are asleep."""
    for name in names:
        thread = await shop.thread(cls, name)
        await thread.schedule.after(seconds, "ring")
    await until(shop.are_asleep)
    Sleeper.starts.clear()


async def watched() -> None:
    await asyncio.sleep(6 * SOON)


async def test_a_sleeping_thread_is_woken_when_it_is_due_and_not_before(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
        await plan(shop, "two", seconds=120)
        clock.move(59.9)
        await watched()
        assert Sleeper.starts == []
        clock.move(0.1)
        await until(lambda: Sleeper.starts == ["one"])
        await until(shop.are_asleep)
        clock.move(60)
        await until(lambda: Sleeper.starts == ["one", "two"])
        await until(shop.are_asleep)
        await watched()
        assert Sleeper.starts == ["one", "two"]
        assert await shop.due() == {}
        assert await rings(shop, "one") == await rings(shop, "two") == 1


async def test_a_thread_that_falls_asleep_with_an_earlier_time_is_woken_then(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "late", seconds=20)
        await watched()  # The next thread that is due is known.
        await plan(shop, "early", seconds=10)
        clock.move(10)
        await until(lambda: Sleeper.starts == ["early"])
        clock.move(10)
        await until(lambda: Sleeper.starts == ["early", "late"])


async def test_an_effect_of_a_thread_that_was_woken_may_plan_the_next_one(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Sleeper) as shop:
        await (await shop.thread(Sleeper)).schedule.after(10, "plan", 5.0)
        await until(shop.are_asleep)
        Sleeper.starts.clear()
        clock.move(10)
        await until(lambda: Sleeper.starts == ["one"])
        await until(shop.are_asleep)
        clock.move(5)
        await until(lambda: Sleeper.starts == ["one", "one"])
        await until(shop.are_asleep)
        assert await shop.due() == {}


async def test_many_that_were_due_while_the_server_was_down_all_run_once(store: FlakyStore, clock: Clock) -> None:
    names = [f"{number}" for number in range(250)]
    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, *names)
    clock.move(HOUR)
    async with open_workshop(store, Sleeper) as shop:

        async def are_done() -> bool:
            return await shop.due() == {}

        await until(are_done)
        await until(shop.are_asleep)
        assert sorted(Sleeper.starts) == sorted(names)


@pytest.mark.parametrize("how", ["it raises", "the disk is full"])
async def test_a_thread_whose_on_start_fails_is_tried_again_later_and_later(
    how: str, store: FlakyStore, clock: Clock
) -> None:
    class Broken(Sleeper):
        kind = "sleeper"

        def on_start(self) -> None:
            super().on_start()
            if self.name == "broken":
                self.set_state(1)  # Not awaited.
                if how == "it raises":
                    raise RuntimeError("it cannot start")

    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "broken", "fine")
    clock.move(60)
    Sleeper.times.clear()
    async with open_workshop(store, Broken):
        store.refuses = lambda write: write.key.name == "broken" and how == "the disk is full"

        def has_started_twice() -> bool:
            clock.move(1)  # The store is asked again.
            return [name for name, _ in Sleeper.times].count("broken") >= 2

        await until(has_started_twice)
        assert "fine" in Sleeper.starts
        assert rest("broken") >= 0.99


async def test_a_thread_that_cannot_do_what_it_is_due_for_is_not_woken_in_a_loop(
    store: FlakyStore, clock: Clock
) -> None:
    class Poor(Thread[Any]):
        kind = "sleeper"
        idle_timeout = 0.0
        schedule = Schedule()

        def on_start(self) -> None:
            Sleeper.times.append((self.name, asyncio.get_running_loop().time()))

    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
    clock.move(60)
    Sleeper.times.clear()
    async with open_workshop(store, Poor) as shop:

        def has_started_twice() -> bool:
            clock.move(1)
            return len(Sleeper.times) == 2

        await until(has_started_twice)
        assert rest("one") >= 0.99
        assert len(await shop.due()) == 1
    async with open_workshop(store, Sleeper) as shop:  # It still has what it was due for.
        await until(lambda: _is_idle_without_due(shop))
        assert await rings(shop) == 1


async def _is_idle_without_due(shop: Workshop) -> bool:
    return await shop.due() == {}


async def test_threads_of_other_apps_are_left_alone(store: FlakyStore, clock: Clock) -> None:
    class Other(Thread[Any]):
        pass

    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
    clock.move(60)
    async with open_workshop(store, Other):
        await watched()
    assert Sleeper.starts == []


async def test_a_terminated_thread_is_not_woken(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
        await shop.handle(Sleeper).terminate()
        assert await shop.due() == {}
        await until(shop.are_asleep)
        Sleeper.starts.clear()
        clock.move(HOUR)
        await watched()
        assert Sleeper.starts == []


async def test_a_destroyed_thread_leaves_nothing_that_is_due(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one", "two")
        await shop.handle(Sleeper, "one").destroy()
        assert [*await shop.due()] == [ThreadKey("sleeper", "two")]
        await until(shop.are_asleep)
        Sleeper.starts.clear()
        clock.move(60)
        await until(lambda: Sleeper.starts == ["two"])
        await until(shop.are_asleep)
        await watched()
        assert Sleeper.starts == ["two"]


async def test_a_thread_that_was_destroyed_asleep_does_not_come_back(store: FlakyStore, clock: Clock) -> None:
    class Riser(Sleeper):
        kind = "sleeper"

        async def on_start(self) -> None:  # type: ignore[override]
            super().on_start()
            await self.schedule.every(HOUR, "ring")

    async with open_workshop(store, Riser) as shop:
        await plan(shop, "one", seconds=SOON / 2, cls=Riser)  # It is due before the horizon, and so is known.
        assert [each.key.name for each in shop.node._alarms._known] == ["one"]
        await shop.handle(Riser).destroy()
        clock.move(SOON)
        await watched()
        assert Sleeper.starts == []
        assert await shop.store.find(ThreadKey("sleeper", "one")) is None


async def test_a_thread_that_is_destroyed_after_it_was_found_does_not_wake(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, may_go, find = asyncio.Event(), asyncio.Event(), store.find

    async def hold_first(key: ThreadKey) -> Any:
        header = await find(key)
        if not found.is_set():
            found.set()
            await may_go.wait()
        return header

    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
        await until(shop.are_asleep)
        Sleeper.starts.clear()
        monkeypatch.setattr(store, "find", hold_first)
        reading = asyncio.create_task(shop.node.stored_actor(ThreadKey("sleeper", "one")))
        await found.wait()
        await shop.handle(Sleeper).destroy()
        Sleeper.starts.clear()
        may_go.set()
        with pytest.raises(NotFound):
            await reading
        assert Sleeper.starts == []


async def test_who_creates_a_thread_gets_it_although_others_only_want_a_stored_one(store: FlakyStore) -> None:
    key = ThreadKey("sleeper", "new")
    async with open_workshop(store, Sleeper) as shop:
        Sleeper.starts, Sleeper.times = [], []
        wakes = [shop.node.actor(key, creates=creates) for creates in (False, True, False)]
        first, actor, last = await asyncio.gather(*wakes, return_exceptions=True)
        assert isinstance(first, NotFound)
        assert isinstance(last, NotFound)
        assert not isinstance(actor, BaseException)
        assert actor.key == key
        assert Sleeper.starts == ["new"]


async def test_a_thread_that_falls_due_while_it_stops_is_woken_at_once(store: FlakyStore, clock: Clock) -> None:
    stopping, may_stop = asyncio.Event(), asyncio.Event()

    class Slow(Sleeper):
        kind = "sleeper"

        async def on_stop(self) -> None:
            stopping.set()
            await may_stop.wait()

    async with open_workshop(store, Slow) as shop:
        thread = await shop.thread(Slow)
        await thread.schedule.after(60, "ring")
        await stopping.wait()
        clock.move(60)
        await watched()
        Sleeper.starts.clear()
        may_stop.set()  # The clock stands still: the store is not read again.
        await until(lambda: Sleeper.starts == ["one"])


async def test_a_store_that_cannot_be_read_for_a_while_delays_only(store: FlakyStore, clock: Clock) -> None:
    calls = 0

    class Away(type(store)):  # type: ignore[misc]
        async def due_threads(self, **options: Any) -> list[DueThread]:
            nonlocal calls
            calls += 1
            if calls <= 2:
                raise StoreError("the disk is away")
            found: list[DueThread] = await super().due_threads(**options)
            return found

    async with open_workshop(store, Sleeper) as shop:
        await plan(shop, "one")
    clock.move(60)
    store.__class__ = Away
    async with open_workshop(store, Sleeper):
        async with asyncio.timeout(10):
            while not Sleeper.starts:
                clock.move(0.1)
                await asyncio.sleep(SOON)


# Expiry


async def expires(shop: Workshop, cls: type[Thread[Any]], name: str = "one") -> bool:
    return await shop.store.find(ThreadKey(cls._kind.name, name)) is None


async def test_a_thread_does_not_expire_before_its_last_one_shot(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Draft, timer_interval=SOON) as shop:
        await plan(shop, "one", seconds=5 * HOUR, cls=Draft)
        found = await shop.store.find(ThreadKey("draft", "one"))
        assert found is not None
        assert found.due & 1 == 0
        for _ in range(4):
            clock.move(1.2 * HOUR)
            await watched()
            assert not await expires(shop, Draft)
        assert Sleeper.starts == []
        clock.move(0.2 * HOUR)
        await until(lambda: Sleeper.starts == ["one"])
        await until(shop.are_asleep)
        await watched()
        assert not await expires(shop, Draft)
        clock.move(1.01 * HOUR)
        await until(lambda: expires(shop, Draft))


async def test_a_thread_that_was_awake_at_a_crash_does_not_expire_before_its_one_shot(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Draft) as shop:
        thread = await shop.thread(Draft)
        await thread.schedule.after(5 * HOUR, "ring")
        await shop.crash()
    async with open_workshop(store, Draft, timer_interval=SOON) as shop:
        await watched()
        for _ in range(3):
            clock.move(1.2 * HOUR)
            await watched()
            assert not await expires(shop, Draft)
        clock.move(1.5 * HOUR)
        await until(lambda: "one" in Sleeper.starts)
        await until(has_rung(shop, Draft))


async def test_what_recurs_does_not_keep_a_thread(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Draft, timer_interval=SOON) as shop:
        thread = await shop.thread(Draft)
        await thread.schedule.every(5 * HOUR, "ring")
        await thread.schedule.cron("0 0 1 1 *", "ring")
        await until(shop.are_asleep)
        clock.move(1.01 * HOUR)
        await until(lambda: expires(shop, Draft))


async def test_a_thread_that_is_due_and_expired_at_once_rings_first(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Draft) as shop:
        await plan(shop, "one", cls=Draft)
    clock.move(10 * HOUR)
    async with open_workshop(store, Draft, timer_interval=SOON) as shop:
        await until(lambda: Sleeper.starts == ["one"])
        await until(has_rung(shop, Draft))


# What alarms know


class Owned(Owners):
    """The threads that a test says this node owns."""

    def __init__(self) -> None:
        self.keys: set[ThreadKey] = set()

    def owns(self, key: ThreadKey) -> bool:
        return key in self.keys


class Board:
    """A store's due times, and the threads that alarms have woken."""

    def __init__(self, due: list[DueThread]) -> None:
        self.due = sorted(due)
        self.reads = 0
        self.woken: list[str] = []
        self.awake: set[ThreadKey] = set()

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        self.reads += 1
        found = [each for each in self.due if each.due <= until and (after is None or each > after)]
        return found[:limit]

    async def threads(self, _: ThreadQuery) -> list[Any]:
        return []

    async def wake(self, key: ThreadKey) -> bool:
        self.woken.append(key.name)
        self.due = [each for each in self.due if each.key != key]
        return True

    def open(self, *, interval: float = SOON) -> Alarms:
        store: Any = self
        return Alarms({"k"}, store, ALONE, self.wake, self.awake.__contains__, interval=interval)


def key(name: object) -> ThreadKey:
    return ThreadKey("k", f"{name}")


async def test_of_many_threads_that_are_due_later_few_are_kept_in_memory(clock: Clock) -> None:
    board = Board([DueThread(clock.now + (number + 1) * SECOND, key(number)) for number in range(20_000)])
    alarms = board.open(interval=1e9)  # All are within the horizon.
    alarms.start()
    await until(lambda: board.reads > 0)
    assert len(alarms._known) <= 100
    for number in range(5000):  # Threads that fall asleep.
        alarms.tell(key(f"told {number}"), due=clock.now + SECOND, wakes_at=clock.now + SECOND)
    assert len(alarms._known) <= 1000
    await alarms.stop()


async def test_threads_that_were_forgotten_are_read_again(clock: Clock) -> None:
    names = [f"{number}" for number in range(3000)]
    board = Board([])
    alarms = board.open(interval=1e9)
    alarms.start()
    await until(lambda: board.reads > 0)
    for number, name in enumerate(names):
        at = clock.now + (number + 1) * SECOND
        board.due.append(DueThread(at, key(name)))
        alarms.tell(key(name), due=at, wakes_at=at)

    def are_woken() -> bool:
        clock.move(50)
        alarms._changed.set()
        return len(board.woken) >= len(names)

    await until(are_woken)
    await alarms.stop()
    assert sorted(board.woken) == sorted(names)


async def test_alarms_read_no_more_often_than_needed(clock: Clock) -> None:
    board = Board([DueThread(clock.now + 10 * SECOND, key("a"))])
    alarms = board.open(interval=30.0)
    alarms.start()
    await until(lambda: board.reads == 1)
    alarms.tell(key("b"), due=clock.now + 60 * SECOND, wakes_at=clock.now + 60 * SECOND)  # After the horizon.
    await watched()
    assert board.reads == 1
    assert [each.key.name for each in alarms._known] == ["a"]
    await alarms.stop()


def _never(_: ThreadKey) -> bool:
    return False


async def test_a_wake_that_fails_rests_for_a_second_then_two(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    class Failing(Board):
        async def wake(self, key: ThreadKey) -> bool:
            times.append(loop.time())
            raise RuntimeError("no")

    board = Failing([DueThread(clock.now, key("a"))])
    store: Any = board
    alarms = Alarms({"k"}, store, ALONE, board.wake, _never, interval=SOON)
    alarms.start()
    await until(lambda: len(times) == 1)
    for count in range(2, 5):
        await until(lambda: alarms._resting[key("a")].count == len(times))
        assert alarms._resting[key("a")].until - times[-1] == pytest.approx(2.0 ** (count - 2), abs=0.5)
        alarms._rests = [(loop.time(), key("a"))]
        alarms._resting[key("a")].until = loop.time()
        await until(lambda count=count: len(times) == count)
    await alarms.stop()
    assert "is due, but could not be woken or destroyed: RuntimeError('no')" in caplog.text


async def test_a_wake_whose_rest_is_over_at_once_is_tried_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "plait.node.alarms._BACKOFF", Backoff(0.0, 0.0)
    )  # As when the process was stopped after the failure.

    class Failing(Board):
        async def wake(self, key: ThreadKey) -> bool:
            self.woken.append(key.name)
            raise RuntimeError("no")

    board = Failing([DueThread(clock.now, key("a"))])
    alarms = board.open()
    alarms.start()
    await until(lambda: len(board.woken) > 10)
    await alarms.stop()


async def test_a_thread_that_another_caller_could_not_wake_is_read_again(clock: Clock) -> None:
    class Failing(Board):
        async def wake(self, key: ThreadKey) -> bool:
            await super().wake(key)
            raise RuntimeError("no")

    one = DueThread(clock.now, key("a"))
    board = Failing([one])
    alarms = board.open()
    alarms.start()
    await until(lambda: len(alarms._rests) == 1)
    board.due = [one]
    board.awake.add(one.key)  # A client wakes it when its rest ends,
    await until(lambda: not alarms._rests)
    board.awake.clear()  # and fails.

    def is_woken_again() -> bool:
        clock.move(1)
        return len(board.woken) == 2

    await until(is_woken_again)
    await alarms.stop()


async def test_a_thread_before_the_last_that_was_read_does_not_starve(clock: Clock) -> None:
    at = clock.now

    class Endless(Board):
        async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
            await asyncio.sleep(0)
            first = self.reads * limit
            self.due += [DueThread(at, key(f"{number:09}")) for number in range(first, first + limit)]
            return await super().due_threads(until=until, after=after, limit=limit)

    board = Endless([])
    alarms = board.open()
    alarms.start()
    await until(lambda: board.reads > 1)
    board.due = [DueThread(at - 1, key("behind")), *board.due]

    def is_woken() -> bool:
        clock.move(SOON)
        return "behind" in board.woken

    await until(is_woken)
    await alarms.stop()


async def test_threads_that_are_gained_during_a_read_are_read_again(clock: Clock) -> None:
    owners = Owned()
    begun, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Board):
        async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
            found = await super().due_threads(until=until, after=after, limit=limit)
            if self.reads == 2:  # The first page is read, and has no thread that this node owns.
                begun.set()
                await may_end.wait()
            return found

    board = Slow([DueThread(clock.now, key(f"{number:03}")) for number in range(150)])
    store: Any = board
    alarms = Alarms({"k"}, store, owners, board.wake, _never, interval=1e9)
    alarms.start()
    await begun.wait()
    owners.keys |= {each.key for each in board.due}
    alarms.read_again()
    may_end.set()
    await until(lambda: len(board.woken) == 150)
    await alarms.stop()
