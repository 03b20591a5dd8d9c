"""Waking, going to sleep, and the end of the process."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.owning import submit
from tests.server.rooms import Client, House, open_house

from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import (
    CorruptThread,
    Fenced,
    Indeterminate,
    InvalidState,
    NotFound,
    PlaitError,
    StoreError,
    TooMany,
    Unavailable,
)
from plait.limits import DEFAULT_LIMITS, Limits
from plait.node.node import Node
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Snapshot, ThreadKey

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


class Score(msgspec.Struct, frozen=True):
    points: int = 0


class Room(Thread[Any]):
    initial_state = 0

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)


# Waking


async def test_a_thread_begins_with_its_initial_state_which_is_stored_with_its_first_change() -> None:
    made: list[int] = []

    class Made(Thread[Any]):
        @staticmethod
        def initial_state() -> dict[str, int]:
            made.append(1)
            return {"n": len(made)}

    store = TroubledStore()
    async with open_house(Made, store=store) as house:
        assert await house.handle(Made).state() == {"n": 1}
        assert await house.handle(Made).state() == {"n": 1}
        assert store.submitted == []
    async with open_house(Made, store=store) as house:
        assert await house.handle(Made).set_state({"n": 7}) == 1
        assert len(store.submitted) == 1
    async with open_house(Made, store=store) as house:
        assert await house.handle(Made).state() == {"n": 7}
    stored = await store.load(ThreadKey("made", "one"), version=0)
    assert stored is not None
    assert (stored.version, stored.snapshot, len(made)) == (0, b'{"n":2}', 2)


async def test_a_thread_that_is_only_read_is_not_woken_and_not_stored() -> None:
    starts: list[str] = []

    class Started(Room):
        def on_start(self) -> None:
            starts.append(self.name)

    key = ThreadKey("started", "one")
    async with open_house(Started) as house:
        assert not await house.node.is_stored(key)
        with pytest.raises(NotFound, match="there is no thread started/one"):
            await house.node.stored_actor(key)
        with pytest.raises(NotFound, match="there is no kind"):
            await house.node.stored_actor(ThreadKey("nothing", "one"))
        assert starts == []
        await house.handle(Started).state()
        with pytest.raises(NotFound):
            await house.node.stored_actor(key)
        assert starts == ["one"]
        await house.handle(Started).add(1)
        assert (await house.node.stored_actor(key)).state.durable.state == 1
        assert await house.node.is_stored(key)
    async with open_house(Started, store=house.store) as house:
        assert await house.node.is_stored(key)
        assert house.node._threads.find_awake(key) is None
        assert (await house.node.stored_actor(key)).state.durable.state == 1


async def test_a_thread_that_nobody_has_used_is_not_stored() -> None:
    async with open_house(Room) as house:
        house.handle(Room)
        assert await house.store.load(ThreadKey("room", "one")) is None
        assert house.node._threads.find_awake(ThreadKey("room", "one")) is None


async def test_a_thread_without_initial_state_is_not_stored_until_it_has_one() -> None:
    class Empty(Thread[Any]):
        pass

    async with open_house(Empty) as house:
        assert await house.handle(Empty).state() is None
        assert await house.store.load(ThreadKey("empty", "one")) is None
        assert await house.handle(Empty).set_state(5) == 1
    async with open_house(Empty, store=house.store) as house:
        assert await house.handle(Empty).state() == 5


async def test_an_initial_state_that_changes_later_does_not_reach_a_thread_that_has_begun() -> None:
    class Room2(Room):
        kind = "room"
        initial_state = 100

    async with open_house(Room) as house:
        await (await house.actor(Room)).state.store_thread()
    async with open_house(Room2, store=house.store) as house:
        assert await house.handle(Room2).state() == 0


async def test_an_initial_state_of_one_thread_is_not_shared_with_another() -> None:
    class Shared(Thread[dict[str, list[int]]]):
        initial_state = {"list": []}  # noqa: RUF012

        @rpc
        async def add_one(self) -> None:
            self.state["list"].append(1)
            await self.set_state(self.state)

    async with open_house(Shared) as house:
        await outcome(house.handle(Shared, "a").add_one())
        assert await house.handle(Shared, "a").state() == {"list": [1]}
        assert await house.handle(Shared, "b").state() == {"list": []}


async def test_many_who_want_a_thread_wake_it_once() -> None:
    class Counted(Room):
        starts: ClassVar[list[str]] = []

        async def on_start(self) -> None:
            self.starts.append(self.name)
            await asyncio.sleep(0)

    async with open_house(Counted) as house:
        actors = await outcome(asyncio.gather(*(house.actor(Counted, str(n % 3)) for n in range(30))))
        assert len(set(actors)) == 3
        assert sorted(Counted.starts) == ["0", "1", "2"]


async def test_nobody_is_served_before_on_start_returned() -> None:
    class Slow(Room):
        gate: ClassVar[asyncio.Event]
        lines: ClassVar[list[str]] = []

        async def on_start(self) -> None:
            self.lines.append("starts")
            await self.gate.wait()
            self.lines.append("started")

        @rpc
        def look(self) -> None:
            self.lines.append("looked")

    Slow.gate = asyncio.Event()
    async with open_house(Slow) as house:
        call = asyncio.create_task(house.handle(Slow).look())
        other = asyncio.create_task(house.handle(Slow, "other").look())
        async with asyncio.timeout(PATIENCE):
            while Slow.lines.count("starts") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        Slow.gate.set()
        await outcome(asyncio.gather(call, other))
        assert Slow.lines == ["starts"] * 2 + [*Slow.lines[2:]]
        assert Slow.lines.index("looked") > Slow.lines.index("started")


async def test_an_on_start_that_fails_is_told_to_all_who_wait_and_the_next_use_tries_again() -> None:
    class Fragile(Room):
        failures: ClassVar[int] = 2
        starts: ClassVar[int] = 0

        async def on_start(self) -> None:
            Fragile.starts += 1
            await asyncio.sleep(0)
            if Fragile.starts <= self.failures:
                raise LookupError("not yet")

    async with open_house(Fragile) as house:
        for start in (1, 2):
            results = await outcome(
                asyncio.gather(*(house.handle(Fragile).add(1) for _ in range(5)), return_exceptions=True)
            )
            assert [str(each) for each in results] == ["not yet"] * 5
            assert Fragile.starts == start
        assert await outcome(house.handle(Fragile).add(1)) == 1
        assert Fragile.starts == 3


async def test_what_a_failing_on_start_has_refused_is_told_to_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Thread[Score]):
        initial_state = Score()

        def on_start(self) -> None:
            self.update("/points", "many")

    async with open_house(Wrong) as house:
        with pytest.raises(InvalidState):
            await outcome(house.handle(Wrong).state())
    (record,) = [record for record in caplog.records if record.name == "plait.thread"]
    assert record.getMessage() == "invalid_state: Expected `int`, got `str`, at /points"
    assert record.__dict__["plait_thread"] == "wrong/one"


async def test_an_initial_state_of_another_type_is_no_fault_of_whoever_asks() -> None:
    class Wrong(Thread[Score]):
        @staticmethod
        def initial_state() -> Any:
            return {"points": "many"}

    async with open_house(Wrong) as house:
        with pytest.raises(TypeError, match=r"Wrong\.initial_state does not fit its type: Expected `int`, got `str`"):
            await outcome(house.handle(Wrong).state())


async def test_a_handle_is_asked_for_by_the_class() -> None:
    async with open_house(Room) as house:
        for what in ("room", Room._kind, int):
            with pytest.raises(TypeError, match="must be a Thread class"):
                house.node.handle(what, "one")  # type: ignore[arg-type]


async def test_what_a_failing_on_start_has_changed_is_there_the_next_time() -> None:
    class Half(Room):
        def on_start(self) -> None:
            self.set_state(lambda state: state + 1)
            if self.state < 2:
                raise LookupError("half way")

    async with open_house(Half) as house:
        with pytest.raises(LookupError):
            await outcome(house.handle(Half).state())
        assert await outcome(house.handle(Half).state()) == 2


async def test_a_thread_is_not_served_without_what_its_on_start_did() -> None:
    class Prepared(Room):
        starts: ClassVar[list[int]] = []

        def on_start(self) -> None:
            self.starts.append(self.state)
            if not self.state:
                self.set_state(100)

    async with open_house(Prepared) as house:
        house.store.fail_next()
        results = await outcome(
            asyncio.gather(*(house.handle(Prepared).add(1) for _ in range(3)), return_exceptions=True)
        )
        assert [type(each) for each in results] == [StoreError] * 3
        assert house.node.actors == []
        assert [await outcome(house.handle(Prepared).add(1)) for _ in range(2)] == [101, 102]
        assert Prepared.starts == [0, 0]


async def test_a_thread_that_is_dropped_while_it_starts_is_not_awake_and_the_next_use_tries_again() -> None:
    class Hasty(Thread[Any]):
        @rpc
        def add(self, n: int) -> int:
            self.set_state((self.state or 0) + n)
            return int(self.state)

        async def on_start(self) -> None:
            with suppress(Indeterminate, asyncio.CancelledError):
                await self.set_state((self.state or 0) + 10)

    async with open_house(Hasty) as house:
        house.store.fail_next(Indeterminate("hasty/one: it is not known whether the change was stored"))
        with pytest.raises(Indeterminate):
            await outcome(house.handle(Hasty).add(1))
        assert house.node.actors == []
        assert await outcome(house.handle(Hasty).add(1)) == 11
        await house.join(Hasty, "a")


async def test_a_caller_that_went_away_does_not_stop_the_waking_for_others() -> None:
    class Slow(Room):
        gate: ClassVar[asyncio.Event]

        async def on_start(self) -> None:
            await self.gate.wait()

    Slow.gate = asyncio.Event()
    async with open_house(Slow) as house:
        first, second = (asyncio.create_task(house.handle(Slow).add(1)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        Slow.gate.set()
        assert await outcome(second) == 1


async def test_a_thread_that_cannot_be_loaded_can_be_tried_again() -> None:
    async with open_house(Room) as house:
        house.store.fail_load()
        with pytest.raises(StoreError, match="broken"):
            await outcome(house.handle(Room).state())
        assert await outcome(house.handle(Room).state()) == 0


async def test_a_thread_whose_beginning_cannot_be_stored_can_be_tried_again() -> None:
    async with open_house(Room) as house:
        house.store.fail_next()
        with pytest.raises(StoreError, match="full"):
            await outcome(house.handle(Room).add(1))
        assert await house.store.load(ThreadKey("room", "one")) is None
        assert await outcome(house.handle(Room).add(1)) == 1


async def test_a_corrupt_thread_is_an_error_each_time_and_never_an_empty_one() -> None:
    async with open_house(Room) as house:
        key = ThreadKey("room", "one")
        await submit(house.store.inner, Write(key, "epoch", None, 0, snapshots=(Snapshot(0, b"{damaged"),)))
        for _ in range(2):
            with pytest.raises(CorruptThread, match="room/one"):
                await outcome(house.handle(Room).state())
        stored = await house.store.load(key)
        assert stored is not None
        assert stored.snapshot == b"{damaged"
        assert await house.handle(Room, "two").state() == 0


async def test_an_unknown_kind_and_a_bad_name_are_not_found() -> None:
    class Stranger(Room):
        pass

    class Namesake(Thread[Any]):
        kind = "room"

    async with open_house(Room) as house:
        with pytest.raises(NotFound, match="there are: room"):
            await house.node.actor(ThreadKey("missing", "one"))
        for cls in (Stranger, Namesake):
            with pytest.raises(NotFound, match=cls.__name__):
                house.handle(cls)
        for name in ("", "x" * 257, "a\n"):
            with pytest.raises(NotFound):
                house.handle(Room, name)


async def test_no_more_threads_are_awake_than_allowed() -> None:
    async with open_house(Room, limits=Limits(awake_threads=2)) as house:
        await house.handle(Room, "a").state()
        await house.handle(Room, "b").state()
        with pytest.raises(TooMany, match="2 threads"):
            await house.handle(Room, "c").state()
        assert await house.handle(Room, "a").add(1) == 1


async def test_a_node_that_does_not_run_says_how_to_run_it() -> None:
    async with TroubledStore() as store:
        node = Node([Room._kind], store, DEFAULT_LIMITS)
        with pytest.raises(Unavailable, match="plait serve"):
            await node.handle(Room, "one").state()


# Sleep


class Sleepy(Room):
    idle_timeout = 0.0
    stopped: ClassVar[asyncio.Event]
    lines: ClassVar[list[str]] = []

    def on_start(self) -> None:
        self.lines.append("start")

    async def on_stop(self) -> None:
        self.lines.append("stop")
        self.set_state(lambda state: state + 100)
        self.stopped.set()


@pytest.fixture
def sleepy() -> type[Sleepy]:
    """A class whose threads are stopped as soon as they are unused."""
    return type("Sleepy", (Sleepy,), {"stopped": asyncio.Event(), "lines": []})


async def test_an_idle_thread_is_stopped_and_wakes_again_with_its_state(sleepy: type[Sleepy]) -> None:
    async with open_house(sleepy) as house:
        assert await house.handle(sleepy).add(1) == 1
        await outcome(sleepy.stopped.wait())
        assert await house.handle(sleepy).add(1) == 102
        assert sleepy.lines[:3] == ["start", "stop", "start"]


async def test_a_thread_that_somebody_is_connected_to_is_not_stopped(sleepy: type[Sleepy]) -> None:
    async with open_house(sleepy) as house:
        client = await house.join(sleepy, "a")
        await house.handle(sleepy, "other").add(1)
        await outcome(sleepy.stopped.wait())
        assert sleepy.lines.count("stop") == 1
        assert house.node._threads.find_awake(ThreadKey("sleepy", "one")) is not None
        sleepy.stopped.clear()
        client.leave()
        await outcome(sleepy.stopped.wait())
        assert sleepy.lines.count("stop") == 2


async def test_idle_time_counts_from_the_end_of_a_turn(sleepy: type[Sleepy]) -> None:
    class Long(Room):
        runs: ClassVar[asyncio.Event]
        gate: ClassVar[asyncio.Event]

        @rpc
        async def work(self) -> None:
            self.runs.set()
            await self.gate.wait()

    Long.runs, Long.gate = asyncio.Event(), asyncio.Event()
    async with open_house(Long, sleepy) as house:
        actor = await house.actor(Long)
        call = asyncio.create_task(house.handle(Long).work())
        await outcome(Long.runs.wait())
        actor.usage.last_used -= 1e9
        await sweep(house, sleepy)
        Long.gate.set()
        await outcome(call)
        await sweep(house, sleepy)
        assert house.node._threads.find_awake(actor.key) is actor


async def test_a_thread_that_has_no_idle_time_is_not_stopped_and_others_are(sleepy: type[Sleepy]) -> None:
    class Restless(Room):
        idle_timeout = None

    async with open_house(Restless, sleepy) as house:
        actor = await house.actor(Restless)
        actor.usage.last_used -= 1e9
        for _ in range(2):
            await sweep(house, sleepy)
        assert house.node._threads.find_awake(actor.key) is actor


async def sweep(house: House, sleepy: type[Sleepy]) -> None:
    """Wait until all threads have been looked at: the one that is made for it comes last."""
    sleepy.stopped.clear()
    await house.handle(sleepy).state()
    await outcome(sleepy.stopped.wait())


async def test_whoever_wants_a_thread_that_is_being_stopped_gets_a_fresh_one() -> None:
    class Slow(Sleepy):
        gate: ClassVar[asyncio.Event]

        async def on_stop(self) -> None:
            await super().on_stop()
            await self.gate.wait()
            self.lines.append("stopped")

    Slow.stopped, Slow.gate = asyncio.Event(), asyncio.Event()
    Slow.lines = []
    async with open_house(Slow) as house:
        await house.handle(Slow).add(1)
        await outcome(Slow.stopped.wait())
        calls = [asyncio.create_task(house.handle(Slow).add(1)) for _ in range(3)]
        other = await house.join(Slow, "a", name="other")
        assert not any(call.done() for call in calls)
        assert Slow.lines == ["start", "stop", "start"]
        Slow.gate.set()
        assert await outcome(asyncio.gather(*calls)) == [102, 103, 104]
        assert Slow.lines[3:5] == ["stopped", "start"]
        other.leave()


async def test_a_turn_that_runs_too_long_is_found_without_anybody_asking() -> None:
    class Hanging(Room):
        turn_timeout = 0.1

        @rpc
        async def hang(self) -> None:
            await asyncio.Event().wait()

    async with open_house(Hanging) as house:
        with pytest.raises(PlaitError, match="hang"):
            await outcome(house.handle(Hanging).hang())
        assert await house.handle(Hanging).add(1) == 1


async def test_an_on_start_that_runs_too_long_is_given_up_and_tried_again() -> None:
    class Hanging(Room):
        turn_timeout = 0.1
        hangs: ClassVar[bool] = True

        async def on_start(self) -> None:
            if Hanging.hangs:
                Hanging.hangs = False
                await asyncio.Event().wait()

    async with open_house(Hanging) as house:
        with pytest.raises(PlaitError, match="on_start"):
            await outcome(house.handle(Hanging).state())
        assert await outcome(house.handle(Hanging).add(1)) == 1


async def test_an_on_stop_that_runs_too_long_does_not_keep_the_thread_for_ever() -> None:
    class Hanging(Room):
        turn_timeout = 0.1
        idle_timeout = 0.0
        stops: ClassVar[asyncio.Event]

        async def on_stop(self) -> None:
            if not self.stops.is_set():
                self.stops.set()
                await asyncio.Event().wait()

    Hanging.stops = asyncio.Event()
    async with open_house(Hanging) as house:
        await house.handle(Hanging).add(1)
        await outcome(Hanging.stops.wait())
        assert await outcome(house.handle(Hanging).add(1)) == 2


async def test_a_thread_that_sleeps_or_could_not_wake_has_no_owner(sleepy: type[Sleepy]) -> None:
    class Broken(Room):
        def on_start(self) -> None:
            raise LookupError("not today")

    async def write(key: ThreadKey) -> None:
        """Write to the thread without an owner, as soon as that is not refused."""
        async with asyncio.timeout(PATIENCE):
            while True:
                stored = await house.store.load(key)
                assert stored is not None
                with suppress(Fenced):
                    data = (Snapshot(stored.version, b"5"),)
                    await submit(
                        house.store.inner, Write(key, stored.epoch, stored.version, stored.version, snapshots=data)
                    )
                    return
                await asyncio.sleep(0.01)

    async with open_house(sleepy, Broken) as house:
        await house.handle(sleepy).add(1)
        await outcome(sleepy.stopped.wait())
        await write(ThreadKey(sleepy._kind.name, "one"))
        broken = ThreadKey(Broken._kind.name, "one")
        fence = await house.store.claim(broken)
        await submit(house.store.inner, Write(broken, "e", None, 0, snapshots=(Snapshot(0, b"0"),), fence=fence))
        house.store.release(broken, fence)
        with pytest.raises(LookupError):
            await house.handle(Broken).add(1)
        await write(broken)


async def test_a_thread_that_was_written_elsewhere_is_dropped_and_loaded_anew() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        actor = await house.actor(Room)
        epoch = actor.state.history.epoch
        row = ChangeRow(1, b'[{"op":"replace","path":"","value":50}]', "server", 1)
        fence = await house.store.claim(actor.key)
        await submit(house.store.inner, Write(actor.key, epoch, 0, 1, (row,), fence=fence))
        with pytest.raises(StoreError):
            await outcome(house.handle(Room).add(1))
        while await client.next() is not None:
            pass
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013
        assert await outcome(house.handle(Room).add(1)) == 51
        with pytest.raises(Unavailable):
            actor.thread.set_state(1)


DOUBT = Indeterminate("it is not known whether the change was stored")


class Charging(Room):
    turn_timeout = None
    began: ClassVar[asyncio.Event]
    gate: ClassVar[asyncio.Event]
    lines: ClassVar[list[str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.began, cls.gate, cls.lines = asyncio.Event(), asyncio.Event(), []

    def on_start(self) -> None:
        self.lines.append("started")

    @rpc
    async def charge(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.gate.wait()
            self.lines.append("charged")

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.lines.append("closed")


async def lose_while_it_charges(house: House, cls: type[Charging]) -> None:
    """Have a thread dropped while a turn runs and another one waits."""
    house.store.is_held = True
    calls = [asyncio.create_task(call()) for call in (lambda: house.handle(cls).add(1), house.handle(cls).charge)]
    await outcome(cls.began.wait())
    calls.append(asyncio.create_task(house.handle(cls).charge()))
    await asyncio.sleep(0)
    house.store.fail_next(DOUBT)
    house.store.resume()
    calls[1].add_done_callback(lambda call: call.exception())
    # The running turn may take its time to end.
    assert await outcome(asyncio.gather(calls[0], calls[2], return_exceptions=True)) == [DOUBT, DOUBT]


async def test_a_dropped_thread_is_loaded_again_when_the_turns_of_its_last_instance_have_ended() -> None:
    class Paying(Charging):
        pass

    async with open_house(Paying) as house:
        client = await house.join(Paying, "a")
        await lose_while_it_charges(house, Paying)
        assert client.transport.closed is not None
        call = asyncio.create_task(house.handle(Paying).add(1))
        await house.join(Paying, "a", name="other")
        assert not call.done()
        Paying.gate.set()
        assert await outcome(call) == 1
        assert Paying.lines == ["started", "started", "charged", "closed", "started"]


async def test_the_end_waits_for_the_turns_of_a_dropped_thread() -> None:
    class Paying(Charging):
        pass

    async with open_house(Paying) as house:
        await house.handle(Paying).state()
        await lose_while_it_charges(house, Paying)
        end = asyncio.create_task(house.node.stop(PATIENCE))
        end.add_done_callback(lambda _: Paying.lines.append("stopped"))
        await asyncio.sleep(0)
        Paying.gate.set()
        await outcome(end)
    assert Paying.lines == ["started", "charged", "stopped"]


async def test_a_turn_of_a_dropped_thread_that_does_not_end_expires() -> None:
    class Paying(Charging):
        turn_timeout = 0.1

    async with open_house(Paying) as house:
        await house.handle(Paying).state()
        await lose_while_it_charges(house, Paying)
        assert await outcome(house.handle(Paying).add(1)) == 1


async def test_a_client_that_joins_a_thread_that_is_dropped_is_told_to_come_back() -> None:
    class Thinking(Charging):
        async def on_connect(self, connection: Connection, request: Any) -> None:
            self.began.set()
            await asyncio.Event().wait()

        async def should_be_readonly(self, connection: Connection, request: Any) -> bool:
            if connection.id == "early":
                self.began.set()
                await asyncio.Event().wait()
            return False

    for id in ("early", "late"):
        async with open_house(Thinking) as house:
            client = Client(await house.actor(Thinking), id)
            client.open()
            await outcome(Thinking.began.wait())
            house.store.is_held = True
            call = asyncio.create_task(house.handle(Thinking).set_state(1))
            await outcome(asyncio.sleep(0))
            house.store.fail_next(DOUBT)
            house.store.resume()
            assert await outcome(asyncio.gather(call, return_exceptions=True)) == [DOUBT]
            while await client.next() is not None:
                pass
            assert client.transport.closed is not None
            assert client.transport.closed[0] == 1013
        Thinking.began.clear()


# The end


class Working(Room):
    runs: ClassVar[asyncio.Event]
    gate: ClassVar[asyncio.Event]
    lines: ClassVar[list[str]]

    def on_state_changed(self, state: Any, source: Source) -> None:
        self.lines.append(f"told {state}")

    def on_stop(self) -> None:
        self.lines.append("stop")

    @rpc
    async def work(self) -> str:
        self.runs.set()
        await self.gate.wait()
        self.set_state("worked")
        return "done"

    @rpc(concurrent=True)
    async def work_beside(self) -> str:
        return await self.work()


@pytest.fixture
def working() -> type[Working]:
    """A class whose calls end when they are told."""
    return type("Working", (Working,), {"runs": asyncio.Event(), "gate": asyncio.Event(), "lines": []})


@pytest.mark.parametrize("method", ["work", "work_beside"])
async def test_the_end_waits_for_turns_and_commits_and_then_closes_sockets(working: type[Working], method: str) -> None:
    async with open_house(working) as house:
        client = await house.join(working, "a")
        call = asyncio.create_task(house.handle(working).call(method))
        await outcome(working.runs.wait())
        house.store.is_held = True
        stop = asyncio.create_task(house.node.stop(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await house.handle(working, "another").state()
        assert not house.node.is_serving
        assert client.transport.closed is None
        working.gate.set()
        async with asyncio.timeout(PATIENCE):
            while len(house.store.submitted) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not call.done()
        assert not stop.done()
        house.store.resume()
        assert await outcome(call) == "done"
        await outcome(stop)
        assert await client.next() == {"type": "cf_agent_state", "state": "worked"}
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1001
        assert working.lines == ["told worked", "stop"]


async def test_the_end_reads_nothing_more_from_sockets(working: type[Working]) -> None:
    async with open_house(working) as house:
        client = await house.join(working, "a")
        await outcome(house.node.stop(PATIENCE))
        assert client.transport.is_paused


async def test_the_end_stops_every_thread() -> None:
    class Many(Room):
        stopped: ClassVar[set[str]] = set()

        async def on_stop(self) -> None:
            await asyncio.sleep(0)
            self.stopped.add(self.name)
            self.set_state("stopped")

    async with open_house(Many) as house:
        for number in range(20):
            await house.handle(Many, str(number)).state()
    assert Many.stopped == {str(number) for number in range(20)}
    stored = [await house.store.load(ThreadKey("many", str(number))) for number in range(20)]
    assert [each.version for each in stored if each is not None] == [1] * 20


async def test_the_end_gives_up_what_takes_too_long(working: type[Working], caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(working) as house:
        client = await house.join(working, "a")
        calls = [asyncio.create_task(house.handle(working).work()) for _ in range(2)]
        await outcome(working.runs.wait())
        await outcome(house.node.stop(0.05))
        await asyncio.wait(calls, timeout=PATIENCE)
        assert [not call.cancelled() and isinstance(call.exception(), PlaitError) for call in calls] == [True, True]
        assert client.transport.closed is not None
    assert "cancelling the turns" in caplog.text


async def test_the_end_gives_up_an_on_start_that_hangs() -> None:
    class Hanging(Room):
        runs: ClassVar[asyncio.Event]

        async def on_start(self) -> None:
            self.runs.set()
            await asyncio.Event().wait()

    Hanging.runs = asyncio.Event()
    async with open_house(Hanging) as house:
        call = asyncio.create_task(house.handle(Hanging).state())
        await outcome(Hanging.runs.wait())
        await outcome(house.node.stop(0.05))
        await asyncio.wait([call], timeout=PATIENCE)
        assert not call.cancelled()
        assert isinstance(call.exception(), PlaitError)


class Waking(Room):
    runs: ClassVar[asyncio.Event]
    gate: ClassVar[asyncio.Event]
    lines: ClassVar[list[str]]

    async def on_start(self) -> None:
        self.lines.append("starts")
        self.runs.set()
        await self.gate.wait()
        self.lines.append("started")

    def on_stop(self) -> None:
        self.lines.append("stop")

    @rpc
    def look(self) -> str:
        self.lines.append("looked")
        return "seen"


async def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin something, and run it as far as it can go by itself."""
    task = asyncio.create_task(work)
    for _ in range(50):
        await asyncio.sleep(0)
    return task


@each_case("others", [0, 1])
async def test_the_end_waits_for_a_thread_that_is_waking_and_stops_it(others: int) -> None:
    Waking.runs, Waking.gate, Waking.lines = asyncio.Event(), asyncio.Event(), []
    async with open_house(Waking, Room) as house:
        for number in range(others):
            await house.handle(Room, str(number)).state()
        call = asyncio.create_task(house.handle(Waking).look())
        await outcome(Waking.runs.wait())
        stop = await begin(house.node.stop(PATIENCE))
        assert not stop.done()
        Waking.gate.set()
        assert await outcome(call) == "seen"
        await outcome(stop)
        assert Waking.lines == ["starts", "started", "looked", "stop"]
        assert house.node.actors == []


async def test_the_end_stops_a_thread_that_woke_while_another_one_hangs() -> None:
    class Hanging(Room):
        async def on_start(self) -> None:
            await asyncio.Event().wait()

    Waking.runs, Waking.gate, Waking.lines = asyncio.Event(), asyncio.Event(), []
    async with open_house(Waking, Hanging) as house:
        calls = [asyncio.create_task(house.handle(cls).state()) for cls in (Hanging, Waking)]
        await outcome(Waking.runs.wait())
        stop = await begin(house.node.stop(0.1))
        Waking.gate.set()
        await outcome(stop)
        assert Waking.lines == ["starts", "started", "stop"]
        await asyncio.wait(calls, timeout=PATIENCE)
        assert isinstance(calls[0].exception(), PlaitError)


async def test_the_end_gives_up_an_on_stop_that_hangs() -> None:
    class Hanging(Room):
        ended: ClassVar[asyncio.Event]

        async def on_stop(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

    Hanging.ended = asyncio.Event()
    async with open_house(Hanging) as house:
        await house.handle(Hanging).state()
        await outcome(house.node.stop(0.05))
        await outcome(Hanging.ended.wait())


async def test_a_node_leaves_no_task_behind(working: type[Working]) -> None:
    before = asyncio.all_tasks()
    async with open_house(working) as house:
        await house.join(working, "a")
        call = asyncio.create_task(house.handle(working, "b").work())
        await outcome(working.runs.wait())
        working.gate.set()
        await outcome(call)
    assert asyncio.all_tasks() <= before


async def test_a_node_that_was_stopped_can_be_started_again() -> None:
    async with TroubledStore() as store:
        node = Node([Room._kind], store, DEFAULT_LIMITS)
        for n in (1, 2):
            node.start()
            assert node.is_serving
            assert await outcome(node.handle(Room, "one").call(Room.add, 1)) == n
            await outcome(node.stop(PATIENCE))
            assert not node.is_serving
