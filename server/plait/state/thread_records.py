"""The records of one thread, kept by its parts beside the state, and tables of values that are also in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from plait.errors import CorruptThread
from plait.instruments.protocol import Instruments, telling_store_errors
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.store.protocol import Store
from plait.store.record_checks import is_key
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait_schemas.codec import NOT_JSON, encode_json, find_decoder

__all__ = ["Change", "Changes", "Records", "Table", "Values", "apply", "read_record"]

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
    """A change of a value in memory, with its record, if it has one. A value of None removes it."""

    set: Callable[[Any, Any], Any]
    key: Any
    value: Any
    record: Record | None = None


Changes = Iterable[Change | Record]
"""The changes of one write, in order; a record without a change is not in memory."""


class Table(Generic[T]):
    """Values of one kind, which `set` replaces in memory, as `Values.set` does.

    The key of a record is `prefix` and what `name` makes of the key of its value. With `digits`, the keys of values are
    numbers, in hexadecimal.
    """

    def __init__(
        self,
        part: str,
        prefix: str,
        type: type[T],
        set: Callable[[Any, Any], Any],
        *,
        name: Callable[[Any], str] = str,
        digits: int = 0,
    ) -> None:
        self._part = part
        self._prefix = prefix
        self._decode = find_decoder(type)
        self._set = set
        self._name = f"{{:0{digits}x}}".format if digits else name
        self._is_numbered = digits > 0

    def load(self, records: Iterable[Record], thread: ThreadKey) -> Iterator[tuple[Any, T]]:
        """Yield the keys and values of a thread's records, except those of other tables. Raises CorruptThread."""
        for record in records:
            if record.key.startswith(self._prefix):
                yield read_record(record, thread, partial(self._read, record.key[len(self._prefix) :]))

    def change(self, key: Any, value: T | None, *, is_readable: bool = False) -> Change:
        """Return the change of a value. Raises TypeError and ValueError for a value that could not be read again.

        With `is_readable`, the value was made from one that was read: it is only encoded.
        """
        name, data = self._prefix + self._name(key), None if value is None else encode_json(value)
        try:
            if data is not None and not is_readable:
                self._decode(data)
        except NOT_JSON as error:
            raise ValueError(f"{self._part}/{name} cannot be stored: {error}") from None
        return Change(self._set, key, value, Record(self._part, name, data))

    def _read(self, name: str, data: bytes) -> tuple[Any, T]:
        return int(name, 16) if self._is_numbered else name, self._decode(data)


def read_record(record: Record, thread: ThreadKey, decode: Callable[[bytes], T]) -> T:
    """Return the value of a stored record of a thread. Raises CorruptThread."""
    try:
        return decode(record.value or b"")
    except (ValueError, *NOT_JSON) as error:
        raise CorruptThread(f"{record.part}/{record.key} of {thread} cannot be read", detail=str(error)) from None


def apply(changes: Changes) -> tuple[list[Record], Callable[[], None]]:
    """Make changes in memory; return their records, only the last of each key, and a function that undoes the changes.

    If `changes` raises an error, nothing is changed.
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
        """Return the value of a record after all writes so far; None without one. Raises StoreError."""
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

    def write(self, records: Sequence[Record], *, undo: Callable[[], None] | None = None) -> Commit:
        """Store records with `Pipeline.store`, which may call `undo`. Raises ValueError and TooLarge."""
        self._pipeline.check_open()
        return self._pipeline.store(records, undo=undo)

    def put(self, changes: Changes) -> Commit:
        """Make changes as one write; if the write is rolled back, the earlier values return.

        Raises the errors of `changes` and `write`; then nothing is changed.
        """
        self._pipeline.check_open()  # Must come first, as it rolls back a transaction of other code whose block awaits.
        records, undo = apply(changes)
        try:
            return self._pipeline.store(records, undo=undo)
        except BaseException:
            undo()
            raise
