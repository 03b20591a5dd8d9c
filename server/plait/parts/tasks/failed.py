"""The failed runs of a thread: one record has their ids, so that they are found among all threads. No I/O."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["FAILED", "FailedRuns", "decode_failed"]

FAILED: Final = "failed"
"""The key of the record."""

decode_failed: Final = msgspec.json.Decoder(tuple[str, ...]).decode


class FailedRuns:
    """The ids of the failed runs of one thread that are kept."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._ids: tuple[str, ...] = ()

    def load(self, records: Iterable[Record]) -> None:
        """Read the stored record, if there is one. Raises MsgspecError."""
        for record in records:
            self._ids = decode_failed(record.value or b"")

    def change(self, *, add: str = "", remove: Sequence[str] = ()) -> tuple[list[Record], Callable[[], None]]:
        """Add a run or remove some; return the record that changes, if it does, and what undoes it."""
        before = self._ids
        self._ids = (*(id for id in before if id not in remove), *((add,) if add else ()))

        def undo() -> None:
            self._ids = before

        return [] if self._ids == before else [
            Record(self._part, FAILED, encode_json(self._ids) if self._ids else None)
        ], undo
