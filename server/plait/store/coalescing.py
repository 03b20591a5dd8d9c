"""Combines several writes of a thread into one."""

from collections.abc import Iterable, Sequence

from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, Snapshot

__all__ = ["coalesce"]


def coalesce(writes: Sequence[Write]) -> Sequence[Write]:
    """Combine consecutive writes of a thread: return one write, or one more for each deletion.

    Writes that create a thread and delete it again are dropped.
    """
    if len(writes) < 2:
        return writes if not writes or not _is_void(writes[0]) else ()
    found: list[Write] = []
    start = 0
    for index, write in enumerate(writes):
        if write.is_deletion:
            first = writes[start]
            if first.after is not None:
                found.append(
                    Write(write.key, write.epoch, first.after, first.after, fence=write.fence, is_deletion=True)
                )
            start = index + 1
    if start < len(writes):
        found.append(_merge(writes[start:]))
    return found


def _is_void(write: Write) -> bool:
    return write.is_deletion and write.after is None


def _merge(writes: Sequence[Write]) -> Write:
    if len(writes) == 1:
        return writes[0]
    first, last = writes[0], writes[-1]
    # The last row of a client replaces its earlier ones, and so does the last value of a record.
    clients: dict[str, ClientRow] = {}
    records: dict[tuple[str, str], Record] = {}
    changes: list[ChangeRow] = []
    snapshots: list[Snapshot] = []
    state_version: int | None = None
    due: int | None = None
    changed_at: int | None = None
    for write in writes:
        changes += write.changes
        if write.snapshots:
            snapshots += write.snapshots
        if write.clients:
            clients.update((client.client, client) for client in write.clients)
        if write.records:
            records.update(((record.part, record.key), record) for record in write.records)
        if write.state_version is not None:
            state_version = write.state_version
        if write.due is not None:
            due = write.due
        if write.changes or write.records or write.changed_at is not None:
            changed_at = write.changed_at
    return Write(
        first.key,
        first.epoch,
        first.after,
        last.version,
        changes,
        snapshots,
        _merge_prunes(write.prune for write in writes),
        list(clients.values()),
        state_version,
        first.secret,
        list(records.values()),
        last.fence,
        due,
        first.created_at,
        first.user,
        first.begins_at,
        changed_at,
    )


def _merge_prunes(prunes: Iterable[Prune | None]) -> Prune | None:
    """Return bounds that remove everything that any of these removes."""
    found = [prune for prune in prunes if prune is not None]
    if len(found) < 2:
        return found[0] if found else None
    sizes = [prune.bytes for prune in found if prune.bytes is not None]
    return Prune(max(prune.version for prune in found), max(prune.at for prune in found), min(sizes) if sizes else None)
