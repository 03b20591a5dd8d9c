"""Parts, which a Thread class declares and each of its threads has."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Self, TypeVar, overload

from plait.actor.per_actor import PerActor
from plait.actor.thread import Thread, ThreadActor
from plait.actor.turn import check_may_write
from plait.parts.remote import RemotePart
from plait.state.reads import WHOLE
from plait.store.thread_rows import Record, RecordRange

__all__ = [
    "ALL",
    "Part",
    "PartRanges",
    "check_writable",
    "find_parts",
    "find_ranges",
    "find_role",
    "load_parts",
    "require_role",
]

ALL: Final = 1 << 30
"""The limit of a range that has more records than a thread can have."""

Bound = TypeVar("Bound")


class Part(PerActor[Bound]):
    """A part of each thread of a class, declared by its name: `values = Values()`.

    The name is stored with the records of the part, so a renamed part is another one.

    A part writes from its *head*, the data that writing needs: the thread reads the records of `ranges` when it wakes,
    and `load` makes the head from them. So methods that write are plain functions: they change values of a `Table` with
    `Records.put`, which takes the change back if the write fails, and return an awaitable (`Written`). The frames that
    tell clients of the write are passed to it as well (`tell`), so that they are sent in the order of the writes.
    Methods that read the store are coroutines. In a run of an agent, a `Draft` in its `Stage` keeps the writes until
    the end.
    """

    # The role of the part for other parts and other threads, such as "files"; empty for none.
    role: ClassVar[str] = ""
    # The agent that takes the items for the part.
    agent: str | None = None
    # Whether a class may have only one such part.
    is_only: ClassVar[bool] = False
    # Whether `load` is called for a thread without records of the part, too.
    loads_none: ClassVar[bool] = False
    # Whether the part notes itself what a query reads in it; otherwise, every write runs the query again.
    notes_reads: ClassVar[bool] = False
    # The names of the methods that only read; they may read changes that are not durable.
    reading: ClassVar[frozenset[str]] = frozenset()
    # The names of the methods that yield bytes.
    streaming: ClassVar[frozenset[str]] = frozenset()
    # The names of the methods that handles do not have.
    inner: ClassVar[frozenset[str]] = frozenset()
    # The methods that create no thread, and their results for a thread that is not stored.
    existing: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(self.bind)

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name and self.name != name:
            raise TypeError(f"{owner.__name__}.{name} is already the part {self.name!r}: make another one")
        self.name = name
        if self.is_only and find_role(owner, self.role) is not self:
            raise TypeError(f"{owner.__name__} may have one {type(self).__name__}")

    @overload
    def __get__(self, thread: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thread: Thread[Any], owner: type) -> Bound: ...
    def __get__(self, thread: Thread[Any] | None, owner: type) -> Self | Bound:
        if thread is None:
            return self
        actor = thread._actor
        if (query := actor.state.query) is not None and not self.notes_reads:
            query.note(self.name, WHOLE)
        bound: Bound | None = None if actor.parts is None else actor.parts.get(self)
        return self.of(actor) if bound is None else bound

    def __set__(self, thread: Thread[Any], value: object) -> None:
        raise AttributeError(f"{type(thread).__name__}.{self.name} is a part of the thread and cannot be replaced")

    def bind(self, actor: ThreadActor) -> Bound:
        """Make the part of one thread, without records."""
        raise NotImplementedError

    def bind_remote(self, remote: RemotePart) -> object:
        """Make the methods that run at the caller if another process owns the thread; None if there are none."""
        return None

    # Waking

    def ranges(self) -> Sequence[RecordRange]:
        """Return the records that are read with a thread when it wakes."""
        return ()

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        """Load the records of each range when a thread wakes, before `on_start`, if there are any.

        May read further records. Raises StoreError.
        """

    def find_preparation(self, method: str, args: Sequence[Any]) -> Callable[[Any], None] | None:
        """Return the function that prepares the actor of a thread that a method's call creates, before `on_start`."""
        return None

    # Files

    def unlink_files(self, actor: ThreadActor, paths: Collection[str]) -> None:
        """Remove those of some paths that are files of this part, because their owner is removed."""

    # Going to sleep

    def unload(self, actor: ThreadActor) -> None:
        """Release the part's resources for a thread that falls asleep; its last turns may still run. Must not raise."""

    # Families

    def hand_down(self, actor: ThreadActor) -> Mapping[str, Any] | None:
        """Return the value for the part with this role in a new child, as JSON; None for nothing."""
        return None

    def find_child(self, actor: ThreadActor, reference: str) -> object:
        """Return the known data of a child of the thread; None for another thread."""
        return None

    def take_item(self, actor: ThreadActor, body: Mapping[str, Any]) -> None:
        """Take an item that another thread has sent or handed down, in an open transaction; errors are reported."""

    # Forking

    def leave_work(self, actor: ThreadActor) -> Sequence[Record]:
        """Forget waiting work in a fork, as the original thread does it; return the records that store this."""
        return ()


def check_writable(actor: ThreadActor) -> None:
    """Raise the errors of `set_state`: Readonly, and Destroyed if the thread is destroyed."""
    check_may_write(actor.key)
    actor.state.check_open()


def find_parts(cls: type[Thread[Any]]) -> Mapping[str, Part[Any]]:
    """Return the parts of a class, by name."""
    key: type = cls
    return _find_parts(key)


@lru_cache(4096)
def _find_parts(cls: type) -> Mapping[str, Part[Any]]:
    found = ((name, inspect.getattr_static(cls, name)) for name in dir(cls))
    return {name: part for name, part in found if isinstance(part, Part)}


def find_role(cls: type[Any], role: str) -> Part[Any] | None:
    """Return the part of a class with a role, the one with an agent if there are several; None if there is none."""
    found = [part for part in find_parts(cls).values() if part.role == role]
    return next((part for part in found if part.agent), next(iter(found), None))


def require_role(cls: type[Any], role: str) -> Part[Any]:
    """Return the first part of a class with a role. Raises TypeError."""
    if (part := find_role(cls, role)) is None:
        raise TypeError(f"{cls.__name__} has no {role.capitalize()}")
    return part


PartRanges = Sequence[tuple[Part[Any], Sequence[RecordRange]]]
"""Parts, and the records that are read for them when a thread wakes."""


def find_ranges(cls: type[Thread[Any]]) -> PartRanges:
    """Return the parts of a class with their ranges."""
    return [(part, part.ranges()) for part in find_parts(cls).values()]


async def load_parts(parts: PartRanges, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
    """Load the parts of a waking thread from the records of their ranges; a new thread has none. Raises StoreError."""
    for part, ranges in parts:
        found, records = records[: len(ranges)], records[len(ranges) :]
        if part.loads_none or any(found):
            await part.load(actor, found or [()] * len(ranges))
