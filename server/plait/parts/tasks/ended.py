"""Which of the runs that have ended are kept: the last 1,000, for 7 days."""

from collections.abc import Callable, Container, Sequence
from itertools import chain
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.clock import read_due_clock
from plait.errors import CorruptThread
from plait.parts.tasks.failed import FailedRuns
from plait.parts.tasks.journal import find_prefix
from plait.store.thread_rows import DAY, Record, RecordRange
from plait_schemas.codec import encode_json

__all__ = ["ENDED", "ENDS", "KEPT_DAYS", "MOST_ENDED", "KeptRuns"]

ENDED: Final = "e/"
"""The prefix of the keys of the records of ended runs."""

ENDS: Final = "x/"
"""The prefix of the keys of the records that list them."""

MOST_ENDED: Final = 1_000
"""The number of ended runs of a thread that are kept."""

KEPT_DAYS: Final = 7
"""The days for which they are kept."""

# Runs in a record, and the most above the limit before the first ones are removed.
_ON_PAGE: Final = 100
# Seconds after a failure to remove runs.
_PAUSE: Final = 5.0
_ALL: Final = 1 << 30


class _End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a run, and whether its journal is kept."""

    id: str
    at: int
    has_journal: bool


_decode_page: Final = msgspec.json.Decoder(tuple[_End, ...]).decode


class KeptRuns:
    """The ended runs of a thread that are kept, in the order of their ends; removes the others.

    `running` are the ids of the runs that have not ended, or not again.
    """

    def __init__(self, actor: Actor, part: str, running: Container[str], failed: FailedRuns) -> None:
        self._actor = actor
        self._part = part
        self._running = running
        self._failed = failed
        # The number of the first record, and the runs of each.
        self._first = 0
        self._pages: list[tuple[_End, ...]] = []
        self._is_removing = False

    def load(self, records: Sequence[Record]) -> None:
        """Load the records when the thread wakes. Raises CorruptThread."""
        try:
            self._pages = [_decode_page(record.value or b"") for record in records]
        except msgspec.MsgspecError as error:
            what = f"{self._part}/{ENDS} of {self._actor.key} cannot be read"
            raise CorruptThread(what, detail=str(error)) from None
        self._first = int(records[0].key[len(ENDS) :], 16) if records else 0

    def add(self, *ids: str, has_journal: bool) -> tuple[list[Record], Callable[[], None]]:
        """Note that runs have ended; return the records to store with that, and what undoes it."""
        undo, pages, changed = self._save(), [*self._pages], set[int]()
        for id in ids:
            if not pages or len(pages[-1]) >= _ON_PAGE:
                pages.append(())
            pages[-1] += (_End(id, read_due_clock(), has_journal),)
            changed.add(len(pages) - 1)
        self._pages = pages
        return [self._make_record(self._first + number, pages[number]) for number in changed], undo

    # Called by the timer of the thread

    @property
    def due(self) -> int:
        """When the first runs are removed; 0 for never."""
        if sum(map(len, self._pages)) >= MOST_ENDED + _ON_PAGE:
            return 1
        return self._pages[0][0].at + KEPT_DAYS * DAY if self._pages else 0

    @property
    def wakes_at(self) -> int:
        """When to begin to remove runs; 0 for never."""
        return 0 if self._is_removing else self.due

    @property
    def keeps(self) -> bool:
        """Removing runs does not keep the thread from expiring."""
        return False

    def on_due(self, now: int) -> None:
        """Begin to remove runs."""
        self._is_removing = True
        self._actor.begin("remove ended runs", self._remove, self._end_removing, is_used=False)

    def terminate(self) -> None:
        """Do nothing: the runs of terminated threads are removed, too."""

    # Inside

    async def _remove(self) -> None:
        ends = [*chain.from_iterable(self._pages)]
        count, oldest = max(len(ends) - MOST_ENDED, 0), read_due_clock() - KEPT_DAYS * DAY
        while count < len(ends) and ends[count].at <= oldest:
            count += 1
        count = min(count, _ON_PAGE)
        kept = {end.id for end in ends[count:]}  # They may have ended before, too.
        removed = [end for end in ends[:count] if end.id not in kept]
        journals = {end.id: await self._find_journal(end.id) for end in removed if end.has_journal}
        ids = [end.id for end in removed if end.id not in self._running]
        undo_ends, records = self._save(), self._drop(count)
        failed, undo_failed = self._failed.change(remove=ids)
        for id in ids:
            records += [Record(self._part, ENDED + id, None), *journals.get(id, ())]

        def undo() -> None:
            undo_ends()
            undo_failed()

        await self._actor.records.write([*records, *failed], undo=undo)

    async def _find_journal(self, id: str) -> list[Record]:
        found = await self._actor.records.list(RecordRange(self._part, find_prefix(id), limit=_ALL))
        return [Record(self._part, record.key, None) for record in found]

    def _drop(self, count: int) -> list[Record]:
        """Drop the first ends, and return the records that change."""
        records = []
        while count:
            page, count = self._pages[0][count:], max(count - len(self._pages[0]), 0)
            records.append(self._make_record(self._first, page))
            self._first, self._pages = self._first + (not page), [*([page] if page else ()), *self._pages[1:]]
        return records

    def _end_removing(self, _: object, error: BaseException | None) -> None:
        self._is_removing = False
        if error is None:
            self._actor.arm()
        elif not self._actor.is_ending:
            self._actor.loop.call_later(_PAUSE, self._actor.arm)

    def _save(self) -> Callable[[], None]:
        first, pages = self._first, self._pages

        def undo() -> None:
            self._first, self._pages = first, pages

        return undo

    def _make_record(self, number: int, page: Sequence[_End]) -> Record:
        return Record(self._part, f"{ENDS}{number:08x}", encode_json(page) if page else None)
