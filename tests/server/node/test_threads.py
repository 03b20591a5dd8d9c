"""The table of threads: anything that wakes, uses, stops and destroys threads at the same time, in any order."""

import asyncio
import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.cases import each_case
from tests.schedules import schedules
from tests.server.fakes import TroubledStore

from plait.actor.actor import Actor
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Fenced, Indeterminate, PlaitError, StoreError, Unavailable
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.node.threads import Phase, Slot, ThreadTable, start_task
from plait.store.protocol import Write
from plait.store.thread_rows import ThreadKey

NAMES = ("a", "b")
HOOKS = ("on_start", "on_stop", "on_destroyed", "work")
# Iterations of the loop after which everything that needs nothing from outside must have ended.
PATIENCE = 2000
# Iterations for which nothing may be under way: the node begins to look for expired threads by itself.
QUIET = 30


class Faulty(Exception):
    """Raised by `on_start` when it is told to."""


class World:
    """What the hooks of all threads share with the test."""

    def __init__(self) -> None:
        # Hooks that wait here before they return.
        self.gates = {hook: asyncio.Event() for hook in HOOKS}
        for gate in self.gates.values():
            gate.set()
        # Hooks that fail, or destroy their thread, the next time that they run.
        self.fails: set[str] = set()
        self.destroys: set[str] = set()
        # The instances whose hooks are running, by the name of the thread.
        self.inside: dict[str, list[Thread[Any]]] = defaultdict(list)
        self.instances: list[Thread[Any]] = []
        self.errors: list[str] = []

    async def pass_through(self, hook: str, thread: Thread[Any]) -> None:
        """Do in a hook what the rules have asked for."""
        inside = self.inside[thread.name]
        if any(each is not thread for each in inside):
            self.errors.append(f"{hook} runs in {thread.name} while a hook of another instance does")
        inside.append(thread)
        try:
            await go_on(2)
            await self.gates[hook].wait()
            if hook in self.destroys:
                self.destroys.remove(hook)
                with suppress(PlaitError):
                    await thread.destroy()
                await go_on(3)
            if hook in self.fails:
                self.fails.remove(hook)
                raise Faulty(hook)
        finally:
            inside.remove(thread)


def get_actor(thread: Thread[Any]) -> Actor:
    actor: Any = thread._actor
    assert isinstance(actor, Actor)
    return actor


def can_change(actor: Actor) -> bool:
    """Whether a thread accepts changes: it is neither stopped nor destroyed, and has not lost a write."""
    try:
        actor.state.check_open()
    except PlaitError:
        return False
    return True


class Counted(Thread[Any]):
    """Counts, and does in its hooks what the world says."""

    initial_state = 0
    idle_timeout = 0.0
    turn_timeout = None
    expires_after = 100.0
    world: ClassVar[World]

    async def on_start(self) -> None:
        self.world.instances.append(self)
        await self.world.pass_through("on_start", self)

    async def on_stop(self) -> None:
        await self.world.pass_through("on_stop", self)

    async def on_destroyed(self) -> None:
        await self.world.pass_through("on_destroyed", self)

    @rpc
    def add(self) -> tuple[str, int]:
        self.set_state(lambda state: state + 1)
        return get_actor(self).state.epoch, self.state

    @rpc
    async def work(self) -> None:
        try:
            await self.world.pass_through("work", self)
        except asyncio.CancelledError:  # As when a write is lost.
            await self.world.pass_through("work", self)
            raise

    @rpc
    async def end(self) -> None:
        await self.destroy()
        await self.world.gates["work"].wait()


async def go_on(iterations: int) -> None:
    """Run all other tasks for some iterations of the loop."""
    for _ in range(iterations):
        await asyncio.sleep(0)


DELAYS = st.integers(0, 6)
MANY = st.lists(st.integers(0, 12), min_size=1, max_size=8)


class Machine(RuleBasedStateMachine):
    """A node, and callers who use its threads as the rules say. Nothing moves but in the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        self.world = World()
        self.kind: type[Counted] = type("Counted", (Counted,), {"world": self.world, "kind": "counted"})
        self.store = TroubledStore()
        self.node = Node([self.kind._kind], self.store, DEFAULT_LIMITS, sweep_interval=1e6)
        self.callers: list[asyncio.Task[Any]] = []
        self.tickets = count()
        # The tickets of served callers, by actor, and the last count that was acknowledged, by epoch.
        self.served: dict[Actor, list[int]] = defaultdict(list)
        self.acknowledged: Counter[str] = Counter()
        self.run(self.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def start(self) -> None:
        await self.store.__aenter__()
        self.node.start()

    def call(self, delay: int, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Call a function after some iterations of the loop."""

        async def caller() -> None:
            await go_on(delay)
            with suppress(PlaitError, Faulty):
                await function(*args)

        self.callers.append(self.loop.create_task(caller()))

    def key(self, name: str) -> ThreadKey:
        return ThreadKey("counted", name)

    # Rules

    @rule(iterations=st.integers(1, 12))
    def go_on(self, iterations: int) -> None:
        self.run(go_on(iterations))

    @rule(name=st.sampled_from(NAMES), delays=MANY)
    def wake(self, name: str, delays: list[int]) -> None:
        for delay in delays:
            self.call(delay, self.find, self.key(name))
        self.go_on(2)

    async def find(self, key: ThreadKey) -> None:
        ticket = next(self.tickets)
        is_ordered = self.node._threads.find(key).phase in (Phase.WAKING, Phase.AWAKE)
        try:
            actor = await self.node.actor(key)
        except Unavailable:
            assert not self.node.is_serving
            raise
        # It can be used at once, and it is the one that others find.
        assert self.node._threads.find_awake(key) is actor
        assert can_change(actor)
        if is_ordered:
            assert all(each < ticket for each in self.served[actor]), "a caller was overtaken"
            self.served[actor].append(ticket)
        actor.thread.set_state(lambda state: state + 1)

    @rule(name=st.sampled_from(NAMES), delay=DELAYS)
    def use(self, name: str, delay: int) -> None:
        async def add() -> None:
            epoch, number = await self.node.handle(self.kind, name).call(Counted.add)
            self.acknowledged[epoch] = max(self.acknowledged[epoch], number)

        self.call(delay, add)

    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["work", "end"]), delay=DELAYS, is_held=st.booleans())
    def work(self, name: str, method: str, delay: int, *, is_held: bool) -> None:
        if is_held:
            self.world.gates["work"].clear()
        self.call(delay, self.node.handle(self.kind, name).call, method)

    @rule(name=st.sampled_from(NAMES), delay=DELAYS)
    def destroy(self, name: str, delay: int) -> None:
        self.call(delay, self.node.destroy, self.key(name))

    @rule(name=st.sampled_from(NAMES), delay=DELAYS)
    def look(self, name: str, delay: int) -> None:
        self.call(delay, self.node.is_stored, self.key(name))

    @rule(delay=DELAYS)
    def sweep(self, delay: int) -> None:
        self.call(delay, self.node._sweeper._look)

    @rule(name=st.sampled_from(NAMES), delay=DELAYS, is_expired=st.booleans())
    def expire(self, name: str, delay: int, *, is_expired: bool) -> None:
        self.call(delay, self.end_expired, self.key(name), 0.0 if is_expired else 100.0)

    async def end_expired(self, key: ThreadKey, seconds: float) -> None:
        """Do what alarms do when a thread expires; if it has changed within `seconds`, that is put off."""
        inner = self.store.inner
        if self.node._threads.find(key).phase is Phase.ASLEEP and (row := await inner.find(key)) is not None:
            fence = await inner.claim(key)
            with suppress(Fenced):  # The thread may wake.
                await inner.submit(Write(key, row.epoch, row.version, row.version, due=3, fence=fence))
            inner.release(key, fence)
        await self.node._endings.expire(key, seconds)

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), iterations=st.integers(0, 3))
    def cancel(self, data: st.DataObject, iterations: int) -> None:
        self.go_on(iterations)
        data.draw(st.sampled_from(self.callers), label="caller").cancel()

    @rule(hook=st.sampled_from(HOOKS), is_open=st.booleans())
    def hold(self, hook: str, *, is_open: bool) -> None:
        gate = self.world.gates[hook]
        gate.set() if is_open else gate.clear()

    @rule(what=st.sampled_from(["fails", "destroys"]), hook=st.sampled_from(["on_start", "on_stop"]))
    def instruct(self, what: str, hook: str) -> None:
        getattr(self.world, what).add(hook)

    @rule(name=st.sampled_from(NAMES), delays=MANY, error=st.sampled_from([StoreError, Indeterminate]))
    def lose(self, name: str, delays: list[int], error: type[StoreError]) -> None:
        """Have a write fail that is made while a turn runs, and come back."""
        self.work(name, "work", 0, is_held=True)
        self.go_on(12)
        self.store.fail_next(error("the store has failed"))
        self.wake(name, delays)

    @rule(is_held=st.booleans())
    def hold_store(self, *, is_held: bool) -> None:
        self.store.is_held = is_held
        if not is_held:
            self.run_in_loop(self.store.resume)

    def run_in_loop(self, function: Any) -> None:
        async def call() -> None:
            function()

        self.run(call())

    @rule(name=st.sampled_from(NAMES), delays=MANY)
    def stop_the_node(self, name: str, delays: list[int]) -> None:
        """Shut down, with everything that is under way, and start again."""
        self.wake(name, delays)
        stopping = self.loop.create_task(self.node.stop(1e6))
        self.go_on(3)
        self.open()
        self.run_until(stopping.done)
        assert not stopping.exception()
        self.check_all_quiet()
        assert self.node._threads._slots == {}
        self.run_in_loop(self.node.start)

    @rule()
    def settle(self) -> None:
        """Wait until all running work has ended."""
        self.open()
        self.run_until(lambda: all(each.done() for each in self.callers) and not self.node._threads.tasks)
        self.check_all_quiet()

    def open(self) -> None:
        self.run_in_loop(self.store.resume)
        for gate in self.world.gates.values():
            gate.set()

    def run_until(self, condition: Any) -> None:
        async def wait() -> None:
            held = 0
            for _ in range(PATIENCE):
                held = held + 1 if condition() else 0
                if held == QUIET:
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"{[each for each in self.callers if not each.done()]} {self.node._threads.tasks}")

        self.run(wait())

    # What always holds

    def check_all_quiet(self) -> None:
        """Check what holds when nothing is under way."""
        slots = list(self.node._threads._slots.values())
        assert [slot.phase for slot in slots if slot.phase is not Phase.AWAKE] == []
        assert [slot.key for slot in slots if slot.waiters or slot.tasks] == []
        assert self.node._threads.destroyed == {}
        for name in NAMES:
            found = self.run(self.store.load(self.key(name)))
            if found is not None and (number := self.acknowledged[found.epoch]):
                actor = self.node._threads.find_awake(self.key(name))
                assert found.version >= number if actor is None else actor.state.durable.version >= number

    @invariant()
    def check(self) -> None:
        assert self.world.errors == []
        for caller in self.callers:
            if caller.done() and not caller.cancelled() and (error := caller.exception()) is not None:
                raise error
        self.callers = [caller for caller in self.callers if not caller.done()]
        # At most one instance of a thread can change it.
        writers = Counter(each.name for each in self.world.instances if can_change(get_actor(each)))
        assert not [name for name, number in writers.items() if number > 1]
        threads = self.node._threads
        used = [slot for slot in threads._slots.values() if slot.phase in (Phase.WAKING, Phase.AWAKE)]
        assert threads.count == len(used)
        # Each thread that is neither asleep nor awake has a task, and each task of the node belongs to one.
        assert all(slot.tasks for slot in threads._slots.values() if slot.phase is not Phase.AWAKE)
        named = {task: task.get_name() for task in asyncio.all_tasks(self.loop)}
        mine = {
            task
            for task, name in named.items()
            if name.endswith(("counted/a", "counted/b")) and not name.startswith("wake due")  # That is of the alarms.
        }
        assert mine <= set(threads.tasks)

    def teardown(self) -> None:
        with self.runner:
            self.finish()
        gc.collect(0)
        assert self.complaints == []

    def finish(self) -> None:
        self.settle()
        self.run(self.node.stop(1e6))
        assert self.node._threads._slots == {}
        assert self.node.actors == []
        self.run(self.store.__aexit__(None, None, None))
        assert [task for task in asyncio.all_tasks(self.loop) if not task.done()] == []
        assert self.store._owners == {}


Machine.TestCase.settings = settings(max_examples=schedules(15), stateful_step_count=50)
test_any_use_of_threads_in_any_order: Any = Machine.TestCase


# Illegal changes


@each_case(
    ("phase", "next_phase"),
    [
        (Phase.AWAKE, Phase.WAKING),
        (Phase.STOPPING, Phase.WAKING),
        (Phase.STOPPING, Phase.AWAKE),
        (Phase.ENDING, Phase.WAKING),
        (Phase.ENDING, Phase.AWAKE),
        (Phase.ENDING, Phase.STOPPING),
        (Phase.WAKING, Phase.STOPPING),
        (Phase.ASLEEP, Phase.AWAKE),
    ],
)
async def test_a_change_of_phase_that_no_thread_makes_is_a_programming_error(phase: Phase, next_phase: Phase) -> None:
    gate = asyncio.Event()
    tasks = [start_task(gate.wait(), "task") for _ in range(2)]
    threads, slot = ThreadTable(lambda _: None), Slot(ThreadKey("room", "one"))

    def move(to: Phase) -> None:
        if to is Phase.AWAKE:
            threads.set_awake(slot)
        else:
            threads.begin(slot, to, tasks.pop())

    if phase is Phase.AWAKE:
        move(Phase.WAKING)
    if phase is not Phase.ASLEEP:
        move(phase)
    with pytest.raises(AssertionError, match=rf"room/one cannot become {next_phase.value} while it is {phase.value}"):
        move(next_phase)
    assert slot.phase is phase
    gate.set()
