"""The rows that writes make, and the SQL statements that store them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from plait.clock import read_wall_clock
from plait.store.postgres.engine import Db
from plait.store.postgres.heads import ClaimedHead
from plait.store.postgres.schema import Tables
from plait.store.protocol import Write
from plait.store.thread_rows import CLIENT_DAYS, DAY

__all__ = ["PLAIN", "Rows", "change_columns", "client_columns", "columns"]

_CLIENTS: Final = """
ON CONFLICT (thread, client) DO UPDATE SET ref = excluded.ref, refused = excluded.refused, at = excluded.at
"""
PLAIN: Final = f"""
WITH locked AS (
    SELECT t.id FROM {{threads}} t WHERE t.id = ANY ($1) ORDER BY t.id FOR NO KEY UPDATE
), updated AS (
    UPDATE {{threads}} t SET version = w.version, writes = t.writes + 1
    FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        w (id, epoch, after, fence, writes, version)
    WHERE t.id = w.id AND t.epoch = w.epoch AND t.version = w.after AND t.fence = w.fence AND t.writes = w.writes
        AND (SELECT count(*) FROM locked) > 0
    RETURNING t.id
), inserted AS (
    INSERT INTO {{changes}} (thread, version, ops, source, at)
    SELECT * FROM unnest($7::bigint[], $8::bigint[], $9::bytea[], $10::bytea[], $11::bigint[]) c (thread)
    WHERE c.thread IN (SELECT id FROM updated)
), known AS (
    INSERT INTO {{clients}} (thread, client, ref, refused, at)
    SELECT * FROM unnest($12::bigint[], $13::bytea[], $14::bigint[], $15::bytea[], $16::bigint[]) c (thread)
    WHERE c.thread IN (SELECT id FROM updated)
    {_CLIENTS}
)
SELECT id FROM updated
"""
"""Stores changes, and the clients that made them, of the threads whose heads are as expected; returns their ids."""

_DELETE: Final = """
UPDATE {threads} t SET id = w.new, writes = t.writes + 1, epoch = NULL, version = NULL, state_version = NULL,
    secret = NULL, stateless = NULL, due = NULL, created_at = NULL, changed_at = NULL, user_id = NULL
FROM unnest($1::bigint[], $2::bigint[]) w (id, new) WHERE t.id = w.id
"""
_CREATE: Final = """
UPDATE {threads} t SET id = w.new, writes = t.writes + 1, epoch = w.epoch, version = w.version,
    state_version = w.state_version, secret = w.secret, stateless = w.stateless,
    due = coalesce(w.due, 0), created_at = w.created_at, changed_at = w.changed_at, user_id = w.user_id
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::integer[], $6::bytea[], $7::boolean[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[])
    w (id, new, epoch, version, state_version, secret, stateless, due, created_at, changed_at, user_id)
WHERE t.id = w.id
"""
_ADVANCE: Final = """
UPDATE {threads} t SET version = w.version, writes = t.writes + 1
FROM unnest($1::bigint[], $2::bigint[]) w (id, version) WHERE t.id = w.id
"""
# Apart from those above, as it changes indexes.
_MARK: Final = """
UPDATE {threads} t SET state_version = coalesce(w.state_version, t.state_version), due = coalesce(w.due, t.due)
FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) w (id, state_version, due)
WHERE t.id = w.id
"""
_INSERT_CHANGES: Final = """
INSERT INTO {changes} (thread, version, ops, source, at)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[])
"""
_INSERT_CLIENTS: Final = f"""
INSERT INTO {{clients}} (thread, client, ref, refused, at)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[])
{_CLIENTS}
"""
_INSERT_SNAPSHOTS: Final = """
INSERT INTO {snapshots} (thread, version, state) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])
ON CONFLICT (thread, version) DO UPDATE SET state = excluded.state
"""
_DELETE_RECORDS: Final = """
DELETE FROM {records} r USING unnest($1::bigint[], $2::bytea[], $3::bytea[]) d (thread, part, key)
WHERE r.thread = d.thread AND r.part = d.part AND r.key = d.key
"""
_INSERT_RECORDS: Final = """
INSERT INTO {records} (thread, part, key, value)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[])
ON CONFLICT (thread, part, key) DO UPDATE SET value = excluded.value
"""
_REMOVE: Final = "INSERT INTO {removed} (thread) SELECT * FROM unnest($1::bigint[])"
# The clock may have been wrong: times in the future are ignored, no change after a recent one is too old, and clients
# are kept until other clients have pushed on as many different days.
_PRUNE: Final = f"""
WITH bound AS (
    SELECT p.thread, greatest(p.version,
        CASE WHEN p.at > 0 THEN (SELECT max(version) FROM {{changes}} WHERE thread = p.thread AND at < p.at
            AND version < coalesce((SELECT min(version) FROM {{changes}} WHERE thread = p.thread
                AND at BETWEEN p.at AND $5), 9223372036854775807)) END,
        CASE WHEN p.bytes IS NOT NULL THEN (SELECT max(version) FROM (
            SELECT version, sum(length(ops)) OVER (ORDER BY version DESC) AS size FROM {{changes}}
            WHERE thread = p.thread) c WHERE size > p.bytes) END) AS version
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) p (thread, version, at, bytes)
), oldest AS (
    SELECT b.thread, (
        SELECT max(version) FROM {{snapshots}} WHERE thread = b.thread AND version <= b.version) AS version
    FROM bound b
), changes AS (
    DELETE FROM {{changes}} c USING oldest o WHERE c.thread = o.thread AND c.version <= o.version
), snapshots AS (
    DELETE FROM {{snapshots}} s USING oldest o WHERE s.thread = o.thread AND s.version < o.version
)
DELETE FROM {{clients}} c WHERE c.thread = ANY ($1) AND c.at < $5 - {DAY * CLIENT_DAYS}::bigint
    AND c.at / {DAY}::bigint < (SELECT min(day) FROM (
        SELECT DISTINCT at / {DAY}::bigint AS day FROM {{clients}} WHERE thread = c.thread AND at <= $5
        ORDER BY day DESC LIMIT {CLIENT_DAYS}) days)
"""


def columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """Return rows as columns, and `count` empty ones if there are no rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def change_columns(writes: Iterable[tuple[int, Write]]) -> list[Sequence[Any]]:
    """Return the changes of writes, each with the id of its thread. Raises UnicodeEncodeError."""
    rows = [(id, row.version, row.ops, row.source.encode(), row.at) for id, write in writes for row in write.changes]
    return columns(rows, 5)


def client_columns(writes: Iterable[tuple[int, Write]]) -> list[Sequence[Any]]:
    """Return the last row of each client of writes. Raises UnicodeEncodeError."""
    last = {(id, row.client): row for id, write in writes for row in write.clients}
    rows = [(id, client.encode(), row.ref, row.refused, row.at) for (id, client), row in last.items()]
    return columns(rows, 5)


class Rows:
    """Collects what one transaction does to several threads, at most a deletion and a write to each."""

    def __init__(self) -> None:
        self._deleted: list[tuple[int, int]] = []
        self._created: list[tuple[Any, ...]] = []
        self._advanced: list[tuple[int, int]] = []
        self._marked: list[tuple[Any, ...]] = []
        self._removed: list[tuple[int]] = []
        # The id of the thread with each write.
        self._writes: list[tuple[int, Write]] = []
        # By id: when an existing thread has changed.
        self.changed: dict[int, int] = {}

    @property
    def has_removed(self) -> bool:
        """Whether threads are deleted, whose rows are to be removed."""
        return bool(self._removed)

    def add(self, head: ClaimedHead, writes: Sequence[Write], new_ids: Sequence[int]) -> ClaimedHead:
        """Add the writes of a thread, and return its head after them; a deletion takes one of the `new_ids`."""
        id, stored = head.id, head.stored
        for write in writes:
            if write.is_deletion:
                self._removed.append((id,))
                id, stored = new_ids[0], None
            else:
                if stored is None:
                    self._created.append((head.id, id, *_create(write)))
                else:
                    self._advance(id, write)
                stored = write.epoch, write.version
                self._writes.append((id, write))
        if stored is None and id != head.id:
            self._deleted.append((head.id, id))
        epoch, version = stored or (None, None)
        return ClaimedHead(id, epoch, version, head.fence, head.writes + (1 if writes else 0))

    async def store(self, db: Db, tables: Tables) -> None:
        """Store everything. Raises UnicodeEncodeError, and what the driver raises."""
        writes = self._writes
        records = {(id, each.part, each.key): each for id, write in writes for each in write.records}
        prunes = [(id, write.prune) for id, write in writes if write.prune is not None]
        snapshots = [(id, each.version, each.state) for id, write in writes for each in write.snapshots]
        kept = [(*_encode(key), each.value) for key, each in records.items() if each.value is not None]
        dropped = [_encode(key) for key, each in records.items() if each.value is None]
        for sql, values in (
            (_DELETE, columns(self._deleted, 0)),
            (_CREATE, columns(self._created, 0)),
            (_ADVANCE, columns(self._advanced, 0)),
            (_MARK, columns(self._marked, 0)),
            (_REMOVE, columns(self._removed, 0)),
            (_INSERT_CHANGES, change_columns(writes)),
            (_INSERT_CLIENTS, client_columns(writes)),
            (_INSERT_SNAPSHOTS, columns(snapshots, 0)),
            (_DELETE_RECORDS, columns(dropped, 0)),
            (_INSERT_RECORDS, columns(kept, 0)),
            (_PRUNE, columns([(id, prune.version, prune.at, prune.bytes) for id, prune in prunes], 0)),
        ):
            if values and values[0]:
                now = [read_wall_clock()] if sql is _PRUNE else []
                await db.execute(tables.fill(sql), *values, *now)

    def _advance(self, id: int, write: Write) -> None:
        self._advanced.append((id, write.version))
        marks = (write.state_version, write.due)
        if marks != (None, None):
            self._marked.append((id, *marks))
        if write.changes or write.records or write.changed_at is not None:
            self.changed[id] = read_wall_clock() if write.changed_at is None else write.changed_at


def _create(write: Write) -> tuple[Any, ...]:
    """Return the columns of a new thread."""
    changed_at = read_wall_clock() if write.changed_at is None else write.changed_at
    user = None if write.user is None else write.user.encode()
    return (
        *(write.epoch.encode(), write.version, write.state_version or 1, write.secret, write.is_stateless),
        *(write.due, write.created_at, changed_at, user),
    )


def _encode(key: tuple[int, str, str]) -> tuple[int, bytes, bytes]:
    id, part, name = key
    return id, part.encode(), name.encode()
