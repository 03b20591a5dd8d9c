"""Makes a thread from an export: checks the whole file first, then stores it in pages."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from plait.actor.actor import MARK
from plait.actor.kind import Kind
from plait.agents.run import MARK as CUT_OFF
from plait.clock import read_wall_clock
from plait.errors import InvalidState
from plait.limits import Limits
from plait.node.filling import Filling
from plait.state.migrations import migrate_state, store_migrated
from plait.state.state_history import replay_document
from plait.store.export_file import ExportReader
from plait.store.export_lines import Header
from plait.store.protocol import Store, StoredThread, Write
from plait.store.thread_rows import Record
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import PatchError, apply, decode_ops

__all__ = ["LEFT_OUT", "Import", "read_header"]

LEFT_OUT: Final = frozenset({CUT_OFF})
"""The parts and keys of the records that say what a process does with a thread, not what the thread has."""

_PIECE: Final = 1 << 20


class Import(Filling):
    """A file that is stored as a thread of a kind, with its history."""

    advice = "import it with `replace`, or under another name"

    def __init__(self, source: Path | bytes, kind: Kind, header: Header, name: str | None, limits: Limits) -> None:
        super().__init__(kind, header.name if name is None else name)
        self.changed_at = header.changed_at or None
        self._source = source
        self._limits = limits
        self._header = header
        # Whether the file has a state, and the last one as the class writes it; None if there is none.
        self._has_state = False
        self._state: bytes | None = None

    async def check(self) -> Any:
        """Read the whole file, and return the state for the class; None without a state.

        Raises InvalidState, TooLarge and the errors of migrations.
        """
        data = await asyncio.to_thread(self._read_all)
        kind, limits = self.kind, self._limits
        if data is None:
            if not kind.has_initial_state:
                return None
            state = kind.initial_state()
        else:
            self._has_state = True
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
        with _open(self._source) as file:
            writes = ExportReader(file).writes(self._limits)
            while (write := await asyncio.to_thread(next, writes, None)) is not None:
                await store.submit(self._adapt(write, fence))
        if self._state is not None:
            await self._finish_state(store, self._state, fence)

    # Inside

    def _adapt(self, write: Write, fence: int) -> Write:
        """Return a write of the file as one of the new thread."""
        records = [each for each in write.records if self._takes(each)]
        write = msgspec.structs.replace(write, key=self.key, epoch=self.epoch, records=records, fence=fence)
        if write.after is not None:
            return write
        first = self._begin(
            fence,
            state=None,
            state_version=self._header.state_version if self._has_state else self.kind.state_version,
            created_at=write.created_at or read_wall_clock(),
            user=write.user,
        )
        return msgspec.structs.replace(
            write,
            state_version=first.state_version,
            secret=write.secret or first.secret,
            due=first.due,
            created_at=first.created_at,
            user=first.user,
        )

    async def _finish_state(self, store: Store, state: bytes, fence: int) -> None:
        """Add a change that migrates the last state and brings it to the form of the class, unless it has that."""
        stored = await store.load(self.key)
        assert stored is not None
        version = self.kind.state_version
        if stored.state_version != version or diff(replay_document(self.key, stored), decode_json(state)):
            await store_migrated(store, self.key, stored, state, state_version=version, fence=fence)

    def _read_all(self) -> bytes | None:
        """Check all of the file, and return the last state."""
        with _open(self._source) as file:
            reader, has_state, document = ExportReader(file), False, None
            for write in reader.writes(self._limits):
                has_state = has_state or bool(write.snapshots or write.changes)
                document = _replay(document, write)
            if file.read(1):
                raise InvalidState("this is not an exported thread: there is more after its last line")
            return encode_json(document) if has_state else None

    def _takes(self, record: Record) -> bool:
        if (record.part, record.key) in LEFT_OUT:
            return False
        return super()._takes(record) or record.part == MARK.part


def read_header(source: Path | bytes) -> Header:
    """Return the first line of a file. Raises InvalidState and OSError."""
    with _open(source) as file:
        return ExportReader(file).header


def _replay(document: Any, write: Write) -> Any:
    """Return the state after a write of a file. Raises InvalidState."""
    states, version = list(write.snapshots), write.version - len(write.changes)
    try:
        if write.after is None and states:
            document = decode_json(states.pop(0).state)
        for row in write.changes:
            version = row.version
            document = apply(document, decode_ops(row.ops))
        return decode_json(states[0].state) if states else document
    except (*NOT_JSON, PatchError) as error:
        raise InvalidState(f"this is not an exported thread: version {version} cannot be read: {error}") from error


@contextmanager
def _open(source: Path | bytes) -> Iterator[IO[bytes]]:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file
