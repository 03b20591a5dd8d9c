"""Makes a thread of an exported one: checks the whole file first, and then stores it in pages."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from plait.actor.ending import MARK
from plait.actor.kind import Kind
from plait.clock import read_wall_clock
from plait.limits import Limits
from plait.node.export_file import ExportReader, Header
from plait.node.filling import Filling
from plait.state.migrations import migrate_state
from plait.store.protocol import Store, StoredThread
from plait.store.thread_rows import Record

__all__ = ["Import", "read_header"]

_END: Final[list[Record]] = []
_PIECE: Final = 1 << 20


class Import(Filling):
    """A file that is stored as a thread of a kind."""

    advice = "import it with `replace`, or by another name"

    def __init__(self, source: Path | bytes, kind: Kind, header: Header, name: str | None, limits: Limits) -> None:
        super().__init__(kind, header.name if name is None else name)
        self._source = source
        self._limits = limits
        self._header = header
        # The state as it will be stored; None if there is none.
        self._state: bytes | None = None

    async def check(self) -> Any:
        """Read all of the file, and return the state for the class; None if there is none.

        Raises InvalidState, TooLarge and what migrations raise.
        """
        data = await asyncio.to_thread(self._read_all)
        kind, limits = self.kind, self._limits
        if data is None:
            if not kind.has_initial_state:
                return None
            state = kind.initial_state()
        else:
            stored = StoredThread("", 0, data, (), self._header.state_version)
            data = migrate_state(self.key, kind, stored) or data
            state = kind.state_type.read(data, limits)
        _, self._state = kind.state_type.from_value(state, limits)
        return state

    async def read_pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the bytes of the file."""
        with _open(self._source) as file:
            while data := await asyncio.to_thread(file.read, _PIECE):
                yield data

    async def write(self, store: Store, fence: int) -> None:
        header = self._header
        first = self._begin(
            fence,
            state=self._state,
            state_version=self.kind.state_version,
            created_at=header.created_at or read_wall_clock(),
            user=header.user,
        )
        with _open(self._source) as file:
            await self._write_pages(store, first, self._read_pages(file))

    # Inside

    async def _read_pages(self, file: IO[bytes]) -> AsyncIterator[list[Record]]:
        pages = ExportReader(file).pages(self._limits)
        while (page := await asyncio.to_thread(next, pages, _END)) is not _END:
            yield page

    def _read_all(self) -> bytes | None:
        with _open(self._source) as file:
            reader = ExportReader(file)
            for _ in reader.pages(self._limits):
                pass
            return reader.state

    def _takes(self, record: Record) -> bool:
        return super()._takes(record) or record.part == MARK.part


def read_header(source: Path | bytes) -> Header:
    """Return the first line of a file. Raises InvalidState and OSError."""
    with _open(source) as file:
        return ExportReader(file).header


@contextmanager
def _open(source: Path | bytes) -> Iterator[IO[bytes]]:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file
