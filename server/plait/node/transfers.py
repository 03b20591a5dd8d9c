"""Exports, imports and forks threads, and removes unfinished copies after a crash."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.errors import Conflict, CorruptThread, InvalidState, StoreError, Unavailable, operator_message
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.filling import Filling
from plait.node.forking import Fork
from plait.node.importing import LEFT_OUT, Import
from plait.node.lifecycle import Lifecycle
from plait.node.local_thread import OwnThreads
from plait.node.threads import SHUTTING_DOWN, Phase, Slot, start_task, wait_for_task
from plait.store.export_file import export_thread
from plait.store.protocol import DueThread, Store, Write
from plait.store.thread_rows import INCOMPLETE, ThreadKey
from plait_schemas.patch import Op

__all__ = ["Transfers"]

log = logging.getLogger("plait.node")


class Transfers:
    """Exports, imports and forks the threads of a node. New threads are not woken."""

    def __init__(
        self, node: OwnThreads, lifecycle: Lifecycle, store: Store, events: Events, instruments: Instruments
    ) -> None:
        self._node = node
        self._lifecycle = lifecycle
        self._threads = lifecycle.threads
        self._store = store
        self._events = events
        self._instruments = instruments

    async def export_thread(self, key: ThreadKey) -> AsyncGenerator[bytes]:
        """Yield the file of a thread."""
        if (actor := self._threads.find_awake(key)) is not None:
            await actor.state.wait_until_durable()
        with telling_store_errors(self._instruments):
            async with aclosing(export_thread(self._store, key, leave_out=LEFT_OUT)) as found:
                async for lines in found:
                    yield lines

    async def import_thread(self, work: Import, *, replace: bool) -> None:
        """Store an exported thread after its check; an awake thread of that name is stopped first if `replace` is set.

        Raises Conflict, Unavailable, InvalidState and StoreError.
        """
        state = await work.check()
        if state is not None:
            self._validate(work, state)
        try:
            await self._fill(work, replace=replace)
        except CorruptThread as error:
            why = f"its records do not fit the parts of {work.kind.cls.__name__}"
            raise InvalidState(f"this is not an exported thread: {why}") from error

    async def fork_thread(self, work: Fork) -> None:
        """Store a copy of a thread, with its changes so far, under another name.

        Raises NotFound, Conflict, Unavailable, InvalidState and StoreError.
        """
        while (slot := self._threads.find_unfilled(work.source)).phase is Phase.ENDING:
            await slot.wait()
        if slot.actor is not None:
            await slot.actor.state.wait_until_durable()
        await self._fill(work, replace=False)

    async def remove_incomplete(self) -> None:
        """Delete unfinished imports and forks that a crash has left, in shards that this node owns."""
        after: DueThread | None = None
        try:
            while found := await self._store.due_threads(until=INCOMPLETE, after=after):
                slots = [self._threads.find(each.key) for each in found if self._node.owns(each.key)]
                # Threads in other phases are being imported or forked now.
                asleep = [slot for slot in slots if slot.phase is Phase.ASLEEP]
                await asyncio.gather(*map(self._begin_removal, asleep))
                after = found[-1]
        except StoreError as error:
            log.warning("unfinished imports and forks could not be removed: %s", operator_message(error))

    # Inside

    def _validate(self, work: Import, state: Any) -> None:
        """Ask the class whether a new thread may get a state. Raises the error of `validate_state_change`."""
        actor = self._lifecycle.make_actor(work.key, work.kind, None, 0)
        if work.kind.has_initial_state:
            actor.state.start(work.kind.initial_state())
        actor.state.validate(state, "server", [Op("add", "", state)], actor.state.current)

    async def _fill(self, work: Filling, *, replace: bool) -> None:
        """Fill a thread, in the place of a stored one with `replace`. The work ends if the caller is cancelled.

        Raises Conflict, Unavailable, the errors of `Filling.write`, and CorruptThread if the records do not fit the
        parts of the class.
        """
        key = work.key
        self._node.check_may_begin(key)
        while (slot := self._threads.find(key)).phase is not Phase.ASLEEP:
            if slot.phase is Phase.FILLING:
                raise Conflict(f"a thread {key} is being imported or forked already")
            if slot.phase is Phase.AWAKE and not slot.waiters and (actor := slot.actor) is not None:
                if not replace and (actor.state.history.is_begun or not actor.is_unused):
                    raise work.conflict()
                self._lifecycle.evict(actor, Unavailable("the thread is replaced by an import"))
            await slot.wait()
        task = start_task(self._write(slot, work, replace=replace), f"fill {key}")
        self._threads.begin(slot, Phase.FILLING, task)
        try:
            actor = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable(SHUTTING_DOWN) from None
            task.cancel()
            raise
        self._lifecycle.tell_alarms(actor)
        self._lifecycle.watchers.tell(key.kind, actor.state.history.user)
        if self._events.has("thread.created"):
            (await self._node.actor(key)).tell_created()

    async def _write(self, slot: Slot, work: Filling, *, replace: bool) -> Actor:
        key = slot.key
        await self._lifecycle.claim(slot)
        with telling_store_errors(self._instruments):
            await self._lifecycle.owners.record_version(key, work.kind.state_version)
            if (found := await self._store.find(key)) is not None:
                if not replace and found.due != INCOMPLETE:
                    raise work.conflict()
                await self._lifecycle.delete(slot, found)
            try:
                await work.write(self._store, slot.fence)
                actor = await self._lifecycle.load(slot, work.kind)
                records, version = work.finish(actor), actor.state.durable.version
                # The due time now comes from the parts, instead of the mark.
                actor.usage.rest()
                due = actor.timer.due or 0
                last = Write(
                    *(key, work.epoch, version, version),
                    records=records,
                    fence=slot.fence,
                    due=due,
                    changed_at=work.changed_at,
                )
                if (card := actor.state.card) is not None:
                    last = card.add_to(last, actor.state.durable)
                await self._store.submit(last)
            except BaseException:
                with suppress(StoreError):  # The rest is removed when the thread is used, or at the next start.
                    if (found := await self._store.find(key)) is not None:
                        await self._lifecycle.delete(slot, found)
                raise
        actor.state.due = due
        return actor

    async def _begin_removal(self, slot: Slot) -> None:
        task = start_task(self._remove_incomplete(slot), f"remove {slot.key}")
        self._threads.begin(slot, Phase.STOPPING, task)
        await wait_for_task(task)

    async def _remove_incomplete(self, slot: Slot) -> None:
        await self._lifecycle.claim(slot)
        found = await self._store.find(slot.key)
        if found is not None and found.due == INCOMPLETE:
            await self._lifecycle.delete(slot, found)
