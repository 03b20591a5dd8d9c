"""Splits the write that makes a whole thread."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from plait.store.page import take_page
from plait.store.protocol import Write

__all__ = ["split"]

# The maximum size of the values in one write, and the maximum number of rows.
_SIZE: Final = 512 * 1024
_ROWS: Final = 1000


def split(whole: Write) -> Iterator[Write]:
    """Yield the writes that make a thread in an empty store, in place of one."""
    base, last = whole.begins_at, whole.version
    snapshots = sorted(whole.snapshots, key=lambda each: each.version)

    def make(after: int, to: int, **rows: Any) -> Write:
        return Write(whole.key, whole.epoch, after, to, changed_at=whole.changed_at, **rows)

    first = [each for each in snapshots if each.version == base]
    yield msgspec.structs.replace(whole, version=base, changes=(), snapshots=first, clients=(), records=())
    version = base
    while version < last:
        end = next((each.version for each in snapshots if each.version > version), last)
        rows = whole.changes[version - base : min(end, version + _ROWS) - base]
        changes = take_page(rows, lambda row: len(row.ops), _SIZE)
        end = version + len(changes)
        yield make(
            version, end, changes=changes, snapshots=[each for each in snapshots if version < each.version <= end]
        )
        version = end
    clients = sorted(whole.clients, key=lambda row: row.client)
    for at in range(0, len(clients), _ROWS):
        yield make(last, last, clients=clients[at : at + _ROWS])
    records = sorted(whole.records, key=lambda row: (row.part, row.key))
    at = 0
    while page := take_page(records[at : at + _ROWS], lambda row: len(row.value or b""), _SIZE):
        yield make(last, last, records=page)
        at += len(page)
