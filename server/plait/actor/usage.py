"""The last use of a thread, which decides when it may be stopped and when it expires."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from math import inf

from plait.clock import read_due_clock
from plait.errors import PlaitError
from plait.state.pipeline import Pipeline
from plait.state.timer import Timer, compute_expiry

__all__ = ["Usage"]


class Usage:
    """The idle timer of one thread, and its time of expiry.

    The thread expires after some seconds, or never. `watch` makes the node check the thread soon. `due` is the stored
    due time, or None for a new thread.
    """

    __slots__ = ("_loop", "_seconds", "_state", "_timer", "_watch", "holds", "is_watched", "last_used", "marked_until")

    def __init__(
        self, state: Pipeline, timer: Timer, seconds: float | None, due: int | None, *, watch: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._timer = timer
        self._seconds = seconds
        self._watch = watch
        # Whether the node will check the thread soon.
        self.is_watched = False
        # The time of the last use, by the clock of the loop, and the number of open `keep_awake` blocks.
        self.last_used = self._loop.time()
        self.holds = 0
        # The time at which a use must be stored again, so that the thread does not expire, by the clock of the loop; 0
        # before the first use.
        self.marked_until = 0.0
        if due is not None and due & 1:
            timer.expires = 0 if seconds is None else due
        elif seconds is not None:
            # A due time of work hides the time of expiry. The thread then expires as if it had just been used, as the
            # work may not count as a use.
            timer.expires = compute_expiry(2 * seconds if due is None else seconds) if due != 0 else 0

    def touch(self) -> None:
        """Reset the idle timer, as the thread is used."""
        self.last_used = self._loop.time()
        if not self.is_watched:
            self.watch()
        if self.last_used >= self.marked_until:
            self._mark()

    def renew(self, *, is_used: bool) -> None:
        """Reset the idle timer; without `is_used`, only if the thread has not been used since it woke."""
        if is_used:
            self.touch()
            return
        if not self.marked_until:
            self.last_used = self._loop.time()
        if not self.is_watched:
            self.watch()

    def watch(self) -> None:
        """Make the node check the thread soon."""
        if not self.is_watched:
            self.is_watched = True
            self._watch()

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
        """Return the time at which an idle thread may be stopped; now, if it was only read and has expired."""
        if not self.marked_until and 0 < self._timer.expires_at <= read_due_clock():
            return now
        return inf if timeout is None else self.last_used + timeout

    def find_mark(self, now: float) -> float:
        """Return the time at which a continued use must be stored again; store it first if that time has come."""
        if self.marked_until and now >= self.marked_until:
            self.touch()
        return self.marked_until or inf

    def rest(self, idle: float = 0.0) -> None:
        """Set the time of expiry, as the thread goes to sleep after `idle` seconds without a use."""
        if (seconds := self._seconds) is not None:
            self._timer.expires = compute_expiry(seconds - idle)

    # Inside

    def _mark(self) -> None:
        """Store the time of expiry, as the thread is used; its answers wait until this write is durable.

        The time is twice as far away as needed, so that it is seldom stored, and is late enough if the server is
        killed.
        """
        if (seconds := self._seconds) is None:
            self.marked_until = inf
            return
        self.marked_until = self.last_used + seconds
        self._timer.expires = compute_expiry(2 * seconds)
        # An empty context, as no turn depends on this write.
        if (commit := Context().run(self._state.store_due)) is not None:
            commit.then(self._on_marked)

    def _on_marked(self, error: PlaitError | None) -> None:
        if error is not None:
            self.marked_until = self.last_used  # Makes the next use store the time again.
