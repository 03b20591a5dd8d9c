"""The attempts at a piece of work: when the next one is due, and after how many it is given up. No I/O.

An attempt is stored before it begins; one that ends its process is then found and counted when the thread wakes.
"""

import random
from math import inf
from typing import ClassVar, Final, Self

import msgspec
from msgspec.structs import replace

from plait.backoff import Backoff
from plait.clock import MOST_SECONDS

__all__ = ["CRASHES", "PAUSES", "Attempts", "RetryPolicy", "Uncounted"]

CRASHES: Final = 3
"""The number of attempts that ended the process after which most work is given up."""


class Uncounted(Exception):
    """Raised by an attempt that was interrupted, or could not begin: it says nothing about the work."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """The maximum number of attempts, and the seconds between them: `base`, doubled each time, at most `most`."""

    attempts: int
    base: float
    most: float
    # Whether pauses are reduced by up to a half, to spread them out.
    is_random: bool = True

    @classmethod
    def of(cls, attempts: int, base: float, most: float) -> Self:
        """Return a policy that an author has given. Raises ValueError."""
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise ValueError(f"attempts must be an integer of at least 1, not {attempts!r}")
        if not (0 < base < inf and most > 0):
            raise ValueError(f"base and most must be above 0, and base finite, not {base!r} and {most!r}")
        return cls(attempts, base, min(most, MOST_SECONDS))

    def pause(self, failures: int) -> int:
        """Return the microseconds before the next attempt."""
        longest = Backoff(self.base, self.most).delay(failures)
        return int(longest * (random.uniform(0.5, 1) if self.is_random else 1) * 1e6)


PAUSES: Final = RetryPolicy(5, 1.0, 300.0, is_random=False)
"""The attempts at work without a setting of its own, and the pauses after attempts that do not count."""


class Attempts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attempts at one piece of work so far; stored with it. Times are in microseconds since the epoch."""

    most_crashes: ClassVar = CRASHES

    # When the next attempt is due; 0 for never. It is kept during the attempt, so that the thread is found after a
    # crash.
    due: int = 0
    # The numbers of attempts that have raised, and of attempts that have ended with their process.
    failures: int = 0
    crashes: int = 0
    # The process of an attempt that has begun, and whose end is not stored.
    process: str = ""

    @property
    def attempt(self) -> int:
        """The number of the next attempt, from 1, or of the running one."""
        return self.failures + self.crashes + 1

    @property
    def has_crashed_out(self) -> bool:
        """Whether the work must be given up, because it has ended its process too often."""
        return self.crashes >= self.most_crashes

    @property
    def is_suspect(self) -> bool:
        """Whether one more crash gives up the work; the work may be the cause of the crashes."""
        return self.crashes == self.most_crashes - 1

    def begin(self, process: str) -> Self:
        """Begin an attempt."""
        return replace(self, process=process)

    def rest(self, until: int) -> Self:
        """End an attempt that does not count; the next one is due at a time."""
        return replace(self, process="", due=until)

    def fail(self, retries: RetryPolicy, now: int) -> Self | None:
        """End an attempt that has raised; None if there is no further one."""
        if (failures := self.failures + 1) >= retries.attempts or self.has_crashed_out:
            return None
        return replace(self, process="", failures=failures, due=now + retries.pause(failures))

    def progress(self) -> Self:
        """Follow a write that stores a part of the running attempt: the rest of the work has not crashed yet."""
        return replace(self, crashes=0)

    def recover(self, process: str) -> Self:
        """Count an attempt of another process as a crash, when `process` has read it."""
        if not self.process or self.process == process:
            return self
        return replace(self, process="", crashes=self.crashes + 1)
