"""Finds the threads of this process for callers, and shuts them down."""

import asyncio
import secrets
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Iterable
from threading import get_ident
from typing import Any, Final, TypeVar

from plait.actor.actor import TIMER_INTERVAL, Actor, ActorHost, find_actor
from plait.actor.events import Events
from plait.actor.handle import Handle
from plait.actor.kind import Kind, check_name
from plait.actor.logs import Failures
from plait.actor.thread import Thread
from plait.actor.turn import check_may_write, current_turn, find_client_turn, has_turn, wait_for_birth
from plait.actor.turn import find_user as find_calling_user
from plait.actor.turns import find_trace
from plait.agents.runs import Runs
from plait.author_code import guard_tasks
from plait.cluster.owners import ALONE, NotOwner, Owners
from plait.errors import Destroyed, NotFound, TooMany, Unavailable
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, telling_store_errors
from plait.kv.user_names import find_user
from plait.limits import Limits
from plait.node.alarms import Alarms
from plait.node.draining import drain
from plait.node.endings import Cause, Endings
from plait.node.everywhere import Everywhere
from plait.node.lifecycle import Lifecycle, Missing, Waking
from plait.node.listing import list_own
from plait.node.moving import Moving
from plait.node.remote_calls import RemoteCalls
from plait.node.remote_chain import Chains
from plait.node.remote_nodes import RemoteNodes
from plait.node.remote_requests import Listed, ListThreads
from plait.node.sweeping import Sweeper
from plait.node.threads import SHUTTING_DOWN, Phase, Slot
from plait.node.transfers import Transfers
from plait.parts.env.app_env import AppEnv
from plait.store.protocol import Store, StoredThread
from plait.store.thread_rows import INCOMPLETE, ThreadKey

__all__ = ["Node"]

T = TypeVar("T", bound=Thread[Any])

_SWEEP_INTERVAL: Final = 0.5
_NOT_RUNNING: Final = (
    "plait is not running: serve it with `plait serve`, pass its lifespan to the app that it is mounted in, "
    "or enter it with `async with app:`"
)
_OTHER_LOOP: Final = (
    "this app runs in another event loop; in a test, use httpx.ASGITransport, not a TestClient with its own loop"
)


class Node:
    """Wakes threads when they are used, and stops them when they are idle."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        store: Store,
        limits: Limits,
        *,
        inner_kinds: Iterable[Kind] = (),
        owners: Owners = ALONE,
        runs: Runs | None = None,
        instruments: Instruments = NO_INSTRUMENTS,
        env: AppEnv | None = None,
        sweep_interval: float = _SWEEP_INTERVAL,
        timer_interval: float = TIMER_INTERVAL,
    ) -> None:
        # The kinds that clients may address, and all kinds, including the ones that plait itself uses.
        self.kinds = {kind.name: kind for kind in kinds}
        self._all_kinds = self.kinds | {kind.name: kind for kind in inner_kinds}
        self._runs = runs or Runs(Events())
        self.limits = limits
        self.instruments = instruments
        self.failures = Failures()
        self.env = env or AppEnv()
        self._store = store
        # A shared store returns the threads of all nodes.
        self._alarms = Alarms(self.kinds, store, owners, self._wake_due, self._is_up, interval=timer_interval)
        self._lifecycle = Lifecycle(store, self._make_actor, self._alarms, instruments, owners)
        self._threads, self.watchers = self._lifecycle.threads, self._lifecycle.watchers
        self.transfers = Transfers(self, self._lifecycle, store, self._runs.events, instruments)
        self._endings = Endings(self._lifecycle, self._all_kinds, store, self._runs.events, instruments)
        self.moving = Moving(self._lifecycle, self._runs)
        self._sweeper = Sweeper(self._lifecycle, self._alarms, interval=sweep_interval)
        self._host = self._make_host(timer_interval)
        # The chains of calls, the threads of all nodes, and the answers to the other nodes.
        self._chains = chains = Chains(instruments)
        self._owners = owners
        self.everywhere = Everywhere(self, self.transfers, RemoteNodes(owners, chains))
        self.calls = RemoteCalls(self, self.transfers, chains)
        # The loop in which the threads run; None while the node is stopped.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._os_thread = 0
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether threads may be woken."""
        return self._loop is not None and self._draining is None

    def check_draining(self) -> None:
        """Raise Unavailable if the server is shutting down."""
        if self._draining is not None:
            raise Unavailable(SHUTTING_DOWN)

    def start(self) -> None:
        """Begin to stop idle threads, cancel slow turns, destroy expired threads, and wake threads that are due."""
        self._loop, gate = asyncio.get_running_loop(), self._owners.gate
        self._os_thread = get_ident()
        self._leave_tasks = guard_tasks(self._loop, has_turn)
        self._draining = None
        self._lifecycle.is_draining = False
        # Made at the start, so that processes that were forked after importing the app differ.
        self._host = self._host._replace(process=secrets.token_hex(8))
        self._chains.process = self._host.process
        self._host.services[AppEnv] = self.env
        self._store.watch_claims(self._lifecycle.drop_all, lambda: gate.is_open)
        self._runs.start()
        self._sweeper.start()
        self._alarms.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which the threads run. Raises RuntimeError while the node is stopped."""
        if self._loop is None:
            raise RuntimeError("the app is not running")
        return self._loop

    def check_loop(self) -> None:
        """Raise RuntimeError if the calling code runs in another event loop, as its `await` would never end."""
        # Comparing ids of OS threads costs less than finding the loop, and each OS thread runs one loop at a time.
        if get_ident() != self._os_thread and self._loop is not None and _get_running_loop() is not None:
            raise RuntimeError(_OTHER_LOOP)

    @property
    def actors(self) -> list[Actor]:
        """The threads that are awake."""
        return self._threads.actors(Phase.AWAKE)

    def look_at_clock(self) -> None:
        """Notice whether the wall clock has jumped; called several times a second."""
        if self._loop is not None:
            self._sweeper.look_at_clock()

    def close_sockets(self, key: ThreadKey, code: int, reason: str) -> int:
        """Close the sockets of a thread that is awake here, and return their number."""
        actor = self._threads.find_awake(key)
        found = [] if actor is None else list(actor.sockets)
        for connection in found:
            connection.leave(code, reason)
        return len(found)

    def kind(self, name: str) -> Kind:
        """Return a kind by its name in URLs. Raises NotFound."""
        if (kind := self.kinds.get(name)) is None:
            raise NotFound(f"there is no kind of thread called {name!r}; there are: {', '.join(sorted(self.kinds))}")
        return kind

    def handle(self, thread: type[T], name: str) -> Handle[T]:
        """Return a handle to a thread, without waking it. Raises NotFound and TypeError."""
        if not (isinstance(thread, type) and issubclass(thread, Thread)):
            raise TypeError(f"the first argument must be a Thread class, not {thread!r}")
        kind = self.find_kind(thread)
        return Handle(self.everywhere.find, kind, ThreadKey(kind.name, check_name(name)))

    def find_any_kind(self, name: str) -> Kind:
        """Return a kind, even one that plait itself uses. Raises NotFound."""
        return self._all_kinds.get(name) or self.kind(name)

    def find_kind(self, thread: type[Thread[Any]]) -> Kind:
        """Return the kind of a class. Raises NotFound for a class that is not served."""
        kind = self._all_kinds.get(thread._kind.name)
        if kind is None or kind.cls is not thread:
            raise NotFound(f"{thread.__name__} is not one of the classes that were passed to Plait")
        return kind

    # Finding threads

    async def actor(
        self,
        key: ThreadKey,
        *,
        is_used: bool = True,
        creates: bool = True,
        user: str | None = None,
        prepare: Callable[[Actor], None] | None = None,
    ) -> Actor:
        """Return a thread, waking it if needed. Use it before awaiting anything else, or it may be stopped again.

        Reading does not count as a use, and does not delay the expiry of a thread. Without `creates`, a thread that is
        not stored is not woken: raises Missing. `user` is the id of the user who wakes it, by default the user of the
        calling code; a thread that `on_start` stores is created for that user. `prepare` is called for a new thread,
        before `on_start`. Raises NotFound, CorruptThread, StoreError, Unavailable, TooMany, or the exception of
        `on_start`.
        """
        await wait_for_birth(key)
        while True:
            slot = self._threads.find_unfilled(key)
            if slot.phase is Phase.AWAKE and not slot.waiters:
                return slot.use(is_used=is_used)
            caller = _find_in_call_chain(key)
            if caller is not None and (slot.phase is not Phase.AWAKE or slot.actor is caller):
                return caller
            if slot.phase is Phase.ASLEEP:
                self._wake(slot, Waking(is_used, creates, user or find_calling_user(), prepare))
            was_waking = slot.phase is Phase.WAKING
            error = await slot.wait()
            if slot.phase is Phase.AWAKE:
                return slot.use(is_used=is_used)
            if was_waking and error is not None and not (creates and isinstance(error, Missing)):
                raise error

    @property
    def may_begin(self) -> bool:
        """Whether the calling code may wake threads. During a shutdown, only running turns and runs may."""
        return self.is_serving or (self._loop is not None and self._runs.is_calling)

    def check_may_begin(self, key: ThreadKey) -> None:
        """Raise Unavailable if the calling code may not wake a thread that is asleep."""
        self._check_serving()
        self._owners.check(key)

    async def is_stored(self, key: ThreadKey) -> bool:
        """Whether a thread is stored; wakes none. Raises NotFound for an unknown kind, Unavailable and StoreError."""
        while (slot := self._threads.find_unfilled(key)).phase is Phase.ENDING and _find_in_call_chain(key) is None:
            await slot.wait()
        if slot.actor is not None and slot.phase is Phase.AWAKE:
            return slot.actor.state.is_stored
        self.find_any_kind(key.kind)
        self._check_serving()
        with telling_store_errors(self.instruments):
            found = await self._store.find(key)
        return found is not None and found.due != INCOMPLETE

    async def stored_actor(self, key: ThreadKey) -> Actor:
        """Return a stored thread, waking it if needed, as `actor` does. Raises NotFound if it is not stored."""
        if not await self.is_stored(key) or not (actor := await self.actor(key, creates=False)).state.is_stored:
            raise _make_missing(key)
        return actor

    def interrupt(self, key: ThreadKey, message: Any) -> bool:
        """Interrupt the run of a thread of this process, and return whether there is one."""
        return self._runs.interrupt(key, message)

    async def destroy(self, key: ThreadKey, trace: object = None) -> None:
        """Destroy a thread. A thread that cannot be loaded is deleted without `on_destroyed`.

        `trace` is the trace of the cause, by default the calling code's. Raises Readonly, NotFound if the thread is
        neither stored nor awake, Unavailable, StoreError, and the exception of `on_start`.
        """
        check_may_write(key)
        cause = Cause(current_turn(), find_client_turn(), trace or find_trace(self.instruments))
        while (actor := self._threads.find_awake(key) or _find_in_call_chain(key)) is None:
            slot = self._threads.find_unfilled(key)
            if slot.phase is Phase.ASLEEP:
                self.check_may_begin(key)
                if not await self._endings.destroy_sleeping(key, cause):
                    raise _make_missing(key)
                return
            await slot.wait()
        try:
            await self._endings.destroy(actor, cause)
        except Destroyed:
            raise _make_missing(key) from None

    def list_own(self, query: ListThreads) -> AsyncIterator[Listed]:
        """Iterate over the stored threads of this node."""
        return list_own(self._store, self.kinds, query)

    def owns(self, key: ThreadKey) -> bool:
        """Whether this node owns a thread now."""
        return self._owners.owns(key)

    def may_serve(self, key: ThreadKey) -> bool:
        """Whether this node owns a thread, or still keeps it awake for turns that have begun."""
        return self.owns(key) or self._threads.find_awake(key) is not None

    # Moving to other nodes

    def gain(self) -> None:
        """Check newly owned threads: they may be due, expired, or incomplete."""
        if self.is_serving:
            self._alarms.read_again()
            self.moving.keep(self.transfers.remove_incomplete())

    def lose(self) -> None:
        """Drop all threads at once, as other nodes own them."""
        self._lifecycle.drop_all(NotOwner("this server was cut off from the others"))

    # Shutdown

    def drain(self, timeout: float) -> asyncio.Task[None]:
        """Refuse new threads and sockets, give turns and changes `timeout` seconds to end, then close the sockets."""
        if self._draining is None:
            self._runs.refuse()
            self._lifecycle.is_draining = True
            work = drain(self._threads, self._runs, self._alarms, timeout)
            self._draining = asyncio.create_task(work, name="plait drain")
        return self._draining

    async def stop(self, timeout: float) -> None:
        """Drain, then stop every thread with `on_stop`, including threads that are still waking."""
        await self.drain(timeout)
        self._loop = None
        await self.moving.stop()
        await self._sweeper.stop()
        await self._lifecycle.stop_all(timeout)
        self._sweeper.forget()
        while self._host.services:
            self._host.services.popitem()[1].close()
        self._leave_tasks()

    # Inside

    async def _wake_due(self, key: ThreadKey) -> bool:
        """Wake a thread that is due, or destroy it if it has expired; return whether it is still due.

        Raises the errors of `actor` and `destroy`.
        """
        try:
            seconds = self.kind(key.kind).expires_after
            if seconds is not None and await self._endings.expire(key, seconds):
                return False
            await self.actor(key, is_used=False, creates=False)
        except Missing:
            return False
        return True

    def _is_up(self, key: ThreadKey) -> bool:
        """Whether a thread is awake, about to be, or about to tell the alarms when it is due."""
        slot = self._threads.find(key)
        return slot.has_woken or slot.phase is Phase.WAKING

    def _check_serving(self) -> None:
        if not self.may_begin:
            raise Unavailable(SHUTTING_DOWN if self._draining else _NOT_RUNNING)

    def _wake(self, slot: Slot, waking: Waking) -> None:
        key = slot.key
        # Threads that plait itself uses may be woken until the end of a shutdown, as running work needs them.
        if key.kind in self.kinds or self._loop is None:
            self._check_serving()
        kind = self.find_any_kind(key.kind)
        self._owners.check(key)
        if self._threads.count >= self.limits.awake_threads:
            many = f"{self.limits.awake_threads} threads are awake, which is the limit; try again later"
            raise TooMany(many, limit="awake_threads")
        self._lifecycle.wake(slot, kind, waking)

    def _make_host(self, timer_interval: float) -> ActorHost:
        return ActorHost(
            store=self._store,
            limits=self.limits,
            failures=self.failures,
            instruments=self.instruments,
            runs=self._runs,
            make_handle=self.handle,
            find_class=lambda kind: self.kind(kind).cls,
            destroy=self.destroy,
            drop=self._lifecycle.drop,
            watch=self._sweeper.watch,
            process="",
            suspects=asyncio.Lock(),
            services={},
            timer_interval=timer_interval,
        )

    def _make_actor(self, key: ThreadKey, kind: Kind, stored: StoredThread | None, fence: int) -> Actor:
        # Listeners of the app get no events of threads that plait itself uses.
        events = self._runs.events if key.kind in self.kinds else Events()
        actor = Actor(key, kind, stored, self._host, events, fence=fence)
        if kind.cls.listed:
            actor.state.on_listed = lambda is_seen: self.watchers.tell(key.kind, actor.state.history.user, is_seen)
        if stored is None and key.kind in self.kinds:
            history = actor.state.history
            history.set_owner(find_user(key.name))
            history.find_user = find_calling_user
        return actor


def _make_missing(key: ThreadKey) -> NotFound:
    return NotFound(f"there is no thread {key}")


def _find_in_call_chain(key: ThreadKey) -> Actor | None:
    """Return the thread `key` if the calling turn, or a turn that waits for it, runs in that thread."""
    if (turn := current_turn()) is None:
        return None
    found = (find_actor(each) for each in turn.chain() if each.is_running and each.actor.key == key)
    return next((actor for actor in found if actor is not None), None)
