"""Makes a thread of an exported one: checks the whole file first, and then stores it in pages."""

import asyncio
import io
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from plait.actor.kind import Kind, check_name
from plait.actor.termination import MARK as TERMINATED
from plait.agents.session_names import SESSION, decode_session
from plait.kv.user_names import find_user
from plait.limits import Limits
from plait.node.export_file import ExportReader, Header
from plait.parts.part import find_parts
from plait.state.migrations import migrate_state
from plait.store.protocol import INCOMPLETE, Record, Snapshot, Store, StoredThread, ThreadKey, Write

__all__ = ["Import", "read_header"]

_END: Final[list[Record]] = []
_PIECE: Final = 1 << 20


class Import:
    """A file that is stored as a thread of a kind."""

    def __init__(self, source: Path | bytes, kind: Kind, header: Header, name: str | None, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._header = header
        self.kind = kind
        self.key = ThreadKey(kind.name, check_name(header.name if name is None else name))
        self._parts = find_parts(kind.cls)
        # The state as it will be stored; None if there is none.
        self._state: bytes | None = None
        self.epoch = secrets.token_bytes(8).hex()

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
        """Store all in pages; the thread is incomplete then. Raises InvalidState and StoreError."""
        write = self._begin(fence)
        with _open(self._source) as file:
            pages = ExportReader(file).pages(self._limits)
            while (page := await asyncio.to_thread(next, pages, _END)) is not _END:
                records = [record for record in page if self._takes(record)]
                await store.submit(msgspec.structs.replace(write, records=records))
                write = Write(self.key, self.epoch, 0, 0, fence=fence)
            if write.after is None:
                await store.submit(write)

    def _begin(self, fence: int) -> Write:
        """Return the first write, without records."""
        header, name = self._header, self.key.name
        return Write(
            self.key,
            self.epoch,
            None,
            0,
            snapshots=() if self._state is None else (Snapshot(0, self._state),),
            state_version=self.kind.state_version,
            secret=secrets.token_bytes(16),
            fence=fence,
            due=INCOMPLETE,
            created_at=header.created_at or time.time_ns() // 1000,
            user=find_user(name) or header.user,
        )

    def _read_all(self) -> bytes | None:
        with _open(self._source) as file:
            reader = ExportReader(file)
            for _ in reader.pages(self._limits):
                pass
            return reader.state

    def _takes(self, record: Record) -> bool:
        """Whether a record is one of a part that the class has, or of the thread itself."""
        if (record.part, record.key) == SESSION:
            return decode_session(self.key.name, record.value or b"") is not None
        return record.part in self._parts or record.part == TERMINATED.part


def read_header(source: Path | bytes) -> Header:
    """Return the first line of a file. Raises InvalidState and OSError."""
    with _open(source) as file:
        return ExportReader(file).header


@contextmanager
def _open(source: Path | bytes) -> Iterator[IO[bytes]]:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file
