"""Checks, backs up and restores a store's file, and shows or deletes one of its threads."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from plait.agents.session_names import find_session
from plait.errors import CorruptThread, NotFound, StoreError
from plait.spelling import count, read_time
from plait.state.state_history import replay_document, replay_json
from plait.store.deletion import delete_thread
from plait.store.protocol import Store, StoredThread
from plait.store.shards import find_file
from plait.store.sqlite.backup import back_up, check_restore, restore
from plait.store.sqlite.file_place import FilePlace
from plait.store.sqlite.files import Files
from plait.store.sqlite.inspection import Inspection
from plait.store.sqlite.lock import StoreLock
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.patch import PatchError, decode_ops

__all__ = ["back_up_store", "check_store", "describe_thread", "destroy_in_file", "destroy_thread", "restore_store"]


def check_store(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield a line for each damaged place of a store's file, and a summary, each with whether it reports damage.

    Raises StoreError.
    """
    inspection = _Inspection(path)
    damaged = 0
    for line in inspection.run():
        damaged += 1
        yield line, True
    verdict = count(damaged, "damaged place") if damaged else "nothing is damaged"
    yield f"{path}: {count(inspection.threads, 'thread')}, {count(inspection.changes, 'change')}, {verdict}", False


def back_up_store(files: Files, target: Path) -> str:
    """Copy each file of a store, which a server may have open, and return a summary. Raises StoreError."""
    copies = files.at(target)
    for path in (target, *copies.paths):
        if path.exists():
            raise StoreError(f"{path} exists: name another file, or remove this one")
    pairs = zip(files.paths, copies.paths, strict=True)
    # The last file comes first: an interrupted backup has no first file, and so is not taken for a whole one.
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
    # The first file comes last, as in a new store.
    found = [restore(*pair) for pair in reversed(pairs)]
    line = f"{files.path} has the {count(sum(threads for threads, _ in found), 'thread')} of {backup.path}"
    line = f"{line}, with new epochs"
    kept = [str(path) for _, path in reversed(found) if path is not None]
    if not kept:
        return line
    return f"{line}; the old file{' is' if len(kept) == 1 else 's are'} kept as {', '.join(kept)}"


async def describe_thread(store: Store, key: ThreadKey) -> bytes:
    """Return a stored thread as JSON: its header, its state, and the records of each part, by their keys.

    Raises NotFound and StoreError.
    """
    header = await store.find(key)
    parts: dict[str, dict[str, Any]] = {}
    async with store.view(key) as view:
        if header is None or view is None:
            raise NotFound(f"there is no thread {key}")
        thread, after = view.thread, ("", "")
        while page := await view.records(after=after):
            for record in page:
                parts.setdefault(record.part, {})[record.key] = _read_value(record.value or b"")
            after = page[-1].part, page[-1].key
    about = {
        "kind": key.kind,
        "name": key.name,
        "version": thread.version,
        "epoch": thread.epoch,
        "state_version": thread.state_version,
        "created_at": _read_time(thread.created_at),
        "user": thread.user,
        "due": _read_time(thread.due),
    }
    if (session := await find_session(store, key)) is not None:
        about["session"] = session
    if thread.has_state:
        about["state"] = msgspec.Raw(replay_json(key, thread))
    return encode_json(about | {"parts": parts})


def _read_value(value: bytes) -> Any:
    """Return the JSON of a record, or its bytes, which are shown as base64."""
    try:
        decode_json(value)
    except NOT_JSON:
        return value
    return msgspec.Raw(value)


def _read_time(at: int | None) -> datetime | None:
    return read_time(at) if at else None


async def destroy_in_file(files: Files, key: ThreadKey) -> str:
    """Delete a thread of a store that no server has open, and return a summary. Raises NotFound and StoreError."""
    path, number = files.path_of(key), find_file(key, files.count)
    try:
        StoreLock(path).close()
    except StoreError:
        url = f"/threads/{quote(key.kind, safe='')}/{quote(key.name, safe='')}"
        raise StoreError(f"a server has {path} open: send it DELETE {url}, or stop it first") from None
    return await destroy_thread(SqliteStore(path, place=FilePlace(number, files.count)), key, str(path))


async def destroy_thread(store: Store, key: ThreadKey, where: str) -> str:
    """Delete a stored thread, and return a summary. Raises NotFound and StoreError."""
    async with store:
        fence = await store.claim(key)
        found = await store.find(key)
        if found is None:
            raise NotFound(f"there is no thread {key} in {where}")
        await delete_thread(store, key, found, fence=fence)
        store.release(key, fence)
    return f"{key} is deleted; its on_destroyed was not called"


class _Inspection(Inspection):
    def replay(self, key: ThreadKey, stored: StoredThread) -> None:
        replay_document(key, stored)

    def decode(self, key: ThreadKey, ops: bytes) -> None:
        try:
            decode_ops(ops)
        except (*NOT_JSON, PatchError) as error:
            raise CorruptThread(f"{key} cannot be read", detail=str(error)) from error
