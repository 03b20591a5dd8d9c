"""Checksums of stored rows, and the reading of rows by them: they show damage that SQLite cannot see."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from plait.errors import CorruptThread
from plait.store.protocol import ChangeRow, ClientRow, ThreadKey

__all__ = [
    "checksum_change",
    "checksum_client",
    "checksum_snapshot",
    "checksum_thread",
    "read_change",
    "read_client",
    "read_snapshot",
    "read_thread",
]


def checksum_change(thread: int, row: ChangeRow) -> int:
    """Return the checksum of a change, which is of the thread with this row id."""
    return crc32(row.ops, crc32(f"{thread} {row.version} {row.at} {row.source}".encode()))


def checksum_snapshot(thread: int, version: int, state: bytes) -> int:
    """Return the checksum of a snapshot."""
    return crc32(state, crc32(b"%d %d" % (thread, version)))


def checksum_client(thread: int, row: ClientRow) -> int:
    """Return the checksum of what is known of a client's pushes."""
    return crc32(row.refused, crc32(f"{thread} {row.ref} {row.at} {row.client}".encode()))


def checksum_thread(key: ThreadKey, state_version: int, secret: bytes) -> int:
    """Return the checksum of a thread's own row, but for its epoch: damage to that is only another epoch."""
    return crc32(secret, crc32(f"{state_version} {len(key.kind)} {key.kind}{key.name}".encode()))


def read_change(key: ThreadKey, thread: int, row: Sequence[Any]) -> ChangeRow:
    """Return a change: its version, operations, source, time, and its checksum. Raises CorruptThread."""
    version, ops, source, at, checksum = row
    found = ChangeRow(version, ops, source, at)
    if type(ops) is not bytes or (checksum is not None and checksum != checksum_change(thread, found)):
        raise _damaged(key, f"change {version}")
    return found


def read_snapshot(key: ThreadKey, thread: int, row: Sequence[Any]) -> bytes:
    """Return the state in a snapshot: its version, state, and checksum. Raises CorruptThread."""
    version, state, checksum = row
    if type(version) is not int or type(state) is not bytes:
        raise _damaged(key, f"the snapshot of version {version}")
    if checksum is not None and checksum != checksum_snapshot(thread, version, state):
        raise _damaged(key, f"the snapshot of version {version}")
    return state


def read_client(key: ThreadKey, thread: int, row: Sequence[Any]) -> ClientRow:
    """Return what is known of a client: its id, ref, refusals, time, and the checksum. Raises CorruptThread."""
    client, ref, refused, at, checksum = row
    found = ClientRow(client, ref, refused, at)
    if type(refused) is not bytes or (checksum is not None and checksum != checksum_client(thread, found)):
        raise _damaged(key, "what is known of a client's pushes")
    return found


def read_thread(key: ThreadKey, row: Sequence[Any]) -> tuple[int, int, bytes]:
    """Return a thread's head, state_version and secret, which are followed by the checksum. Raises CorruptThread."""
    head, state_version, secret, checksum = row
    is_typed = type(head) is type(state_version) is int and type(secret) is bytes
    if not is_typed or (checksum is not None and checksum != checksum_thread(key, state_version, secret)):
        raise _damaged(key, "what is stored of the thread itself")
    return head, state_version, secret


def _damaged(key: ThreadKey, what: str) -> CorruptThread:
    return CorruptThread(f"{key} cannot be read: {what} is damaged")
