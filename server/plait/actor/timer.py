"""The timer of an awake thread, which calls its parts when they are due."""

import asyncio
import logging
from contextvars import Context
from typing import Final, Protocol

from plait.clock import read_due_clock

__all__ = ["Timed", "Timer", "compute_expiry"]

log = logging.getLogger("plait.actor")

# Seconds after which a part that was called is called again if it is still due.
_PATIENCE: Final = 1.0
# The most seconds after which a thread expires: a thousand years.
_LONGEST: Final = 1000 * 365 * 86_400.0


def compute_expiry(seconds: float) -> int:
    """Return the due time of a thread that expires after some seconds, which is odd."""
    return read_due_clock() + int(min(seconds, _LONGEST) * 1e6) | 1


class Timed(Protocol):
    """A part of a thread that acts at certain times, in microseconds since the epoch."""

    @property
    def due(self) -> int:
        """When the thread must be awake for the part; 0 for never. Stored with each write of the thread."""
        ...

    @property
    def wakes_at(self) -> int:
        """When `on_due` must be called, which begins work that has not begun; 0 for never."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the thread must not expire before work of the part that waits; by default, it may.

        Removing content and delivering what was decided before keep nothing; work of a terminated thread neither.
        """
        return False

    def on_due(self, now: int) -> None:
        """Begin the work that is due at `now`, and return at once. Must not raise."""

    def terminate(self) -> None:
        """Remove later work, in an open transaction, and cancel running work; what only tidies up continues.

        By default, all continues.
        """
        return


class Timer:
    """Calls the parts of one thread that are due.

    It reads the clock at least every `interval` seconds, and at each `look`.
    """

    __slots__ = ("_armed", "_handle", "_interval", "_loop", "expires", "parts")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self._loop = loop
        self._interval = interval
        self.parts: tuple[Timed, ...] = ()
        # When the thread expires, an odd number; 0 if that is not known before its next use, None if it never does.
        self.expires: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        # The time for which the timer is set; 0 if it is not set, and None while the timer is stopped.
        self._armed: int | None = None

    def add(self, part: Timed) -> None:
        """Call a part, from now on, when it is due."""
        self.parts += (part,)

    @property
    def due(self) -> int | None:
        """When the thread must be awake next: odd if it expires then, and otherwise even, at most 1 microsecond early.

        0 is never, and None if it has no part that acts at certain times, and never expires.
        """
        if not self.parts:
            return self.expires
        times = [at & ~1 for part in self.parts if (at := part.due)]
        return min([*times, *((expires,) if (expires := self.expires_at) else ())], default=0)

    @property
    def wakes_at(self) -> int:
        """When the next part must be called; 0 for never."""
        return min([at for part in self.parts if (at := part.wakes_at)], default=0)

    @property
    def expires_at(self) -> int:
        """When the thread expires if it is not used before; 0 if that is not known, or while work keeps it."""
        if not self.expires or any(part.keeps for part in self.parts):
            return 0
        return self.expires

    @property
    def is_due(self) -> bool:
        """Whether a part must be called now."""
        return bool(self.parts) and 0 < self.wakes_at <= read_due_clock()

    def start(self) -> None:
        """Begin to call the parts."""
        if self._armed is None:
            self._armed = 0
            self.arm()

    def stop(self) -> None:
        """Stop calling the parts, until `start`."""
        self._cancel()
        self._armed = None

    def arm(self) -> None:
        """Set the timer for the next part, after a part has changed its time."""
        if self._armed is not None and self.parts and (at := self.wakes_at) != self._armed:
            self._cancel()
            self._set(at)

    def look(self) -> None:
        """Set the timer again, as the clock has jumped."""
        if self._armed:
            self._cancel()
            self._set(self._armed)

    # Inside

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, at: int, *, patience: float = 0.0) -> None:
        self._armed = at
        if at:
            delay = min(self._interval, max(patience, (at - read_due_clock()) / 1e6))
            # An empty context: the calls are no part of the turn that has set the timer.
            self._handle = self._loop.call_later(delay, self._fire, context=Context())

    def _fire(self) -> None:
        self._handle, now = None, read_due_clock()
        called = [part for part in self.parts if 0 < part.wakes_at <= now]
        for part in called:
            try:
                part.on_due(now)
            except Exception:
                log.exception("%s could not begin the work that is due", type(part).__name__)
        if self._armed is not None:
            at = self.wakes_at
            is_still_due = any(0 < part.wakes_at <= now for part in called) if called else at <= now
            self._cancel()
            self._set(at, patience=_PATIENCE if is_still_due else 0.0)
