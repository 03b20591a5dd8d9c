"""When a thread was last used, and so when it may be stopped and when it expires."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from math import inf
from typing import Any, Protocol

from plait.actor.kind import Kind
from plait.actor.timer import Timer, compute_expiry
from plait.clock import read_due_clock
from plait.errors import PlaitError
from plait.state.pipeline import Pipeline

__all__ = ["Usage", "UsedActor"]


class UsedActor(Protocol):
    """The part of an actor that its usage needs."""

    loop: asyncio.AbstractEventLoop
    kind: Kind
    timer: Timer

    @property
    def state(self) -> Pipeline:
        """Stores when the thread expires."""
        ...


class Usage:
    """The idle timer of one thread, and its time of expiry.

    `watch` has the node check an actor soon. `due` is the stored due time, or None for a new thread.
    """

    __slots__ = ("_actor", "_watch", "holds", "is_watched", "last_used", "marked_until")

    def __init__(self, actor: UsedActor, watch: Callable[[Any], None], due: int | None) -> None:
        self._actor = actor
        self._watch = watch
        # Whether the node will check the thread soon.
        self.is_watched = False
        # When the thread was last used, by the clock of its loop, and the number of open `keep_awake` blocks.
        self.last_used = actor.loop.time()
        self.holds = 0
        # When a use must be stored again, so that the thread does not expire, by the clock of its loop; 0 before the
        # first use.
        self.marked_until = 0.0
        seconds, timer = actor.kind.expires_after, actor.timer
        if due is not None and due & 1:
            timer.expires = 0 if seconds is None else due
        elif seconds is not None:
            # Work that was due hides when the thread expires: it does so as if it had just been used, as the work need
            # not be a use.
            timer.expires = compute_expiry(2 * seconds if due is None else seconds) if due != 0 else 0

    def touch(self) -> None:
        """Reset the idle timer, as the thread is used."""
        self.last_used = self._actor.loop.time()
        if not self.is_watched:
            self.watch()
        if self.last_used >= self.marked_until:
            self._mark()

    def renew(self, *, is_used: bool) -> None:
        """Reset the idle timer; that of a thread that is only read, unless it has been used since it woke."""
        if is_used:
            self.touch()
            return
        if not self.marked_until:
            self.last_used = self._actor.loop.time()
        self.watch()

    def watch(self) -> None:
        """Have the node check the thread soon."""
        if not self.is_watched:
            self.is_watched = True
            self._watch(self._actor)

    @contextmanager
    def keep_awake(self, *, is_used: bool = True) -> Iterator[None]:
        """Keep the thread awake during the block, for example while a socket joins."""
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1
            self.renew(is_used=is_used)

    def find_stop(self, now: float, timeout: float | None) -> float:
        """Return when an idle thread may be stopped; one that was only read when it expires, at the latest."""
        if not self.marked_until and 0 < self._actor.timer.expires_at <= read_due_clock():
            return now
        return inf if timeout is None else self.last_used + timeout

    def find_mark(self, now: float) -> float:
        """Return when the use of a thread that is in use must be stored again, after storing it if that is now."""
        if self.marked_until and now >= self.marked_until:
            self.touch()
        return self.marked_until or inf

    def rest(self, idle: float = 0.0) -> None:
        """Set when the thread expires, which goes to sleep and has not been used for `idle` seconds."""
        if (seconds := self._actor.kind.expires_after) is not None:
            self._actor.timer.expires = compute_expiry(seconds - idle)

    # Inside

    def _mark(self) -> None:
        """Store when the thread expires, as it is used; what it answers waits until that is durable.

        The time is twice as far away as needed, so that it is seldom stored, and holds if the server is killed.
        """
        if (seconds := self._actor.kind.expires_after) is None:
            self.marked_until = inf
            return
        self.marked_until = self.last_used + seconds
        self._actor.timer.expires = compute_expiry(2 * seconds)
        # An empty context: no turn depends on it.
        if (commit := Context().run(self._actor.state.store_due)) is not None:
            commit.then(self._on_marked)

    def _on_marked(self, error: PlaitError | None) -> None:
        if error is not None:
            self.marked_until = self.last_used  # The next use is stored.
