"""What any store must do; `tests/server/store/contract.py` says the same in tests."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import msgspec

__all__ = ["ChangeRow", "Store", "Stored", "ThreadKey", "ThreadRow", "Write"]


class ThreadKey(NamedTuple):
    """The address of a thread."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class ChangeRow(msgspec.Struct, frozen=True):
    """One change as it is stored: `ops` is a JSON array of JSON Patch operations, `at` microseconds since the epoch."""

    version: int
    ops: bytes
    source: str
    at: int


class Write(msgspec.Struct, frozen=True):
    """What is written of one thread in one go: the next change, or a snapshot, or both."""

    key: ThreadKey
    epoch: str
    # The version that is stored before this write, None when nothing is. It is the owner's fence.
    after: int | None
    # The version that is stored after this write.
    version: int
    change: ChangeRow | None = None
    # The whole state at `version`, as JSON.
    snapshot: bytes | None = None
    # Changes up to this version may be forgotten.
    prune: int | None = None


class Stored(msgspec.Struct, frozen=True):
    """What a store has of one thread: a snapshot, if there is one, and all changes since."""

    epoch: str
    version: int
    snapshot: bytes | None
    changes: Sequence[ChangeRow]


class ThreadRow(msgspec.Struct, frozen=True):
    """One line of a listing of threads."""

    key: ThreadKey
    version: int


class Store(Protocol):
    """Keeps threads. Entering it opens it, leaving it writes what is pending and closes it.

    A write is atomic. The writes of one thread are carried out in the order of `submit`; when one fails, those
    that lean on it fail, too. Of different threads any number may share one transaction.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def load(self, key: ThreadKey) -> Stored | None:
        """Return what is stored of a thread, None when there is nothing.

        Raises CorruptThread when it does not hold together, StoreError when it cannot be read.
        """
        ...

    def submit(self, write: Write) -> asyncio.Future[None]:
        """Queue a write; the future is done when it is durable, or has the StoreError that prevented it."""
        ...

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        """Return stored threads in the order of kind and name, those behind `after`."""
        ...
