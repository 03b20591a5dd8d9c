"""The SQL statements that read all of a thread, as the writes that make it. Runs in the reader's OS thread."""

import sqlite3
from contextlib import closing
from typing import Final, Literal, NamedTuple

from plait.errors import CorruptThread
from plait.store.page import take_page
from plait.store.protocol import ThreadKey, Write
from plait.store.sqlite.checksums import read_change, read_client, read_records, read_snapshot, read_thread
from plait.store.sqlite.schema import LAST_VERSION
from plait.store.thread_rows import ChangeRow, ClientRow, Record, Snapshot

__all__ = ["FIRST", "Step", "load_step"]

# Bytes of values in one write.
_SIZE: Final = 512 * 1024
# The most rows in one write.
_ROWS: Final = 1000

_THREAD: Final = f"""
SELECT t.id, t.epoch, {LAST_VERSION}, t.due, t.changed_at,
    t.head, t.state_version, t.secret, t.stateless, t.created_at, t.user, t.checksum
FROM threads t WHERE t.kind = ? AND t.name = ?
"""


class Step(NamedTuple):
    """The next page of a thread: its changes after a version, its clients after one, or its records after one."""

    what: Literal["thread", "changes", "clients", "records"]
    version: int = 0
    # The last client, or the part and key of the last record.
    after: tuple[str, ...] = ()


FIRST: Final = Step("thread")


def load_step(db: sqlite3.Connection, key: ThreadKey, step: Step) -> tuple[Write | None, Step | None]:
    """Return one of the writes that make a thread, and the step after it. Raises CorruptThread."""
    found = db.execute(_THREAD, key).fetchone()
    if found is None:
        return None, None
    thread, epoch, last, due, changed_at = found[:5]
    head, state_version, origin = read_thread(key, found[5:])
    if type(last) is not int or last < head:
        raise CorruptThread(f"{key} cannot be read: changes are missing after version {last}, up to {head}")
    match step.what:
        case "thread":
            (first,) = db.execute("SELECT min(version) FROM changes WHERE thread = ?", (thread,)).fetchone()
            base = last if first is None else first - 1
            snapshots = _load_snapshots(db, key, thread, base - 1, base)
            write = Write(
                *(key, epoch, None, base, (), snapshots),
                state_version=state_version,
                secret=origin.secret,
                due=due or None,
                created_at=origin.created_at,
                user=origin.user,
                begins_at=base,
                changed_at=changed_at,
            )
            if not snapshots and not (base == 0 and (first is not None or origin.is_stateless)):
                raise CorruptThread(f"{key} cannot be read: the snapshot of version {base} is missing")
            return write, Step("changes", base)
        case "changes":
            changes, snapshots = _load_changes(db, key, thread, step.version)
            end = step.version + len(changes)
            if [row.version for row in changes] != list(range(step.version + 1, end + 1)) or (
                end < last > 0 and not changes
            ):
                raise CorruptThread(f"{key} cannot be read: changes are missing after version {step.version}")
            if not changes:
                return None, Step("clients", last)
            write = Write(key, epoch, step.version, end, changes, snapshots, changed_at=changed_at)
            return write, Step("changes", end)
        case "clients":
            clients = _load_clients(db, key, thread, step.after)
            if not clients:
                return None, Step("records", last)
            write = Write(key, epoch, last, last, clients=clients, changed_at=changed_at)
            return write, Step("clients", last, (clients[-1].client,))
        case "records":
            records = _load_records(db, key, thread, step.after)
            if not records:
                return None, None
            write = Write(key, epoch, last, last, records=records, changed_at=changed_at)
            return write, Step("records", last, (records[-1].part, records[-1].key))


def _load_snapshots(db: sqlite3.Connection, key: ThreadKey, thread: int, after: int, to: int) -> list[Snapshot]:
    which = "SELECT version, state, checksum FROM snapshots WHERE thread = ? AND version > ? AND version <= ?"
    found = db.execute(f"{which} ORDER BY version", (thread, after, to))
    return [Snapshot(row[0], read_snapshot(key, thread, row)) for row in found]


def _load_changes(
    db: sqlite3.Connection, key: ThreadKey, thread: int, after: int
) -> tuple[list[ChangeRow], list[Snapshot]]:
    """Return changes after a version, at most up to the next snapshot, and that."""
    (end,) = db.execute(
        "SELECT min(version) FROM snapshots WHERE thread = ? AND version > ?", (thread, after)
    ).fetchone()
    which = "SELECT version, ops, source, at, checksum FROM changes WHERE thread = ? AND version > ? AND version <= ?"
    values = (thread, after, 2**62 if end is None else end, _ROWS)
    with closing(db.execute(f"{which} ORDER BY version LIMIT ?", values)) as found:
        rows = take_page((read_change(key, thread, row) for row in found), lambda row: len(row.ops), _SIZE)
    to = rows[-1].version if rows else after
    return rows, _load_snapshots(db, key, thread, after, to)


def _load_clients(db: sqlite3.Connection, key: ThreadKey, thread: int, after: tuple[str, ...]) -> list[ClientRow]:
    which = "SELECT client, ref, refused, at, checksum FROM clients WHERE thread = ? AND client > ?"
    with closing(db.execute(f"{which} ORDER BY client LIMIT ?", (thread, *(after or ("",)), _ROWS))) as found:
        return take_page((read_client(key, thread, row) for row in found), lambda row: len(row.refused), _SIZE)


def _load_records(db: sqlite3.Connection, key: ThreadKey, thread: int, after: tuple[str, ...]) -> list[Record]:
    """Return records after one."""
    which = "SELECT part, key, value, checksum FROM records WHERE thread = ? AND (part, key) > (?, ?)"
    with closing(db.execute(f"{which} ORDER BY part, key LIMIT ?", (thread, *(after or ("", "")), _ROWS))) as found:
        records = (read_records(key, thread, row[0], [row[1:]])[0] for row in found)
        return take_page(records, lambda record: len(record.value or b""), _SIZE)
