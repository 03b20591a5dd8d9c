"""The values of one thread in memory: all keys, and the values that were read or written."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakSet

from plait.errors import CorruptThread, StoreError, TooLarge
from plait.limits import Limits
from plait.parts.value_pieces import Value
from plait.parts.values_edit import ValuesEdit, measure
from plait.parts.values_index import INDEX, METADATA, VALUES, decode_index, decode_lines, encode_line
from plait.parts.values_ops import Op
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.state.thread_records import Records
from plait.store.thread_rows import Record, RecordRange

__all__ = ["ValuesHead"]

# The maximum number of keys in an index record, and the bytes after which another record begins.
_KEYS: Final = 256
_INDEX_BYTES: Final = 16 * 1024
# Below this many bytes, all values are read at once.
_SMALL: Final = 64 * 1024
# Values whose records are noted before other tasks may run.
_AT_ONCE: Final = 1_000


class ValuesHead:
    """The index of a thread's values, and the values that were read or written since the thread woke.

    Each value, or piece of a list, is a record of its own, `value/<position>/<piece>`; a key keeps its position until
    it is removed. The index is in records, `head/keys/<number>`, of 256 positions each.
    """

    def __init__(self, part: str, records: Records, state: Pipeline, limits: Limits) -> None:
        self._records = records
        self._state = state
        self._limits = limits
        self._part = part
        # Why the stored index cannot be read, for all uses of the values.
        self._damage: CorruptThread | None = None
        # The values in the order of their positions, and the sum of their sizes by `measure`.
        self._values: dict[str, Value] = {}
        self._total = 0
        # The records of the index by their numbers, and the lines of those that were written since the thread woke.
        self._stored: dict[int, bytes] = {}
        self._lines: dict[int, dict[str, bytes]] = {}
        # The next position, and the bytes of its index record.
        self._next = 0
        self._filled = 0
        self.metadata: bytes | None = None
        # The edits whose base must not be changed.
        self._edits: WeakSet[ValuesEdit] = WeakSet()
        # The running reads, by the prefix of their records.
        self._reads: dict[str, asyncio.Future[None]] = {}
        # Whether any value has been read, and whether all are known.
        self.has_read = False
        self.has_all = False

    async def load(self, records: Sequence[Record]) -> None:
        """Load the records that were read on waking. Raises StoreError."""
        self.metadata = next((record.value for record in records if record.key == METADATA), None)
        index = [record for record in records if record.key != METADATA]
        try:
            await self._load_index(index)
        except CorruptThread as error:
            self._damage = error
            return
        if max((len(record.value or b"") for record in index), default=0) > 2 * _INDEX_BYTES:
            # The next push to such a list joins the small pieces that were begun after each waking.
            await self.read([key for key, value in self.values.items() if value.is_fragmented])

    async def _load_index(self, records: Sequence[Record]) -> None:
        for record in sorted(records, key=lambda record: (len(record.key), record.key)):
            if self._values:
                await asyncio.sleep(0)  # Other tasks run between the records.
            found = decode_index(self._part, record)
            self._values.update(found)
            self._total += sum([measure(key, value) for key, value in found.items()])
            self._stored[int(record.key.removeprefix(INDEX))] = record.value or b""
        self._next = max([value.position for value in self._values.values()], default=-1) + 1
        self._filled = len(self._stored.get(self._next // _KEYS, b""))

    @property
    def values(self) -> dict[str, Value]:
        """The values by their keys, in order of insertion. Raises CorruptThread."""
        self._state.end_abandoned()
        if self._damage is not None:
            raise CorruptThread(str(self._damage)) from self._damage
        return self._values

    def edit(self, *, is_kept: bool = True) -> ValuesEdit:
        """Return an edit of the current values; if `is_kept`, its base does not change. Raises CorruptThread."""
        edit = ValuesEdit(self.values, self._total, has_all=self.has_all)
        if is_kept:
            self._edits.add(edit)
        return edit

    # Reading

    async def read(self, keys: Iterable[str]) -> None:
        """Read the given values that are not known. Raises StoreError.

        Values that others replace during the read are known, as they were written.
        """
        while missing := self._find_unknown(keys):
            if len(missing) > 1 or self._total <= _SMALL:
                await self._read_all()
            else:
                await self._read_once(f"{VALUES}{self.values[missing[0]].position}/", missing)

    def _find_unknown(self, keys: Iterable[str]) -> list[str]:
        values = self.values
        if self.has_all:
            return []
        return [key for key in keys if (value := values.get(key)) is not None and not value.is_known]

    async def read_ends(self, keys: Iterable[str]) -> None:
        """Read the last pieces of lists. Raises StoreError."""
        for key in keys:
            while (value := self.values.get(key)) is not None and not value.has_known_end:
                if self._total <= _SMALL:
                    await self._read_all()
                else:
                    await self._read_once(value.record_keys()[-1], [key])

    async def wait_for_shown(self) -> None:
        """Wait as `Pipeline.wait_for_shown` does."""
        await self._records.wait_for_shown()

    async def _read_all(self) -> None:
        await self._read_once(VALUES, None)

    async def _read_once(self, prefix: str, keys: Iterable[str] | None) -> None:
        """Read records of some values, or of all; callers that need the same records share a read."""
        if (reading := self._reads.get(prefix)) is not None:
            await asyncio.wait([reading])
            reading.result()
            return
        reading = self._reads[prefix] = asyncio.get_running_loop().create_future()
        try:
            await self._note(await self._fetch(prefix), prefix, keys)
        except StoreError as error:
            reading.set_exception(error)
            reading.exception()  # Mark it as retrieved; there may be no other waiter.
            raise
        finally:
            del self._reads[prefix]
            if not reading.done():
                reading.set_result(None)  # After a cancellation, the other callers try again.

    async def _fetch(self, prefix: str) -> dict[str, bytes | None]:
        records, found = self._records, dict[str, bytes | None]()
        if not prefix.endswith("/"):
            return {prefix: await records.read(self._part, prefix)}
        after, limit = "", 1000
        while True:
            await asyncio.sleep(0)  # Other tasks run between the pages, also if the store does not wait.
            page = await records.list(RecordRange(self._part, prefix=prefix, after=after, limit=limit))
            found.update((record.key, record.value) for record in page)
            if len(page) < limit:
                return found
            after = page[-1].key

    async def _note(self, found: Mapping[str, bytes | None], prefix: str, keys: Iterable[str] | None) -> None:
        """Keep what was read of values that are still unknown; other tasks run in between."""
        names = [*self.values] if keys is None else [*keys]
        for at in range(0, len(names), _AT_ONCE):
            if at:
                await asyncio.sleep(0)
            values = self.values
            for value in [values[name] for name in names[at : at + _AT_ONCE] if name in values]:
                # An unknown value has not been written since the thread woke, so its stored records are current.
                if not value.is_known:
                    self._note_value(value, found, prefix)
        if keys is None:
            # Not always: a write that has failed may have put back a value that was passed over.
            self.has_all = not self._find_unknown(self.values)

    def _note_value(self, value: Value, found: Mapping[str, bytes | None], prefix: str) -> None:
        for index, name in enumerate(value.record_keys()):
            if value.pieces[index].raw is None and name.startswith(prefix):
                if (data := found.get(name)) is None:
                    raise CorruptThread(f"the {self._part} of a thread lack the record {name}")
                value.note(index, data)

    # Writing

    def write(self, ops: Iterable[Op], *, undo: Callable[[], None] | None = None) -> Commit:
        """Carry out operations and store them; if that is rolled back, undo them and call `undo`.

        Raises what the operations raise, TooLarge, and what `Pipeline.store` raises; then nothing is changed.
        """
        self._state.check_open()
        edit = self.edit(is_kept=False)
        self._state.ask(_carry_out, edit, ops)
        if edit.total > max(self._limits.record - 1, self._total):
            limit = self._limits.record
            raise TooLarge(f"the {self._part} would have {edit.total + 1} bytes; the limit is {limit}")
        before, metadata, total = self._find_changed(edit), self.metadata, self._total
        records = self._apply(edit)

        def take_back() -> None:
            self._restore(before)
            self.metadata, self._total = metadata, total
            if undo is not None:
                undo()

        try:
            # Without records, only the caller has something to take back.
            return self._records.write(records, undo=take_back if records else undo)
        except BaseException:
            self._restore(before)
            self.metadata, self._total = metadata, total
            raise

    def _find_changed(self, edit: ValuesEdit) -> dict[str, Value | None]:
        """Return the current values of the keys that an edit changes."""
        values = self._values
        if edit.is_cleared:
            return {**dict.fromkeys(edit.added), **values}
        return {key: values.get(key) for key in (*edit.replaced, *edit.added)}

    def _apply(self, edit: ValuesEdit) -> list[Record]:
        """Make the values of an edit the current ones, and return the records to store."""
        values = self._own_values()
        records: dict[str, bytes | None] = {}
        touched: set[int] = set()
        removed = [*values] if edit.is_cleared else [key for key, value in edit.replaced.items() if value is None]
        for key in removed:
            value = values.pop(key)
            records.update(dict.fromkeys(value.record_keys()))
            touched.add(self._remove_line(key, value))
        for key, new in edit.replaced.items():
            if new is not None:
                old = values[key]
                new.position = old.position
                records.update(new.changes(old))
                values[key] = new
                if self._add_line(key, new):
                    touched.add(new.position // _KEYS)
        for key, new in edit.added.items():
            if self._next % _KEYS == 0 or self._filled > _INDEX_BYTES:
                self._next, self._filled = -(-self._next // _KEYS) * _KEYS, 0
            new.position, self._next = self._next, self._next + 1
            records.update(new.changes(None))
            values[key] = new
            self._filled += self._add_line(key, new)
            touched.add(new.position // _KEYS)
        for number in touched:
            lines = self._lines[number]
            records[f"{INDEX}{number}"] = b"[%b]" % b",".join(lines.values()) if lines else None
        if edit.metadata is not None and edit.metadata != (self.metadata or b"{}"):
            self.metadata = records[METADATA] = edit.metadata
        self._total = edit.total
        return [Record(self._part, key, value) for key, value in records.items()]

    def _restore(self, before: dict[str, Value | None]) -> None:
        self.has_all = False  # A value may not have been read before it was replaced.
        values, is_sorted = self._own_values(), True
        for key, value in before.items():
            if (present := values.get(key)) is not None:
                self._remove_line(key, present)
            if value is None:
                values.pop(key, None)
                continue
            is_sorted = is_sorted and present is not None and present.position == value.position
            values[key] = value
            self._add_line(key, value)
        if not is_sorted:
            self._values = dict(sorted(values.items(), key=lambda item: item[1].position))

    def _own_values(self) -> dict[str, Value]:
        """Return the values, to be changed; copy them first if an edit uses them as its base."""
        if any(edit.base is self._values for edit in self._edits):
            self._values = dict(self._values)
        return self._values

    def _add_line(self, key: str, value: Value) -> int:
        """Put a key into its index record; return its bytes, or 0 if nothing has changed."""
        line = encode_line(key, value)
        lines = self._use_lines(value.position // _KEYS)
        if lines.get(key) == line:
            return 0
        lines[key] = line
        return len(line)

    def _remove_line(self, key: str, value: Value) -> int:
        number = value.position // _KEYS
        del self._use_lines(number)[key]
        return number

    def _use_lines(self, number: int) -> dict[str, bytes]:
        """Return the lines of an index record, to be changed."""
        if (lines := self._lines.get(number)) is None:
            stored = self._stored.pop(number, None)
            lines = self._lines[number] = {} if stored is None else decode_lines(stored)
        return lines


def _carry_out(edit: ValuesEdit, ops: Iterable[Op]) -> None:
    for op in ops:
        op.apply(edit)
