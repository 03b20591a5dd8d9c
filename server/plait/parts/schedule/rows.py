"""One schedule as it is stored, and what it becomes when an attempt ends. No I/O."""

import random
from typing import Final

import msgspec
from msgspec.structs import replace

from plait.parts.schedule.rules import Rule
from plait_schemas.codec import encode_json

__all__ = ["MOST_CRASHES", "Identity", "Retries", "Row", "decode_row"]

MOST_CRASHES: Final = 3
"""So many attempts of one run may end with their process."""

Identity = tuple[str, str | bytes, Rule | None]
"""What makes another row the same: its effect with its key, or with its arguments and its rule."""

_SECOND: Final = 1_000_000


class Retries(msgspec.Struct, frozen=True):
    """How often a run that raises is tried again, and how many seconds later: `base`, doubled each time."""

    attempts: int
    base: float
    most: float

    def delay(self, failures: int) -> float:
        """Return the seconds before the next attempt, with up to a half taken off so that retries spread out."""
        longest = min(self.most, self.base * 2.0 ** min(failures - 1, 64))
        return longest * random.uniform(0.5, 1)


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect that is to run, once or again and again. Times are in microseconds since the epoch."""

    id: str
    effect: str
    # A JSON array.
    args: msgspec.Raw
    # Grows within a thread, so that it orders the queue.
    created_at: int
    # The time of the next run, and when its next attempt begins: later, if an attempt has failed.
    at: int
    due: int
    key: str = ""
    rule: Rule | None = None
    is_queued: bool = False
    # How many attempts of this run have raised, and how many have ended with their process.
    failures: int = 0
    crashes: int = 0
    # The process in which an attempt has begun and is not known to have ended.
    process: str = ""
    is_failed: bool = False

    @property
    def identity(self) -> Identity | None:
        """What no other row should have; None for one without a key, or that runs once and has begun."""
        if self.rule is not None:
            return self.effect, bytes(self.args), self.rule
        return (self.effect, self.key, None) if self.key and not self.process else None

    @property
    def attempt(self) -> int:
        """The number of the next attempt of this run, from 1, or of the one that has begun."""
        return self.failures + self.crashes + 1

    @property
    def run_id(self) -> str:
        """The id of this run: the same in each attempt, and another one each time that it recurs."""
        return self.id if self.rule is None else f"{self.id}-{self.at}"

    def encode(self) -> bytes:
        """Return the row as it is stored."""
        return encode_json(self)

    # What it becomes

    def begin(self, process: str) -> "Row":
        """An attempt begins."""
        return replace(self, process=process)

    def rest(self, until: int) -> "Row":
        """An attempt has ended and does not count: wait before the next one."""
        return replace(self, process="", due=until)

    def recover(self, process: str) -> "Row":
        """The row has been read by a process. An attempt that another one had begun is counted as a crash."""
        if not self.process or self.process == process:
            return self
        return replace(self, process="", crashes=self.crashes + 1)

    def advance(self, now: int) -> "Row | None":
        """The run has ended, or is given up: wait for the next time; None if there is none."""
        if self.rule is None:
            return None
        try:
            at = self.rule.next(self.at, now)
        except ValueError:  # Its time zone is not on this system any longer.
            return self.stop()
        return replace(self, at=at, due=at, failures=0, crashes=0, process="")

    def stop(self) -> "Row":
        """It recurs no more, and stays in the list as failed."""
        return replace(self, is_failed=True, process="")

    def fail(self, retries: Retries, now: int) -> "Row | None":
        """An attempt has raised: wait before the next one; None if there is none."""
        failures = self.failures + 1
        if failures >= retries.attempts:
            return None
        due = now + int(retries.delay(failures) * _SECOND)
        return replace(self, failures=failures, due=due, process="")


decode_row: Final = msgspec.json.Decoder(Row).decode
