"""What a run has done to the values of a thread, kept as operations, so that what others store meanwhile stays."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from plait.errors import CorruptThread
from plait.parts.cell import Cell
from plait.parts.values_ops import Clear, Delete, Items, Op, Push, Set, Update, call_change, encode_named
from plait.parts.watched import Watched, is_mutable
from plait.state.commit import Commit
from plait.store.protocol import Record
from plait_schemas.codec import decode_json, encode_json

__all__ = ["ValuesDraft"]

_decode_items = msgspec.json.Decoder(Items).decode


class ValuesDraft:
    """The values as one run sees them."""

    def __init__(self, values: Cell, metadata: Cell) -> None:
        self._values = values
        self._cell = metadata
        # What was done since the last commit.
        self._ops: list[Op] = []
        # The values after that; None while they are not loaded.
        self._items: Items | None = None
        # Whether a commit has failed, so that the values may have what others could not store either.
        self._is_stale = False
        # The values whose objects the agent has, and may change in place.
        self._watched: dict[str, Watched] = {}
        self._metadata: msgspec.Raw | None = None
        # What `records` returned, until it is submitted.
        self._made: bytes | None = None

    # Of a run

    @property
    def is_loaded(self) -> bool:
        """Whether the values have been read."""
        return self._items is not None

    async def load(self) -> None:
        """Read the values if that has not been done. Raises StoreError, and TypeError for an impossible `push`."""
        if self._items is None or self._is_stale:
            await self._values.load()
            if self._items is None or self._is_stale:  # No other task has done it.
                self._note_edits()
                self._refresh(self._make_items())

    async def load_metadata(self) -> None:
        """Read the metadata if they are not known. Raises StoreError."""
        if self._metadata is None:
            await self._cell.load()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata, once they are loaded."""
        data = self._cell.data if self._metadata is None else bytes(self._metadata)
        found: dict[str, Any] = {} if data is None else decode_json(data)
        return found

    def set_metadata(self, metadata: msgspec.Raw) -> None:
        """Replace the metadata."""
        self._metadata = metadata

    def keys(self) -> list[str]:
        """Return the keys of loaded values."""
        assert self._items is not None
        for key in [each for each in self._watched if each not in self._items]:
            self._note_edit(key)  # A default that was changed in place is a value.
        return list(self._items)

    def has(self, key: str) -> bool:
        """Whether loaded values have a key."""
        assert self._items is not None
        if key not in self._items:
            self._note_edit(key)
        return key in self._items

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of the loaded values, each time the same object; a copy of a default that is a list or dict."""
        assert self._items is not None
        watched = self._watched.get(key)
        if watched is not None and (watched.has_two or key not in self._items):
            self._note_edit(key)
        raw = self._items.get(key)
        if raw is None:
            return self._show_default(key, default)
        if watched is None:
            value = decode_json(bytes(raw))
            if not is_mutable(value):
                return value
            watched = self._watched[key] = Watched(bytes(raw), shown=value)
        return watched.show()

    def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values of loaded values."""
        return [(key, self.get(key)) for key in self.keys()]

    def measure(self, key: str) -> int:
        """Return the bytes of loaded values without the value of a key, which need not be there."""
        self._note_edits()
        assert self._items is not None
        others = [len(encode_json(each)) + len(bytes(raw)) + 2 for each, raw in self._items.items() if each != key]
        return sum(others) + len(encode_json(key)) + 3

    def set(self, key: str, value: Any) -> None:
        """Set a value, also before the values are loaded. Raises TypeError or ValueError if it is not JSON."""
        raw = encode_named(key, value)
        self._do(Set(key, raw))
        self._watched.pop(key, None)
        if is_mutable(value):
            self._watched[key] = Watched(bytes(raw), given=value)

    def delete(self, key: str) -> None:
        """Remove a key, also before the values are loaded."""
        self._do(Delete(key))
        self._watched.pop(key, None)

    def clear(self) -> None:
        """Remove all keys, also before the values are loaded."""
        self._ops.clear()
        self._do(Clear())
        self._watched.clear()

    def push(self, op: Push) -> None:
        """Append to a list, also before the values are loaded. Raises TypeError for what is known to be no list."""
        self._note_edit(op.key)
        watched = self._watched.get(op.key)
        is_default = self._items is not None and op.key not in self._items
        if watched is not None and not is_default:
            watched.push(op)
        self._do(op)
        if watched is not None and is_default and self._items is not None:
            watched.become(bytes(self._items[op.key]))

    def update(self, key: str, change: Callable[[Any], Any], default: Any) -> Any:
        """Set one of the loaded values to what a function makes of it, and return that. Raises what the function does.

        The function is called again if others have stored another value when this is committed.
        """
        self._note_edit(key)
        assert self._items is not None
        before = self._items.get(key)
        value = call_change(change, before, default)
        self._do(Update(key, change, default, None if before is None else bytes(before), encode_named(key, value)))
        self._watched.pop(key, None)
        return value

    # For the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to store."""
        self._note_edits()
        return bool(self._ops) or self._metadata is not None

    @property
    def is_ready(self) -> bool:
        """Whether what is stored is known, as far as it must be."""
        return self._values.is_known or not self._ops or isinstance(self._ops[0], Clear)

    async def prepare(self) -> None:
        """Read what is stored. Raises StoreError."""
        await self._values.load()

    def records(self) -> list[Record]:
        """Return the records to be stored: the values, if they were changed, and the metadata. Raises TypeError.

        The operations are carried out on what is stored now.
        """
        found = []
        if self._ops:
            items = self._make_items()
            self._made = encode_json(items) if items else None
            found.append(self._values.record(self._made))
        if self._metadata is not None:
            found.append(self._cell.record(bytes(self._metadata)))
        return found

    def submitted(self, commit: Commit) -> None:
        """Begin anew after what `records` has returned; if it cannot be stored, it is to be stored again."""
        ops, metadata = self._ops, self._metadata
        if ops:
            self._values.submitted(self._made, commit)
            self._ops, self._made = [], None
            if self._items is not None:
                self._refresh(self._make_items())
        if metadata is not None:
            self._cell.submitted(bytes(metadata), commit)
            self._metadata = None
        commit.then(lambda error: None if error is None else self._take_back(ops, metadata))

    # Inside

    def _take_back(self, ops: list[Op], metadata: msgspec.Raw | None) -> None:
        """Put what could not be stored before what was done since."""
        self._ops = ops + self._ops
        if self._metadata is None:
            self._metadata = metadata
        self._is_stale = self._items is not None

    def _make_items(self) -> Items:
        """Return what is stored, with the operations done."""
        data = self._values.data
        try:
            items = {} if data is None else _decode_items(data)
        except msgspec.DecodeError as error:
            raise CorruptThread(f"the {self._values.part} of a thread are damaged") from error
        for op in self._ops:
            op.apply(items)
        return items

    def _do(self, op: Op) -> None:
        if self._items is not None:
            op.apply(self._items)
        self._ops.append(op)

    def _show_default(self, key: str, default: Any) -> Any:
        if not isinstance(default, list | dict):
            return default
        try:
            raw = bytes(encode_named(key, default))
        except (TypeError, ValueError):
            return default  # It cannot become a value.
        watched = self._watched.get(key)
        if watched is None or watched.raw != raw:
            watched = self._watched[key] = Watched(raw, shown=copy.deepcopy(default))
        return watched.show()

    def _note_edit(self, key: str) -> None:
        """Make an operation of it if a value was changed in place."""
        watched = self._watched.get(key)
        if watched is not None and (raw := watched.note(key)) is not None:
            self._do(Set(key, msgspec.Raw(raw)))

    def _note_edits(self) -> None:
        for key in self._watched:
            self._note_edit(key)

    def _refresh(self, items: Items) -> None:
        """Take in what others have stored since, also into the objects that the agent has."""
        before, self._items, self._is_stale = self._items, items, False
        for key, watched in list(self._watched.items()):
            if key in items:
                watched.become(bytes(items[key]))
            elif before is None or key in before:
                del self._watched[key]
