"""One stored schedule, and its changes when attempts begin and end. No I/O."""

from typing import Final

import msgspec
from msgspec.structs import replace

from plait.parts.attempts import Tries
from plait.parts.schedule.rules import Rule
from plait_schemas.codec import encode_json

__all__ = ["Identity", "Row", "decode_row"]

Identity = tuple[str, str | bytes, Rule | None]
"""Identifies equal rows: the effect with the key, or with the arguments and the rule."""


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
    is_failed: bool = False

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

    def encode(self) -> bytes:
        """Return the row as it is stored."""
        return encode_json(self)

    # Changes

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


decode_row: Final = msgspec.json.Decoder(Row).decode
