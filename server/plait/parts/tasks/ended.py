"""Decides which ended runs are kept: the last 1,000, for 7 days."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.clock import read_due_clock
from plait.parts.part import ALL
from plait.parts.tasks.journal import find_prefix
from plait.parts.tasks.rows import Status
from plait.state.thread_records import Change, Changes, Table
from plait.state.timer import Timed
from plait.store.thread_rows import DAY, Record, RecordRange
from plait_schemas.codec import encode_json

__all__ = ["ENDED", "ENDS", "FAILED", "KEPT_DAYS", "MOST_ENDED", "KeptRuns", "decode_failed"]

ENDED: Final = "e/"
"""The prefix of the keys of the records of ended runs."""

ENDS: Final = "x/"
"""The prefix of the keys of the records that list the ended runs."""

FAILED: Final = "failed"
"""The key of the record with the ids of the failed runs, by which they are found among all threads."""

MOST_ENDED: Final = 1_000
"""The number of ended runs of a thread that are kept."""

KEPT_DAYS: Final = 7
"""The days for which ended runs are kept."""

# Numbers in a record, and the maximum above the limit before the first runs are removed.
_ON_PAGE: Final = 100
# Seconds after a failure to remove runs.
_PAUSE: Final = 5.0
# At once: an even time, as that of all work.
_DUE: Final = 2


class _End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a run; they are numbered in their order."""

    number: int
    id: str
    at: int
    status: Status


decode_failed: Final = msgspec.json.Decoder(tuple[str, ...]).decode


class KeptRuns(Timed):
    """Knows which ended runs of a thread are kept, in the order of their ends; removes the others."""

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        self._ends: list[_End] = []
        # Pages of the ends, by the numbers of the pages.
        self._table = Table(part, ENDS, tuple[_End, ...], self._set, digits=8)
        self._is_removing = False

    def load(self, records: Sequence[Record]) -> None:
        """Load the records when the thread wakes. Raises CorruptThread."""
        for number, page in self._table.load(records, self._actor.key):
            self._set(number, page)

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, id: str) -> bool:
        return any(end.id == id for end in self._ends)

    def last(self, limit: int) -> list[str]:
        """Return the ids of the last ended runs, the newest first."""
        return [end.id for end in self._ends[: -limit - 1 : -1]]

    def add(self, ended: Mapping[str, Status]) -> Changes:
        """Return the changes which record that runs have ended."""
        first, now = self._ends[-1].number + 1 if self._ends else 0, read_due_clock()
        return self._change([_End(first + i, id, now, status) for i, (id, status) in enumerate(ended.items())])

    def remove(self, ids: Collection[str]) -> Changes:
        """Return the changes that remove runs."""
        return self._change(removed={end for end in self._ends if end.id in ids})

    # Called by the timer of the thread

    @property
    def times(self) -> tuple[int, int]:
        """When the first runs are removed."""
        due = self._ends[0].at + KEPT_DAYS * DAY if self._ends else 0
        if len(self._ends) >= MOST_ENDED + _ON_PAGE:
            due = _DUE
        return due, 0 if self._is_removing else due

    def on_due(self, now: int) -> None:
        """Begin to remove runs."""
        self._is_removing = True
        self._actor.begin("remove ended runs", self._remove, self._end_removing, is_used=False)

    # Inside

    async def _remove(self) -> None:
        excess, oldest = len(self._ends) - MOST_ENDED, read_due_clock() - KEPT_DAYS * DAY
        old = [end for place, end in enumerate(self._ends) if place < excess or end.at <= oldest][:_ON_PAGE]
        journals = {end: await self._find_journal(end.id) for end in old if end.status != "done"}
        # Some runs may have been tried again in the meantime.
        removed = {*old}.intersection(self._ends)
        changes = [*self._change(removed=removed)]
        for end in removed:
            changes += [Record(self._part, ENDED + end.id, None), *journals.get(end, ())]
        await self._actor.records.put(changes)

    async def _find_journal(self, id: str) -> list[Record]:
        found = await self._actor.records.list(RecordRange(self._part, find_prefix(id), limit=ALL))
        return [Record(self._part, record.key, None) for record in found]

    def _end_removing(self, _: object, error: BaseException | None) -> None:
        if error is None:
            self._rest()
        elif not self._actor.is_ending:
            self._actor.loop.call_later(_PAUSE, self._rest)

    def _rest(self) -> None:
        self._is_removing = False
        self._actor.timer.arm(self)

    def _change(self, added: Sequence[_End] = (), removed: Collection[_End] = ()) -> Changes:
        """Return the changes of pages, and of the record of all failed runs if that changes."""
        numbers = {end.number // _ON_PAGE for end in (*added, *removed)}
        since = self._ends[self._find(min(numbers, default=0)) :]
        left = [end for end in (*since, *added) if end not in removed]
        pages = {number: (*page,) for number, page in groupby(left, lambda end: end.number // _ON_PAGE)}
        changes: list[Change | Record] = [
            self._table.change(number, pages.get(number), is_readable=True) for number in numbers
        ]
        if any(end.status == "failed" for end in (*added, *removed)):
            ids = [end.id for end in (*self._ends, *added) if end.status == "failed" and end not in removed]
            changes.append(Record(self._part, FAILED, encode_json(ids) if ids else None))
        return changes

    def _find(self, page: int) -> int:
        return bisect_left(self._ends, page * _ON_PAGE, key=lambda end: end.number)

    def _set(self, number: int, page: Sequence[_End] | None) -> Sequence[_End]:
        place = slice(self._find(number), self._find(number + 1))
        before, self._ends[place] = self._ends[place], page or ()
        return before
