"""Destroys threads that are awake, asleep or expired."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from plait.actor.actor import Actor
from plait.actor.ending import Cause
from plait.actor.events import Events
from plait.actor.kind import Kind
from plait.actor.logs import about
from plait.actor.relatives import Relatives
from plait.actor.timer import compute_expiry
from plait.actor.turn import Turn
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import CorruptThread, Destroyed, Indeterminate, MigrationFailed, NewerState, Unavailable
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.lifecycle import Lifecycle
from plait.node.threads import Phase, Slot, start_task, wait_for_task
from plait.parts.part import find_role
from plait.store.protocol import Store, ThreadHeader, ThreadKey
from plait.store.thread_rows import INCOMPLETE

__all__ = ["Endings"]

log = logging.getLogger("plait.node")


class Endings:
    """Destroys the threads of a node."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        kinds: Mapping[str, Kind],
        store: Store,
        events: Events,
        instruments: Instruments,
    ) -> None:
        self._lifecycle = lifecycle
        self._kinds = kinds
        self._store = store
        self._events = events
        self._instruments = instruments

    def destroy(self, actor: Actor, callers: Sequence[Turn]) -> asyncio.Future[None]:
        """Begin to destroy a thread, in a turn of it; return a future of the outcome.

        Its `callers` are that turn and the turns that wait for it.
        """
        slot = self._lifecycle.threads.find(actor.key)
        if slot.actor is not actor:  # A cancelled turn may continue.
            raise Unavailable("the thread has been stopped")
        task = start_task(self._destroy(actor, callers), f"destroy {actor.key}")
        self._lifecycle.threads.begin(slot, Phase.ENDING, task)
        return asyncio.shield(task)

    async def _destroy(self, actor: Actor, callers: Sequence[Turn]) -> None:
        # The threads that it tells may wait for its end, as when one of them destroys it in `on_destroyed`.
        callers[0].enter()
        try:
            await actor.ending.run(callers)
            if actor.relatives is not None:
                await actor.relatives.say_destroyed()
        finally:
            self._lifecycle.threads.keep(actor)

    async def destroy_sleeping(self, key: ThreadKey, cause: Cause, *, expires_after: float | None = None) -> bool:
        """Destroy a sleeping thread, with `expires_after` only if it has expired; return whether there was one.

        A thread that cannot be loaded is destroyed without `on_destroyed`. Raises what `Node.destroy` does.
        """
        slot = self._lifecycle.threads.find(key)
        task = start_task(self._destroy_sleeping(slot, cause, expires_after), f"destroy {key}")
        self._lifecycle.threads.begin(slot, Phase.ENDING, task)
        if (turn := cause.parent) is not None:
            turn.expect_change()
            task.add_done_callback(lambda _: turn.decide_change(may_be_stored=_may_be_deleted(task)))
        return await wait_for_task(task)

    async def _destroy_sleeping(self, slot: Slot, cause: Cause, expires_after: float | None) -> bool:
        key, kind = slot.key, self._kinds.get(slot.key.kind)
        await self._lifecycle.claim(slot)
        with telling_store_errors(self._instruments):
            found = await self._store.find(key)
            if found is None or (expires_after is not None and not await self._has_expired(slot, found, expires_after)):
                return False
        has_code = kind is not None and ("on_destroyed" in kind.overrides or self._events.has("thread.destroyed"))
        actor = None
        if kind is not None and (has_code or find_role(kind.cls, "family") is not None):
            try:
                actor = await self._lifecycle.load(slot, kind)
            except (CorruptThread, MigrationFailed, NewerState):
                log.warning("it is destroyed without on_destroyed, as it cannot be loaded", extra=about(key))
        if actor is not None and has_code:
            await self._destroy_loaded(slot, actor, cause)
        else:
            await self._delete(slot, found, None if actor is None else actor.relatives, cause)
        return True

    async def _delete(self, slot: Slot, found: ThreadHeader, relatives: Relatives | None, cause: Cause) -> None:
        """Delete a thread none of whose code must run."""
        if cause.parent is not None:
            cause.parent.enter()
        if relatives is not None:
            await relatives.flush()
        with telling_store_errors(self._instruments):
            await self._lifecycle.delete(slot, found)
        if relatives is not None:
            await relatives.say_destroyed()

    async def _destroy_loaded(self, slot: Slot, actor: Actor, cause: Cause) -> None:
        try:
            await self._lifecycle.start(slot, actor)
            await actor.ending.begin(partial(self.destroy, actor), cause)
        except Destroyed:
            if not actor.is_ending:  # The error is of another thread, which `on_start` has called.
                raise
        finally:
            if not actor.is_ending:
                actor.abort()

    async def expire(self, key: ThreadKey, seconds: float) -> bool:
        """Destroy a sleeping thread that has expired; `seconds` is the `expires_after` of its class.

        Returns False if it is due for another reason, and must be woken.
        """
        with telling_store_errors(self._instruments):
            found = await self._store.find(key)
        if found is None or not _expires(found):
            return False
        if not self._lifecycle.is_draining and self._lifecycle.threads.find(key).phase is Phase.ASLEEP:
            await self.destroy_sleeping(key, Cause(), expires_after=seconds)
        return True

    async def _has_expired(self, slot: Slot, found: ThreadHeader, seconds: float) -> bool:
        """Whether a thread has expired. Its time is put off if, by the machine's clock, it has changed since then."""
        if not _expires(found) or found.due > read_due_clock():
            return False  # It was used since it was found.
        rest = found.changed_at / 1e6 + seconds - read_wall_clock() / 1e6
        if rest > 0:  # The class expires later than when it was stored, or the clock was set back.
            await self._lifecycle.store_due(slot, found, compute_expiry(rest))
        return rest <= 0


def _expires(found: ThreadHeader) -> bool:
    """Whether a thread, when it is due, expires."""
    return bool(found.due & 1) and found.due != INCOMPLETE


def _may_be_deleted(task: asyncio.Task[bool]) -> bool:
    if task.cancelled():
        return True
    error = task.exception()
    return task.result() if error is None else isinstance(error, Indeterminate)
