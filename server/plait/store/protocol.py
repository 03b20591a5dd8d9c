"""The Store protocol and its rows. `tests/server/store/contract.py` tests every store against it."""

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
"""A client's row is kept for this many days after its last push, and until others have pushed on as many days."""


def connection_id(secret: bytes, protocol: str, principal: str | None, client: str) -> str:
    """Return the id that others see of a client in the thread with this secret.

    It depends on the principal, too; None stands for an anonymous client. Without the secret, nobody can derive the
    principal or the client from it, or check a guess.
    """
    return hashlib.blake2b(encode_json((protocol, principal, client)), key=secret, digest_size=12).hexdigest()


class ThreadKey(NamedTuple):
    """The address of a thread."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class ChangeRow(msgspec.Struct, frozen=True):
    """A stored change: `ops` is a JSON array of JSON Patch operations, `at` is in microseconds since the epoch."""

    version: int
    ops: bytes
    source: str
    at: int


class ClientRow(msgspec.Struct, frozen=True):
    """The outcome of a client's last pushes: `refused` is JSON, `at` is in microseconds since the epoch."""

    # The connection id, so that the pushes of one principal are not taken for another's.
    client: str
    ref: int
    refused: bytes
    at: int


class Prune(msgspec.Struct, frozen=True):
    """The bounds of a thread's log: a change that is past any of them may be forgotten.

    The log that is kept begins with a snapshot, so that each of its versions can be read. A change after a recent one
    is never too old, whatever its time says, as the clock may have been wrong.
    """

    # Forget changes up to this version, and changes made before this time, in microseconds since the epoch.
    version: int = 0
    at: int = 0
    # Keep the last changes with this many bytes of operations.
    bytes: int | None = None


class Write(msgspec.Struct, frozen=True):
    """One write to a thread: the next change, or a snapshot, or both."""

    key: ThreadKey
    epoch: str
    # The stored version that this write follows, None for a new thread. If another is stored, the write is Fenced.
    after: int | None
    # The stored version after this write.
    version: int
    change: ChangeRow | None = None
    # The whole state at `version`, as JSON.
    snapshot: bytes | None = None
    prune: Prune | None = None
    # The client that made the change.
    client: ClientRow | None = None
    # The version of the state's type, if it changes.
    state_version: int | None = None
    # The secret of a new thread, from which the connection ids of its clients are derived.
    secret: bytes = b""

    def refusal(self, stored: tuple[str, int] | None) -> StoreError | None:
        """Return why this write cannot follow the stored epoch and version, None if it can."""
        if self.after != (stored[1] if stored else None) or (stored and self.epoch != stored[0]):
            return Fenced(f"{self.key} was written by another process")
        if (change := self.change) and not change.version == self.version == (self.after or 0) + 1:
            return StoreError(f"{self.key}: change {change.version} is not the next one")
        return None


class Stored(msgspec.Struct, frozen=True):
    """A stored thread: its last snapshot, if there is one, and all changes after that up to `version`."""

    epoch: str
    version: int
    snapshot: bytes | None
    changes: Sequence[ChangeRow]
    state_version: int = 1
    # The secret of the thread's first write.
    secret: bytes = b""


class ThreadRow(msgspec.Struct, frozen=True):
    """One line of a listing of threads."""

    key: ThreadKey
    version: int


class Store(Protocol):
    """Stores threads. Entering it opens the store; leaving it writes what is pending and closes it.

    Entering raises StoreError when the store cannot be opened or is already open; an open store stays open. A write is
    atomic. The writes of one thread are carried out in the order of `submit`; when one fails, the writes that depend on
    it fail, too. Writes to different threads may share one transaction.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def load(self, key: ThreadKey, *, version: int | None = None) -> Stored | None:
        """Return a thread, at `version` if one is given; None if there is no such thread, or the version is not kept.

        Raises CorruptThread when its data is damaged, StoreError when it cannot be read.
        """
        ...

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes after a version, in order. The first may be a later one, if the log has been shortened.

        At most `limit` changes are returned, and with `size` none after the one at which the operations reach that
        many bytes.
        """
        ...

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes before a version, the last one first; `limit` and `size` are those of `changes`."""
        ...

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        """Return the row of a client by its connection id, None if there is none.

        It is kept for 30 days after the client's last push, and until others have pushed on 30 different days, so that
        a wrong clock does not expire it.
        """
        ...

    def submit(self, write: Write) -> asyncio.Future[None]:
        """Queue a write; the future is done when the write is durable, or raises the StoreError that prevented it."""
        ...

    async def check_writes(self) -> None:
        """Raise StoreError while writes fail or would fail. Called for `/readyz`."""
        ...

    async def schema(self, kind: str, hash: str) -> bytes | None:
        """Return an earlier JSON Schema of a kind's state by its hash, None if it is not known."""
        ...

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        """Store a JSON Schema, which is never deleted."""
        ...

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        """Return stored threads in the order of kind and name, beginning after `after`."""
        ...
