"""One stored schedule, and its changes when attempts begin and end. No I/O."""

import random
from typing import Final

import msgspec
from msgspec.structs import replace

from plait.parts.schedule.rules import Rule
from plait_schemas.codec import encode_json

__all__ = ["MOST_CRASHES", "Identity", "Retries", "Row", "decode_row"]

MOST_CRASHES: Final = 3
"""A run is given up after this many attempts that ended with their process."""

Identity = tuple[str, str | bytes, Rule | None]
"""Identifies equal rows: the effect with the key, or with the arguments and the rule."""

_SECOND: Final = 1_000_000


class Retries(msgspec.Struct, frozen=True):
    """The maximum number of attempts of a run, and the seconds between them: `base`, doubled each time."""

    attempts: int
    base: float
    most: float

    def delay(self, failures: int) -> float:
        """Return the seconds before the next attempt, randomly reduced by up to a half to spread out retries."""
        longest = min(self.most, self.base * 2.0 ** min(failures - 1, 64))
        return longest * random.uniform(0.5, 1)


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect that will run, once or repeatedly. Times are in microseconds since the epoch."""

    id: str
    effect: str
    # A JSON array.
    args: msgspec.Raw
    # Increases within a thread, so that it orders the queue.
    created_at: int
    # The time of the next run, and the time of its next attempt, which is later if an attempt has failed.
    at: int
    due: int
    key: str = ""
    rule: Rule | None = None
    is_queued: bool = False
    # The numbers of attempts of this run that have raised, and that have ended with their process.
    failures: int = 0
    crashes: int = 0
    # The process of an attempt that has begun, and whose end is not stored.
    process: str = ""
    is_failed: bool = False

    @property
    def identity(self) -> Identity | None:
        """The identity, which no other row may have; None for a row without a key, or that runs once and has begun."""
        if self.rule is not None:
            return self.effect, bytes(self.args), self.rule
        return (self.effect, self.key, None) if self.key and not self.process else None

    @property
    def attempt(self) -> int:
        """The number of the next attempt of this run, from 1, or of the running one."""
        return self.failures + self.crashes + 1

    @property
    def run_id(self) -> str:
        """The id of this run: the same in each attempt, and different in each recurrence."""
        return self.id if self.rule is None else f"{self.id}-{self.at}"

    def encode(self) -> bytes:
        """Return the row as it is stored."""
        return encode_json(self)

    # Changes

    def begin(self, process: str) -> "Row":
        """Return the row when an attempt begins."""
        return replace(self, process=process)

    def rest(self, until: int) -> "Row":
        """Return the row after an attempt that does not count, with the time of the next one."""
        return replace(self, process="", due=until)

    def recover(self, process: str) -> "Row":
        """Return the row after `process` has read it: an attempt of another process counts as a crash."""
        if not self.process or self.process == process:
            return self
        return replace(self, process="", crashes=self.crashes + 1)

    def advance(self, now: int) -> "Row | None":
        """Return the row after its run has ended or was given up; None if it does not recur."""
        if self.rule is None:
            return None
        try:
            at = self.rule.next(self.at, now)
        except ValueError:  # This system does not have its time zone.
            return self.stop()
        return replace(self, at=at, due=at, failures=0, crashes=0, process="")

    def stop(self) -> "Row":
        """Return the row as failed: it does not recur, and stays in the list."""
        return replace(self, is_failed=True, process="")

    def fail(self, retries: Retries, now: int) -> "Row | None":
        """Return the row after an attempt that has raised; None if there is no further one."""
        failures = self.failures + 1
        if failures >= retries.attempts:
            return None
        due = now + int(retries.delay(failures) * _SECOND)
        return replace(self, failures=failures, due=due, process="")


decode_row: Final = msgspec.json.Decoder(Row).decode
