"""Keeps the checkpoints of LangGraph's graphs as records of a thread, for `plait.adapters.langgraph`."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from plait.actor.thread import ThreadActor
from plait.actor.turn import check_may_write
from plait.kv.user_names import escape_id
from plait.store.thread_rows import Record, RecordRange

__all__ = ["LoadedCheckpoint", "SavedCheckpoint", "SavedValue", "SavedWrite", "ThreadCheckpoints"]

Typed = tuple[str, bytes]
"""A value from a serializer of LangGraph: the name of its encoding, and the encoded value."""

# The number of records that are read at once.
_PAGE: Final = 1000
# Longer names are replaced by a hash, so that several names fit into a key.
_LONGEST: Final = 80

# The first parts of keys: for checkpoints, values of channels, writes, and the last checkpoint of a namespace.
_CHECKPOINT: Final = "checkpoint"
_VALUE: Final = "value"
_WRITE: Final = "write"
_LAST: Final = "last"


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without the values of its channels."""

    namespace: str
    id: str
    parent: str | None
    run_id: str | None
    # The versions of the channels, and the names of those that are also rebuilt from the writes of earlier checkpoints.
    versions: dict[str, str]
    deltas: list[str]
    checkpoint: Typed
    metadata: Typed


class SavedValue(NamedTuple):
    """The value of a channel at a version."""

    channel: str
    version: str
    value: Typed


class SavedWrite(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A write of a task to a channel. Sorted writes are in the order in which LangGraph applies them."""

    task_path: str
    task_id: str
    index: int
    channel: str
    value: Typed


class LoadedCheckpoint(NamedTuple):
    """A checkpoint with the values of its channels, and the writes after it."""

    saved: SavedCheckpoint
    values: dict[str, Typed]
    writes: list[SavedWrite]


_decode_saved = msgspec.msgpack.Decoder(SavedCheckpoint).decode
_decode_write = msgspec.msgpack.Decoder(SavedWrite).decode
_decode_typed = msgspec.msgpack.Decoder(Typed).decode
_encode = msgspec.msgpack.encode


class ThreadCheckpoints:
    """The checkpoints of one thread. Each value of a channel is a separate record, written only when it changes.

    Each method that writes makes one write, and returns when it is durable. These methods raise StoreError, Readonly,
    and TooLarge for a value over `Limits.record`.
    """

    def __init__(self, actor: ThreadActor, part: str) -> None:
        self._actor = actor
        self._part = part
        # Keeps the records unchanged while a method reads several, or reads and then writes.
        self._lock = asyncio.Lock()

    async def find(self, namespace: str, id: str | None) -> LoadedCheckpoint | None:
        """Return a checkpoint, or, without an id, the last one of the namespace; None if there is none."""
        async with self._lock:
            id = id or await self._last(namespace)
            data = None if id is None else await self._read(_key(_CHECKPOINT, namespace, id))
            if data is None:
                return None
            saved = _decode_saved(data)
            values = {}
            for channel, version in saved.versions.items():
                if (value := await self._read(_key(_VALUE, namespace, channel, version))) is not None:
                    values[channel] = _decode_typed(value)
            return LoadedCheckpoint(saved, values, sorted(await self._writes(namespace, saved.id)))

    async def find_all(self, namespace: str | None) -> list[SavedCheckpoint]:
        """Return the checkpoints of a namespace, or of all, the last ones first."""
        prefix = _key(_CHECKPOINT, "") if namespace is None else _key(_CHECKPOINT, namespace, "")
        found = [_decode_saved(record.value or b"") async for record in self._records(prefix)]
        return sorted(found, key=lambda saved: saved.id, reverse=True)

    async def put(self, saved: SavedCheckpoint, values: Sequence[SavedValue]) -> None:
        """Store a checkpoint, and values of channels."""
        namespace, id = saved.namespace, saved.id
        records = [self._record(_encode(saved), _CHECKPOINT, namespace, id)]
        records += [self._record(_encode(each.value), _VALUE, namespace, each.channel, each.version) for each in values]
        async with self._lock:
            if (last := await self._last(namespace)) is None or id > last:
                records.append(self._record(id.encode(), _LAST, namespace))
            await self._write(records)

    async def put_writes(self, namespace: str, id: str, writes: Sequence[SavedWrite]) -> None:
        """Store the writes after a checkpoint; a write replaces a stored one only if its index is negative."""
        async with self._lock:
            there = {(each.task_id, each.index) for each in await self._writes(namespace, id)}
            await self._write(
                self._record(_encode(each), _WRITE, namespace, id, each.task_id, str(each.index))
                for each in writes
                if each.index < 0 or (each.task_id, each.index) not in there
            )

    async def clear(self) -> None:
        """Delete everything."""
        async with self._lock:
            await self._write([Record(self._part, each.key, None) async for each in self._records("")])

    async def delete_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints of the given runs."""
        async with self._lock:
            everything = await self.find_all(None)
            await self._delete(everything, [each for each in everything if each.run_id in run_ids])

    async def keep_latest(self) -> None:
        """Delete all checkpoints except the last of each namespace and those from which it is rebuilt."""
        async with self._lock:
            everything = await self.find_all(None)
            by_id = {(each.namespace, each.id): each for each in everything}
            kept: set[tuple[str, str]] = set()
            for namespace in {each.namespace for each in everything}:
                saved = by_id.get((namespace, await self._last(namespace) or ""))
                missing = set() if saved is None else set(saved.deltas)
                while saved is not None:
                    kept.add((namespace, saved.id))
                    missing -= {each for each in missing if await self._has_value(saved, each)}
                    saved = by_id.get((namespace, saved.parent or "")) if missing else None
            await self._delete(everything, [each for key, each in by_id.items() if key not in kept])

    async def export(self) -> list[Record]:
        """Return all records, for `load` of another thread."""
        async with self._lock:
            return [record async for record in self._records("")]

    async def load(self, records: Sequence[Record]) -> None:
        """Store the records that another thread has exported, in addition to those of this one."""
        async with self._lock:
            taken = []
            for record in records:
                is_last = record.key.startswith(_key(_LAST, ""))
                here = await self._read(record.key) if is_last else None
                if here is None or here < (record.value or b""):
                    taken.append(Record(self._part, record.key, record.value))
            await self._write(taken)

    # Inside

    async def _delete(self, everything: Iterable[SavedCheckpoint], doomed: Collection[SavedCheckpoint]) -> None:
        """Delete some of all checkpoints, with the values and the writes that no other checkpoint needs."""
        gone = {(each.namespace, each.id) for each in doomed}
        kept = [each for each in everything if (each.namespace, each.id) not in gone]
        needed = {key for each in kept for key in _value_keys(each)}
        keys = {key for each in doomed for key in _value_keys(each)} - needed
        for each in doomed:
            keys.add(_key(_CHECKPOINT, each.namespace, each.id))
            keys.update([record.key async for record in self._records(_key(_WRITE, each.namespace, each.id, ""))])
        records = [Record(self._part, key, None) for key in sorted(keys)]
        for namespace in {namespace for namespace, _ in gone}:
            last = max((each.id for each in kept if each.namespace == namespace), default=None)
            records.append(self._record(None if last is None else last.encode(), _LAST, namespace))
        await self._write(records)

    async def _last(self, namespace: str) -> str | None:
        data = await self._read(_key(_LAST, namespace))
        return None if data is None else data.decode()

    async def _has_value(self, saved: SavedCheckpoint, channel: str) -> bool:
        version = saved.versions.get(channel)
        return version is not None and await self._read(_key(_VALUE, saved.namespace, channel, version)) is not None

    async def _writes(self, namespace: str, id: str) -> list[SavedWrite]:
        prefix = _key(_WRITE, namespace, id, "")
        return [_decode_write(record.value or b"") async for record in self._records(prefix)]

    async def _read(self, key: str) -> bytes | None:
        return await self._actor.records.read(self._part, key)

    async def _records(self, prefix: str) -> AsyncIterator[Record]:
        after = ""
        while True:
            page = await self._actor.records.list(RecordRange(self._part, prefix=prefix, after=after, limit=_PAGE))
            for record in page:
                yield record
            if len(page) < _PAGE:
                return
            after = page[-1].key

    async def _write(self, records: Iterable[Record]) -> None:
        """Store records. Without records, a new thread is not created."""
        check_may_write(self._actor.key)
        if writing := [*records]:
            await self._actor.records.write(writing)

    def _record(self, value: bytes | None, *names: str) -> Record:
        return Record(self._part, _key(*names), value)


def _value_keys(saved: SavedCheckpoint) -> list[str]:
    return [_key(_VALUE, saved.namespace, channel, version) for channel, version in saved.versions.items()]


def _key(*names: str) -> str:
    """Return the key of a record, which is unique for its names. An empty last name makes a prefix."""
    return "/".join(escape_id(name, longest=_LONGEST) for name in names)
