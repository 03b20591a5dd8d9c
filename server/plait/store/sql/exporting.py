"""Reads all of a thread, as the writes that make it."""

from collections.abc import AsyncIterator
from typing import Final

from plait.errors import CorruptThread
from plait.store.protocol import ThreadKey, Write
from plait.store.sql.db import Queries
from plait.store.sql.reads import load_changes, load_page
from plait.store.sql.rows import encode
from plait.store.sql.tables import Tables
from plait.store.thread_rows import ChangeRow, ClientRow, Snapshot

__all__ = ["export"]

# The maximum size of the values in one write, and the maximum number of rows.
_SIZE: Final = 512 * 1024
_ROWS: Final = 1000

_THREAD: Final = """
SELECT id, epoch, version, (SELECT min(version) FROM {changes} WHERE thread = t.id),
    state_version, secret, stateless, due, created_at, changed_at, user_id
FROM {threads} t WHERE kind = $1 AND name = $2 AND created_at IS NOT NULL
"""
_SNAPSHOTS: Final = """
SELECT version, state FROM {snapshots} WHERE thread = $1 AND version > $2 AND version <= $3 ORDER BY version
"""
_NEXT_SNAPSHOT: Final = "SELECT min(version) FROM {snapshots} WHERE thread = $1 AND version > $2"
_CLIENTS: Final = """
SELECT client, ref, refused, at FROM {clients} WHERE thread = $1 AND client > $2 ORDER BY client LIMIT $3
"""


async def export(db: Queries, tables: Tables, key: ThreadKey) -> AsyncIterator[Write]:
    """Yield the writes that make a thread. Raises CorruptThread."""
    if not (rows := await db.fetch(tables.fill(_THREAD), *encode(key))):
        return
    id, encoded, last, first, state_version, secret, is_stateless, due, created_at, changed_at, user = rows[0]
    epoch = encoded.decode()
    base = last if first is None else first - 1
    snapshots = await _load_snapshots(db, tables, id, base - 1, base)
    if not snapshots and not (base == 0 and (first is not None or is_stateless)):
        raise CorruptThread(f"{key} cannot be read: the snapshot of version {base} is missing")
    yield Write(
        *(key, epoch, None, base, (), snapshots),
        state_version=state_version,
        secret=secret,
        due=due or None,
        created_at=created_at,
        user=None if user is None else user.decode(),
        begins_at=base,
        changed_at=changed_at,
    )
    version = base
    while version < last:
        changes, snapshots = await _load_changes(db, tables, key, id, version)
        end = version + len(changes)
        if not changes or [row.version for row in changes] != list(range(version + 1, end + 1)):
            raise CorruptThread(f"{key} cannot be read: changes are missing after version {version}")
        yield Write(key, epoch, version, end, changes, snapshots, changed_at=changed_at)
        version = end
    client = b""
    while rows := await db.fetch(tables.fill(_CLIENTS), id, client, _ROWS):
        clients = [ClientRow(name.decode(), ref, refused, at) for name, ref, refused, at in rows]
        yield Write(key, epoch, last, last, clients=clients, changed_at=changed_at)
        client = rows[-1][0]
    after = ("", "")
    while records := await load_page(db, tables, key, after=after, limit=_ROWS, size=_SIZE):
        yield Write(key, epoch, last, last, records=records, changed_at=changed_at)
        after = records[-1].part, records[-1].key


async def _load_snapshots(db: Queries, tables: Tables, thread: int, after: int, to: int) -> list[Snapshot]:
    rows = await db.fetch(tables.fill(_SNAPSHOTS), thread, after, to)
    return [Snapshot(version, state) for version, state in rows]


async def _load_changes(
    db: Queries, tables: Tables, key: ThreadKey, thread: int, after: int
) -> tuple[list[ChangeRow], list[Snapshot]]:
    """Return changes after a version, at most up to the next snapshot, and that."""
    ((end,),) = await db.fetch(tables.fill(_NEXT_SNAPSHOT), thread, after)
    limit = _ROWS if end is None else min(_ROWS, end - after)
    rows = await load_changes(db, tables, key, after, limit=limit, size=_SIZE)
    to = rows[-1].version if rows else after
    return rows, await _load_snapshots(db, tables, thread, after, to)
