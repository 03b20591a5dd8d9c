"""The timer of an awake thread, which calls its parts when they are due."""

import asyncio
import time
from contextvars import Context
from typing import Final, Protocol

__all__ = ["Timed", "Timer", "read_clock"]

# Seconds after which a part is called again that was called and is still due.
_PATIENCE: Final = 1.0


def read_clock() -> int:
    """Return the time of day in microseconds since the epoch."""
    return time.time_ns() // 1000


class Timed(Protocol):
    """A part of a thread that acts at times. They are in microseconds since the epoch."""

    @property
    def due(self) -> int:
        """When the thread must be awake for it, 0 for never; stored with each write of the thread."""
        ...

    @property
    def wakes_at(self) -> int:
        """When `on_due` is to be called, 0 for never: not for what it has begun already."""
        ...

    @property
    def kept_until(self) -> int:
        """The time of the last thing before which the thread must not expire, 0 if there is none."""
        ...

    def on_due(self, now: int) -> None:
        """Begin what is due by `now`, and return at once. Must not raise."""

    def terminate(self) -> None:
        """Remove what would begin later, in an open transaction, and cancel what runs; the thread is not due again."""


class Timer:
    """Calls the parts of one thread that are due, at their time or at most `interval` seconds later.

    It reads the clock at least that often, as the clock may be set and the machine may sleep.
    """

    __slots__ = ("_armed", "_handle", "_interval", "_loop", "is_terminated", "parts")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self._loop = loop
        self._interval = interval
        self.parts: tuple[Timed, ...] = ()
        # Whether nothing of the thread is due any longer.
        self.is_terminated = False
        self._handle: asyncio.TimerHandle | None = None
        # The time of day for which the timer is set; 0 if it is not, and None if it must not be.
        self._armed: int | None = None

    def add(self, part: Timed) -> None:
        """Ask a part from now on when it is due."""
        self.parts += (part,)

    @property
    def due(self) -> int | None:
        """When the thread must be awake next, 0 for never; None if it has no part that acts at times."""
        if not self.parts:
            return None
        return 0 if self.is_terminated else min([due for part in self.parts if (due := part.due)], default=0)

    @property
    def wakes_at(self) -> int:
        """When the next part is to be called, 0 for never."""
        return 0 if self.is_terminated else min([at for part in self.parts if (at := part.wakes_at)], default=0)

    @property
    def kept_until(self) -> int:
        """The time before which the thread must not expire, 0 if there is none."""
        return 0 if self.is_terminated else max([part.kept_until for part in self.parts], default=0)

    @property
    def is_due(self) -> bool:
        """Whether a part is to be called now."""
        return bool(self.parts) and 0 < self.wakes_at <= read_clock()

    def start(self) -> None:
        """Begin to call the parts."""
        if self._armed is None:
            self._armed = 0
            self.arm()

    def stop(self) -> None:
        """Call the parts no more, until `start`."""
        self._cancel()
        self._armed = None

    def arm(self) -> None:
        """Set the timer for the next part, as it may be due at another time than before."""
        if self._armed is not None and self.parts and (at := self.wakes_at) != self._armed:
            self._cancel()
            self._set(at)

    # Inside

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, at: int, *, patience: float = 0.0) -> None:
        self._armed = at
        if at:
            delay = min(self._interval, max(patience, (at - read_clock()) / 1e6))
            # An empty context: what is called is no part of the turn that has set the timer.
            self._handle = self._loop.call_later(delay, self._fire, context=Context())

    def _fire(self) -> None:
        self._handle, now = None, read_clock()
        called = [part for part in self.parts if 0 < part.wakes_at <= now]
        for part in called:
            part.on_due(now)
        if self._armed is not None:
            is_still_due = any(0 < part.wakes_at <= now for part in called)
            self._cancel()
            self._set(self.wakes_at, patience=_PATIENCE if is_still_due else 0.0)
