"""The numbers of the spaces of threads, and the removal of the rows of deleted threads."""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context
from typing import Final

from plait.errors import StoreError
from plait.store.page import find_end
from plait.store.rows.engine import INDEX, Change, Engine, Key, Place, Range, ReadPlan, Reads, Row, Span
from plait.store.rows.layout import only, read_head, span_of
from plait.store.rows.parts import NUMBER, REMOVED, THREAD
from plait.store.thread_rows import ThreadKey

__all__ = ["Spaces", "put_rows", "read_spans", "write_all"]

log = logging.getLogger("plait.store")

# Numbers that are reserved at once.
_NUMBERS: Final = 1000
# How far the number of a thread may be from those of the threads whose rows are sound.
_LEAP: Final = 1 << 32
# The most deleted threads, and rows of them, that are removed at once, and the bytes of their values.
_STEP: Final = 1000
_STEP_BYTES: Final = 1024 * 1024
# Seconds after which a removal that failed is tried again.
_REMOVE_AFTER: Final = 60.0


class Spaces:
    """The spaces of the threads of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = iter(range(0))
        # The count of the numbers that are reserved, and why there are no more.
        self.left = 0
        self._failure: StoreError | None = None
        # Whether threads were deleted whose rows are not removed, and the task that removes those of others.
        self.has_removed = False
        self._removing: asyncio.Task[None] | None = None

    def take_number(self) -> int:
        """Return a number that no thread has or had. Raises StoreError if none could be reserved."""
        if not self.left:
            raise StoreError("a new thread cannot be numbered") from self._failure
        self.left -= 1
        return next(self._numbers)

    async def reserve(self, count: int) -> None:
        """Reserve at least so many numbers, so that none is used again after a crash; `take_number` raises errors."""
        try:
            (rows,) = await self._engine.read(ReadPlan(read_spans, span_of(INDEX, NUMBER)))
            first = _read_number(rows) or await self._find_number()
            after = first + max(count, _NUMBERS)
            await put_rows(self._engine, [(INDEX, NUMBER, "next", b"%d" % after)])
        except StoreError as error:
            self._failure = error
        else:
            self._numbers, self.left = iter(range(first, after)), after - first

    def begin_removal(self) -> None:
        """Begin to remove the rows of deleted threads, unless it has begun."""
        if self._removing is None:
            self.has_removed = False
            # The task belongs to the store, not to the turn whose write ends here.
            self._removing = asyncio.get_running_loop().create_task(self._remove(), context=Context())

    async def close(self) -> None:
        """End the removal. If none is under way, some rows are removed."""
        if self._removing is not None:
            self._removing.cancel()
            await asyncio.wait([self._removing])
        elif self.has_removed:
            await self._remove_some()

    # Inside

    async def _remove(self) -> None:
        """Remove the rows of deleted threads, in steps between which batches are written."""
        try:
            while (has_more := await self._remove_some()) is not False:
                if has_more is None:
                    await asyncio.sleep(_REMOVE_AFTER)
        except Exception:
            log.exception("rows of deleted threads of %s are not removed before the next deletion", self._engine.title)
        finally:
            self._removing = None

    async def _remove_some(self) -> bool | None:
        """Remove some rows of deleted threads; return whether there were any, or None if that failed."""
        try:
            gone, spaces = await self._engine.read(ReadPlan(_find_removed))
            if gone:
                await put_rows(self._engine, (), gone, spaces)
                await asyncio.sleep(0)  # Memory does not wait.
        except StoreError as error:
            log.warning("rows of deleted threads of %s could not be removed yet: %s", self._engine.title, error)
            return None
        return bool(gone)

    async def _find_number(self) -> int:
        """Return a number that no thread has, as the stored one is missing or damaged."""
        (marks,) = await self._engine.read(ReadPlan(read_spans, span_of(INDEX, REMOVED)))
        numbers = [int(space) for _, space, value in marks if value is not None]
        start: Place = (THREAD,)
        while True:
            threads = Span(INDEX, start, (find_end(THREAD) or "",), limit=_NUMBERS)
            (rows,) = await self._engine.read(ReadPlan(read_spans, threads))
            numbers += [head.space for row in rows if (head := read_head([row])) is not None]
            if len(rows) < _NUMBERS:
                # The rows of some threads may be damaged, too: no thread has a number that is far greater.
                return max(numbers) + _LEAP if numbers else 1
            start = rows[-1][0], f"{rows[-1][1]}\0"


def _find_removed() -> Reads[tuple[list[Range], list[int]]]:
    """Return rows of deleted threads that are removed at once, with the marks of whole spaces, and these spaces."""
    (marks,) = yield [span_of(INDEX, REMOVED)._replace(limit=_STEP)]
    gone, spaces = list[Range](), list[int]()
    left, bytes_left = _STEP, _STEP_BYTES
    for _, mark, value in marks:
        if value is None:
            continue  # The number of another thread may be in it.
        space = int(mark)
        (rows,) = yield [Span(space, ("",), ("\U0010ffff",), limit=left, size=bytes_left)]
        left -= len(rows)
        bytes_left -= sum([len(value or b"") for _, _, value in rows])
        # A row with a damaged key can only be removed with its space.
        if (left <= 0 or bytes_left <= 0) and all(value is not None for _, _, value in rows):
            return [*gone, *(only(space, part, key) for part, key, _ in rows)], spaces
        gone.append(only(INDEX, REMOVED, space))
        spaces.append(space)
        if left <= 0 or bytes_left <= 0:
            break
    return gone, spaces


def _read_number(rows: Sequence[Row]) -> int:
    """Return the next number that is not reserved; 0 if it is not known."""
    try:
        return int(rows[0][2] or b"0") if rows else 0
    except ValueError:
        return 0


def read_spans(*spans: Span) -> Reads[list[list[Row]]]:
    """Return the rows of spans."""
    return (yield spans)


async def put_rows(
    engine: Engine,
    rows: Sequence[tuple[int, str, Key, bytes]],
    gone: Sequence[Range] = (),
    spaces: Sequence[int] = (),
    *,
    what: str = "the store",
) -> None:
    """Write rows that are not planned, and remove others. Raises StoreError, which says that of `what`."""
    await write_all(engine, [Change(_NoThread("", what), rows, gone, spaces=spaces)])


async def write_all(engine: Engine, changes: Sequence[Change]) -> None:
    """Write changes, also if the caller is cancelled. Raises the StoreError of the first that fails."""
    work = engine.write(changes)
    await asyncio.wait([work])
    for _, error in work.result():
        if error is not None:
            error.is_logged = False  # The health of the store is not told of it.
            raise error


class _NoThread(ThreadKey):
    """The key of changes that are not those of a thread."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.name
