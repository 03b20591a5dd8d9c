"""The end of threads for good, each in a task of its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.kind import Kind
from plait.actor.logs import about
from plait.actor.mailbox import Cause, Turn
from plait.errors import CorruptThread, Destroyed, Indeterminate, MigrationFailed, NewerState, Unavailable
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.store.deletion import delete_thread
from plait.store.protocol import Store, ThreadKey, Write

__all__ = ["SHUTTING_DOWN", "Endings", "wait_for"]

log = logging.getLogger("plait.node")

SHUTTING_DOWN: Final = "the server is shutting down"

T = TypeVar("T")

Load = Callable[[ThreadKey, Kind, int], Awaitable[Actor]]
"""Returns a thread as it is stored, given its kind and the number of its owner."""

Start = Callable[[Actor], Awaitable[None]]
"""Runs `on_start`; raises what that raises, and Destroyed if it has ended the thread."""


class Endings:
    """Destroys threads, and owns those that are being destroyed, or were while turns ran."""

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        store: Store,
        load: Load,
        start: Start,
        *,
        instruments: Instruments,
        events: Events,
        on_begin: Callable[[Actor], None],
    ) -> None:
        self._kinds = kinds
        self._store = store
        # Wake a thread that is asleep, for its `on_destroyed`.
        self._load = load
        self._start = start
        # Called when a thread begins to end: nobody may find it any more.
        self._on_begin = on_begin
        self._instruments = instruments
        self._events = events
        # The tasks that those wait for who need such a thread.
        self._by_key: dict[ThreadKey, asyncio.Task[Any]] = {}
        # The tasks that destroy threads, and those that wait for their last turns. A node that stops waits for them.
        self.tasks: set[asyncio.Task[Any]] = set()
        # The threads, until their last turns have ended.
        self.actors: set[Actor] = set()

    def get(self, key: ThreadKey) -> asyncio.Task[Any] | None:
        """Return the task that works on the end of a thread, if there is one."""
        return self._by_key.get(key)

    def begin(self, actor: Actor, callers: Sequence[Turn]) -> asyncio.Future[None]:
        """Destroy a thread in whose turn this is called; return a future of the outcome."""
        self._on_begin(actor)
        self.actors.add(actor)
        return asyncio.shield(self._track(actor.key, self._end(actor, callers)))

    async def end_asleep(self, key: ThreadKey, cause: Cause, *, idle_until: int | None = None) -> bool:
        """Destroy a thread that is asleep, with `idle_until` one that is idle since then; return whether it was.

        Raises what `Node.destroy` does.
        """
        ending = self._track(key, self._end_asleep(key, cause, idle_until))
        if (turn := cause.parent) is not None:
            turn.expect_change()
            ending.add_done_callback(lambda _: turn.decide_change(may_be_stored=_may_be_deleted(ending)))
        return await wait_for(ending)

    async def mark_asleep(self, key: ThreadKey) -> None:
        """Store that a thread that is asleep is idle from now on, if that is not stored. Raises StoreError."""
        await wait_for(self._track(key, self._mark_asleep(key)))

    # Inside

    def _track(self, key: ThreadKey, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._by_key[key] = self._keep(work, f"destroy {key}")
        task.add_done_callback(partial(self._on_tracked, key))
        return task

    def _keep(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        # An empty context: what runs as a thread ends must not count as caused by the turn that was running.
        task = asyncio.create_task(work, name=name, context=Context())
        self.tasks.add(task)
        task.add_done_callback(self._on_kept)
        return task

    def _on_tracked(self, key: ThreadKey, task: asyncio.Task[Any]) -> None:
        if self._by_key.get(key) is task:  # The end of a thread that was woken for it has a task of its own.
            del self._by_key[key]

    def _on_kept(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # It is nobody's if the caller has been cancelled.

    async def _end(self, actor: Actor, callers: Sequence[Turn]) -> None:
        try:
            await actor.end(callers)
        finally:
            self._store.release(actor.key, actor.pipeline.history.fence)
            # The next thread of this name may begin before.
            finishing = self._keep(actor.finish(), f"last turns of {actor.key}")
            finishing.add_done_callback(lambda _: self.actors.discard(actor))

    async def _end_asleep(self, key: ThreadKey, cause: Cause, idle_until: int | None) -> bool:
        with telling_store_errors(self._instruments):
            fence = await self._store.claim(key)
        try:
            with telling_store_errors(self._instruments):
                found = await self._store.find(key)
            if found is None:
                return False
            if idle_until is not None and (found.idle_since is None or found.idle_since > idle_until):
                return False
            kind = self._kinds.get(key.kind)
            if kind is not None and ("on_destroyed" in kind.overrides or self._events.has("thread.destroyed")):
                try:
                    actor = await self._load(key, kind, fence)
                except (CorruptThread, MigrationFailed, NewerState):
                    log.warning("it is destroyed without on_destroyed, as it cannot be loaded", extra=about(key))
                else:
                    await self._end_loaded(actor, cause)
                    return True
            with telling_store_errors(self._instruments):
                await delete_thread(self._store, key, found, fence=fence)
            return True
        finally:
            self._store.release(key, fence)

    async def _end_loaded(self, actor: Actor, cause: Cause) -> None:
        self.actors.add(actor)
        try:
            await self._start(actor)
            await actor.end_in_turn(partial(self.begin, actor), cause)
        except Destroyed:
            if not actor.is_ending:  # It is of another thread, which `on_start` has called.
                raise
        finally:
            if not actor.is_ending:
                self.actors.discard(actor)
                actor.abort()

    async def _mark_asleep(self, key: ThreadKey) -> None:
        with telling_store_errors(self._instruments):
            fence = await self._store.claim(key)
            try:
                found = await self._store.find(key)
                if found is not None and found.idle_since is None:
                    now, version = time.time_ns() // 1000, found.version
                    await self._store.submit(Write(key, found.epoch, version, version, fence=fence, idle_since=now))
            finally:
                self._store.release(key, fence)


def _may_be_deleted(ending: asyncio.Task[bool]) -> bool:
    if ending.cancelled():
        return True
    error = ending.exception()
    return ending.result() if error is None else isinstance(error, Indeterminate)


async def wait_for(task: asyncio.Task[T]) -> T:
    """Return the outcome of a task that goes on when its caller is cancelled. Raises Unavailable if it is cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Unavailable(SHUTTING_DOWN) from None
        raise
