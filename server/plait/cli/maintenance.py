"""Checks, backs up and restores a store's file, and shows or deletes one of its threads."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from plait.agents.session_names import find_session
from plait.errors import CorruptThread, NotFound, StoreError
from plait.spelling import count
from plait.state.history import replay_document, replay_json
from plait.store.backup import back_up, restore
from plait.store.deletion import delete_thread
from plait.store.inspection import Inspection
from plait.store.lock import StoreLock
from plait.store.protocol import Store, ThreadKey
from plait.store.sqlite import SqliteStore
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.patch import PatchError, decode_ops

__all__ = ["back_up_store", "check_store", "describe_thread", "destroy_thread", "restore_store"]


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


def back_up_store(path: Path, target: Path) -> str:
    """Copy a store's file, which a server may have open, and return a summary. Raises StoreError."""
    threads = back_up(path, target)
    return f"{target} has the {count(threads, 'thread')} of {path}"


def restore_store(backup: Path, path: Path) -> str:
    """Replace a store's file with a backup, and return a summary. Raises StoreError."""
    threads, kept = restore(backup, path)
    line = f"{path} has the {count(threads, 'thread')} of {backup}, with new epochs"
    return f"{line}; the old file is kept as {kept}" if kept else line


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
        "idle_since": _read_time(header.idle_since),
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
    return datetime.fromtimestamp(at / 1e6, UTC) if at else None


async def destroy_thread(path: Path, key: ThreadKey) -> str:
    """Delete a stored thread, and return a summary. Raises NotFound and StoreError."""
    try:
        StoreLock(path).close()
    except StoreError:
        url = f"/threads/{quote(key.kind, safe='')}/{quote(key.name, safe='')}"
        raise StoreError(f"a server has {path} open: send it DELETE {url}, or stop it first") from None
    async with SqliteStore(path) as store:
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
