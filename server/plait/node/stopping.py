"""The stop of threads that go to sleep or were dropped, each in a task of its own."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.errors import StoreError, operator_message
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.node.expiry import Expiry
from plait.store.protocol import Store, ThreadKey, Write

__all__ = ["Stops"]

log = logging.getLogger("plait.node")


class Stops:
    """Stops threads, and owns those that are being stopped."""

    def __init__(self, store: Store, expiry: Expiry, instruments: Instruments) -> None:
        self._store = store
        self._expiry = expiry
        self._instruments = instruments
        self._by_key: dict[ThreadKey, asyncio.Task[None]] = {}
        # The threads whose `on_stop` runs, or that were dropped while turns ran.
        self.actors: set[Actor] = set()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that stop threads. A node that stops waits for them."""
        return list(self._by_key.values())

    def get(self, key: ThreadKey) -> asyncio.Task[None] | None:
        """Return the task that stops a thread, if there is one."""
        return self._by_key.get(key)

    def begin(self, actor: Actor) -> None:
        """Stop a thread that was awake, with `on_stop`."""
        self._begin(actor, self._stop(actor))

    def begin_dropped(self, actor: Actor) -> None:
        """Wait until the turns of a thread that was dropped have ended."""
        self._begin(actor, actor.finish())

    # Inside

    def _begin(self, actor: Actor, work: Coroutine[Any, Any, None]) -> None:
        self.actors.add(actor)
        # An empty context: what stops a thread must not count as caused by the turn that was running.
        task = asyncio.create_task(work, name=f"stop {actor.key}", context=Context())
        self._by_key[actor.key] = task
        task.add_done_callback(lambda _: self._on_stopped(actor))

    async def _stop(self, actor: Actor) -> None:
        """Stop a thread; of one that can expire, the store is told since when it is idle."""
        idle = asyncio.get_running_loop().time() - actor.last_used
        since = time.time_ns() // 1000 - int(idle * 1e6)
        await actor.stop()
        if not self._expiry.has(actor.kind.name) or not actor.is_stored or actor.is_ending:
            return
        epoch, version, fence = actor.epoch, actor.durable.version, actor.pipeline.history.fence
        try:
            with telling_store_errors(self._instruments):
                await self._store.submit(Write(actor.key, epoch, version, version, fence=fence, idle_since=since))
        except StoreError as error:
            log.warning("it is not stored that it is idle: %s", operator_message(error), extra=about(actor.key))
            self._expiry.remember(actor.key)

    def _on_stopped(self, actor: Actor) -> None:
        del self._by_key[actor.key]
        self.actors.discard(actor)
        self._store.release(actor.key, actor.pipeline.history.fence)
        self._instruments.slept(actor.key.kind)
