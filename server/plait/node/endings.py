"""Destroys threads that are awake, asleep or expired."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.kind import Kind
from plait.actor.logs import about
from plait.actor.mailbox import EVERYONE
from plait.actor.outcome import make_resolver
from plait.actor.relatives import Relatives
from plait.actor.turn import Turn
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import (
    CorruptThread,
    Destroyed,
    Indeterminate,
    MigrationFailed,
    NewerState,
    PlaitError,
    StoreError,
    Unavailable,
)
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.lifecycle import Lifecycle
from plait.node.threads import Phase, Slot, start_task, wait_for_task
from plait.parts.part import find_role
from plait.state.timer import compute_expiry
from plait.store.protocol import Store, ThreadHeader
from plait.store.thread_rows import INCOMPLETE, ThreadKey

__all__ = ["Cause", "Endings"]

log = logging.getLogger("plait.node")


class Cause(NamedTuple):
    """The cause of a destruction: the turn that waits for it, the client's turn that started it, and their trace."""

    parent: Turn | None = None
    origin: Turn | None = None
    trace: object = None


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

    async def destroy(self, actor: Actor, cause: Cause) -> None:
        """Destroy an awake thread in a turn of its own, after its earlier turns.

        From then on, only turns that are called inside of this turn begin. Raises Destroyed if an earlier turn has
        destroyed the thread, and the StoreError for which the thread was dropped.
        """

        def begin() -> Awaitable[None]:
            if actor.state.lost is not None:
                raise actor.state.lost
            if actor.is_ending:
                raise Destroyed(f"{actor.key} is already being destroyed")
            actor.is_ending = True
            actor.turns.hold()
            actor.timer.stop()
            actor.sockets.close(Unavailable("the thread is being destroyed"))
            actor.ending_turns = tuple(turn.chain())
            return self._begin(actor, actor.ending_turns)

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = Turn("destroy", begin, actor=actor, parent=cause.parent, origin=cause.origin, trace=cause.trace)
        turn.party = EVERYONE
        actor.turns.begin(turn, make_resolver(future), is_gated=True)
        try:
            await future
        except asyncio.CancelledError:
            turn.skip()
            raise

    def _begin(self, actor: Actor, callers: Sequence[Turn]) -> asyncio.Future[None]:
        """Begin to destroy a thread, in a turn of it; return a future of the outcome.

        `callers` are that turn and the turns that wait for it.
        """
        slot = self._lifecycle.threads.find(actor.key)
        if slot.actor is not actor:  # A cancelled turn may continue.
            raise Unavailable("the thread has been stopped")
        task = start_task(self._destroy(actor, callers), f"destroy {actor.key}")
        self._lifecycle.threads.begin(slot, Phase.ENDING, task)
        return asyncio.shield(task)

    async def _destroy(self, actor: Actor, callers: Sequence[Turn]) -> None:
        # Join the call chain: a relative that is told of the end may wait for it, if its `on_destroyed` caused it.
        callers[0].enter()
        try:
            await _run(actor, callers)
            if actor.relatives is not None:
                await actor.relatives.say_destroyed()
        finally:
            self._lifecycle.threads.keep(actor)

    async def destroy_sleeping(self, key: ThreadKey, cause: Cause, *, expires_after: float | None = None) -> bool:
        """Destroy a sleeping thread, with `expires_after` only if it has expired; return whether it was destroyed.

        A thread that cannot be loaded is destroyed without `on_destroyed`. Raises the errors of `Node.destroy`.
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
                log.warning("this thread is destroyed without on_destroyed, as it cannot be loaded", extra=about(key))
        if actor is not None and has_code:
            await self._destroy_loaded(slot, actor, cause)
        else:
            await self._delete(slot, found, None if actor is None else actor.relatives, cause)
        return True

    async def _delete(self, slot: Slot, found: ThreadHeader, relatives: Relatives | None, cause: Cause) -> None:
        """Delete a thread without running code of its class."""
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
            await self.destroy(actor, cause)
        except Destroyed:
            if not actor.is_ending:  # The error comes from another thread, which `on_start` has called.
                raise
        finally:
            if not actor.is_ending:
                actor.abort()

    async def expire(self, key: ThreadKey, seconds: float) -> bool:
        """Destroy a sleeping thread that has expired; `seconds` is the `expires_after` of its class.

        Returns False if the thread is due for another reason, and must be woken.
        """
        with telling_store_errors(self._instruments):
            found = await self._store.find(key)
        if found is None or not _expires(found):
            return False
        if not self._lifecycle.is_draining and self._lifecycle.threads.find(key).phase is Phase.ASLEEP:
            await self.destroy_sleeping(key, Cause(), expires_after=seconds)
        return True

    async def _has_expired(self, slot: Slot, found: ThreadHeader, seconds: float) -> bool:
        """Whether a thread has expired. Stores a later time if, by the wall clock, its last change is too recent."""
        if not _expires(found) or found.due > read_due_clock():
            return False  # The thread was used after it was found.
        rest = found.changed_at / 1e6 + seconds - read_wall_clock() / 1e6
        if rest > 0:  # The class has a longer `expires_after` than before, or the clock was set back.
            await self._lifecycle.store_due(slot, found, compute_expiry(rest))
        return rest <= 0


async def _run(actor: Actor, callers: Sequence[Turn]) -> None:
    """Run `on_destroyed`, delete the stored thread, then close the sockets and end all turns but the callers.

    The first of the callers is the turn that destroys the thread. Raises StoreError if the thread could not be
    deleted, and Unavailable if this task or `on_destroyed` is cancelled. In all cases, the actor is unusable
    afterwards.
    """
    refusal: PlaitError = Unavailable("the server is shutting down")
    try:
        if actor.relatives is not None:
            await actor.relatives.flush()
        before = actor.state.begin_deletion(callers[0])
        if before is not None:
            await before
        await actor.hooks.run_last(actor.thread.turn_timeout, caller=callers[0])
        await actor.state.delete()
        refusal = Destroyed(f"{actor.key} was destroyed")
    except StoreError as error:
        refusal = error
        raise
    except asyncio.CancelledError:
        raise refusal from None
    finally:
        actor.state.abandon_deletion(refusal)
        actor.turns.refuse(refusal, besides=callers)
        actor.sockets.expel(refusal)
        actor.sockets.presence.close()


def _expires(found: ThreadHeader) -> bool:
    """Whether the due time of a thread is its time of expiry."""
    return bool(found.due & 1) and found.due != INCOMPLETE


def _may_be_deleted(task: asyncio.Task[bool]) -> bool:
    if task.cancelled():
        return True
    error = task.exception()
    return task.result() if error is None else isinstance(error, Indeterminate)
