"""What a run has done to the values of a thread, kept as operations, so that what others store meanwhile stays."""

from collections.abc import Callable
from typing import Any

import msgspec

from plait.errors import CorruptThread
from plait.parts.cell import Cell
from plait.parts.values_ops import Clear, Delete, Items, Op, Push, Set, Update, call_change, encode_named
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
        # The lists and objects that were handed out, which may have been changed in place.
        self._shown: dict[str, Any] = {}
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
            if self._items is None:  # Nobody else has done it meanwhile.
                self._items = self._make_items()
            elif self._is_stale:
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
        return list(self._items)

    def has(self, key: str) -> bool:
        """Whether loaded values have a key."""
        assert self._items is not None
        return key in self._items

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of the loaded values, each time the same object."""
        assert self._items is not None
        raw = self._items.get(key)
        if raw is None:
            return default
        if key in self._shown:
            return self._shown[key]
        value = decode_json(bytes(raw))
        if isinstance(value, list | dict):
            self._shown[key] = value
        return value

    def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values of loaded values."""
        return [(key, self.get(key)) for key in self.keys()]

    def apply(self, op: Op) -> None:
        """Do an operation, also before the values are loaded. Raises TypeError for an impossible `push`."""
        self._note_edits()
        if self._items is not None:
            op.apply(self._items)
            self._show_again(op)
        if isinstance(op, Clear):
            self._ops.clear()
        self._ops.append(op)

    def update(self, key: str, change: Callable[[Any], Any], default: Any) -> Any:
        """Set one of the loaded values to what a function makes of it, and return that. Raises what the function does.

        The function is called again if others have stored another value when this is committed.
        """
        self._note_edits()
        assert self._items is not None
        before = self._items.get(key)
        value = call_change(change, before, default)
        self.apply(Update(key, change, default, None if before is None else bytes(before), encode_named(key, value)))
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

    def _note_edits(self) -> None:
        """Make operations of what was changed in place."""
        for key, value in self._shown.items():
            assert self._items is not None
            raw = encode_named(key, value)
            if bytes(raw) != bytes(self._items[key]):
                self._items[key] = raw
                self._ops.append(Set(key, raw))

    def _show_again(self, op: Op) -> None:
        """Let what was handed out be what it is after an operation."""
        match op:
            case Clear():
                self._shown.clear()
            case Push(key=key, value=value, most=most) if key in self._shown:
                shown = self._shown[key]
                shown.append(decode_json(bytes(value)))
                if most is not None:
                    del shown[:-most]
            case Set(key=key) | Delete(key=key) | Update(key=key):
                self._shown.pop(key, None)

    def _refresh(self, items: Items) -> None:
        """Take in what others have stored meanwhile, also into what was handed out."""
        before, self._items, self._is_stale = self._items, items, False
        assert before is not None
        for key in list(self._shown):
            raw = items.get(key)
            if raw is None or (raw != before[key] and not _replace(self._shown[key], decode_json(bytes(raw)))):
                del self._shown[key]


def _replace(shown: Any, value: Any) -> bool:
    """Make a list or object equal to a value, and keep the elements that are equal; return whether that is possible."""
    match shown, value:
        case list(), list():
            shown[:] = [*map(_choose, shown, value), *value[len(shown) :]]
        case dict(), dict():
            value = {key: _choose(shown[key], each) if key in shown else each for key, each in value.items()}
            shown.clear()
            shown.update(value)
        case _:
            return False
    return True


def _choose(shown: Any, value: Any) -> Any:
    return shown if encode_json(shown) == encode_json(value) else value
