"""The values of one thread in memory, as JSON."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from weakref import WeakSet

import msgspec

from plait.errors import CorruptThread, TooLarge
from plait.limits import Limits
from plait.parts.values_ops import Op, ValuesEdit, measure
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.state.thread_records import Records
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["METADATA", "VALUES", "ValuesHead"]

METADATA: Final = "head/metadata"
"""The key of the record with the metadata."""

VALUES: Final = "value/"
"""The prefix of the keys of the records that hold the values."""

# Values that are decoded before other tasks may run.
_AT_ONCE: Final = 2_000

_decode: Final = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode


class ValuesHead:
    """All values of a thread. Each is a record with its key; it keeps its position until it is removed."""

    def __init__(self, part: str, records: Records, state: Pipeline, limits: Limits) -> None:
        self._records = records
        self.state = state
        self._limits = limits
        self.part = part
        # Why the stored values cannot be read, for all uses of them.
        self._damage: CorruptThread | None = None
        # The values in the order of their positions, the positions, and the sum of the values' sizes by `measure`.
        self._values: dict[str, bytes] = {}
        self._positions: dict[str, int] = {}
        self._total = 0
        self._next = 0
        self.metadata: bytes | None = None
        # The edits whose base must not be changed.
        self._edits: WeakSet[ValuesEdit] = WeakSet()
        # Whether any value has been read.
        self.has_read = False

    async def load(self, records: Sequence[Record]) -> None:
        """Load the records that were read on waking."""
        self.metadata = next((record.value for record in records if record.key == METADATA), None)
        rows = [record for record in records if record.key != METADATA]
        try:
            for number, record in enumerate(rows, 1):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                key, raw = _decode(record.value or b"")
                self._values[key], self._positions[key] = bytes(raw), int(record.key.removeprefix(VALUES))
                self._total += measure(key, self._values[key])
        except ValueError as error:
            self._damage = CorruptThread(f"the {self.part} of a thread are damaged", detail=str(error))
        self._next = max(self._positions.values(), default=-1) + 1

    @property
    def values(self) -> dict[str, bytes]:
        """The values by their keys, in order of insertion. Raises CorruptThread."""
        self.state.end_abandoned()
        if self._damage is not None:
            raise CorruptThread(str(self._damage)) from self._damage
        return self._values

    def edit(self) -> ValuesEdit:
        """Return an edit of the current values, whose base does not change. Raises CorruptThread."""
        edit = ValuesEdit(self.values, self._total)
        self._edits.add(edit)
        return edit

    def write(self, ops: Iterable[Op], *, undo: Callable[[], None]) -> Commit:
        """Carry out operations and store them; if the write is rolled back, undo them and call `undo`.

        Raises the errors of the operations, TooLarge, and the errors of `Pipeline.store`; then nothing is changed.
        """
        self.state.check_open()
        edit = ValuesEdit(self.values, self._total)
        self.state.ask(_carry_out, edit, ops)
        if edit.total > max((limit := self._limits.record) - 1, self._total):
            raise TooLarge(f"the {self.part} would have {edit.total + 1} bytes; the limit is {limit}")
        changed = dict.fromkeys(self._values) if edit.is_cleared else dict[str, None]()
        changed.update(dict.fromkeys([*edit.replaced, *edit.added]))
        before = {key: (self._positions.get(key, -1), self._values.get(key)) for key in changed}
        metadata, total = self.metadata, self._total
        records = self._apply(edit)

        def take_back() -> None:
            self._restore(before)
            self.metadata, self._total = metadata, total
            undo()

        if (touch := self.state.on_touch) is not None:
            touch(self.part, changed)
        try:
            # Without records, only the caller has changes to undo.
            return self._records.write(records, undo=take_back if records else undo)
        except BaseException:
            self._restore(before)
            self.metadata, self._total = metadata, total
            raise

    # Inside

    def _apply(self, edit: ValuesEdit) -> list[Record]:
        """Make the values of an edit the current ones, and return the records to store."""
        values, positions = self._own_values(), self._positions
        records: dict[str, bytes | None] = {}
        removed = [*values] if edit.is_cleared else [key for key, value in edit.replaced.items() if value is None]
        for key in removed:
            del values[key]
            records[_name_record(positions.pop(key))] = None
        for key, value in (*edit.replaced.items(), *edit.added.items()):
            if value is not None:
                if (position := positions.get(key)) is None:
                    position, self._next = self._next, self._next + 1
                values[key], positions[key] = value, position
                records[_name_record(position)] = b"[%b,%b]" % (encode_json(key), value)
        if edit.metadata is not None and edit.metadata != (self.metadata or b"{}"):
            self.metadata = records[METADATA] = edit.metadata
        self._total = edit.total
        return [Record(self.part, key, value) for key, value in records.items()]

    def _restore(self, before: dict[str, tuple[int, bytes | None]]) -> None:
        values, positions = {**self._values}, self._positions
        for key, (position, value) in before.items():
            if value is None:
                values.pop(key, None)
                positions.pop(key, None)
            else:
                values[key], positions[key] = value, position
        self._values = {key: values[key] for key in sorted(values, key=positions.__getitem__)}

    def _own_values(self) -> dict[str, bytes]:
        """Return the values, to be changed; copy them first if an edit uses them as its base."""
        if any(edit.base is self._values for edit in self._edits):
            self._values = {**self._values}
        return self._values


def _name_record(position: int) -> str:
    """Return the key of a record; the keys have the order of the positions."""
    return f"{VALUES}{position:012d}"


def _carry_out(edit: ValuesEdit, ops: Iterable[Op]) -> None:
    for op in ops:
        op.apply(edit)
