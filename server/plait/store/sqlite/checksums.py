"""Checksums of stored rows, verified when the rows are read: SQLite does not detect damaged values."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from plait.errors import CorruptThread
from plait.store.protocol import ThreadKey
from plait.store.thread_rows import ChangeRow, ClientRow, Record

__all__ = [
    "Origin",
    "checksum_change",
    "checksum_client",
    "checksum_record",
    "checksum_snapshot",
    "checksum_thread",
    "read_change",
    "read_client",
    "read_records",
    "read_snapshot",
    "read_thread",
]


class Origin(NamedTuple):
    """The data of a thread's first write that its row keeps."""

    secret: bytes
    is_stateless: bool
    created_at: int
    user: str | None


def checksum_change(thread: int, row: ChangeRow) -> int:
    """Return the checksum of a change; `thread` is the row id of its thread."""
    return crc32(row.ops, crc32(f"{thread} {row.version} {row.at} {row.source}".encode()))


def checksum_snapshot(thread: int, version: int, state: bytes) -> int:
    """Return the checksum of a snapshot."""
    return crc32(state, crc32(b"%d %d" % (thread, version)))


def checksum_client(thread: int, row: ClientRow) -> int:
    """Return the checksum of a client's row."""
    return crc32(row.refused, crc32(f"{thread} {row.ref} {row.at} {row.client}".encode()))


def checksum_record(thread: int, record: Record) -> int:
    """Return the checksum of a record."""
    return crc32(record.value or b"", crc32(record.key.encode(), _begin_record(thread, record.part)))


def checksum_thread(key: ThreadKey, state_version: int, origin: Origin) -> int:
    """Return the checksum of a thread's row. The epoch is left out: if it is damaged, clients just load the state."""
    secret, is_stateless, created_at, user = origin
    marks = f"{' stateless' if is_stateless else ''} {created_at}{'' if user is None else f' {user}'}"
    start = crc32(f"{state_version} {len(key.kind)} {key.kind}{key.name}".encode())
    return crc32(marks.encode(), crc32(secret, start))


def read_change(key: ThreadKey, thread: int, row: Sequence[Any]) -> ChangeRow:
    """Return a change from its row (version, ops, source, at, checksum). Raises CorruptThread."""
    version, ops, source, at, checksum = row
    found = ChangeRow(version, ops, source, at)
    if type(ops) is not bytes or checksum != checksum_change(thread, found):
        raise _make_damage_error(key, f"change {version}")
    return found


def read_snapshot(key: ThreadKey, thread: int, row: Sequence[Any]) -> bytes:
    """Return the state from the row of a snapshot (version, state, checksum). Raises CorruptThread."""
    version, state, checksum = row
    if type(version) is not int or type(state) is not bytes or checksum != checksum_snapshot(thread, version, state):
        raise _make_damage_error(key, f"the snapshot of version {version}")
    return state


def read_client(key: ThreadKey, thread: int, row: Sequence[Any]) -> ClientRow:
    """Return a client's row (client, ref, refused, at, checksum). Raises CorruptThread."""
    client, ref, refused, at, checksum = row
    found = ClientRow(client, ref, refused, at)
    if type(refused) is not bytes or checksum != checksum_client(thread, found):
        raise _make_damage_error(key, "the record of a client's pushes")
    return found


def read_records(
    key: ThreadKey, thread: int, part: str, rows: Iterable[Sequence[Any]], *, size: int | None = None
) -> list[Record]:
    """Return a part's records from their rows (key, value, checksum).

    With `size`, ends with the record at which the values reach this number of bytes. Raises CorruptThread.
    """
    found: list[Record] = []
    begun = _begin_record(thread, part)
    total = 0
    for name, value, checksum in rows:
        if type(name) is not str or type(value) is not bytes:
            raise _make_damage_error(key, f"a record of {part}")
        if crc32(value, crc32(name.encode(), begun)) != checksum:
            raise _make_damage_error(key, f"the record {name!r} of {part}")
        found.append(Record(part, name, value))
        total += len(value)
        if size is not None and total >= size:
            break
    return found


def _begin_record(thread: int, part: str) -> int:
    """Return the start of the checksums of a part's records."""
    return crc32(f"{thread} {part} ".encode())


def read_thread(key: ThreadKey, row: Sequence[Any]) -> tuple[int, int, Origin]:
    """Return from a thread's row: head, state_version, and the data of its first write.

    The row ends with the checksum. Raises CorruptThread.
    """
    head, state_version, *first, checksum = row
    secret, stateless, created_at, user = first
    is_typed = type(head) is type(state_version) is type(created_at) is int and type(secret) is bytes
    origin = Origin(secret, bool(stateless), created_at, user)
    if not is_typed or stateless not in (0, 1) or checksum != checksum_thread(key, state_version, origin):
        raise _make_damage_error(key, "the thread's own record")
    return head, state_version, origin


def _make_damage_error(key: ThreadKey, what: str) -> CorruptThread:
    return CorruptThread(f"{key} cannot be read: {what} is damaged")
