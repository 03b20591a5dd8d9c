"""Wakes, stops and destroys threads: the work of the phases in `threads`."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace as replace_fields

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.kind import Kind
from plait.actor.logs import about, log_error
from plait.actor.termination import MARK as TERMINATED
from plait.actor.turn import Cause, Turn
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
from plait.node.expiry import Expiry
from plait.node.filling import Filling
from plait.node.threads import SHUTTING_DOWN, Phase, Slot, Threads, start_task
from plait.parts.part import Part, find_parts, find_ranges, is_timed, load_parts
from plait.state.migrations import explain_lost, find_lost, migrate_thread
from plait.store.deletion import delete_thread
from plait.store.protocol import INCOMPLETE, DueThread, RecordRange, Store, StoredThread, ThreadHeader, ThreadKey, Write

__all__ = ["Lifecycle", "Missing"]

log = logging.getLogger("plait.node")

T = TypeVar("T")

_MAY_BE_LOST: Final = Unavailable("the store may have lost changes")


MakeActor = Callable[[ThreadKey, Kind, StoredThread | None, int], Actor]
"""Makes the actor of a thread from its stored data and the number of its owner."""


class Missing(NotFound):
    """A thread is not stored, and must not be created."""


class Lifecycle:
    """Wakes, stops and destroys the threads of a table, each in a task that the table keeps."""

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        store: Store,
        make_actor: MakeActor,
        alarms: Alarms,
        *,
        events: Events,
        instruments: Instruments,
        owns: Callable[[ThreadKey], bool] = lambda key: True,
        is_first: Callable[[], bool] = lambda: True,
        expiry_interval: float,
    ) -> None:
        self.threads = Threads(self._on_asleep)
        self.expiry = Expiry(
            kinds.values(), store, self.expire, self.mark_idle, owns=owns, is_first=is_first, interval=expiry_interval
        )
        # Whether the server is shutting down: waking threads get no sockets, and no thread expires.
        self.is_draining = False
        self._kinds = kinds
        self._store = store
        self._make_actor = make_actor
        self._alarms = alarms
        self._events = events
        self._instruments = instruments
        self._owns = owns
        # The parts of each kind, after a thread of the kind has woken.
        self._parts: dict[str, Mapping[str, Part[Any]]] = {}
        # How often all claims have ended at once.
        self._losses = 0
        # The kinds for which a warning about lost members of a state was logged.
        self._lossy: set[str] = set()

    def _on_asleep(self, slot: Slot) -> None:
        self._store.release(slot.key, slot.fence)
        if slot.has_woken:
            self._instruments.slept(slot.key.kind)
            if slot.actor is not None:
                self._tell_alarms(slot.actor)

    # Waking

    def wake(self, slot: Slot, kind: Kind, *, is_used: bool, creates: bool) -> None:
        """Begin to wake a thread that is asleep, to use it or only to read it.

        Unless this `creates` a thread, the task raises Missing if none is stored.
        """
        task = start_task(self._wake(slot, kind, is_used=is_used, creates=creates), f"wake {slot.key}")
        self.threads.begin(slot, Phase.WAKING, task)

    async def _wake(self, slot: Slot, kind: Kind, *, is_used: bool, creates: bool) -> None:
        began, losses = time.perf_counter(), self._losses
        try:
            actor = await self._claim_and_load(slot, kind, is_used=is_used)
            if not creates and not actor.state.is_stored:
                actor.abort()
                raise Missing(f"there is no thread {slot.key}")
            await self._start(slot, actor)
            if losses != self._losses:  # What was loaded before may be lost.
                actor.abort()
                raise StoreError(f"{slot.key} must be loaded again: {_MAY_BE_LOST}")
        except BaseException:
            self.expiry.remember(slot.key)  # The store may have recorded that the thread is awake.
            raise
        if self.is_draining:
            actor.sockets.close(Unavailable(SHUTTING_DOWN))
        actor.touch()
        if not is_used and self.expiry.has(kind.name) and actor.state.is_stored:
            actor.on_used = partial(self._mark_used, actor)
        self._instruments.woke(kind.name, time.perf_counter() - began)
        self.threads.set_awake(slot)
        if not self.is_draining:
            actor.timer.start()

    async def _claim_and_load(self, slot: Slot, kind: Kind, *, is_used: bool) -> Actor:
        """Become the owner of a thread, and make its actor. Raises StoreError."""
        with telling_store_errors(self._instruments), _logging_damage(slot.key):
            slot.fence, stored = await self._store.claim_and_load(slot.key, records=self._find_ranges(kind))
        return await self._make(slot, kind, stored, is_used=is_used)

    async def _load(self, slot: Slot, kind: Kind) -> Actor:
        """Make the actor of a thread whose owner this is already, without using it. Raises StoreError."""
        with telling_store_errors(self._instruments), _logging_damage(slot.key):
            stored = await self._store.load(slot.key, records=self._find_ranges(kind))
        return await self._make(slot, kind, stored, is_used=False)

    async def _make(self, slot: Slot, kind: Kind, stored: StoredThread | None, *, is_used: bool) -> Actor:
        """Make the actor of a stored or new thread; if `is_used`, end its idle time. Raises StoreError."""
        key, fence, marks_use = slot.key, slot.fence, is_used and self.expiry.has(kind.name)
        with telling_store_errors(self._instruments), _logging_damage(key):
            if marks_use:
                await self.expiry.prepare()
            parts = self._find_parts(kind)
            if stored is not None and stored.due == INCOMPLETE and slot.phase is not Phase.FILLING:
                # It is what an import or a fork has left that failed and could not remove it.
                await self._delete(slot, ThreadHeader(stored.epoch, stored.version))
                stored = None
            if stored is not None:
                stored = await migrate_thread(self._store, key, kind, stored, fence=fence)
                if marks_use:
                    # When this is durable, a kill cannot make the thread expire as if it had not been used.
                    await self._store.submit(_mark(key, stored.epoch, stored.version, fence, idle_since=0))
            actor = slot.actor = self._make_actor(key, kind, stored, fence)
            if stored is None:
                await load_parts(parts, actor, ())
            else:
                actor.termination.load(stored.records[0])
                await load_parts(parts, actor, stored.records[1:])
        if stored is not None and kind.name not in self._lossy and not actor.state.durable.is_stored:
            self._warn_of_losses(key, kind, stored)
        return actor

    def _find_parts(self, kind: Kind) -> Mapping[str, Part[Any]]:
        if (found := self._parts.get(kind.name)) is None:
            found = self._parts[kind.name] = find_parts(kind.cls)
        return found

    def _find_ranges(self, kind: Kind) -> list[RecordRange]:
        """Return the records with which threads of a kind are loaded."""
        return [TERMINATED, *find_ranges(self._find_parts(kind))]

    async def _claim(self, slot: Slot) -> None:
        with telling_store_errors(self._instruments):
            slot.fence = await self._store.claim(slot.key)

    def _warn_of_losses(self, key: ThreadKey, kind: Kind, stored: StoredThread) -> None:
        """Log once for each kind that its type lacks members of a stored state: a field was renamed or removed."""
        if lost := find_lost(key, kind, stored):
            self._lossy.add(kind.name)
            log.warning("%s; other threads of the kind may, too", explain_lost(key, lost), extra=about(key))

    async def _start(self, slot: Slot, actor: Actor) -> None:
        """Run `on_start`. Raises what it raises, or Destroyed if it has destroyed the thread."""
        try:
            try:
                await actor.start()
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
        self.threads.begin(slot, Phase.STOPPING, start_task(self._stop(slot, actor), f"stop {actor.key}"))

    async def _stop(self, slot: Slot, actor: Actor) -> None:
        """Stop a thread; if it can expire, store its idle time.

        It does not expire before its scheduled work, which counts as a use. If the thread was only read, its stored
        idle time stays.
        """
        # Work that runs while it stops does not count as a use.
        was_used, actor.on_used = actor.on_used is None, None
        idle = asyncio.get_running_loop().time() - actor.last_used
        since = time.time_ns() // 1000 - int(idle * 1e6)
        await actor.stop()
        since = max(since, actor.timer.kept_until)
        if not self.expiry.has(actor.kind.name) or not actor.state.is_stored or actor.is_ending:
            return
        if not was_used:
            return
        mark = _mark(actor.key, actor.state.epoch, actor.state.durable.version, slot.fence, idle_since=since)
        try:
            with telling_store_errors(self._instruments):
                await self._store.submit(mark)
        except StoreError as error:
            log.warning("its idle time could not be stored: %s", operator_message(error), extra=about(actor.key))
            self.expiry.remember(actor.key)

    def _mark_used(self, actor: Actor) -> None:
        """Store that a thread that was only read is not idle, before anything that it is used for."""
        history = actor.state.history
        mark = _mark(actor.key, history.epoch, history.current.version, history.fence, idle_since=0)
        self._store.submit(mark).add_done_callback(partial(self._on_marked, actor.key))

    def _on_marked(self, key: ThreadKey, mark: asyncio.Future[int]) -> None:
        if mark.cancelled() or mark.exception() is not None:
            self.expiry.remember(key)

    def _tell_alarms(self, actor: Actor) -> None:
        """Tell when a thread that is asleep is due."""
        timer, due = actor.timer, actor.state.due
        if actor.is_ending:
            self._alarms.tell(actor.key, due=0, wakes_at=0)
        elif actor.state.lost is not None:  # Its due work is not known.
            self._alarms.tell(actor.key, due=timer.due or 0, wakes_at=0)
        else:
            self._alarms.tell(actor.key, due=(timer.due or 0) if due is None else due, wakes_at=timer.wakes_at)

    def drop(self, actor: Actor, error: StoreError) -> None:
        """Close the sockets and refuse the changes of a thread whose durable state is unknown, to load it again."""
        if isinstance(error, Fenced):
            log.error("another process has written this thread; it is stopped here", extra=about(actor.key))
            reason = "the thread has moved"
        else:
            log.error("%s; the thread is loaded again", operator_message(error), extra=about(actor.key))
            is_in_doubt = isinstance(error, Indeterminate)
            reason = "it is not known whether a change was stored" if is_in_doubt else "the store has failed"
        self.evict(actor, Unavailable(reason))
        self._store.release(actor.key, actor.state.history.fence)
        self.expiry.remember(actor.key)

    def drop_all(self, error: PlaitError = _MAY_BE_LOST) -> None:
        """Drop all threads, as they are no longer this node's, or the store may have lost durable changes."""
        self._losses += 1
        for actor in self.threads.actors(*Phase):
            self.evict(actor, error)
            self.expiry.remember(actor.key)

    def evict(self, actor: Actor, error: PlaitError) -> None:
        """Close the sockets, cancel the turns, and refuse the changes of a thread, which goes to sleep."""
        slot = self.threads.find(actor.key)
        is_awake = slot.phase is Phase.AWAKE and slot.actor is actor
        actor.drop(error, is_awake=is_awake)
        if is_awake:  # Otherwise the task that wakes, stops or destroys it continues.
            self.threads.begin(slot, Phase.STOPPING, start_task(actor.finish(), f"stop {actor.key}"))

    async def mark_idle(self, key: ThreadKey) -> bool:
        """Store that a sleeping thread is idle from now on, if no time is stored; return False if it is not asleep.

        Raises StoreError.
        """
        slot = self.threads.find(key)
        if slot.phase is Phase.ASLEEP and not self.is_draining:
            task = start_task(self._mark_idle(slot), f"mark {key} as idle")
            self.threads.begin(slot, Phase.STOPPING, task)
            await _wait_for(task)
            return True
        return slot.phase in (Phase.ASLEEP, Phase.AWAKE)

    async def _mark_idle(self, slot: Slot) -> None:
        await self._claim(slot)
        with telling_store_errors(self._instruments):
            found = await self._store.find(slot.key)
            if found is not None and found.idle_since is None:
                now = time.time_ns() // 1000
                await self._store.submit(_mark(slot.key, found.epoch, found.version, slot.fence, idle_since=now))

    # Filling

    async def remove_incomplete(self) -> None:
        """Delete what imports and forks have left that did not end before a crash, in threads that this node owns."""
        after: DueThread | None = None
        try:
            while found := await self._store.due_threads(until=INCOMPLETE, after=after):
                slots = [self.threads.find(each.key) for each in found if self._owns(each.key)]
                # Others are being imported or forked now.
                asleep = [slot for slot in slots if slot.phase is Phase.ASLEEP]
                await asyncio.gather(*map(self._begin_removal, asleep))
                after = found[-1]
        except StoreError as error:
            log.warning("what is left of imports and forks could not be removed: %s", operator_message(error))

    async def _begin_removal(self, slot: Slot) -> None:
        task = start_task(self._remove_incomplete(slot), f"remove {slot.key}")
        self.threads.begin(slot, Phase.STOPPING, task)
        await _wait_for(task)

    async def _remove_incomplete(self, slot: Slot) -> None:
        await self._claim(slot)
        found = await self._store.find(slot.key)
        if found is not None and found.due == INCOMPLETE:
            await self._delete(slot, found)

    async def fill(self, work: Filling, *, replace: bool) -> None:
        """Fill a thread that is asleep, instead of a stored one if that is asked for.

        Raises Conflict, Unavailable, what `Filling.write` raises, and CorruptThread if the records do not fit the parts
        of the class. It ends when its caller is cancelled.
        """
        slot = self.threads.find(work.key)
        task = start_task(self._fill(slot, work, replace=replace), f"fill {work.key}")
        self.threads.begin(slot, Phase.FILLING, task)
        try:
            actor = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable(SHUTTING_DOWN) from None
            task.cancel()
            raise
        self._tell_alarms(actor)

    async def _fill(self, slot: Slot, work: Filling, *, replace: bool) -> Actor:
        key = slot.key
        await self._claim(slot)
        with telling_store_errors(self._instruments):
            if (found := await self._store.find(key)) is not None:
                if not replace and found.due != INCOMPLETE:
                    raise work.conflict()
                await self._delete(slot, found)
            try:
                await work.write(self._store, slot.fence)
                actor = await self._load(slot, work.kind)
                records, version = work.finish(actor), actor.state.durable.version
                # Its parts tell when it is due, instead of the mark.
                due = actor.timer.due or 0
                last = Write(key, work.epoch, version, version, records=records, fence=slot.fence, due=due)
                if self.expiry.has(key.kind):
                    last = replace_fields(last, idle_since=time.time_ns() // 1000)
                await self._store.submit(last)
            except BaseException:
                with suppress(StoreError):  # It is removed when it is used, or at the next start.
                    if (found := await self._store.find(key)) is not None:
                        await self._delete(slot, found)
                raise
        actor.state.due = due
        return actor

    async def _delete(self, slot: Slot, found: ThreadHeader) -> None:
        await delete_thread(self._store, slot.key, found, fence=slot.fence)

    # Destroying

    def destroy(self, actor: Actor, callers: Sequence[Turn]) -> asyncio.Future[None]:
        """Begin to destroy a thread, in a turn of it; return a future of the outcome.

        Its `callers` are that turn and the turns that wait for it.
        """
        slot = self.threads.find(actor.key)
        if slot.actor is not actor:  # A cancelled turn may continue.
            raise Unavailable("the thread has been stopped")
        task = start_task(self._destroy(actor, callers), f"destroy {actor.key}")
        self.threads.begin(slot, Phase.ENDING, task)
        return asyncio.shield(task)

    async def _destroy(self, actor: Actor, callers: Sequence[Turn]) -> None:
        try:
            await actor.ending.run(callers)
        finally:
            self.threads.keep(actor)

    async def destroy_sleeping(self, key: ThreadKey, cause: Cause, *, idle_until: int | None = None) -> bool:
        """Destroy a sleeping thread, with `idle_until` only one idle since then, and return whether there was one.

        A thread that cannot be loaded is destroyed without `on_destroyed`. Raises what `Node.destroy` does.
        """
        slot = self.threads.find(key)
        task = start_task(self._destroy_sleeping(slot, cause, idle_until), f"destroy {key}")
        self.threads.begin(slot, Phase.ENDING, task)
        if (turn := cause.parent) is not None:
            turn.expect_change()
            task.add_done_callback(lambda _: turn.decide_change(may_be_stored=_may_be_deleted(task)))
        return await _wait_for(task)

    async def _destroy_sleeping(self, slot: Slot, cause: Cause, idle_until: int | None) -> bool:
        key, kind = slot.key, self._kinds.get(slot.key.kind)
        await self._claim(slot)
        with telling_store_errors(self._instruments):
            found = await self._store.find(key)
        if found is None:
            return False
        if idle_until is not None and (found.idle_since is None or found.idle_since > idle_until):
            return False
        has_hooks = kind is not None and ("on_destroyed" in kind.overrides or self._events.has("thread.destroyed"))
        may_be_kept = kind is not None and idle_until is not None and is_timed(self._find_parts(kind))
        if kind is not None and (has_hooks or may_be_kept):
            try:
                actor = await self._load(slot, kind)
            except (CorruptThread, MigrationFailed, NewerState):
                log.warning("it is destroyed without on_destroyed, as it cannot be loaded", extra=about(key))
            else:
                if idle_until is not None and (kept_until := actor.timer.kept_until):
                    at = max(time.time_ns() // 1000, kept_until)
                    await self._store.submit(_mark(key, found.epoch, found.version, slot.fence, idle_since=at))
                    return False
                if has_hooks:
                    await self._destroy_loaded(slot, actor, cause)
                    return True
        with telling_store_errors(self._instruments):
            await self._delete(slot, found)
        return True

    async def _destroy_loaded(self, slot: Slot, actor: Actor, cause: Cause) -> None:
        try:
            await self._start(slot, actor)
            await actor.ending.begin(partial(self.destroy, actor), cause)
        except Destroyed:
            if not actor.is_ending:  # The error is of another thread, which `on_start` has called.
                raise
        finally:
            if not actor.is_ending:
                actor.abort()

    async def expire(self, key: ThreadKey, until: int) -> None:
        """Destroy a thread that is asleep and idle since a time or longer."""
        slot = self.threads.find(key)
        actor = slot.actor if slot.phase is Phase.AWAKE and not slot.waiters else None
        if actor is not None and actor.on_used is not None and actor.is_unused:  # It was only read.
            self.stop(actor)
            await slot.wait()
        if not self.is_draining and self.threads.find(key).phase is Phase.ASLEEP:
            await self.destroy_sleeping(key, Cause(), idle_until=until)


@contextmanager
def _logging_damage(key: ThreadKey) -> Iterator[None]:
    """Log why a stored thread cannot be loaded."""
    try:
        yield
    except (CorruptThread, MigrationFailed, NewerState) as error:
        log.error("%s", operator_message(error), exc_info=error.__cause__, extra=about(key))
        raise


def _mark(key: ThreadKey, epoch: str, version: int, fence: int, *, idle_since: int) -> Write:
    return Write(key, epoch, version, version, fence=fence, idle_since=idle_since)


def _may_be_deleted(task: asyncio.Task[bool]) -> bool:
    if task.cancelled():
        return True
    error = task.exception()
    return task.result() if error is None else isinstance(error, Indeterminate)


async def _wait_for(task: asyncio.Task[T]) -> T:
    """Return the outcome of a task, which continues if the caller is cancelled. Raises Unavailable if the task is."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Unavailable(SHUTTING_DOWN) from None
        raise
