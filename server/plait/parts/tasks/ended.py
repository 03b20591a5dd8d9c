"""Which of the runs that have ended are kept: the last 1,000, for 7 days."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.timer import Timed
from plait.clock import read_due_clock
from plait.parts.encoding import decode_record
from plait.parts.part import ALL
from plait.parts.tasks.journal import find_prefix
from plait.parts.tasks.rows import Status
from plait.store.thread_rows import DAY, Record, RecordRange
from plait_schemas.codec import encode_json

__all__ = ["ENDED", "ENDS", "FAILED", "KEPT_DAYS", "MOST_ENDED", "KeptRuns", "decode_failed"]

ENDED: Final = "e/"
"""The prefix of the keys of the records of ended runs."""

ENDS: Final = "x/"
"""The prefix of the keys of the records that list them."""

FAILED: Final = "failed"
"""The key of the record with the ids of the failed ones, by which they are found among all threads."""

MOST_ENDED: Final = 1_000
"""The number of ended runs of a thread that are kept."""

KEPT_DAYS: Final = 7
"""The days for which they are kept."""

# Numbers in a record, and the most above the limit before the first runs are removed.
_ON_PAGE: Final = 100
# Seconds after a failure to remove runs.
_PAUSE: Final = 5.0


class _End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a run; they are numbered in their order."""

    number: int
    id: str
    at: int
    status: Status


_decode_page: Final = msgspec.json.Decoder(tuple[_End, ...]).decode
decode_failed: Final = msgspec.json.Decoder(tuple[str, ...]).decode


class KeptRuns(Timed):
    """The ended runs of a thread that are kept, in the order of their ends; removes the others."""

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        self._ends: dict[str, _End] = {}
        self._is_removing = False

    def load(self, records: Sequence[Record]) -> None:
        """Load the records when the thread wakes. Raises CorruptThread."""
        pages = [decode_record(record, self._actor.key, _decode_page) for record in records]
        self._ends = {end.id: end for page in pages for end in page}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, id: str) -> bool:
        return id in self._ends

    def last(self, limit: int) -> list[str]:
        """Return the ids of the last ones, in the reversed order of their ends."""
        return [*islice(reversed(self._ends), limit)]

    def add(self, ended: Mapping[str, Status]) -> tuple[list[Record], Callable[[], None]]:
        """Note that runs have ended; return the records to store with that, and what undoes it."""
        number = next((end.number + 1 for end in reversed(self._ends.values())), 0)
        added = [_End(number + i, id, read_due_clock(), status) for i, (id, status) in enumerate(ended.items())]
        self._ends.update((end.id, end) for end in added)

        def undo() -> None:
            for end in added:
                del self._ends[end.id]

        return self._make_records(added), undo

    def remove(self, ids: Collection[str]) -> tuple[list[Record], Callable[[], None]]:
        """Keep runs no longer, as `add` notes them."""
        removed = [self._ends.pop(id) for id in ids]

        def undo() -> None:
            ends = sorted([*self._ends.values(), *removed], key=lambda end: end.number)
            self._ends = {end.id: end for end in ends}

        return self._make_records(removed), undo

    # Called by the timer of the thread

    @property
    def due(self) -> int:
        """When the first runs are removed; 0 for never."""
        if len(self._ends) >= MOST_ENDED + _ON_PAGE:
            return 1
        return next((end.at + KEPT_DAYS * DAY for end in self._ends.values()), 0)

    @property
    def wakes_at(self) -> int:
        """When to begin to remove runs; 0 for never."""
        return 0 if self._is_removing else self.due

    def on_due(self, now: int) -> None:
        """Begin to remove runs."""
        self._is_removing = True
        self._actor.begin("remove ended runs", self._remove, self._end_removing, is_used=False)

    # Inside

    async def _remove(self) -> None:
        excess, oldest = len(self._ends) - MOST_ENDED, read_due_clock() - KEPT_DAYS * DAY
        old = [end for place, end in enumerate(self._ends.values()) if place < excess or end.at <= oldest][:_ON_PAGE]
        journals = {end: await self._find_journal(end.id) for end in old if end.status != "done"}
        # Some may have been tried again since.
        ids = [end.id for end in old if self._ends.get(end.id) is end]
        records, undo = self.remove(ids)
        for end in old:
            if end.id not in self._ends:
                records += [Record(self._part, ENDED + end.id, None), *journals.get(end, ())]
        await self._actor.records.write(records, undo=undo)

    async def _find_journal(self, id: str) -> list[Record]:
        found = await self._actor.records.list(RecordRange(self._part, find_prefix(id), limit=ALL))
        return [Record(self._part, record.key, None) for record in found]

    def _end_removing(self, _: object, error: BaseException | None) -> None:
        self._is_removing = False
        if error is None:
            self._actor.arm()
        elif not self._actor.is_ending:
            self._actor.loop.call_later(_PAUSE, self._actor.arm)

    def _make_records(self, changed: Sequence[_End]) -> list[Record]:
        """Return the records with these ends, as they are now, and that of all failed ones."""
        records, pages = [], {end.number // _ON_PAGE for end in changed}
        first = min(pages, default=0) * _ON_PAGE
        since = [*takewhile(lambda end: end.number >= first, reversed(self._ends.values()))][::-1]
        for page in pages:
            ends = [end for end in since if end.number // _ON_PAGE == page]
            records.append(Record(self._part, f"{ENDS}{page:08x}", encode_json(ends) if ends else None))
        if any(end.status == "failed" for end in changed):
            ids = [end.id for end in self._ends.values() if end.status == "failed"]
            records.append(Record(self._part, FAILED, encode_json(ids) if ids else None))
        return records
