"""Keeps the records of a view in a temporary file."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Final, Self

import msgspec

from plait.errors import StoreError
from plait.store.page import take_page
from plait.store.thread_rows import Record

__all__ = ["RecordSpool"]

# Up to so many bytes, they are kept in memory.
_IN_MEMORY: Final = 1024 * 1024
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Record]).decode


class RecordSpool:
    """Pages of records, which are added in the order of their parts and keys. Leaving it removes the file."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        # Of each page: its last record, and where it begins and ends in the file.
        self._lasts: list[tuple[str, str]] = []
        self._places: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # It writes what has no room: that was told, and is not needed.
            self._file.close()

    def clear(self) -> None:
        """Begin again."""
        self._file.seek(0)
        self._file.truncate()
        self._lasts, self._places = [], []

    def add(self, page: Sequence[Record]) -> None:
        """Add records after those that were added before; not none. Raises StoreError."""
        start = self._places[-1][1] if self._places else 0
        try:
            self._file.seek(start)
            end = start + self._file.write(_encode(page))
            self._file.flush()  # Not when it is read.
        except OSError as error:
            raise StoreError(f"a temporary file cannot be written: {error}") from error
        self._lasts.append((page[-1].part, page[-1].key))
        self._places.append((start, end))

    async def read(self, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        """Return records, as `ThreadView.records` does."""
        found: list[Record] = []
        total = 0
        for start, end in self._places[bisect_right(self._lasts, after) :]:
            self._file.seek(start)
            page = [record for record in _decode(self._file.read(end - start)) if (record.part, record.key) > after]
            found += page
            total += sum(len(record.value or b"") for record in page)
            if len(found) >= limit or total >= size:
                break
        return take_page(found[:limit], lambda record: len(record.value or b""), size)
