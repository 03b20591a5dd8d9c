"""The engines under the row layer: each keeps ordered rows, reads spans of them, and writes changes to them.

A thread in rows has a head, which is stored, and facts that its owner keeps in memory.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from plait.store.outcomes import Outcome
from plait.store.thread_rows import ThreadKey

__all__ = [
    "INDEX",
    "LOST",
    "NO_SPACE",
    "Change",
    "Engine",
    "Head",
    "Key",
    "Known",
    "Log",
    "Owner",
    "Place",
    "Range",
    "ReadPlan",
    "Reader",
    "Reads",
    "Row",
    "Span",
]

P = ParamSpec("P")
T = TypeVar("T")

INDEX = 0
"""The space of the rows by which threads are found. Each thread has a space of its own, whose number is not reused."""

Key = int | str
"""The key of a row in its part. All keys of a part have the same type; text is ordered by code point."""

Place = tuple[str] | tuple[str, Key]
"""A part and a key in it; a part alone is the place before all of its keys."""

Row = tuple[str, Key, bytes | None]
"""A part, a key, and the value; None if the engine finds that the value is damaged."""


class Span(NamedTuple):
    """The rows of a space from a place up to another one, which is not included.

    A thread has those of its space, whose number is in its head; none if it is not stored.
    """

    space: int | ThreadKey
    start: Place
    end: Place
    # The last rows, in descending order.
    reverse: bool = False
    limit: int = 1 << 30
    # The last row is that at which the values reach this many bytes.
    size: int | None = None
    # The values are not read, and are empty.
    keys_only: bool = False

    @property
    def number(self) -> int:
        """The number of the space, which `run_reads` has found if it is that of a thread."""
        assert isinstance(self.space, int)
        return self.space


Reads = Generator[Sequence[Span], list[list[Row]], T]
"""A function that yields spans, is sent the rows of each, and returns what it makes of them."""


class ReadPlan(Generic[T]):
    """Reads that can be begun again: a function that yields spans, and its arguments."""

    def __init__(self, function: Callable[P, Reads[T]], *args: P.args, **kwargs: P.kwargs) -> None:
        self.begin = partial(function, *args, **kwargs)


Range = tuple[int, str, Key, Key]
"""The rows of a space and a part from a key up to another one, which is not included."""


NO_SPACE = -1
"""A number that no space has."""


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored thread."""

    epoch: str
    space: int
    # The version and the time of the last change that it had when this row was written, at most about a second later.
    version: int
    created_at: int
    changed_at: int
    state_version: int = 1
    due: int = 0
    user: str | None = None
    secret: bytes = b""
    is_stateless: bool = False
    # What the engine was, on a server, when this epoch began: another one may have lost changes that clients have seen.
    origin: str = ""


class Owner:
    """The owner of a thread on a server, which several processes may write to. Its row guards each of its writes."""

    __slots__ = ("_start", "asked", "fence", "is_lost", "origin", "writes")

    def __init__(self, fence: int, by: str, origin: str) -> None:
        self.fence = fence
        # It also names the store that has claimed the thread: fences of several stores may be equal.
        self._start = b'{"fence":%d,"by":"%b"' % (fence, by.encode())
        self.origin = origin
        # The writes that are stored, and the questions whether one is. A write fits only if both are as it expects.
        self.writes = 0
        self.asked = 0
        # Whether the ownership has ended, as far as this process knows.
        self.is_lost = False

    def ask(self) -> bytes:
        """Return the value of the row after one more question."""
        self.asked += 1
        return self.encode()

    def encode(self, *, writes: int = 0, asked: int = 0) -> bytes:
        """Return the value of the row after so many more writes and questions."""
        return b'%b,"writes":%d,"asked":%d}' % (self._start, self.writes + writes, self.asked + asked)


LOST = Head("", NO_SPACE, 0, 0, 0)
"""A thread whose row is damaged: it can be found and deleted, but nothing of it can be read."""


class Log(msgspec.Struct, frozen=True):
    """The facts of a log that are needed to prune it."""

    # The versions of the snapshots, in order.
    snapshots: tuple[int, ...]
    # The version with which it begins, if it was pruned by this owner.
    base: int = 0
    # The day on which clients were last expired.
    day: int = 0
    # A version, and the bytes of the operations from it on; a size of -1 is not known.
    start: int = 0
    size: int = -1


class Known(msgspec.Struct, frozen=True, gc=False):
    """A thread as its owner knows it, who alone writes to it."""

    # The stored row; None if no thread is stored. It may have an earlier version and time than these.
    head: Head | None = None
    version: int = 0
    changed_at: int = 0
    # Not known before the log is first pruned.
    log: Log | None = None
    # None in an engine that one process has open.
    owner: Owner | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the stored row is older than the thread."""
        head = self.head
        return head is not None and (self.version, self.changed_at) != (head.version, head.changed_at)


class Change(msgspec.Struct, frozen=True):
    """The rows to write, and those to remove afterwards. All of it is made, or nothing."""

    key: ThreadKey
    rows: Sequence[tuple[int, str, Key, bytes]]
    gone: Sequence[Range] = ()
    # The outcome if the change is made, and the thread as it is afterwards; None if it stays as it was.
    outcome: Outcome = (1, None)
    after: Known | None = None
    # The spaces whose rows are all removed, even those with damaged keys.
    spaces: Sequence[int] = ()
    # On a server, the change is made only while this is the owner of the thread.
    owner: Owner | None = None


class Reader(Protocol):
    """Reads rows."""

    async def __call__(self, plan: ReadPlan[T], /) -> T:
        """Return the result of reads, which see the rows of one moment.

        They may be begun again. Raises what they raise, and StoreError.
        """
        ...


class Engine(Protocol):
    """Ordered rows, which one process at a time has open."""

    @property
    def title(self) -> str:
        """The name of the store in errors."""
        ...

    @property
    def durability(self) -> str:
        """A sentence for operators, as that of a store."""
        ...

    async def open(self) -> bool:
        """Open the engine; return whether durable writes may have been lost since it was last open."""
        ...

    async def close(self) -> None: ...

    async def read(self, plan: ReadPlan[T], /) -> T:
        """Do what a `Reader` does."""
        ...

    def view(self) -> AbstractAsyncContextManager[Reader]:
        """Read at one moment while rows are written; the moment may be that at which a space is first read."""
        ...

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        """Make changes, and return their outcomes. A change that fails does not prevent the others."""
        ...

    async def probe(self, *, writes: bool) -> None:
        """Raise StoreError if the rows cannot be reached or, with `writes`, if a test write fails."""
        ...

    def explain(self, error: BaseException) -> str | None:
        """Return why the engine cannot be opened; None if the error is another one."""
        ...

    def is_trouble(self, cause: BaseException) -> bool:
        """Whether the cause of a failed write concerns all rows."""
        ...
