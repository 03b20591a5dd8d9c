"""Whether a store can be written, and the log lines that tell an operator that it cannot."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from plait.errors import Fenced, StoreError
from plait.store.outcomes import FileLost, Outcome
from plait.store.protocol import Unreachable

__all__ = ["Health"]

log = logging.getLogger("plait.store")

# Seconds between log lines while writes fail.
_LOG_EVERY: Final = 1.0
# Seconds after a failed write before a test write is made.
_TRY_AFTER: Final = 5.0


class Health:
    """Tracks failed writes, and logs them at most once a second, as every write fails when the disk is full.

    `is_trouble` tells of the cause of a failed write whether it concerns the whole store, not one write or thread.
    """

    def __init__(self, is_trouble: Callable[[BaseException], bool]) -> None:
        self._is_trouble = is_trouble
        # Why the store cannot be written; None while it can.
        self.trouble: str | None = None
        self._last_failure = 0.0
        self._last_line = float("-inf")
        # Failed writes that have not been logged.
        self._failed = 0

    def record(self, outcomes: Sequence[Outcome], sizes: Sequence[int], now: float) -> None:
        """Record the outcomes of groups of writes of these sizes; `now` is the time of the loop's clock."""
        failed = [
            (size - stored, error)
            for (stored, error), size in zip(outcomes, sizes, strict=True)
            if error is not None and not isinstance(error, FileLost)
        ]
        if failed:
            self._record_failures(failed, now, has_stored=any(stored for stored, _ in outcomes))
        elif self.trouble is not None:
            self.record_success()

    def record_success(self) -> None:
        """Record that the store can be written."""
        if self._failed:
            log.error("%d more changes are not stored", self._failed)
        log.warning("the store can be written again")
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
        if failed and now - self._last_line >= _LOG_EVERY:
            log.error("%d changes are not stored; the last: %s", self._failed, failed[-1])
            self._last_line, self._failed = now, 0
        causes = [each.__cause__ for each in failed if each.__cause__ is not None and self._is_trouble(each.__cause__)]
        if causes:
            self.trouble = str(causes[-1])
            # If the server was away, it is tried at once: a connection tells whether it is back.
            self._last_failure = -math.inf if isinstance(failed[-1], Unreachable) else now
        elif self.trouble is not None and has_stored:
            self.record_success()
