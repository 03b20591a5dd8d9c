"""Imports and forks threads, and removes unfinished ones after a crash."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from plait.actor.actor import Actor
from plait.errors import StoreError, Unavailable, operator_message
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.filling import Filling
from plait.node.lifecycle import Lifecycle
from plait.node.threads import SHUTTING_DOWN, Phase, Slot, start_task, wait_for_task
from plait.store.protocol import INCOMPLETE, DueThread, Store, ThreadKey, Write

__all__ = ["Fills"]

log = logging.getLogger("plait.node")


class Fills:
    """Fills the sleeping threads of a node."""

    def __init__(
        self, lifecycle: Lifecycle, store: Store, instruments: Instruments, owns: Callable[[ThreadKey], bool]
    ) -> None:
        self._lifecycle = lifecycle
        self._store = store
        self._instruments = instruments
        self._owns = owns

    async def remove_incomplete(self) -> None:
        """Delete what imports and forks have left that did not end before a crash, in threads that this node owns."""
        after: DueThread | None = None
        try:
            while found := await self._store.due_threads(until=INCOMPLETE, after=after):
                slots = [self._lifecycle.threads.find(each.key) for each in found if self._owns(each.key)]
                # Others are being imported or forked now.
                asleep = [slot for slot in slots if slot.phase is Phase.ASLEEP]
                await asyncio.gather(*map(self._begin_removal, asleep))
                after = found[-1]
        except StoreError as error:
            log.warning("what is left of imports and forks could not be removed: %s", operator_message(error))

    async def _begin_removal(self, slot: Slot) -> None:
        task = start_task(self._remove_incomplete(slot), f"remove {slot.key}")
        self._lifecycle.threads.begin(slot, Phase.STOPPING, task)
        await wait_for_task(task)

    async def _remove_incomplete(self, slot: Slot) -> None:
        await self._lifecycle.claim(slot)
        found = await self._store.find(slot.key)
        if found is not None and found.due == INCOMPLETE:
            await self._lifecycle.delete(slot, found)

    async def fill(self, work: Filling, *, replace: bool) -> None:
        """Fill a thread that is asleep, instead of a stored one if that is asked for.

        Raises Conflict, Unavailable, what `Filling.write` raises, and CorruptThread if the records do not fit the parts
        of the class. It ends when its caller is cancelled.
        """
        slot = self._lifecycle.threads.find(work.key)
        task = start_task(self._fill(slot, work, replace=replace), f"fill {work.key}")
        self._lifecycle.threads.begin(slot, Phase.FILLING, task)
        try:
            actor = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable(SHUTTING_DOWN) from None
            task.cancel()
            raise
        self._lifecycle.tell_alarms(actor)

    async def _fill(self, slot: Slot, work: Filling, *, replace: bool) -> Actor:
        key = slot.key
        await self._lifecycle.claim(slot)
        with telling_store_errors(self._instruments):
            await self._lifecycle.record_version(key, work.kind.state_version)
            if (found := await self._store.find(key)) is not None:
                if not replace and found.due != INCOMPLETE:
                    raise work.conflict()
                await self._lifecycle.delete(slot, found)
            try:
                await work.write(self._store, slot.fence)
                actor = await self._lifecycle.load(slot, work.kind)
                records, version = work.finish(actor), actor.state.durable.version
                # Its parts tell when it is due, instead of the mark.
                actor.usage.rest()
                due = actor.timer.due or 0
                last = Write(key, work.epoch, version, version, records=records, fence=slot.fence, due=due)
                await self._store.submit(last)
            except BaseException:
                with suppress(StoreError):  # It is removed when it is used, or at the next start.
                    if (found := await self._store.find(key)) is not None:
                        await self._lifecycle.delete(slot, found)
                raise
        actor.state.due = due
        return actor
