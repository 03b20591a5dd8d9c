"""What any store must do; `tests/server/store/contract.py` says the same in tests."""

import asyncio
import hashlib
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import msgspec

from plait.errors import Fenced, StoreError
from plait_schemas.codec import encode_json

__all__ = [
    "CLIENT_DAYS",
    "DAY",
    "ChangeRow",
    "ClientRow",
    "Prune",
    "Store",
    "Stored",
    "ThreadKey",
    "ThreadRow",
    "Write",
    "connection_id",
]

DAY: Final = 24 * 3600 * 1_000_000
"""A day, in microseconds."""

CLIENT_DAYS: Final = 30
"""What is known of a client is kept for so many days after its last push, and for so many on which others push."""


def connection_id(secret: bytes, protocol: str, principal: str | None, client: str) -> str:
    """Return the id by which all know a client of a thread that has this secret.

    It belongs to the principal as well, None where nobody is known. Who lacks the secret cannot tell from it either of
    them, nor try out guesses.
    """
    return hashlib.blake2b(encode_json((protocol, principal, client)), key=secret, digest_size=12).hexdigest()


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


class ClientRow(msgspec.Struct, frozen=True):
    """What became of the last pushes of one client: `refused` is JSON, `at` microseconds since the epoch."""

    # Its connection id, so that what one principal has pushed is not taken for another's.
    client: str
    ref: int
    refused: bytes
    at: int


class Prune(msgspec.Struct, frozen=True):
    """What of a thread's log may be forgotten: a change that is past any of these bounds.

    What is kept begins with a snapshot, so that every version in it can be had. Behind a change that is young enough
    none is too old, whatever its time: the clock may have been wrong.
    """

    # Changes up to this version, and from before this time, in microseconds since the epoch.
    version: int = 0
    at: int = 0
    # Those in front of the last so many bytes of operations.
    bytes: int | None = None


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
    prune: Prune | None = None
    # The client that made the change.
    client: ClientRow | None = None
    # The version of the state's type, where it is not the stored one.
    state_version: int | None = None
    # The secret of a new thread, of which the connection ids of its clients are made.
    secret: bytes = b""

    def refusal(self, stored: tuple[str, int] | None) -> StoreError | None:
        """Return why this cannot follow what is stored, an epoch and a version; None when it can."""
        if self.after != (stored[1] if stored else None) or (stored and self.epoch != stored[0]):
            return Fenced(f"{self.key} was written by somebody else")
        if (change := self.change) and not change.version == self.version == (self.after or 0) + 1:
            return StoreError(f"{self.key}: change {change.version} is not the next one")
        return None


class Stored(msgspec.Struct, frozen=True):
    """What a store has of one thread: a snapshot, if there is one, and all changes since, up to `version`."""

    epoch: str
    version: int
    snapshot: bytes | None
    changes: Sequence[ChangeRow]
    state_version: int = 1
    # As the thread's first write had it.
    secret: bytes = b""


class ThreadRow(msgspec.Struct, frozen=True):
    """One line of a listing of threads."""

    key: ThreadKey
    version: int


class Store(Protocol):
    """Keeps threads. Entering it opens it, leaving it writes what is pending and closes it.

    Entering raises StoreError when it cannot be opened, also when it is open already, which changes nothing for it.
    A write is atomic. The writes of one thread are carried out in the order of `submit`; when one fails, those
    that lean on it fail, too. Of different threads any number may share one transaction.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def load(self, key: ThreadKey, *, version: int | None = None) -> Stored | None:
        """Return what is stored of a thread, or was at `version`; None when there is nothing, or nothing any more.

        Raises CorruptThread when it does not hold together, StoreError when it cannot be read.
        """
        ...

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes behind a version, in order. The first may be a later one, when others were forgotten.

        No more than `limit`, and with `size` none behind those that have so many bytes of operations.
        """
        ...

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes in front of a version, the last one first, no more than `changes` does."""
        ...

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        """Return what is known of a client's pushes to a thread, by its connection id.

        It is kept for 30 days after the last, and until others have pushed on 30 days, lest a wrong clock ends it.
        """
        ...

    def submit(self, write: Write) -> asyncio.Future[None]:
        """Queue a write; the future is done when it is durable, or has the StoreError that prevented it."""
        ...

    async def check_writes(self) -> None:
        """Raise StoreError while writes fail, or would. It is asked by `/readyz`."""
        ...

    async def schema(self, kind: str, hash: str) -> bytes | None:
        """Return the JSON Schema that states of a kind once had, by its hash."""
        ...

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        """Keep a JSON Schema for ever."""
        ...

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        """Return stored threads in the order of kind and name, those behind `after`."""
        ...
