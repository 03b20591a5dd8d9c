"""Makes an awake thread of what is stored of it."""

import logging
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import Any

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.kind import Kind
from plait.actor.logs import Failures, about
from plait.errors import CorruptThread, MigrationFailed, NewerState, StoreError, operator_message
from plait.instruments import NO_INSTRUMENTS, Instruments
from plait.limits import Limits
from plait.node.expiry import Expiry
from plait.state.migrations import explain_lost, find_lost, migrate_thread
from plait.store.protocol import Store, StoredThread, ThreadKey, Write

__all__ = ["Loader"]

log = logging.getLogger("plait.node")


class Loader:
    """Reads threads from the store, migrates their states, and makes an Actor of each."""

    def __init__(
        self,
        store: Store,
        expiry: Expiry,
        limits: Limits,
        *,
        make_handle: Callable[[Any, str], Any],
        destroy: Callable[[ThreadKey], Awaitable[None]],
        on_lost: Callable[[Actor, StoreError], None],
        active: dict[Actor, None],
        failures: Failures,
        public_kinds: Container[str],
        events: Events,
        instruments: Instruments,
    ) -> None:
        self._store = store
        self._expiry = expiry
        self._limits = limits
        # What an actor is given: how it makes handles, ends itself, tells that its state is no longer known, and
        # explains errors to clients.
        self._make_handle = make_handle
        self._destroy = destroy
        self._on_lost = on_lost
        # Where actors put themselves when they are used.
        self._active = active
        self._failures = failures
        # The app's listeners are told of threads of these, and not of those of plait's own.
        self._public_kinds = public_kinds
        self._events = events
        self._instruments = instruments
        # The kinds for which the log has said that a stored state has members that its type lacks.
        self._lossy: set[str] = set()

    async def load(self, key: ThreadKey, kind: Kind, fence: int, *, is_used: bool) -> Actor:
        """Return a thread as it is stored, before `on_start`; one that is used is not idle from now on."""
        marks_use = is_used and self._expiry.has(kind.name)
        try:
            if marks_use:
                await self._expiry.prepare()
            stored = await self._store.load(key)
            if stored is not None:
                stored = await migrate_thread(self._store, key, kind, stored, fence=fence)
                if marks_use:
                    version = stored.version
                    # When this is durable, a kill cannot make the thread expire as if it had not been used.
                    await self._store.submit(Write(key, stored.epoch, version, version, fence=fence, idle_since=0))
            actor = Actor(
                key,
                kind,
                stored,
                self._store,
                self._limits,
                fence=fence,
                make_handle=self._make_handle,
                destroy=partial(self._destroy, key),
                on_lost=self._on_lost,
                active=self._active,
                failures=self._failures,
                events=self._events if key.kind in self._public_kinds else None,
                instruments=None if self._instruments is NO_INSTRUMENTS else self._instruments,
            )
            if stored is not None and key.kind not in self._lossy and not actor.durable.is_stored:
                self._warn_of_losses(key, kind, stored)
            return actor
        except StoreError as error:
            self._instruments.store_failed(error.code)
            if isinstance(error, CorruptThread | MigrationFailed | NewerState):
                log.error("%s", operator_message(error), exc_info=error.__cause__, extra=about(key))
            raise

    def _warn_of_losses(self, key: ThreadKey, kind: Kind, stored: StoredThread) -> None:
        """Log once a kind that a state has members that its type lacks: a field was renamed or removed."""
        if lost := find_lost(key, kind, stored):
            self._lossy.add(key.kind)
            log.warning("%s; other threads of the kind may, too", explain_lost(key, lost), extra=about(key))
