"""The threads that are awake in this process: waking, going to sleep, and the end of the process."""

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context
from typing import Any

from plait.actor.actor import Actor
from plait.actor.kind import Kind, check_name
from plait.actor.logs import about, log_error
from plait.actor.mailbox import current_turn
from plait.actor.thread import Thread
from plait.errors import (
    CorruptThread,
    MigrationFailed,
    NewerState,
    NotFound,
    PlaitError,
    TooMany,
    Unavailable,
    operator_message,
)
from plait.limits import Limits
from plait.node.handle import Handle
from plait.state.migrations import bring_up
from plait.store.protocol import Store, ThreadKey
from plait_schemas.codes import GOING_AWAY

__all__ = ["Node"]

log = logging.getLogger("plait.node")

_SWEEP_INTERVAL = 0.5
_SWEEP_BATCH = 1000


class Node:
    """Wakes threads on first use and stops them when they are idle."""

    def __init__(
        self, kinds: Iterable[Kind], store: Store, limits: Limits, *, sweep_interval: float = _SWEEP_INTERVAL
    ) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.limits = limits
        self._store = store
        self._sweep_interval = sweep_interval
        self._actors: dict[ThreadKey, Actor] = {}
        # Threads on their way up or down; whoever wants one waits for its task. One that is up stays in `_waking`
        # until those who wait are told, and is not stopped before.
        self._waking: dict[ThreadKey, asyncio.Task[Actor]] = {}
        self._stopping: dict[ThreadKey, asyncio.Task[None]] = {}
        # Those whose `on_start` or `on_stop` runs.
        self._changing: set[Actor] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether threads may be woken."""
        return self._sweeper is not None and self._draining is None

    def start(self) -> None:
        """Begin to look for idle threads and turns that run too long."""
        self._draining = None
        self._sweeper = asyncio.create_task(self._sweep(), name="plait sweeper")

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
        """Return a handle to a thread, which need not be awake. Raises NotFound and TypeError."""
        if not (isinstance(thread, type) and issubclass(thread, Thread)):
            raise TypeError(f"a thread is named by its class, not by {thread!r}")
        kind = thread._kind
        if self.kinds.get(kind.name) is not kind:
            raise NotFound(f"{thread.__name__} is not one of the classes that this Plait was made with")
        return Handle(self, kind, ThreadKey(kind.name, check_name(name)))

    def awake(self, key: ThreadKey) -> Actor | None:
        """Return a thread if it is awake."""
        actor = self._actors.get(key)
        if actor is not None:
            actor.touch()
        return actor

    async def actor(self, key: ThreadKey) -> Actor:
        """Return a thread, awake. What is to be done with it must be begun before anything else is awaited.

        Raises NotFound, CorruptThread, StoreError, Unavailable, TooMany, or what `on_start` raised.
        """
        while True:
            if (actor := self.awake(key) or _held(key)) is not None:
                return actor
            if (stopping := self._stopping.get(key)) is not None:
                await asyncio.wait([stopping])
                continue
            waking = self._waking.get(key)
            if waking is None:
                if not self.is_serving:
                    raise Unavailable(_ENDING if self._draining else _NOT_RUNNING)
                kind = self.kind(key.kind)
                if len(self._actors) + len(self._waking) >= self.limits.awake_threads:
                    raise TooMany(f"{self.limits.awake_threads} threads are awake, which is the limit; try again later")
                # What the thread begins when it is made is not caused by whoever happens to wake it.
                wake = asyncio.create_task(self._wake(key, kind), name=f"wake {key}", context=Context())
                waking = self._waking[key] = wake
                waking.add_done_callback(lambda _: self._waking.pop(key))
            try:
                return await asyncio.shield(waking)
            except asyncio.CancelledError:
                if waking.cancelled():
                    raise Unavailable(_ENDING) from None
                raise

    def drain(self, timeout: float) -> asyncio.Task[None]:
        """Take no new threads or sockets, finish turns and commits for `timeout` seconds, then close the sockets."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(timeout), name="plait drain")
        return self._draining

    async def stop(self, timeout: float) -> None:
        """Stop every thread, those that are only waking too, each with `on_stop`, and end."""
        await self.drain(timeout)
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
            self._sweeper = None
        for actor in self.actors:
            if actor.key not in self._waking:
                self._begin_to_stop(actor)
        for waking in self._waking.values():
            waking.add_done_callback(self._stop_awakened)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while ending := [*self._waking.values(), *self._stopping.values()]:
            _, late = await asyncio.wait(ending, timeout=max(deadline - loop.time(), 0))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _drain(self, timeout: float) -> None:
        actors = self.actors
        for actor in actors:
            actor.connections.close(_ENDING)
            for connection in actor.connections:
                connection.stop_reading()
        try:
            async with asyncio.timeout(timeout):
                for actor in actors:
                    await actor.settled()
        except TimeoutError:
            log.warning("some turns had not ended after %g s and are given up", timeout)
            for actor in actors:
                actor.give_up()
        for actor in actors:
            for connection in actor.connections:
                connection.leave(GOING_AWAY, _ENDING)

    async def _wake(self, key: ThreadKey, kind: Kind) -> Actor:
        try:
            stored = await self._store.load(key)
            if stored is not None:
                stored = await bring_up(self._store, key, kind, stored)
            actor = Actor(
                key,
                kind,
                stored,
                self._store,
                self.limits,
                peer=self.handle,
                fenced=self._fenced,
            )
        except (CorruptThread, MigrationFailed, NewerState) as error:
            log.error("%s", operator_message(error), exc_info=error.__cause__, extra=about(key))
            raise
        self._changing.add(actor)
        try:
            await actor.start()
        except BaseException as error:
            actor.abort()
            if isinstance(error, PlaitError):  # Anything else is logged by who answers.
                log_error(error, key, None)
            raise
        finally:
            self._changing.discard(actor)
        if not self.is_serving:
            actor.connections.close(_ENDING)
        self._actors[key] = actor
        return actor

    def _begin_to_stop(self, actor: Actor) -> asyncio.Task[None]:
        self._actors.pop(actor.key, None)
        self._changing.add(actor)
        task = self._stopping[actor.key] = asyncio.create_task(actor.stop(), name=f"stop {actor.key}")
        task.add_done_callback(lambda _: self._stopped(actor))
        return task

    def _stop_awakened(self, waking: asyncio.Task[Actor]) -> None:
        """Stop a thread that has woken; the turns of those who have waited for it come first."""
        if not waking.cancelled() and waking.exception() is None:
            self._begin_to_stop(waking.result())

    def _stopped(self, actor: Actor) -> None:
        del self._stopping[actor.key]
        self._changing.discard(actor)

    def _fenced(self, actor: Actor) -> None:
        log.error("somebody else has written this thread; it is dropped here", extra=about(actor.key))
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]
        actor.drop("the thread has moved")

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_interval)
            for index, actor in enumerate([*self._actors.values(), *self._changing]):
                if index % _SWEEP_BATCH == _SWEEP_BATCH - 1:
                    await asyncio.sleep(0)
                is_idle = actor.sweep(loop.time())
                if is_idle and self._actors.get(actor.key) is actor and actor.key not in self._waking:
                    self._begin_to_stop(actor)


_ENDING = "the server is shutting down"

_NOT_RUNNING = (
    "plait is not running: serve it with `plait serve`, or give its lifespan to the app that it is mounted in, "
    "or enter it with `async with app:`"
)


def _held(key: ThreadKey) -> Actor | None:
    """Return the thread `key` if the calling turn, or one that waits for it, is one of its own."""
    turn = current_turn()
    while turn is not None:
        if turn.is_running and turn.owner.key == key:
            actor: Actor = turn.owner
            return actor
        turn = turn.parent
    return None
