"""Wakes and stops threads: does the work of most phases in `threads`."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from plait.actor.actor import MARK, Actor
from plait.actor.kind import Kind
from plait.actor.logs import about, log_error
from plait.cluster.owners import Owners
from plait.errors import (
    CorruptThread,
    Destroyed,
    Fenced,
    Indeterminate,
    MigrationFailed,
    NewerState,
    NotFound,
    PlaitError,
    StoreError,
    Unavailable,
    operator_message,
)
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.alarms import Alarms
from plait.node.threads import SHUTTING_DOWN, Phase, Slot, ThreadTable, start_task
from plait.node.watchers import Watchers
from plait.parts.part import PartRanges, find_ranges, load_parts
from plait.state.migrations import explain_lost, find_lost, migrate_state, store_migrated
from plait.store.deletion import delete_thread
from plait.store.protocol import Store, StoredThread, ThreadHeader, Write
from plait.store.thread_rows import INCOMPLETE, RecordRange, ThreadKey

__all__ = ["Lifecycle", "Missing", "Waking"]

log = logging.getLogger("plait.node")

T = TypeVar("T")

_MAY_BE_LOST: Final = Unavailable("the store may have lost changes")


MakeActor = Callable[[ThreadKey, Kind, StoredThread | None, int], Actor]
"""Makes the actor of a thread from its stored data and the number of its owner."""


class Missing(NotFound):
    """The thread is not stored, and must not be created."""


class Waking(NamedTuple):
    """The reason for waking a thread: whether it is used or only read, the user, and whether it may be created.

    `prepare` is called for a new thread, before `on_start`.
    """

    is_used: bool
    creates: bool
    user: str | None
    prepare: Callable[[Actor], None] | None


class Lifecycle:
    """Wakes, stops and drops the threads of a table, each in a task that the table keeps."""

    def __init__(
        self,
        store: Store,
        make_actor: MakeActor,
        alarms: Alarms,
        instruments: Instruments,
        owners: Owners,
    ) -> None:
        self.owners = owners
        self.threads = ThreadTable(self._on_asleep)
        # Told when a listed thread of a user has changed.
        self.watchers = Watchers()
        # Whether the server is shutting down: waking threads get no sockets, and no thread expires.
        self.is_draining = False
        self._store = store
        self.make_actor = make_actor
        self._alarms = alarms
        self._instruments = instruments
        # The parts of each kind, and the records with which its threads are loaded, after one of them has woken.
        self._parts: dict[str, tuple[PartRanges, Sequence[RecordRange]]] = {}
        # How often all claims have ended at once.
        self._losses = 0
        # The kinds for which a warning about lost members of a state was logged.
        self._lossy: set[str] = set()

    def _on_asleep(self, slot: Slot) -> None:
        self._store.release(slot.key, slot.fence)
        if slot.has_woken:
            self._instruments.slept(slot.key.kind)
            if slot.actor is not None:
                self.tell_alarms(slot.actor)
        if slot.actor is not None:
            for part, _ in self._find_parts(slot.actor.kind)[0]:
                part.unload(slot.actor)

    # Waking

    def wake(self, slot: Slot, kind: Kind, waking: Waking) -> None:
        """Begin to wake a sleeping thread; the task raises Missing if it is not stored and may not be created."""
        self.threads.begin(slot, Phase.WAKING, start_task(self._wake(slot, kind, waking), f"wake {slot.key}"))

    async def _wake(self, slot: Slot, kind: Kind, waking: Waking) -> None:
        began, losses = time.perf_counter(), self._losses
        actor = await self._claim_and_load(slot, kind)
        if not waking.creates and not actor.state.is_stored:
            actor.abort()
            raise Missing(f"there is no thread {slot.key}")
        await self.start(slot, actor, user=waking.user, prepare=waking.prepare)
        if losses != self._losses:  # The loaded data may have been lost.
            actor.abort()
            raise StoreError(f"{slot.key} must be loaded again: {_MAY_BE_LOST}")
        if self.is_draining:
            actor.sockets.close(Unavailable(SHUTTING_DOWN))
        actor.usage.renew(is_used=waking.is_used)
        self._instruments.woke(kind.name, time.perf_counter() - began)
        self.threads.set_awake(slot)
        if not self.is_draining:
            actor.timer.start()

    async def _claim_and_load(self, slot: Slot, kind: Kind) -> Actor:
        """Become the owner of a thread, and make its actor. Raises StoreError."""
        with telling_store_errors(self._instruments), _logging_damage(slot.key):
            slot.fence, stored = await self._store.claim_and_load(slot.key, records=self._find_parts(kind)[1])
            return await self._make(slot, kind, stored)

    async def load(self, slot: Slot, kind: Kind) -> Actor:
        """Make the actor of a thread that is already claimed, without using it. Raises StoreError."""
        with telling_store_errors(self._instruments), _logging_damage(slot.key):
            stored = await self._store.load(slot.key, records=self._find_parts(kind)[1])
            return await self._make(slot, kind, stored)

    async def _make(self, slot: Slot, kind: Kind, stored: StoredThread | None) -> Actor:
        """Make the actor of a stored or new thread. Raises StoreError."""
        key, fence = slot.key, slot.fence
        parts, _ = self._find_parts(kind)
        if stored is not None and stored.due == INCOMPLETE and slot.phase is not Phase.FILLING:
            # Left by an import or a fork that failed and could not clean up.
            await self.delete(slot, ThreadHeader(stored.epoch, stored.version))
            stored = None
        migrated = None
        if stored is not None and stored.state_version != kind.state_version:
            migrated = migrate_state(key, kind, stored)
        await self.owners.record_version(key, kind.state_version)
        if stored is not None and migrated is not None:
            version = kind.state_version
            stored = await store_migrated(self._store, key, stored, migrated, state_version=version, fence=fence)
        actor = slot.actor = self.make_actor(key, kind, stored, fence)
        if stored is not None:
            actor.load(stored.records[0])
        if parts:
            await load_parts(parts, actor, () if stored is None else stored.records[1:])
        actor.state.timer = actor.timer
        if stored is not None and kind.name not in self._lossy and not actor.state.durable.is_stored:
            self._warn_of_losses(key, kind, stored)
        return actor

    async def delete(self, slot: Slot, found: ThreadHeader) -> None:
        """Delete all stored data of a claimed thread. Raises StoreError."""
        await delete_thread(self._store, slot.key, found, fence=slot.fence)
        self.watchers.tell(slot.key.kind, found.user)

    def _find_parts(self, kind: Kind) -> tuple[PartRanges, Sequence[RecordRange]]:
        if (found := self._parts.get(kind.name)) is None:
            parts = find_ranges(kind.cls)
            found = self._parts[kind.name] = parts, [MARK, *(each for _, ranges in parts for each in ranges)]
        return found

    async def claim(self, slot: Slot) -> None:
        """Become the owner of a thread. Raises StoreError."""
        with telling_store_errors(self._instruments):
            slot.fence = await self._store.claim(slot.key)

    def _warn_of_losses(self, key: ThreadKey, kind: Kind, stored: StoredThread) -> None:
        """Log once for each kind if its type lacks members of a stored state, as a field was renamed or removed."""
        if lost := find_lost(key, kind, stored):
            self._lossy.add(kind.name)
            log.warning("%s; other threads of the kind may, too", explain_lost(key, lost), extra=about(key))

    async def start(
        self, slot: Slot, actor: Actor, *, user: str | None = None, prepare: Callable[[Actor], None] | None = None
    ) -> None:
        """Run `on_start`, after `prepare`; for a new thread on behalf of its creator `user`.

        Raises the exception of `on_start`, or Destroyed if `on_start` has destroyed the thread.
        """
        try:
            try:
                await actor.start(user, prepare)
            finally:
                if (lost := actor.state.lost) is not None:  # `on_start` may not have waited for the write.
                    raise lost
        except BaseException as error:
            if not actor.is_ending:
                actor.abort()
            if isinstance(error, PlaitError):  # Other errors are logged by the caller that answers the client.
                log_error(error, slot.key, None)
            raise
        finally:
            if len(slot.tasks) > 1:
                await asyncio.wait(slot.tasks[1:])  # The thread is being destroyed.
        if actor.is_ending:
            raise Destroyed(f"{slot.key} was destroyed")

    # Stopping

    def stop(self, actor: Actor) -> None:
        """Begin to stop a thread that is awake, with `on_stop`."""
        slot = self.threads.find(actor.key)
        self.threads.begin(slot, Phase.STOPPING, start_task(actor.stop(), f"stop {actor.key}"))

    async def stop_all(self, timeout: float) -> None:
        """Stop each awake or waking thread, and wait for all tasks; cancel late tasks."""
        for slot in self.threads.slots():
            if slot.tasks:  # It is waking, or has callers that have not resumed: their turns run first.
                slot.tasks[0].add_done_callback(partial(self._stop_awake, slot))
            else:
                self._stop_awake(slot)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while tasks := self.threads.tasks:
            _, late = await asyncio.wait(tasks, timeout=max(deadline - loop.time(), 0))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _stop_awake(self, slot: Slot, _: object = None) -> None:
        if slot.phase is Phase.AWAKE and slot.actor is not None:
            self.stop(slot.actor)

    def tell_alarms(self, actor: Actor) -> None:
        """Tell the alarms when a sleeping thread is due."""
        timer, due, is_lost = actor.timer, actor.state.due, actor.state.lost is not None
        if actor.is_ending:
            due = 0
        elif due is None or is_lost:
            due = timer.due or 0
        if due & 1:  # The thread expires before it has work.
            wakes_at = due
        elif actor.is_ending or is_lost:  # The thread has no work, or its stored data is not known.
            wakes_at = 0
        else:
            wakes_at = timer.wakes_at
        self._alarms.tell(actor.key, due=due, wakes_at=wakes_at)

    async def store_due(self, slot: Slot, found: ThreadHeader, due: int) -> None:
        """Store the time at which a claimed thread that is not awake expires. Raises StoreError."""
        await self._store.submit(Write(slot.key, found.epoch, found.version, found.version, fence=slot.fence, due=due))
        self._alarms.tell(slot.key, due=due, wakes_at=due)

    def drop(self, actor: Actor, error: StoreError) -> None:
        """Close the sockets and refuse the changes of a thread with an unknown durable state, to load it again."""
        if isinstance(error, Fenced):
            log.error("another process has written this thread; it is stopped here", extra=about(actor.key))
            reason = "the thread has moved"
        else:
            log.error("%s; the thread is loaded again", operator_message(error), extra=about(actor.key))
            is_in_doubt = isinstance(error, Indeterminate)
            reason = "it is not known whether a change was stored" if is_in_doubt else "the store has failed"
        self.evict(actor, Unavailable(reason))
        self._store.release(actor.key, actor.state.history.fence)

    def drop_all(self, error: PlaitError = _MAY_BE_LOST) -> None:
        """Drop all threads, as this node no longer owns them, or the store may have lost durable changes."""
        self._losses += 1
        for actor in self.threads.actors(*Phase):
            self.evict(actor, error)

    def evict(self, actor: Actor, error: PlaitError) -> None:
        """Close the sockets, cancel the turns, and refuse the changes of a thread; it then goes to sleep."""
        slot = self.threads.find(actor.key)
        is_awake = slot.phase is Phase.AWAKE and slot.actor is actor
        actor.drop(error, is_awake=is_awake)
        if is_awake:  # In other phases, the task that wakes, stops or destroys it continues.
            self.threads.begin(slot, Phase.STOPPING, start_task(actor.finish(), f"stop {actor.key}"))


@contextmanager
def _logging_damage(key: ThreadKey) -> Iterator[None]:
    """Log the error if a stored thread cannot be loaded."""
    try:
        yield
    except (CorruptThread, MigrationFailed, NewerState) as error:
        log.error("%s", operator_message(error), exc_info=error.__cause__, extra=about(key))
        raise
