"""The timer of an awake thread, which calls its parts when they are due."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextvars import Context
from types import MappingProxyType
from typing import Final

from plait.clock import read_due_clock

__all__ = ["Timed", "Timer", "compute_expiry"]

log = logging.getLogger("plait.actor")

# Seconds after which a part is called again if it is still due.
_PATIENCE: Final = 1.0
# Maximum seconds after which a thread expires: a thousand years.
_LONGEST: Final = 1000 * 365 * 86_400.0
_NO_PARTS: Final[Mapping["Timed", Collection[str]]] = MappingProxyType({})


def compute_expiry(seconds: float) -> int:
    """Return the due time of a thread that expires after some seconds: an odd number."""
    return read_due_clock() + int(min(seconds, _LONGEST) * 1e6) | 1


class Timed:
    """A part of a thread that acts at certain times, in microseconds since the epoch."""

    @property
    def times(self) -> tuple[int, int]:
        """When the thread must be awake, which is stored with its writes, and when to call `on_due`; 0 for never.

        `on_due` begins work that has not begun. They are read again after `on_due`, after `Timer.arm` for the part, and
        after writes of records, as `Timer.add` says.
        """
        raise NotImplementedError

    @property
    def keeps(self) -> bool:
        """Whether waiting work of the part keeps the thread from expiring; by default, it does not.

        The removal of content, the delivery of earlier decisions, and the work of a terminated thread do not keep it.
        """
        return False

    def on_due(self, now: int) -> None:
        """Begin the work that is due at `now`, and return at once. Must not raise."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Remove later work, in an open transaction, and cancel running work. Work that only tidies up continues.

        By default, all continues.
        """
        return


class Timer:
    """Calls the parts of one thread that are due.

    The timer reads the clock at least every `interval` seconds, and at each `look`.
    """

    __slots__ = ("_armed", "_first", "_handle", "_interval", "_loop", "_times", "expires", "parts")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self._loop = loop
        self._interval = interval
        # The parts, each with the names of the parts whose records decide its times.
        self.parts: Mapping[Timed, Collection[str]] = _NO_PARTS
        # The times of the parts that are as they were read, and the first ones if those of all parts are.
        self._times: dict[Timed, tuple[int, int]] = {}
        self._first: tuple[int, int] | None = None
        # The time at which the thread expires, an odd number; 0 if it is not known before the next use, None for never.
        self.expires: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        # The time for which the timer is set; 0 if it is not set, and None while the timer is stopped.
        self._armed: int | None = None

    def add(self, part: Timed, *names: str) -> None:
        """Call a part when it is due. The records of the named parts decide its times; by default, all do."""
        self.parts, self._first = {**self.parts, part: names}, None

    @property
    def due(self) -> int | None:
        """The time at which the thread must be awake next: odd if it expires then, else even, up to 1 µs early.

        0 means never. None means that the thread has no part that acts at certain times, and never expires.
        """
        if not self.parts:
            return self.expires
        due, _ = self._first or self._read()
        return min(filter(None, (due, self.expires and self.expires_at)), default=0)

    @property
    def wakes_at(self) -> int:
        """The time at which the next part must be called; 0 for never."""
        _, at = self._read()
        return at

    @property
    def expires_at(self) -> int:
        """When the thread expires unless it is used before; 0 if this is not known, or while work keeps the thread."""
        if not self.expires or any(part.keeps for part in self.parts):
            return 0
        return self.expires

    @property
    def is_due(self) -> bool:
        """Whether a part must be called now."""
        return bool(self.parts) and 0 < self.wakes_at <= read_due_clock()

    @property
    def is_started(self) -> bool:
        """Whether parts are called when they are due."""
        return self._armed is not None

    def start(self) -> None:
        """Begin to call the parts."""
        if self._armed is None:
            self._armed = 0
            self._set_next()

    def stop(self) -> None:
        """Stop calling the parts, until `start`."""
        self._cancel()
        self._armed = None

    def arm(self, *changed: Timed) -> None:
        """Set the timer after the times of some parts have changed; by default, all may have."""
        self._forget(changed or self.parts)
        self._set_next()

    def follow_write(self, written: AbstractSet[str]) -> None:
        """Set the timer after records of the named parts were written."""
        for part, names in self.parts.items():
            if not names or not written.isdisjoint(names):
                self._first = None
                self._times.pop(part, None)
        if self._first is None:
            self._set_next()

    def look(self) -> None:
        """Set the timer again, as the clock has jumped."""
        if self._armed:
            self._cancel()
            self._set(self._armed)

    # Inside

    def _forget(self, parts: Iterable[Timed]) -> None:
        self._first = None
        for part in parts:
            self._times.pop(part, None)

    def _set_next(self) -> None:
        if self._armed is not None and (at := self._read()[1]) != self._armed:
            self._cancel()
            self._set(at)

    def _read(self) -> tuple[int, int]:
        """Return when the thread must be awake for the first part, and when to call the first one; 0 for never."""
        if self._first is None:
            self._times |= {part: part.times for part in self.parts if part not in self._times}
            times = self._times.values()
            due, at = [due & ~1 for due, _ in times if due], [at for _, at in times if at]
            self._first = min(due, default=0), min(at, default=0)
        return self._first

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, at: int, *, patience: float = 0.0) -> None:
        self._armed = at
        if at:
            delay = min(self._interval, max(patience, (at - read_due_clock()) / 1e6))
            # An empty context, as the calls do not belong to the turn that has set the timer.
            self._handle = self._loop.call_later(delay, self._fire, context=Context())

    def _fire(self) -> None:
        self._handle, now = None, read_due_clock()
        self._read()
        due = [part for part, (_, at) in self._times.items() if 0 < at <= now]
        called = [part for part in due if 0 < part.times[1] <= now]  # Its work may have begun since.
        for part in called:
            try:
                part.on_due(now)
            except Exception:
                log.exception("%s could not begin the work that is due", type(part).__name__)
        self._forget(due or self.parts)
        if self._armed is not None:
            _, at = self._read()
            is_still_due = any(0 < self._times[part][1] <= now for part in called) if called else at <= now
            self._cancel()
            self._set(at, patience=_PATIENCE if is_still_due else 0.0)
