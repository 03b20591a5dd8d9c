"""What a run has done to the values of a thread, kept as operations, so that what others store meanwhile stays."""

from typing import Any, NamedTuple

import msgspec

from plait.errors import CorruptThread
from plait.parts.cell import Cell
from plait.state.commit import Commit
from plait.store.protocol import Record
from plait_schemas.codec import UNENCODABLE, decode_json, encode_json, has_non_finite

__all__ = ["Clear", "Delete", "Push", "Set", "ValuesDraft", "encode_key", "encode_named"]

Items = dict[str, msgspec.Raw]
"""The values as JSON, by keys."""

_decode_items = msgspec.json.Decoder(Items).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Set(NamedTuple):
    """Sets a value."""

    key: str
    value: msgspec.Raw

    def apply(self, items: Items) -> None:
        items[self.key] = self.value


class Delete(NamedTuple):
    """Removes a key."""

    key: str

    def apply(self, items: Items) -> None:
        items.pop(self.key, None)


class Clear(NamedTuple):
    """Removes all keys."""

    def apply(self, items: Items) -> None:
        items.clear()


class Push(NamedTuple):
    """Appends to a list, of which the last `most` elements stay."""

    key: str
    value: msgspec.Raw
    most: int | None

    def apply(self, items: Items) -> None:
        before = bytes(items.get(self.key, b"[]"))
        if not before.startswith(b"["):
            raise TypeError(f"the value {self.key!r} is no list, so nothing can be pushed to it")
        if self.most is None:
            comma = b"" if before == b"[]" else b","
            items[self.key] = msgspec.Raw(b"%b%b%b]" % (before[:-1], comma, bytes(self.value)))
        else:
            kept = [*_decode_list(before), self.value][-self.most :]
            items[self.key] = msgspec.Raw(encode_json(kept))


Op = Set | Delete | Clear | Push


def encode_key(key: str) -> str:
    """Return a key if it can be one. Raises TypeError or ValueError."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be a str, not {key!r}")
    encode_named(key, key)
    return key


def encode_named(key: str, value: object) -> msgspec.Raw:
    """Return a value as JSON. Raises TypeError or ValueError that names the key."""
    try:
        data = encode_json(value)
    except UNENCODABLE as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the value {key!r} is not JSON: {error}") from None
    if b"null" in data and has_non_finite(value):
        raise ValueError(f"the value {key!r} is not JSON: it has a number that is infinite or not a number")
    return msgspec.Raw(data)


class ValuesDraft:
    """The values as one run sees them."""

    def __init__(self, values: Cell, metadata: Cell) -> None:
        self._values = values
        self._cell = metadata
        # What was done since the last commit.
        self._ops: list[Op] = []
        # The values after that; None while they are not loaded.
        self._items: Items | None = None
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
        if self._items is None:
            await self._values.load()
            if self._items is None:  # Nobody else has done it meanwhile.
                self._items = self._make_items()

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
        if self._items is None:
            if isinstance(op, Clear):
                self._ops.clear()
        else:
            op.apply(self._items)
            self._show_again(op)
        self._ops.append(op)

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
        """Return the records to be stored: the values, if there are other ones now, and the metadata. Raises TypeError.

        The operations are carried out on what is stored now.
        """
        found = []
        if self._ops:
            items = self._make_items()
            self._made = encode_json(items) if items else None
            if not self._values.is_known or self._made != self._values.data:
                found.append(self._values.record(self._made))
        if self._metadata is not None:
            found.append(self._cell.record(bytes(self._metadata)))
        return found

    def submitted(self, commit: Commit) -> None:
        """Begin anew after what `records` has returned."""
        if self._ops:
            self._values.submitted(self._made, commit)
            self._ops, self._made = [], None
            if self._items is not None:
                self._refresh(self._make_items())
        if self._metadata is not None:
            self._cell.submitted(bytes(self._metadata), commit)
            self._metadata = None

    # Inside

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
            case Push(key=key) if key in self._shown:
                assert self._items is not None
                self._shown[key][:] = decode_json(bytes(self._items[key]))
            case Set(key=key) | Delete(key=key):
                self._shown.pop(key, None)

    def _refresh(self, items: Items) -> None:
        """Take in what others have stored meanwhile."""
        assert self._items is not None
        for key in [key for key in self._shown if items.get(key) != self._items[key]]:
            del self._shown[key]
        self._items = items
