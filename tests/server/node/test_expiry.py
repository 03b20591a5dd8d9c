"""Threads that are destroyed when they have been unused for long."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from tests.clocks import Clock
from tests.server.fakes import TroubledStore
from tests.server.node.test_destroying import Gate, is_gone, key_of, outcome, settle
from tests.server.owning import submit
from tests.server.rooms import Client, House, open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Indeterminate, StoreError
from plait.node.handle import Handle
from plait.parts.values import Values
from plait.store.protocol import ChangeRow, Snapshot, ThreadKey, Write

PATIENCE = 10.0
HOUR = 3600.0
SOON = 0.01


class Draft(Thread[Any]):
    """Expires an hour after its last use."""

    initial_state = 0
    idle_timeout = 0.0
    expires_after = HOUR

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)


class Kept(Draft):
    """Expires never."""

    expires_after = None


def ago(seconds: float) -> int:
    return time.time_ns() // 1000 - int(seconds * 1e6)


async def put(store: TroubledStore, key: ThreadKey, *, idle_since: int | None) -> None:
    """Store a thread that is asleep."""
    await submit(store.inner, Write(key, "e1", None, 0, snapshots=(Snapshot(0, b"5"),), idle_since=idle_since))


async def idle_since(house: House, cls: type[Thread[Any]], name: str = "one") -> int | None:
    found = await house.store.find(key_of(cls, name))
    return None if found is None else found.idle_since


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def opened_with(store: TroubledStore, *threads: tuple[ThreadKey, int | None]) -> None:
    async with store:
        for key, at in threads:
            await put(store, key, idle_since=at)


async def test_a_thread_expires_though_nobody_asks_for_it_and_others_are_kept() -> None:
    starts: list[str] = []

    class Watched(Draft):
        def on_start(self) -> None:
            starts.append(self.name)

    store = TroubledStore()
    old, new = ThreadKey("watched", "old"), ThreadKey("watched", "new")
    await opened_with(store, (old, ago(2 * HOUR)), (new, ago(HOUR / 2)), (ThreadKey("kept", "one"), ago(9 * HOUR)))
    async with open_house(Watched, Kept, store=store, expiry_interval=SOON) as house:
        await until(lambda: is_gone(house, Watched, "old"))
        assert await store.find(new) is not None
        assert await store.find(ThreadKey("kept", "one")) is not None
        assert starts == []


async def test_a_thread_that_expires_after_an_hour_is_there_at_59_minutes_and_not_at_61(clock: Clock) -> None:
    rounds = list[int]()

    class Counted(TroubledStore):
        async def idle_threads(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().idle_threads(*args, **kwargs)
            rounds.append(clock.now)
            return found

    async def has_been_looked_at() -> bool:
        return rounds.count(clock.now) >= 2

    async def is_asleep() -> bool:
        return bool(await idle_since(house, Draft)) and not house.node.actors

    async with open_house(Draft, store=Counted(), expiry_interval=SOON) as house:
        draft = house.handle(Draft)
        for total in (1, 2, 3):  # Each use restarts the hour.
            assert await draft.add(1) == total
            await until(is_asleep)
            clock.move(59 * 60)
            await until(has_been_looked_at)
        assert await draft.add(1) == 4
        await until(is_asleep)
        clock.move(61 * 60)
        await until(lambda: is_gone(house, Draft))
        assert await draft.add(1) == 1


async def test_many_expire_in_pages() -> None:
    store = TroubledStore()
    keys = [ThreadKey("draft", str(n)) for n in range(250)]
    await opened_with(store, *((key, ago(2 * HOUR)) for key in keys))
    async with open_house(Draft, store=store, expiry_interval=HOUR):

        async def is_empty() -> bool:
            return await store.threads() == []

        await until(is_empty)


async def test_a_thread_is_idle_since_its_last_use_and_not_while_it_is_awake() -> None:
    async with open_house(Draft, Kept) as house:
        before = ago(0)
        client = await house.join(Draft, "a")
        await house.handle(Draft).add(1)
        await house.handle(Kept).add(1)
        assert await idle_since(house, Draft) is None
        client.leave()

        async def is_asleep() -> bool:
            return await idle_since(house, Draft) is not None

        await until(is_asleep)
        at = await idle_since(house, Draft)
        assert at is not None
        assert before <= at <= ago(0)
        assert await house.handle(Draft).add(1) == 2
        awake = Client(await house.actor(Draft), "b")
        awake.open()
        assert await idle_since(house, Draft) is None
    assert await house.store.find(key_of(Kept)) is not None
    async with house.store:
        assert await idle_since(house, Kept) is None
        assert await idle_since(house, Draft) is not None


async def test_a_thread_is_not_served_before_it_is_durable_that_it_is_awake() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), ago(HOUR / 2)))
    async with open_house(Draft, store=store) as house:
        store.is_held = True
        waking = asyncio.create_task(house.handle(Draft).add(1))
        await settle()
        assert not waking.done()
        store.resume()
        assert await outcome(waking) == 6


class Noted(Draft):
    values = Values()
    idle_timeout = 60.0


async def read_all(handle: Handle) -> None:
    """Read what a handle can read."""
    assert await handle.state() == 5
    assert await handle.values.items() == []
    assert await handle.values.metadata() == {}


async def test_what_is_only_read_through_a_handle_expires_as_if_it_had_not_been_read() -> None:
    store = TroubledStore()
    at = ago(HOUR / 2)
    await opened_with(store, (key_of(Noted), at))
    async with open_house(Noted, store=store) as house:
        await read_all(house.handle(Noted))
        assert await idle_since(house, Noted) == at
        await read_all(house.handle(Noted))
    assert (await find_idle(store, Noted)) == at


async def test_a_thread_that_is_read_all_the_time_expires_too() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Noted), ago(HOUR - 0.2)))
    async with open_house(Noted, store=store, expiry_interval=SOON) as house:
        handle = house.handle(Noted)
        await read_all(handle)

        async def is_new() -> bool:
            return await handle.state() != 5

        await until(is_new)


async def find_idle(store: TroubledStore, cls: type[Thread[Any]]) -> int | None:
    async with store:
        found = await store.find(key_of(cls))
    return None if found is None else found.idle_since


@pytest.mark.parametrize("use", ["call", "write", "join", "value"])
async def test_a_thread_that_was_read_and_is_then_used_counts_from_its_use(use: str) -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Noted), ago(HOUR / 2)))
    # The loop's time, from which it is known how long a thread has been idle, has whole milliseconds.
    before = ago(0.001)
    async with open_house(Noted, store=store) as house:
        handle = house.handle(Noted)
        await read_all(handle)
        match use:
            case "call":
                await handle.add(1)
            case "write":
                await handle.set_state(7)
            case "join":
                await house.join(Noted, "a")
            case _:
                await handle.values.set("n", 1)

        async def is_marked() -> bool:
            return await idle_since(house, Noted) is None

        await until(is_marked)  # Also when the server is killed.
        await handle.state()
    assert (await find_idle(store, Noted) or 0) >= before


async def test_a_thread_with_a_socket_does_not_expire_whatever_the_store_says() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), ago(HOUR / 2)))
    async with open_house(Draft, store=store, expiry_interval=SOON) as house:
        client = await house.join(Draft, "a")
        await submit(store.inner, write_idle(await house.actor(Draft), 1))
        await put(store, ThreadKey("draft", "later"), idle_since=ago(2 * HOUR))
        await until(lambda: is_gone(house, Draft, "later"))
        assert client.transport.closed is None
        assert await house.handle(Draft).add(1) == 6


def write_idle(actor: Any, at: int) -> Write:
    """Return the write that says that an awake thread is idle."""
    history = actor.state.history
    version = history.durable.version
    return Write(actor.key, history.epoch, version, version, fence=history.fence, idle_since=at)


async def test_threads_of_which_nothing_is_known_begin_to_count_when_the_store_is_opened() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), None), (key_of(Kept), None))
    async with open_house(Draft, Kept, store=store, expiry_interval=SOON) as house:
        before = ago(1)

        async def counts() -> bool:
            return await idle_since(house, Draft) is not None

        await until(counts)
        assert (await idle_since(house, Draft) or 0) >= before
        assert await idle_since(house, Kept) is None


async def test_on_destroyed_of_an_expired_thread_reads_its_state_and_whoever_comes_waits_for_its_end() -> None:
    gate, told = Gate(), list[Any]()

    class Mourned(Draft):
        async def on_destroyed(self) -> None:
            told.append(self.state)
            await gate.wait()

    store = TroubledStore()
    await opened_with(store, (key_of(Mourned), ago(2 * HOUR)))
    async with open_house(Mourned, store=store, expiry_interval=HOUR) as house:
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
    await opened_with(store, *((ThreadKey("broken", name), ago(2 * HOUR)) for name in ("broken", "one")))
    async with store:
        row = ChangeRow(1, b"no operations", "server", 0)
        damaged = Write(ThreadKey("broken", "damaged"), "e", None, 1, (row,), (Snapshot(0, b"1"),), idle_since=1)
        await submit(store.inner, damaged)
    async with open_house(Broken, store=store, expiry_interval=SOON) as house:
        await until(lambda: is_gone(house, Broken, "one"))
        await until(lambda: is_gone(house, Broken, "damaged"))

        async def is_told() -> bool:
            return "broken/broken has expired, but could not be destroyed" in caplog.text

        await until(is_told)
        assert await store.find(ThreadKey("broken", "broken")) is not None


async def test_a_thread_that_is_used_as_it_expires_is_either_kept_or_begun_anew() -> None:
    store = TroubledStore()
    keys = [ThreadKey("draft", str(n)) for n in range(60)]
    await opened_with(store, *((key, ago(2 * HOUR)) for key in keys))
    async with open_house(Draft, store=store, expiry_interval=HOUR) as house:

        async def use(key: ThreadKey, turns: int) -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return int(await house.handle(Draft, key.name).add(1))

        counts = await outcome(asyncio.gather(*(use(key, n % 20) for n, key in enumerate(keys))))
        assert set(counts) <= {1, 6}
        for key, count in zip(keys, counts, strict=True):
            assert await house.handle(Draft, key.name).state() == count


async def test_a_thread_that_was_used_after_it_was_found_is_kept() -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), ago(HOUR / 2)))
    async with open_house(Draft, store=store) as house:
        await outcome(house.node._endings.expire(key_of(Draft), ago(HOUR)))
        assert await store.find(key_of(Draft)) is not None
        await outcome(house.node._endings.expire(key_of(Draft), ago(0)))
        assert await is_gone(house, Draft)


async def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    store = TroubledStore()
    await opened_with(store, (key_of(Draft), ago(2 * HOUR)))
    store.fail_next()
    async with open_house(Draft, store=store, expiry_interval=SOON) as house:
        await until(lambda: is_gone(house, Draft))
        assert "draft/one has expired, but could not be destroyed: the disk is full" in caplog.text


async def test_a_thread_that_was_dropped_counts_as_idle_though_nobody_uses_it_again() -> None:
    class Busy(Draft):
        idle_timeout = 60.0

    async with open_house(Busy, expiry_interval=SOON) as house:
        await house.handle(Busy).add(1)
        house.store.fail_next(Indeterminate("who knows"))
        with pytest.raises(Indeterminate):
            await house.handle(Busy).add(1)

        async def counts() -> bool:
            return await idle_since(house, Busy) is not None

        await until(counts)
        assert house.node.get_awake(key_of(Busy)) is None
        assert await house.handle(Busy).add(1) == 2


async def test_a_dropped_thread_whose_turns_end_late_counts_as_idle_then() -> None:
    class Lingering(Draft):
        idle_timeout = 60.0
        began: ClassVar[asyncio.Event]

        @rpc(concurrent=True)
        async def linger(self) -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(SOON * 5)

    Lingering.began = asyncio.Event()
    async with open_house(Lingering, expiry_interval=SOON) as house:
        await house.handle(Lingering).add(1)
        lingering = asyncio.create_task(house.handle(Lingering).linger())
        await Lingering.began.wait()
        house.store.fail_next(Indeterminate("who knows"))
        with pytest.raises(Indeterminate):
            await house.handle(Lingering).add(1)

        async def counts() -> bool:
            return await idle_since(house, Lingering) is not None

        await until(counts)
        with pytest.raises(StoreError):
            await lingering


class Failing(Draft):
    """Does not start as often as a test says."""

    failures = 0

    def on_start(self) -> None:
        if type(self).failures > 0:
            type(self).failures -= 1
            raise RuntimeError("no start")


async def test_a_thread_that_did_not_start_counts_as_idle_though_nobody_uses_it_again() -> None:
    class Fresh(Failing):
        failures = 1

    store = TroubledStore()
    await opened_with(store, (key_of(Fresh), ago(HOUR / 2)))
    async with open_house(Fresh, store=store, expiry_interval=SOON) as house:
        before = ago(0)
        with pytest.raises(RuntimeError, match="no start"):
            await outcome(house.handle(Fresh).set_state(1))

        async def counts() -> bool:
            return (await idle_since(house, Fresh) or 0) >= before

        await until(counts)


async def test_an_expired_thread_that_did_not_start_to_be_destroyed_is_destroyed_at_the_next_try() -> None:
    class Mourned(Failing):
        failures = 2

        def on_destroyed(self) -> None:
            pass

    store = TroubledStore()
    await opened_with(store, (key_of(Mourned), ago(2 * HOUR)))
    async with open_house(Mourned, store=store, expiry_interval=SOON) as house:
        await until(lambda: is_gone(house, Mourned))
        assert Mourned.failures == 0


@pytest.mark.parametrize("interval", [SOON, 0.0])
async def test_a_thread_that_cannot_be_marked_as_idle_holds_up_the_expiry_of_no_other(
    caplog: pytest.LogCaptureFixture, interval: float
) -> None:
    class Unmarked(Failing):
        failures = 1

    class Refusing(TroubledStore):
        async def store(self, write: Write) -> int:
            if write.idle_since and write.key == key_of(Unmarked):
                raise StoreError("no room")
            return await super().store(write)

    store = Refusing()
    await opened_with(store, (key_of(Unmarked), ago(HOUR / 2)))
    async with open_house(Unmarked, Draft, store=store, expiry_interval=interval) as house:
        with pytest.raises(RuntimeError, match="no start"):
            await outcome(house.handle(Unmarked).set_state(1))

        async def is_told() -> bool:
            return "no room" in caplog.text

        await until(is_told)
        await put(store, key_of(Draft), idle_since=ago(2 * HOUR))
        await until(lambda: is_gone(house, Draft))
        assert await idle_since(house, Unmarked) is None


@pytest.mark.parametrize(("expires", "idle"), [(59, 60.0), (0, 1), (5, None)])
def test_a_class_that_expires_before_it_is_idle_is_an_error(expires: float, idle: float | None) -> None:
    with pytest.raises(TypeError, match=r"expires_after is .* below its idle_timeout"):
        type("Wrong", (Thread,), {"expires_after": expires, "idle_timeout": idle})


@pytest.mark.parametrize("expires", ["1", -1, True])
def test_an_expires_after_that_is_no_number_of_seconds_is_an_error(expires: Any) -> None:
    with pytest.raises(TypeError, match="expires_after must be a number of seconds"):
        type("Wrong", (Thread,), {"expires_after": expires})
