"""The SQL statements that store the rows of writes, and their values."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from plait.store.sql.tables import Table

__all__ = ["DELETE_RECORDS", "PLAIN", "columns", "make_upsert"]

PLAIN: Final = """
WITH locked AS (
    SELECT t.id FROM {threads} t WHERE t.id = ANY ($1) ORDER BY t.id FOR NO KEY UPDATE
), updated AS (
    UPDATE {threads} t SET version = w.version, writes = t.writes + 1
    FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        w (id, epoch, after, fence, writes, version)
    WHERE t.id = w.id AND t.epoch = w.epoch AND t.version = w.after AND t.fence = w.fence AND t.writes = w.writes
        AND (SELECT count(*) FROM locked) > 0
    RETURNING t.id
), inserted AS (
    INSERT INTO {changes} (thread, version, ops, source, at)
    SELECT * FROM unnest($7::bigint[], $8::bigint[], $9::bytea[], $10::bytea[], $11::bigint[]) c (thread)
    WHERE c.thread IN (SELECT id FROM updated)
), known AS (
    INSERT INTO {clients} (thread, client, ref, refused, at)
    SELECT * FROM unnest($12::bigint[], $13::bytea[], $14::bigint[], $15::bytea[], $16::bigint[]) c (thread)
    WHERE c.thread IN (SELECT id FROM updated)
    ON CONFLICT (thread, client) DO UPDATE SET ref = excluded.ref, refused = excluded.refused, at = excluded.at
)
SELECT id FROM updated
"""
"""Stores changes, and the clients that made them, of the threads whose heads are as expected; returns their ids."""

DELETE_RECORDS: Final = """
DELETE FROM {records} r USING unnest($1::bigint[], $2::bytea[], $3::bytea[]) d (thread, part, key)
WHERE r.thread = d.thread AND r.part = d.part AND r.key = d.key
"""


@cache
def make_upsert(table: Table) -> str:
    """Return the statement that inserts rows into a table, or replaces those with the same key."""
    names = ", ".join(f'"{name}"' for name in table.columns)
    arrays = ", ".join(f"${place}::{type}[]" for place, type in enumerate(table.columns.values(), 1))
    sql = f"INSERT INTO {{{table.name}}} ({names}) SELECT * FROM unnest({arrays})"
    if table.key:
        changed = ", ".join(f'"{name}" = excluded."{name}"' for name in table.columns if name not in table.key)
        key = ", ".join(f'"{name}"' for name in table.key)
        sql += f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
    return sql


def columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """Return rows as columns, and `count` empty ones if there are no rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count
