"""`values = Values()`: what a thread durably keeps beside its state, and does not send to anybody."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from plait.actor.thread import ThreadActor, check_may_write
from plait.parts.cell import Cell
from plait.parts.part import Part
from plait.parts.stage import find_stage
from plait.parts.values_draft import ValuesDraft
from plait.parts.values_ops import Push, encode_key, encode_named

__all__ = ["METADATA", "READING", "ThreadValues", "Values"]

T = TypeVar("T")

_VALUES: Final = "values"
METADATA: Final = "metadata"
"""The key of the record with the metadata."""

READING: Final = frozenset({"get", "has", "keys", "values", "items", "size", "room", "metadata"})
"""The methods of ThreadValues that only read, also what is not durable yet."""


class Values(Part["ThreadValues"]):
    """Declares values: `values = Values()` in a Thread class gives each thread a `ThreadValues` of that name."""

    def bind(self, actor: ThreadActor) -> "ThreadValues":
        return ThreadValues(actor, self.name)

    def cells(self, actor: ThreadActor) -> list[Cell]:
        values = self.of(actor)
        return [values._values, values._metadata]


class ThreadValues:
    """The values of one thread: JSON by keys, in order of insertion, together at most `Limits.record` bytes (1 MiB).

    In a run of an agent, what is written is staged, and stored with the run. Outside of a run it is stored at once,
    and the methods return when it is durable. Nothing is read before it is needed: what only writes reads nothing,
    except at the first write of a thread that has just woken, which has to know what it is added to.

    Lists and objects may be changed in place in a run, and are stored then: those that `get`, `values` and `items`
    return, a copy of `get`'s default, too, and those that were given to `set`. The methods raise StoreError when the
    values could not be read, and Readonly and Destroyed as `set_state` does.
    """

    def __init__(self, actor: ThreadActor, part: str) -> None:
        self._actor = actor
        self._values = Cell(actor.records, part, _VALUES)
        self._metadata = Cell(actor.records, part, METADATA)

    # Reading

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        return (await self._loaded()).get(key, default)

    async def has(self, key: str) -> bool:
        """Whether there is a value, which may be None, for a key."""
        return (await self._loaded()).has(key)

    async def keys(self) -> list[str]:
        """Return the keys, in order of insertion."""
        return (await self._loaded()).keys()

    async def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [value for _, value in (await self._loaded()).items()]

    async def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values, in the order of `keys`."""
        return (await self._loaded()).items()

    async def size(self) -> int:
        """Return the number of keys."""
        return len((await self._loaded()).keys())

    async def room(self, key: str) -> int:
        """Return how many bytes a value of this key may have as JSON, beside the others that there are."""
        return max(self._actor.limits.record - (await self._loaded()).measure(encode_key(key)), 0)

    async def metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` has set, `{}` if nothing has."""
        draft = self._use()
        await draft.load_metadata()
        return draft.metadata

    # Writing

    async def set(self, key: str, value: Any) -> None:
        """Set a value: anything that encodes as JSON, which is what `get` returns. Raises TypeError or ValueError."""
        encode_key(key)
        await self._write(lambda draft: draft.set(key, value))

    async def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        encode_key(key)
        await self._write(lambda draft: draft.delete(key))

    async def clear(self) -> None:
        """Remove all keys; the metadata stays."""
        await self._write(ValuesDraft.clear)

    async def push(self, key: str, value: Any, max_records: int | None = None) -> None:
        """Append to a list, which is made if there is none, and keep its last `max_records` elements.

        Raises TypeError for a value that is no list: at once if the values are loaded, else when the run commits.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records!r}")
        op = Push(encode_key(key), encode_named(key, value), max_records)
        await self._write(lambda draft: draft.push(op))

    async def update(self, key: str, change: Callable[[Any], T], default: Any = None) -> T:
        """Set a value to what a function makes of the present one, or of `default`, and return it.

        Nothing comes between, so two updates at the same time both count: in a run, the function is called again when
        the run commits, if the value was changed outside of the run meanwhile. What is returned stays that of the first
        call.
        """
        self._check_may_write()
        draft = await self._loaded()
        value: T = draft.update(encode_key(key), change, default)
        await self._store(draft)
        return value

    async def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata whole; the values need not be read for that."""
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata must be a dict, not {metadata!r}")
        self._check_may_write()
        draft = self._use()
        draft.set_metadata(encode_named("metadata", metadata))
        await self._store(draft)

    # What has been done

    @property
    def loaded(self) -> bool:
        """Whether the values have been read: in a run, by this run, otherwise since the thread woke."""
        if find_stage(self._actor) is None:
            return self._values.is_known
        draft = self._staged()
        return draft is not None and draft.is_loaded

    @property
    def dirty(self) -> bool:
        """Whether this run has changed anything that it has not committed."""
        draft = self._staged()
        return draft is not None and draft.is_dirty

    # Inside

    def _staged(self) -> ValuesDraft | None:
        """Return what the run has done so far, None outside of a run or if it has done nothing."""
        stage = find_stage(self._actor)
        draft = None if stage is None else stage.drafts.get(self)
        assert draft is None or isinstance(draft, ValuesDraft)
        return draft

    def _use(self) -> ValuesDraft:
        """Return the draft of the run, or one for a single use. Raises what interrupts the run."""
        stage = find_stage(self._actor)
        if stage is None:
            return ValuesDraft(self._values, self._metadata)
        stage.check()
        draft = stage.drafts.get(self)
        if draft is None:
            draft = stage.drafts[self] = ValuesDraft(self._values, self._metadata)
        assert isinstance(draft, ValuesDraft)
        return draft

    async def _loaded(self) -> ValuesDraft:
        draft = self._use()
        await draft.load()
        return draft

    async def _write(self, work: Callable[[ValuesDraft], None]) -> None:
        self._check_may_write()
        draft = self._use()
        work(draft)
        await self._store(draft)

    def _check_may_write(self) -> None:
        """Raise what `set_state` raises: Readonly, and Destroyed when the thread has ended."""
        check_may_write(self._actor.key)
        self._actor.state.check_open()

    async def _store(self, draft: ValuesDraft) -> None:
        """Store a draft that is of no run."""
        if find_stage(self._actor) is not None:
            return
        while not draft.is_ready:
            await draft.prepare()
        records = draft.records()
        if not self._actor.state.history.is_begun and all(record.value is None for record in records):
            # No thread begins because something is removed that is not there.
            self._actor.state.check_open()
            return
        commit = self._actor.records.write(records)
        draft.submitted(commit)
        await commit
