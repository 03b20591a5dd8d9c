"""The outcomes of writes: their errors, and what they say of the store."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from plait.errors import Fenced, Indeterminate, StoreError

__all__ = [
    "FileLost",
    "Health",
    "OutageLog",
    "Outcome",
    "Replaced",
    "Unreachable",
    "describe",
    "make_fenced",
    "make_indeterminate",
    "make_refusal",
    "retell",
]

log = logging.getLogger("plait.store")

# Seconds between log lines while something fails, and between the last of them and the first of the next failure.
_LOG_EVERY: Final = 60.0
_LOG_AGAIN: Final = 1.0
# Seconds after a failed write before a test write is made.
_TRY_AFTER: Final = 5.0

Outcome = tuple[int, StoreError | None]
"""The number of durable writes of a group, and the error of the others."""


class Unreachable(StoreError):
    """The engine of the store cannot be reached, or this process may not write: nothing was stored."""

    code = "unavailable"


class Replaced(Unreachable):
    """The server is replaced by another one, to which what it has acknowledged since may be unknown."""


class FileLost(StoreError):
    """The file of the store was deleted or replaced, which has been logged. Nothing more is stored in it."""

    def __init__(self, message: str = "the store's file was deleted or replaced") -> None:
        super().__init__(message)
        self.is_logged = True


def describe(error: BaseException, text: str | None = None) -> str:
    """Return in one line what an error means, whose own text is `text` or that of `str`."""
    if isinstance(error, UnicodeEncodeError):
        return "UTF-8 has no form for half of a surrogate pair"
    return " ".join((text or str(error)).split()) or type(error).__name__


def make_fenced(key: object) -> Fenced:
    """Return the error of a write of an earlier owner."""
    return Fenced(f"{key} was written by another process")


def make_indeterminate(key: object, cause: Exception, why: str) -> Indeterminate:
    """Return the error of a write that may be stored, or not."""
    error = Indeterminate(f"{key}: it is not known whether the change was stored: {why}")
    error.__cause__ = cause
    return error


def make_refusal(key: object, cause: Exception, why: str, *, is_unreachable: bool = False) -> StoreError:
    """Return the error of a write that is known not to be stored; the health of the store logs it."""
    kind = Unreachable if is_unreachable or isinstance(cause, Unreachable) else StoreError
    error = kind(f"{key} could not be written: {why}")
    error.__cause__ = cause
    error.is_logged = True
    return error


def retell(error: StoreError, text: str) -> StoreError:
    """Return an error with another text; it is Unreachable if the other one is."""
    return Unreachable(text) if isinstance(error, Unreachable) else StoreError(text)


class OutageLog:
    """Tells when to log a failure that lasts: at once, and then each minute; each text by itself."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        self._pause = _LOG_EVERY

    def is_due(self, now: float, text: str = "") -> bool:
        """Whether to log it now."""
        if now - self._logged.get(text, -math.inf) < self._pause:
            return False
        self._logged[text], self._pause = now, _LOG_EVERY
        return True

    def end(self) -> None:
        """Log the next failure at once."""
        self._pause = _LOG_AGAIN


class Health:
    """Tracks failed writes, and logs them at once and then each minute, as every write fails when the disk is full.

    `is_trouble` tells of the cause of a failed write whether it concerns the whole store, not one write or thread.
    """

    def __init__(self, is_trouble: Callable[[BaseException], bool]) -> None:
        self._is_trouble = is_trouble
        # Why the store cannot be written; None while it can.
        self.trouble: str | None = None
        self._last_failure = 0.0
        self._outage = OutageLog()
        # Failed writes that have not been logged.
        self._failed = 0

    def record(self, outcomes: Sequence[Outcome], sizes: Sequence[int], now: float) -> None:
        """Record the outcomes of groups of writes of these sizes; `now` is the time of the loop's clock."""
        is_lost = any(isinstance(error, FileLost) for _, error in outcomes)
        failed = [
            (size - stored, error)
            for (stored, error), size in zip(outcomes, sizes, strict=True)
            if error is not None and not isinstance(error, FileLost)
        ]
        if failed:
            self._record_failures(failed, now, has_stored=not is_lost and any(stored for stored, _ in outcomes))
        elif self.trouble is not None and not is_lost:
            self.record_success()
        else:
            self._outage.end()

    def record_success(self) -> None:
        """Record that the store can be written."""
        if self._failed:
            log.error("%d more changes are not stored", self._failed)
        log.warning("the store can be written again")
        self._outage.end()
        self.trouble, self._failed = None, 0

    def should_try(self, now: float) -> bool:
        """Whether to make a test write: writes fail, and the last one failed some time ago."""
        return self.trouble is not None and now - self._last_failure >= _TRY_AFTER

    def postpone(self, now: float) -> None:
        """Postpone the next test write."""
        self._last_failure = now

    # Inside

    def _record_failures(self, outcomes: Sequence[tuple[int, StoreError]], now: float, *, has_stored: bool) -> None:
        failed = [error for _, error in outcomes if not isinstance(error, Fenced)]
        self._failed += sum(count for count, error in outcomes if not isinstance(error, Fenced))
        if failed and self._outage.is_due(now):
            log.error("%d changes are not stored; the last: %s", self._failed, failed[-1])
            self._failed = 0
        causes = [each.__cause__ for each in failed if each.__cause__ is not None and self._is_trouble(each.__cause__)]
        if causes:
            self.trouble = str(causes[-1])
            # If the server was away, it is tried at once: a connection tells whether it is back.
            self._last_failure = -math.inf if isinstance(failed[-1], Unreachable) else now
        elif self.trouble is not None and has_stored:
            self.record_success()
