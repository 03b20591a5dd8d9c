"""Checks, backs up and restores a store's file, and shows, exports or deletes one of its threads."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from plait.agents.address import read_session_name
from plait.agents.session_names import decode_session
from plait.errors import CorruptThread, NotFound, StoreError
from plait.node.export import describe_stored
from plait.spelling import count
from plait.state.history import replay_document
from plait.store.backup import back_up, check_restore, restore
from plait.store.deletion import delete_thread
from plait.store.files import Files
from plait.store.inspection import Inspection, read_whole
from plait.store.lock import StoreLock
from plait.store.place import Place
from plait.store.protocol import Record, StoredThread, ThreadHeader, ThreadKey
from plait.store.shards import find_file
from plait.store.sqlite import SqliteStore
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.patch import PatchError, decode_ops

__all__ = ["back_up_store", "check_store", "describe_thread", "destroy_thread", "export_thread", "restore_store"]


def check_store(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield a line for each damaged place of a store's file, and a summary, each with whether it reports damage.

    Raises StoreError.
    """
    inspection = Inspection(path, replay=replay_document, decode=_decode)
    damaged = 0
    for line in inspection.run():
        damaged += 1
        yield line, True
    verdict = count(damaged, "damaged place") if damaged else "nothing is damaged"
    yield f"{path}: {count(inspection.threads, 'thread')}, {count(inspection.changes, 'change')}, {verdict}", False


def back_up_store(files: Files, target: Path) -> str:
    """Copy a store, which a server may have open, to as many files, and return a summary. Raises StoreError."""
    copies = files.at(target)
    for path in (target, *copies.paths):
        if path.exists():
            raise StoreError(f"{path} exists: name another file, or remove this one")
    pairs = zip(files.paths, copies.paths, strict=True)
    # The last one first: a backup that was interrupted has no first file, so that it is not taken for a whole one.
    threads = sum(back_up(path, copy) for path, copy in reversed(list(pairs)))
    return f"{target} has the {count(threads, 'thread')} of {files.path}"


def restore_store(backup: Files, files: Files) -> str:
    """Replace a store with a backup, and return a summary. Raises StoreError."""
    if not any(path.exists() for path in files.paths):
        files = backup.at(files.path)
    if backup.count != files.count:
        raise StoreError(
            f"{backup.path} has {count(backup.count, 'file')}, and {files.path} {count(files.count, 'file')}: "
            "move the files of the store away first"
        )
    pairs = list(zip(backup.paths, files.paths, strict=True))
    check_restore(pairs)
    # The first one last, as new files are made.
    found = [restore(*pair) for pair in reversed(pairs)]
    line = f"{files.path} has the {count(sum(threads for threads, _ in found), 'thread')} of {backup.path}"
    line = f"{line}, with new epochs"
    kept = [str(path) for _, path in reversed(found) if path is not None]
    if not kept:
        return line
    return f"{line}; the old file{' is' if len(kept) == 1 else 's are'} kept as {', '.join(kept)}"


def export_thread(path: Path, key: ThreadKey) -> str:
    """Return a stored thread as JSON, as `Handle.to_json` does. Raises NotFound and StoreError."""
    _, stored, records = _read(path, key)
    return describe_stored(key, stored, records)


def describe_thread(path: Path, key: ThreadKey) -> str:
    """Return what `export_thread` does, with version, epoch, user and times. Raises NotFound and StoreError."""
    header, stored, records = _read(path, key)
    about = {
        "version": stored.version,
        "epoch": stored.epoch,
        "created_at": _read_time(stored.created_at),
        "user": stored.user,
        "idle_since": _read_time(header.idle_since),
        "due": _read_time(stored.due),
    }
    exported = decode_json(describe_stored(key, stored, records).encode())
    if (session := read_session_name(key.name)) is None and "session" in exported:
        session = decode_session(key.name, encode_json(exported["session"]))
    if session is not None:
        exported["session"] = session
    return encode_json(about | exported).decode()


def _read_time(at: int | None) -> datetime | None:
    return datetime.fromtimestamp(at / 1e6, UTC) if at else None


def _read(path: Path, key: ThreadKey) -> tuple[ThreadHeader, StoredThread, list[Record]]:
    if (found := read_whole(path, key)) is None:
        raise NotFound(f"there is no thread {key} in {path}")
    return found


async def destroy_thread(files: Files, key: ThreadKey) -> str:
    """Delete a stored thread, and return a summary. Raises NotFound and StoreError."""
    path, number = files.path_of(key), find_file(key, files.count)
    try:
        StoreLock(path).close()
    except StoreError:
        url = f"/threads/{quote(key.kind, safe='')}/{quote(key.name, safe='')}"
        raise StoreError(f"a server has {path} open: send it DELETE {url}, or stop it first") from None
    async with SqliteStore(path, place=Place(number, files.count)) as store:
        fence = await store.claim(key)
        found = await store.find(key)
        if found is None:
            raise NotFound(f"there is no thread {key} in {path}")
        await delete_thread(store, key, found, fence=fence)
    return f"{key} is deleted; its on_destroyed was not called"


def _decode(key: ThreadKey, ops: bytes) -> None:
    try:
        decode_ops(ops)
    except (*NOT_JSON, PatchError) as error:
        raise CorruptThread(f"{key} cannot be read", detail=str(error)) from error
