"""`values = Values()`: durable JSON values that a thread keeps besides its state, and never sends to clients."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from plait.actor.thread import ThreadActor
from plait.parts.encoding import check_type, encode_key, encode_named
from plait.parts.part import ALL, Part, check_writable
from plait.parts.remote import RemotePart, Retries
from plait.parts.stage import begin_staged, find_draft, find_stage, use_draft
from plait.parts.values_draft import ValuesDraft
from plait.parts.values_head import ValuesHead
from plait.parts.values_ops import Push, call_change
from plait.parts.written import STAGED, Result, Written
from plait.state.reads import ALL as ALL_NAMES
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import decode_json

__all__ = ["ThreadValues", "Values"]

T = TypeVar("T")


class Values(Part["ThreadValues"]):
    """Declares values: `values = Values()` in a Thread class gives each thread a `ThreadValues` of that name."""

    notes_reads: ClassVar = True
    reading: ClassVar = frozenset({"get", "read_json", "has", "keys", "values", "items", "size", "room", "metadata"})

    def bind(self, actor: ThreadActor) -> "ThreadValues":
        return ThreadValues(actor, self.name)

    def bind_remote(self, remote: RemotePart) -> "RemoteValues":
        return RemoteValues(remote)

    def ranges(self) -> list[RecordRange]:
        return [RecordRange(self.name, limit=ALL)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        await self.of(actor)._head.load(records[0])


class ThreadValues:
    """The values of one thread: JSON by keys, in order of insertion, together at most `Limits.record` bytes (1 MiB).

    The methods that write do so when they are called. In a run of an agent, writes are staged, and stored with the run.
    Outside of a run they are stored at once, and awaiting the result waits until they are durable. Writes in the block
    of a transaction are stored with the transaction, even in a run. The values are read when the thread wakes; each
    write stores the whole value of its key, so keep long lists in tables.

    Awaiting `get`, `has`, `keys` and `size` returns the result; `.value` is the result now, for code that must not
    wait: `self.values.get("theme").value` in a query or a transaction.

    In a run, lists and objects may be changed in place, and the changes are stored: in values that `get`, `values` and
    `items` return, including the copy of a default of `get`, and in values that were given to `set`. The methods raise
    StoreError when the values could not be read, TooLarge, and Readonly and Destroyed as `set_state` does.
    """

    def __init__(self, actor: ThreadActor, part: str) -> None:
        self._actor = actor
        self._head = ValuesHead(part, actor.records, actor.state, actor.limits)

    # Reading

    def get(self, key: str, default: Any = None) -> "Reading[Any]":
        """Return the value of a key, or `default`."""
        return Reading(self, key, lambda draft: draft.get(key, default))

    def has(self, key: str) -> "Reading[bool]":
        """Whether there is a value, which may be None, for a key."""
        return Reading(self, key, lambda draft: draft.has(key))

    def keys(self) -> "Reading[list[str]]":
        """Return the keys, in order of insertion."""
        return Reading(self, ALL_NAMES, ValuesDraft.keys)

    async def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [value for _, value in await self.items()]

    async def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values, in the order of `keys`."""
        return await (await self._loaded()).items()

    def size(self) -> "Reading[int]":
        """Return the number of keys."""
        return Reading(self, ALL_NAMES, lambda draft: len(draft.keys()))

    async def room(self, key: str) -> int:
        """Return how many bytes a value of this key may have as JSON, in addition to the other values."""
        return max(self._actor.limits.record - (await self._loaded()).measure(encode_key(key)), 0)

    async def metadata(self) -> dict[str, Any]:
        """Return the metadata that `set_metadata` has set, or `{}`."""
        await self._actor.state.wait_for_shown()
        return self._use().metadata

    # Writing

    def set(self, key: str, value: Any) -> Awaitable[None]:
        """Set a value: anything that encodes as JSON; `get` returns the JSON. Raises TypeError or ValueError."""
        return self._write(encode_key(key), lambda draft: draft.set(key, value))

    def delete(self, key: str) -> Awaitable[None]:
        """Remove a key, if it is there."""
        return self._write(encode_key(key), lambda draft: draft.delete(key))

    def clear(self) -> Awaitable[None]:
        """Remove all keys; the metadata stays."""
        return self._write(None, ValuesDraft.clear)

    def push(self, key: str, value: Any, max_records: int | None = None) -> Awaitable[None]:
        """Append to a list, or to a new one if there is none, and keep its last `max_records` elements.

        Raises TypeError if the value is not a list; in a run that has not read any values, only when the run commits.
        """
        check_type("max_records", max_records, int, NoneType)
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records!r}")
        op = Push(encode_key(key), encode_named(key, value), max_records)
        return self._write(key, lambda draft: draft.push(op))

    def update(self, key: str, change: Callable[[Any], T], default: Any = None) -> Awaitable[T]:
        """Set a value to the result of a function of the current value, or of `default`, and return the result.

        Concurrent updates both count: in a run, the function is called again when the run commits, if the value was
        changed outside of the run before that. The returned value is still the result of the first call.
        """
        encode_key(key)
        check_writable(self._actor)
        draft = self._use()
        write = partial(self._write_draft, draft, key, lambda draft: draft.update(key, change, default))

        async def read_and_write() -> T:
            await draft.load()
            check_writable(self._actor)
            return await Result(*write())

        if not self._actor.state.shows_durable:
            draft.show()
            return Result(*write())
        return begin_staged(self._actor, read_and_write())

    async def read_json(self, key: str) -> bytes | None:
        """Return the JSON of a value, for `exchange`; None if there is none."""
        return (await self._loaded()).read_json(key)

    async def exchange(self, key: str, before: bytes | None, after: bytes) -> tuple[bool, bytes | None]:
        """Set a value to the JSON `after` if its JSON is still `before`; return whether it was set, and else its JSON.

        With this, another process updates a value by a function.
        """
        value = decode_json(encode_named(key, msgspec.Raw(after)))
        draft = await self._loaded()
        check_writable(self._actor)
        if (found := draft.read_json(key)) != before:
            return False, found
        await self._write_draft(draft, key, lambda draft: draft.set(key, value))[1]
        return True, None

    def set_metadata(self, metadata: dict[str, Any]) -> Awaitable[None]:
        """Replace all metadata, without reading the values."""
        check_type("metadata", metadata, dict)
        data = encode_named("metadata", metadata)
        return self._write(None, lambda draft: draft.set_metadata(data))

    # Writes so far

    @property
    def loaded(self) -> bool:
        """Whether the values have been read: in a run, by this run; otherwise, since the thread woke."""
        if find_stage(self._actor) is None:
            return self._head.has_read
        draft = self._staged()
        return draft is not None and draft.is_loaded

    @property
    def dirty(self) -> bool:
        """Whether this run has uncommitted changes."""
        draft = self._staged()
        return draft is not None and draft.is_dirty

    # Inside

    def _staged(self) -> ValuesDraft | None:
        """Return the draft of the run; None outside of a run, or if the run has not used the values."""
        return find_draft(self._actor, self, ValuesDraft)

    def _use(self) -> ValuesDraft:
        """Return the draft of the run, or a new one for a single use. Raises Interrupted if the run is interrupted."""
        draft = use_draft(self._actor, self, ValuesDraft, lambda _: ValuesDraft(self._head))
        return ValuesDraft(self._head) if draft is None else draft

    def _show(self, key: str) -> ValuesDraft:
        """Return the values now, and note a key that a query reads."""
        if self._actor.state.query is not None:
            self._actor.state.query.note(self._head.part, key)
        elif self._actor.state.shows_durable:
            raise RuntimeError("this hook only sees durable values: await the result in place of `.value`")
        draft = self._use()
        draft.show()
        return draft

    async def _loaded(self) -> ValuesDraft:
        draft = self._use()
        await draft.load()
        return draft

    def _write(self, key: str | None, work: Callable[[ValuesDraft], None]) -> Written:
        """Do `work` on the value of a key, or on all values."""
        check_writable(self._actor)
        return self._write_draft(self._use(), key, work)[1]

    def _write_draft(self, draft: ValuesDraft, key: str | None, work: Callable[[ValuesDraft], T]) -> tuple[T, Written]:
        transaction = self._actor.state.find_own_transaction()
        if transaction is None and find_stage(self._actor) is not None:
            return work(draft), STAGED
        saved = draft.save(key)
        result = work(draft)
        return result, Written(draft.write_last(saved), transaction)


class Reading(Generic[T]):
    """A result that is read when it is awaited, or when `value` is used."""

    __slots__ = ("_key", "_of", "_read")

    def __init__(self, of: ThreadValues, key: str, read: Callable[[ValuesDraft], T]) -> None:
        self._of = of
        self._key = key
        self._read = read

    @property
    def value(self) -> T:
        """The result now. Raises RuntimeError in a hook that decides about rights, which only sees durable values."""
        return self._read(self._of._show(self._key))

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        return self._read(await self._of._loaded())


class RemoteValues:
    """The methods of values that take a default or a function, which cannot travel to another process."""

    def __init__(self, remote: RemotePart) -> None:
        self._remote = remote

    async def get(self, key: str, default: Any = None) -> Any:
        found = await self._remote.call("read_json", key)
        return default if found is None else decode_json(found)

    async def update(self, key: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        encode_key(key)
        found = await self._remote.call("read_json", key)
        retries = Retries(f"the value {key!r} of {self._remote.key}")
        while True:
            value = call_change(change, found, default)
            is_set, found = await self._remote.call("exchange", key, found, encode_named(key, value))
            if is_set:
                return value
            await retries.wait()
