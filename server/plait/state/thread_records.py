"""The records of one thread, which its parts keep beside the state, and tables of values that are also in memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from plait.errors import CorruptThread
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.store.protocol import Store, ThreadKey
from plait.store.record_checks import is_key
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["Change", "Changes", "Records", "Table", "Values", "apply"]

K = TypeVar("K")
T = TypeVar("T")


class Values(dict[K, T]):
    """Values by keys."""

    def set(self, key: K, value: T | None) -> T | None:
        """Replace a value, or remove it; return the earlier one."""
        before = self.pop(key, None)
        if value is not None:
            self[key] = value
        return before


class Change(msgspec.Struct, frozen=True):
    """A change of a value in memory, with its record, if it has one: None removes the value."""

    set: Callable[[Any, Any], Any]
    key: Any
    value: Any
    record: Record | None = None


Changes = Iterable[Change | Record]
"""The changes of one write, which are made in order; a record alone is not in memory."""


class Table(Generic[T]):
    """Values of one kind, which `set` replaces in memory, as `Values.set` does; `name` returns the key of a record."""

    def __init__(
        self, part: str, name: Callable[[Any], str], decode: Callable[[bytes], T], set: Callable[[Any, Any], Any]
    ) -> None:
        self._part = part
        self._name = name
        self._decode = decode
        self._set = set

    def read(self, record: Record, thread: ThreadKey) -> T:
        """Return the value of a stored record of a thread. Raises CorruptThread."""
        try:
            return self._decode(record.value or b"")
        except NOT_JSON as error:
            raise CorruptThread(f"{record.part}/{record.key} of {thread} cannot be read", detail=str(error)) from None

    def change(self, key: Any, value: T | None, *, is_readable: bool = False) -> Change:
        """Return the change of a value. Raises TypeError and ValueError for one that could not be read again.

        With `is_readable`, it was made from one that was read, and only encoded.
        """
        name, data = self._name(key), None if value is None else encode_json(value)
        try:
            if data is not None and not is_readable:
                self._decode(data)
        except NOT_JSON as error:
            raise ValueError(f"{self._part}/{name} cannot be stored: {error}") from None
        return Change(self._set, key, value, Record(self._part, name, data))


def apply(changes: Changes) -> tuple[list[Record], Callable[[], None]]:
    """Make changes in memory; return the records that store them, the last one of each key, and what undoes them.

    If they raise an error, nothing is changed.
    """
    records: dict[str, Record] = {}
    before: list[tuple[Callable[[Any, Any], Any], Any, Any]] = []

    def undo() -> None:
        for set, key, value in reversed(before):
            set(key, value)

    try:
        for each in changes:
            if isinstance(each, Record):
                records[each.key] = each
                continue
            before.append((each.set, each.key, each.set(each.key, each.value)))
            if (record := each.record) is not None:
                records[record.key] = record
    except BaseException:
        undo()
        raise
    return [*records.values()], undo


class Records:
    """Reads and writes the records of one thread, in order with its changes."""

    __slots__ = ("_instruments", "_key", "_pipeline", "_store")

    def __init__(self, key: ThreadKey, store: Store, pipeline: Pipeline, *, instruments: Instruments) -> None:
        self._key = key
        self._store = store
        self._pipeline = pipeline
        self._instruments = instruments

    async def read(self, part: str, name: str) -> bytes | None:
        """Return the value of a record after all writes made so far, None if there is none. Raises StoreError."""
        if not self._pipeline.history.is_begun or not is_key(name):
            return None
        await self._pipeline.wait_until_stored()
        with telling_store_errors(self._instruments):
            return await self._store.record(self._key, part, name)

    async def list(self, wanted: RecordRange) -> list[Record]:
        """Return the records of a range after all writes made so far. Raises StoreError."""
        if not self._pipeline.history.is_begun:
            return []
        await self._pipeline.wait_until_stored()
        with telling_store_errors(self._instruments):
            return await self._store.records(self._key, wanted)

    def write(
        self,
        records: Sequence[Record],
        *,
        undo: Callable[[], None] | None = None,
        tell: Callable[[], None] | None = None,
    ) -> Commit:
        """Store records, as `Pipeline.store` does, which calls `undo`. Raises ValueError and TooLarge.

        `tell` is called when they are durable, in the order of the writes: it sends the frames that tell of them.
        """
        commit = self._pipeline.store(records, undo=undo)
        if tell is not None:
            self._pipeline.after(lambda error: tell() if error is None else None)
        return commit

    def put(self, changes: Changes, *, tell: Callable[[], None] | None = None) -> Commit:
        """Make changes, as one write; if it is rolled back, the values are as before.

        Raises what `changes` and `write` raise; then nothing is changed.
        """
        self._pipeline.check_open()  # First: it rolls back a transaction of other code whose block awaits.
        records, undo = apply(changes)
        try:
            return self.write(records, undo=undo, tell=tell)
        except BaseException:
            undo()
            raise
