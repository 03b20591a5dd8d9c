"""One stored schedule, and its changes when attempts begin and end. No I/O."""

from typing import Final

import msgspec
from msgspec.structs import replace

from plait.parts.attempts import CRASHES, Retries, Tries
from plait.parts.schedule.rules import LATEST, Rule
from plait_schemas.codec import encode_json

__all__ = ["Identity", "Row", "decode_row"]

Identity = tuple[str, str | bytes, Rule | None]
"""Identifies equal rows: the effect with the key, or with the arguments and the rule."""

# The pauses after runs of a recurring effect that were given up as they crashed.
_CRASH_PAUSES: Final = Retries(CRASHES, 300.0, 86_400.0, is_random=False)


class Row(Tries, frozen=True, omit_defaults=True, kw_only=True):
    """An effect that will run, once or repeatedly. Times are in microseconds since the epoch."""

    id: str
    effect: str
    # A JSON array.
    args: msgspec.Raw
    # Increases within a thread, so that it orders the queue.
    created_at: int
    # The time of the next run; its next attempt is due later if one has failed.
    at: int
    key: str = ""
    rule: Rule | None = None
    is_queued: bool = False
    # The number of runs in a row that were given up as they crashed.
    lost_runs: int = 0

    @property
    def identity(self) -> Identity | None:
        """The identity, which no other row may have; None for a row without a key, or that runs once and has begun."""
        if self.rule is not None:
            return self.effect, bytes(self.args), self.rule
        return (self.effect, self.key, None) if self.key and not self.process else None

    @property
    def run_id(self) -> str:
        """The id of this run: the same in each attempt, and different in each recurrence."""
        return self.id if self.rule is None else f"{self.id}-{self.at}"

    @property
    def has_crashed_out(self) -> bool:
        """Whether the run must be given up: after three crashes, or one if the run before was given up so."""
        return self.crashes >= (1 if self.lost_runs else CRASHES)

    @property
    def is_suspect(self) -> bool:
        """Whether one more crash gives up the run, which may cause the crashes."""
        return bool(self.lost_runs) or super().is_suspect

    def encode(self) -> bytes:
        """Return the row as it is stored."""
        return encode_json(self)

    # Changes

    def advance(self, now: int) -> "Row | None":
        """Return the row after its run has ended or was given up; None if it does not recur."""
        if self.rule is None:
            return None
        lost_runs = self.lost_runs + 1 if self.has_crashed_out else 0
        at = _find_next(self.rule, self.at, now, lost_runs)
        return replace(self, at=at, due=at, failures=0, crashes=0, process="", lost_runs=lost_runs)

    def correct(self, now: int) -> "Row":
        """Return the row, due no later than its rule says from now: a clock that was ahead may have set its time."""
        if self.rule is None or self.at <= (at := _find_next(self.rule, now, now, self.lost_runs)):
            return self
        return replace(self, at=at, due=at)


def _find_next(rule: Rule, last: int, now: int, lost_runs: int) -> int:
    try:
        return rule.next(last, now + (_CRASH_PAUSES.pause(lost_runs) if lost_runs else 0))
    except ValueError:  # This system does not have its time zone: it waits until one has it.
        return LATEST


decode_row: Final = msgspec.json.Decoder(Row).decode
