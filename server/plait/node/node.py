"""The awake threads of this process: waking, going to sleep, and shutdown."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextvars import Context
from functools import partial
from typing import Any

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.kind import Kind, check_name
from plait.actor.logs import Failures, about, log_error
from plait.actor.mailbox import Cause, current_turn, find_client_turn
from plait.actor.thread import Thread, check_may_write
from plait.actor.turns import find_trace
from plait.agents.runs import Runs
from plait.errors import (
    Destroyed,
    Fenced,
    Indeterminate,
    NotFound,
    PlaitError,
    StoreError,
    TooMany,
    Unavailable,
    operator_message,
)
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, telling_store_errors
from plait.limits import Limits
from plait.node.arrivals import Arrivals
from plait.node.draining import drain_threads
from plait.node.ending import SHUTTING_DOWN, Endings
from plait.node.expiry import Expiry
from plait.node.handle import Handle
from plait.node.loading import Loader
from plait.node.stopping import Stops
from plait.node.sweeping import Sweeper
from plait.store.protocol import Store, ThreadKey

__all__ = ["Node"]

log = logging.getLogger("plait.node")

_SWEEP_INTERVAL = 0.5
_SWEEP_BATCH = 1000
_EXPIRY_INTERVAL = 30.0


class Node:
    """Wakes threads when they are used, and stops them when they are idle."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        store: Store,
        limits: Limits,
        *,
        inner_kinds: Iterable[Kind] = (),
        runs: Runs | None = None,
        instruments: Instruments = NO_INSTRUMENTS,
        sweep_interval: float = _SWEEP_INTERVAL,
        expiry_interval: float = _EXPIRY_INTERVAL,
    ) -> None:
        # Those that clients may address, and with them those of plait's own.
        self.kinds = {kind.name: kind for kind in kinds}
        self._all_kinds = self.kinds | {kind.name: kind for kind in inner_kinds}
        self._runs = runs or Runs(Events())
        self.limits = limits
        self.instruments = instruments
        self.failures = Failures()
        self._store = store
        self._sweep_interval = sweep_interval
        self._actors: dict[ThreadKey, Actor] = {}
        self._sweeper = Sweeper(self._actors)
        # The tasks of threads that are waking; callers that need such a thread wait for its task. A thread stays here
        # until its waiting callers have resumed, and is not stopped before.
        self._waking: dict[ThreadKey, asyncio.Task[Actor]] = {}
        self._arrivals = Arrivals()
        # Threads whose `on_start` runs.
        self._starting: set[Actor] = set()
        self._expiry = Expiry(self._all_kinds.values(), store, self._expire, self._rest, interval=expiry_interval)
        self._loader = Loader(
            store,
            self._expiry,
            limits,
            make_handle=self.handle,
            destroy=self.destroy,
            on_lost=self._on_lost,
            active=self._sweeper.active,
            failures=self.failures,
            public_kinds=self.kinds,
            events=self._runs.events,
            instruments=instruments,
        )
        # The threads that are being stopped or destroyed, which those that need such a thread wait for, too.
        self._stops = Stops(store, self._expiry, instruments)
        self._endings = Endings(
            self._all_kinds,
            store,
            partial(self._loader.load, is_used=False),
            self._start,
            instruments=instruments,
            events=self._runs.events,
            on_begin=self._forget,
        )
        self._sweeping: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether threads may be woken."""
        return self._sweeping is not None and self._draining is None

    def check_draining(self) -> None:
        """Raise Unavailable when the server is shutting down."""
        if self._draining is not None:
            raise Unavailable(SHUTTING_DOWN)

    def start(self) -> None:
        """Begin to stop idle threads, and to cancel turns that run too long."""
        self._draining = None
        self._runs.start()
        self._sweeping = asyncio.create_task(self._sweep(), name="plait sweeper")
        self._expiry.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which the threads run. Raises RuntimeError while they do not."""
        if self._sweeping is None:
            raise RuntimeError("the app does not run")
        return self._sweeping.get_loop()

    @property
    def actors(self) -> list[Actor]:
        """The threads that are awake."""
        return list(self._actors.values())

    def kind(self, name: str) -> Kind:
        """Return a kind by its name in URLs. Raises NotFound."""
        kind = self.kinds.get(name)
        if kind is None:
            raise NotFound(f"there is no kind of thread called {name!r}; there are: {', '.join(sorted(self.kinds))}")
        return kind

    def handle(self, thread: type[Thread[Any]], name: str) -> Handle:
        """Return a handle to a thread, without waking it. Raises NotFound and TypeError."""
        if not (isinstance(thread, type) and issubclass(thread, Thread)):
            raise TypeError(f"the first argument must be a Thread class, not {thread!r}")
        kind = self.find_kind(thread)
        return Handle(self, kind, ThreadKey(kind.name, check_name(name)))

    def find_kind(self, thread: type[Thread[Any]]) -> Kind:
        """Return the kind of a class. Raises NotFound for a class that is not served."""
        kind = self._all_kinds.get(thread._kind.name)
        if kind is None or kind.cls is not thread:
            raise NotFound(f"{thread.__name__} is not one of the classes that were passed to Plait")
        return kind

    def get_awake(self, key: ThreadKey) -> Actor | None:
        """Return a thread if it is awake, and reset its idle timer."""
        actor = self._actors.get(key)
        if actor is not None:
            actor.touch()
        return actor

    async def actor(self, key: ThreadKey) -> Actor:
        """Return a thread, waking it if needed. Use it before awaiting anything else, or it may be stopped again.

        Raises NotFound, CorruptThread, StoreError, Unavailable, TooMany, or what `on_start` raised.
        """
        while True:
            if (actor := self.get_awake(key)) is not None:
                if not self._arrivals.has(key) or _find_in_call_chain(key) is actor:
                    return actor
                await self._arrivals.follow(key)
                if (actor := self.get_awake(key)) is not None:
                    return actor
                continue
            if (actor := _find_in_call_chain(key)) is not None:
                return actor
            if (leaving := self._endings.get(key) or self._stops.get(key)) is not None:
                await asyncio.wait([leaving])
                continue
            waking = self._waking.get(key)
            if waking is None:
                # The threads of plait's own are woken for everybody until the end, as they are used by what goes on.
                if key.kind in self.kinds or self._sweeping is None:
                    self._check_serving()
                kind = self._all_kinds.get(key.kind) or self.kind(key.kind)
                if len(self._actors) + len(self._waking) >= self.limits.awake_threads:
                    many = f"{self.limits.awake_threads} threads are awake, which is the limit; try again later"
                    raise TooMany(many, limit="awake_threads")
                # An empty context: what the thread starts must not count as caused by the turn that wakes it.
                wake = asyncio.create_task(self._wake(key, kind), name=f"wake {key}", context=Context())
                waking = self._waking[key] = wake
                waking.add_done_callback(lambda _: self._waking.pop(key))
            return await self._arrivals.wait(key, waking)

    async def is_stored(self, key: ThreadKey) -> bool:
        """Whether a thread is stored; none is woken for that. Raises NotFound for a kind, Unavailable, StoreError."""
        while (ending := self._endings.get(key)) is not None:
            await asyncio.wait([ending])
        if (actor := self._actors.get(key)) is not None:
            return actor.is_stored
        if key.kind not in self._all_kinds:
            self.kind(key.kind)
        self._check_serving()
        with telling_store_errors(self.instruments):
            return await self._store.find(key) is not None

    async def stored_actor(self, key: ThreadKey) -> Actor:
        """Return a thread that is stored, waking it if needed, as `actor` does. Raises NotFound for any other."""
        if not await self.is_stored(key) or not (actor := await self.actor(key)).is_stored:
            raise _make_missing(key)
        return actor

    async def destroy(self, key: ThreadKey, trace: Any = None) -> None:
        """End a thread for good; a thread that cannot be loaded is deleted without `on_destroyed`.

        `trace` is that of its cause, by default of what the calling code does.
        Raises Readonly, NotFound when it is neither stored nor awake, Unavailable, StoreError, and what `on_start`
        raises.
        """
        check_may_write(key)
        cause = Cause(current_turn(), find_client_turn(), trace or find_trace(self.instruments, "server"))
        while True:
            if (actor := self._actors.get(key) or _find_in_call_chain(key)) is not None:
                try:
                    await actor.end_in_turn(partial(self._endings.begin, actor), cause)
                except Destroyed:
                    raise _make_missing(key) from None
                return
            waiting = self._waking.get(key) or self._endings.get(key) or self._stops.get(key)
            if waiting is not None:
                await asyncio.wait([waiting])
                continue
            self._check_serving()
            if not await self._endings.end_asleep(key, cause):
                raise _make_missing(key)
            return

    def drain(self, timeout: float) -> asyncio.Task[None]:
        """Refuse new threads and sockets, give turns and changes `timeout` seconds to end, then close the sockets."""
        if self._draining is None:
            self._runs.refuse()
            work = drain_threads(self._actors, self._endings.actors, self._runs, timeout)
            self._draining = asyncio.create_task(work, name="plait drain")
        return self._draining

    async def stop(self, timeout: float) -> None:
        """Drain, then stop every thread with `on_stop`, including those that are still waking."""
        await self.drain(timeout)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
            self._sweeping = None
        await self._expiry.stop()
        for actor in self.actors:
            if actor.key not in self._waking:
                self._begin_to_stop(actor)
        for waking in self._waking.values():
            waking.add_done_callback(self._stop_awakened)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while ending := [*self._waking.values(), *self._stops.tasks, *self._endings.tasks]:
            _, late = await asyncio.wait(ending, timeout=max(deadline - loop.time(), 0))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._sweeper.active.clear()

    def _check_serving(self) -> None:
        if self.is_serving:
            return
        # Turns and runs that may still end as the server shuts down can use other threads for that.
        if self._sweeping is None or not self._runs.is_calling:
            raise Unavailable(SHUTTING_DOWN if self._draining else _NOT_RUNNING)

    async def _wake(self, key: ThreadKey, kind: Kind) -> Actor:
        began = time.perf_counter()
        with telling_store_errors(self.instruments):
            fence = await self._store.claim(key)
        try:
            actor = await self._loader.load(key, kind, fence, is_used=True)
            await self._start(actor)
        except BaseException:
            self._expiry.remember(key)  # It may be stored that it is awake.
            self._store.release(key, fence)
            raise
        if not self.is_serving:
            actor.connections.close(Unavailable(SHUTTING_DOWN))
        self._actors[key] = actor
        self._sweeper.active[actor] = None
        self.instruments.woke(key.kind, time.perf_counter() - began)
        return actor

    async def _start(self, actor: Actor) -> None:
        """Run `on_start`. Raises what that raises, and Destroyed if it has ended the thread; the end is waited for."""
        key = actor.key
        self._starting.add(actor)
        try:
            try:
                await actor.start()
            finally:
                if (lost := actor.pipeline.lost) is not None:  # `on_start` need not have waited for the write.
                    raise lost
        except BaseException as error:
            if not actor.is_ending:
                actor.abort()
            if isinstance(error, PlaitError):  # Other errors are logged by the caller that answers the client.
                log_error(error, key, None)
            raise
        finally:
            self._starting.discard(actor)
            if actor.is_ending and (ending := self._endings.get(key)) is not None:
                await asyncio.wait([ending])  # It still needs the ownership, which the caller gives up.
        if actor.is_ending:
            raise Destroyed(f"{key} was destroyed")

    def _begin_to_stop(self, actor: Actor) -> None:
        del self._actors[actor.key]
        self._stops.begin(actor)

    def _stop_awakened(self, waking: asyncio.Task[Actor]) -> None:
        """Stop a thread that has just woken; the turns of the callers that waited for it run first."""
        if not waking.cancelled() and waking.exception() is None:
            actor = waking.result()
            if self._actors.get(actor.key) is actor:
                self._begin_to_stop(actor)

    def _forget(self, actor: Actor) -> None:
        """Let nobody find a thread any more that begins to end."""
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]
            self.instruments.slept(actor.key.kind)

    async def _expire(self, key: ThreadKey, until: int) -> None:
        """Destroy a thread that is asleep and idle since a time or longer."""
        if self._is_asleep(key):
            await self._endings.end_asleep(key, Cause(), idle_until=until)

    async def _rest(self, key: ThreadKey) -> bool:
        """Store that a thread that is asleep is idle from now on, if that is not stored; False while that changes."""
        if key in self._waking or self._stops.get(key) is not None or self._endings.get(key) is not None:
            return False
        if self._is_asleep(key):
            await self._endings.mark_asleep(key)
        return True

    def _is_asleep(self, key: ThreadKey) -> bool:
        is_busy = self._stops.get(key) is not None or self._endings.get(key) is not None
        return self.is_serving and not is_busy and key not in self._actors and key not in self._waking

    def _on_lost(self, actor: Actor, error: StoreError) -> None:
        """Drop a thread whose state is no longer known here; the next use loads it again."""
        if isinstance(error, Fenced):
            log.error("another process has written this thread; it is stopped here", extra=about(actor.key))
            reason = "the thread has moved"
        else:
            log.error("%s; the thread is loaded again", operator_message(error), extra=about(actor.key))
            is_in_doubt = isinstance(error, Indeterminate)
            reason = "it is not known whether a change was stored" if is_in_doubt else "the store has failed"
        # Otherwise it is starting or stopping: that goes on, and those who want the thread wait for it.
        is_awake = self._actors.get(actor.key) is actor
        actor.drop(reason, is_awake=is_awake)
        if is_awake:
            del self._actors[actor.key]
            self._stops.begin_dropped(actor)
        self._store.release(actor.key, actor.pipeline.history.fence)
        self._expiry.remember(actor.key)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_interval)
            await self._look_at(self._sweeper.take(loop.time()))

    async def _look_at(self, actors: Iterable[Actor]) -> None:
        """Stop those of the threads that have been idle for long enough, and find out when to look at the others."""
        loop = asyncio.get_running_loop()
        for index, actor in enumerate(actors):
            if index % _SWEEP_BATCH == _SWEEP_BATCH - 1:
                await asyncio.sleep(0)
            due, key = actor.sweep(now := loop.time()), actor.key
            if self._actors.get(key) is not actor:
                continue
            if due > now:
                self._sweeper.put_off(actor, due)
            elif key in self._waking or self._arrivals.has(key):  # Callers are about to use it.
                self._sweeper.active[actor] = None
            else:
                self._begin_to_stop(actor)


_NOT_RUNNING = (
    "plait is not running: serve it with `plait serve`, pass its lifespan to the app that it is mounted in, "
    "or enter it with `async with app:`"
)


def _make_missing(key: ThreadKey) -> NotFound:
    return NotFound(f"there is no thread {key}")


def _find_in_call_chain(key: ThreadKey) -> Actor | None:
    """Return the thread `key` if the calling turn, or one that waits for it, runs in that thread."""
    turn = current_turn()
    while turn is not None:
        if turn.is_running and turn.owner.key == key:
            actor: Actor = turn.owner
            return actor
        turn = turn.parent
    return None
