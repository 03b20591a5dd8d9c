"""The writes of a run to the values of a thread, kept as operations, so that concurrent writes of others are kept."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from plait.parts.encoding import encode_named
from plait.parts.values_head import ValuesHead
from plait.parts.values_ops import (
    Clear,
    Delete,
    Op,
    Push,
    Set,
    SetMetadata,
    Update,
    ValuesEdit,
    call_change,
    must_precede,
)
from plait.parts.watched import Watched, is_mutable
from plait.parts.written import Draft
from plait.state.commit import Commit
from plait_schemas.codec import decode_json, encode_json

__all__ = ["Saved", "ValuesDraft"]

# Values that are decoded before other tasks may run.
_AT_ONCE: Final = 1_000


class Saved(NamedTuple):
    """The parts of a draft that an operation changes, as they were before it."""

    ops: list[Op]
    watched: dict[str, "Watched | None"]


class ValuesDraft(Draft):
    """The values as one run sees them."""

    def __init__(self, head: ValuesHead) -> None:
        self._head = head
        # The operations since the last commit.
        self._ops: list[Op] = []
        # The values after these operations; None if they must be computed from the head.
        self._view: ValuesEdit | None = None
        # Whether the values have been read.
        self.is_loaded = False
        # The values whose objects the agent has, and may change in place.
        self._watched: dict[str, Watched] = {}

    # Called by the values of a run

    async def load(self) -> None:
        """Wait until the methods that read show the values that the calling code may see. Raises CorruptThread."""
        await self._head.state.wait_for_shown()
        self.show()

    def show(self) -> None:
        """Prepare the methods that read. Raises CorruptThread."""
        self._find_view()
        self.is_loaded = self._head.has_read = True

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata."""
        staged = [op.value for op in self._ops if isinstance(op, SetMetadata)]
        data = staged[-1] if staged else self._head.metadata
        found: dict[str, Any] = {} if data is None else decode_json(data)
        return found

    def set_metadata(self, metadata: bytes) -> None:
        """Replace the metadata."""
        self._do(SetMetadata(metadata))

    def keys(self) -> list[str]:
        """Return the keys of loaded values."""
        for key, watched in list(self._watched.items()):
            if watched.is_default:
                self._note_edit(key)  # A default that was changed in place becomes a value.
        return [key for key, _ in self._find_view().items()]

    def has(self, key: str) -> bool:
        """Whether loaded values have a key."""
        if (view := self._find_view()).find(key) is None:
            self._note_edit(key)
        return view.find(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of the loaded values, always the same object, or a copy of a default that is a list or dict."""
        watched = self._watched.get(key)
        if watched is not None and (watched.has_two or watched.is_default):
            self._note_edit(key)
        found = self._find_view().find(key)
        if found is None:
            return self._show_default(key, default)
        if watched is None:
            value = decode_json(found)
            if not is_mutable(value):
                return value
            watched = self._watched[key] = Watched(found, shown=value)
        return watched.show()

    def read_json(self, key: str) -> bytes | None:
        """Return the JSON of one of the loaded values; None if there is none."""
        self._note_edit(key)
        return self._find_view().find(key)

    async def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values of loaded values; other tasks run in between, and may replace later ones."""
        for key, watched in list(self._watched.items()):
            if watched.has_two or watched.is_default:
                self._note_edit(key)
        items = list[tuple[str, Any]]()
        for number, (key, before) in enumerate(self._find_view().items(), 1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            # The value may have been removed while others were read.
            is_there = self._find_view().find(key) is not None
            items.append((key, self.get(key) if is_there else decode_json(before)))
        return items

    def measure(self, key: str) -> int:
        """Return the bytes of loaded values without the value of a key, which may be missing."""
        self._note_edits()
        view = self._find_view()
        found = view.find(key)
        return view.total + 1 + (len(encode_json(key)) + 2 if found is None else -len(found))

    def set(self, key: str, value: Any) -> None:
        """Set a value, even before the values are loaded. Raises TypeError or ValueError if it is not JSON."""
        raw = encode_named(key, value)
        self._do(Set(key, raw))
        self._watched.pop(key, None)
        if is_mutable(value):
            self._watched[key] = Watched(raw, given=value)

    def delete(self, key: str) -> None:
        """Remove a key, even before the values are loaded."""
        self._do(Delete(key))
        self._watched.pop(key, None)

    def clear(self) -> None:
        """Remove all keys, even before the values are loaded."""
        self._ops = [op for op in self._ops if isinstance(op, SetMetadata)]
        self._do(Clear())
        self._watched.clear()

    def push(self, op: Push) -> None:
        """Append to a list, even before the values are loaded. Raises TypeError if a known value is not a list."""
        self._note_edit(op.key)
        watched = self._watched.get(op.key)
        if watched is not None and not watched.is_default:
            watched.push(op)
        self._do(op)
        if watched is not None and watched.is_default:
            self._refresh()

    def update(self, key: str, change: Callable[[Any], Any], default: Any) -> Any:
        """Set one of the loaded values to the result of a function of it, and return it. Raises the function's error.

        The function is called again at the commit if others have stored another value.
        """
        self._note_edit(key)
        before = self._find_view().find(key)
        value = call_change(change, before, default)
        self._do(Update(key, change, default, before, encode_named(key, value)))
        self._watched.pop(key, None)
        return value

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are writes to store."""
        self._note_edits()
        return bool(self._ops)

    def write(self) -> None:
        """Carry out the operations on the stored values; if the write is rolled back, they are staged again."""
        self._write(self._ops, Saved(self._ops, {}))
        self._ops = []
        if self.is_loaded:
            self._refresh()

    def drop(self) -> None:
        """Forget the operations that are not committed."""
        self._ops, self._view = [], None
        self._watched.clear()

    # In a transaction

    def save(self, key: str | None) -> Saved:
        """Return the parts of the draft that an operation on one value, or on all values, changes."""
        self._note_edits()
        return Saved(self._ops[:], dict(self._watched) if key is None else {key: self._watched.get(key)})

    def write_last(self, saved: Saved) -> Commit:
        """Store the last operation now, after the ones that must precede it; the others stay staged."""
        last = self._ops[-1]
        try:
            commit = self._write([op for op in self._ops if op is last or must_precede(op, last)], saved)
        except BaseException:
            self._ops.pop()
            self._restore(saved)
            raise
        self._ops = [op for op in self._ops if op is not last and not must_precede(op, last)]
        return commit

    # Inside

    def _write(self, ops: list[Op], saved: Saved) -> Commit:
        self._view = None  # Otherwise the head would have to keep the values of the view, and change a copy.
        return self._head.write(ops, undo=lambda: self._restore(saved))

    def _restore(self, saved: Saved) -> None:
        """Stage operations again that could not be stored, before the later ones."""
        self._ops = [*saved.ops, *(op for op in self._ops if not any(op is each for each in saved.ops))]
        for key, watched in saved.watched.items():
            if watched is None:
                self._watched.pop(key, None)
            else:
                self._watched[key] = watched
        self._view = None

    def _find_view(self) -> ValuesEdit:
        """Return the values after the operations; if these were stored, with the values that others have stored."""
        if self._view is None:
            self._note_edits()
            self._refresh()
        assert self._view is not None
        return self._view

    def _do(self, op: Op) -> None:
        if self._view is not None:
            op.apply(self._view)
        self._ops.append(op)

    def _show_default(self, key: str, default: Any) -> Any:
        if not isinstance(default, list | dict):
            return default
        try:
            raw = encode_named(key, default)
        except (TypeError, ValueError):
            return default  # The default cannot become a value.
        watched = self._watched.get(key)
        if watched is None or watched.raw != raw:
            watched = self._watched[key] = Watched(raw, shown=copy.deepcopy(default), is_default=True)
        return watched.show()

    def _note_edit(self, key: str) -> None:
        """Add an operation if a value was changed in place."""
        watched = self._watched.get(key)
        if watched is not None and (raw := watched.note(key)) is not None:
            watched.is_default = False
            self._do(Set(key, raw))

    def _note_edits(self) -> None:
        for key in self._watched:
            self._note_edit(key)

    def _refresh(self) -> None:
        """Apply the changes that others have stored since then, even to the objects that the agent holds."""
        view = self._head.edit()
        for op in self._ops:
            op.apply(view)
        self._view = view
        for key, watched in list(self._watched.items()):
            found = view.find(key)
            if found is None and not watched.is_default:
                del self._watched[key]
            elif found is not None:
                watched.is_default = False
                watched.become(found)
