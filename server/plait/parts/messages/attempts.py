"""Decides when the agent is called for the queue, and when a message is given up. No I/O.

An attempt is stored before the agent's code begins, so that a crash of the process is detected and counted.
"""

from typing import Final, Self

import msgspec

__all__ = ["CRASHES", "FAILURES", "Attempts", "find_pause"]

FAILURES: Final = 5
"""The number of attempts that raised after which the oldest message is given up."""

CRASHES: Final = 3
"""The number of attempts that ended the process after which the oldest message is given up."""

_FIRST_PAUSE: Final = 1_000_000
_LONGEST_PAUSE: Final = 300_000_000


def find_pause(failures: int) -> int:
    """Return the microseconds to wait after a number of failures in a row: 1 s · 2ⁿ, at most 5 min."""
    return min(_FIRST_PAUSE << min(failures - 1, 16), _LONGEST_PAUSE)


class Attempts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the attempts to have the queue taken; each method returns the next state."""

    # When the next attempt is due, in microseconds since the epoch; 0 if none is needed. It is kept during the attempt,
    # so that the thread is found after a crash.
    due: int = 0
    # The process of the running attempt; empty if there is none.
    process: str = ""
    # The position of the oldest message when the last attempt began, 0 if nothing was queued; the counts belong to it.
    oldest: int = 0
    failures: int = 0
    crashes: int = 0
    # Whether an attempt that took messages has failed: another one is made even if nothing is queued.
    is_owed: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether an attempt is running, or has ended with its process."""
        return bool(self.process)

    @property
    def is_given_up(self) -> bool:
        """Whether the oldest message must be given up."""
        return self.failures >= FAILURES or self.crashes >= CRASHES

    @property
    def is_suspect(self) -> bool:
        """Whether one more crash gives up the oldest message, which may cause the crashes."""
        return self.crashes == CRASHES - 1

    def follow(self, oldest: int, now: int) -> "Attempts":
        """Follow a change of the queue: its first message is at `oldest`, or 0 if there is none."""
        if self.is_begun:
            return self  # The end of the attempt decides.
        if not oldest and not self.is_owed:
            return _NONE
        if not self.due or (oldest != self.oldest and self.oldest and not self.is_owed):
            return Attempts(due=now)  # The first message, or the failed one has left the queue.
        return self

    def begin(self, oldest: int, process: str) -> Self:
        """Begin an attempt; the counts start at 0 if another message is the oldest now."""
        if oldest == self.oldest or self.is_owed:
            return msgspec.structs.replace(self, process=process, oldest=oldest)
        return msgspec.structs.replace(self, process=process, oldest=oldest, failures=0, crashes=0)

    def recover(self, oldest: int, now: int, process: str) -> Self:
        """End an attempt whose end was not stored: as a crash, unless it ran in this process."""
        if not self.is_begun:
            return self
        return self.postpone(oldest) if self.process == process else self.crash(oldest, now)

    def has_taken(self, oldest: int) -> bool:
        """Whether an attempt has succeeded: the message that was the oldest when it began is not queued."""
        return not self.oldest or oldest != self.oldest

    def succeed(self, oldest: int, now: int) -> "Attempts":
        """End an attempt, or the attempts for a message that was given up; later messages are due at once."""
        return Attempts(due=now) if oldest else _NONE

    def fail(self, oldest: int, now: int) -> Self:
        """End an attempt that raised; another one follows after a pause."""
        failed = self._end(oldest, failures=self.failures + 1)
        return msgspec.structs.replace(failed, due=now + find_pause(failed.failures))

    def crash(self, oldest: int, now: int) -> Self:
        """End an attempt that ended with its process; another one follows at once."""
        return msgspec.structs.replace(self._end(oldest, crashes=self.crashes + 1), due=now)

    def postpone(self, oldest: int) -> Self:
        """End an attempt that does not count."""
        return self._end(oldest)

    def _end(self, oldest: int, *, failures: int | None = None, crashes: int | None = None) -> Self:
        return msgspec.structs.replace(
            self,
            process="",
            failures=self.failures if failures is None else failures,
            crashes=self.crashes if crashes is None else crashes,
            is_owed=self.has_taken(oldest),
        )


_NONE: Final = Attempts()
