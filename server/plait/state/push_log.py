"""The outcomes of the last pushes of a thread's clients, so that no push is applied twice."""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from plait.clock import read_wall_clock
from plait.errors import PlaitError
from plait.store.thread_rows import KNOWN_CLIENTS, ClientRow
from plait_schemas.messages import UNANSWERED

__all__ = ["MOST_PUSHES", "ClientPushes", "PushLog", "Refusal"]


class Refusal(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The reason for refusing a push."""

    ref: int
    code: str
    message: str
    path: str | None = None


# Shared by all threads to which no client has pushed.
_NONE: Final[frozenset[str]] = frozenset()
# Shared by all threads without clients, to save memory.
_NO_CLIENTS: Final[dict[str, "ClientPushes"]] = {}

_decode = msgspec.json.Decoder(list[Refusal]).decode
_encode: Final = msgspec.json.Encoder().encode

MOST_PUSHES: Final = 2**53 - 1
"""The largest `ref` that a push may have: the largest safe integer in JavaScript."""


class ClientPushes:
    """The pushes of one client: the `ref` of the last accepted or refused push, and the recent refusals."""

    __slots__ = ("_is_known", "_refused", "id", "is_stored", "ref", "users")

    def __init__(self, id: str, row: ClientRow | None = None) -> None:
        self.id = id
        self.ref = row.ref if row else 0
        # Whether the next `ref` is known; if not, any `ref` counts as the first.
        self._is_known = row is not None
        # Whether one of its pushes was stored, or is being stored.
        self.is_stored = row is not None
        # The number of sockets that have joined or are joining.
        self.users = 0
        self._refused = {refusal.ref: refusal for refusal in _decode(row.refused)} if row else {}

    def is_next(self, ref: int) -> bool:
        """Whether `ref` is the next `ref`."""
        return 0 < ref <= MOST_PUSHES and (ref == self.ref + 1 or not self._is_known)

    def expect(self, ref: int) -> None:
        """Take `ref` as the first `ref` of an unknown client."""
        if not self._is_known and 0 < ref <= MOST_PUSHES:
            self._is_known = True
            self.ref = ref - 1

    def accept(self, ref: int) -> ClientRow:
        """Record that a push is being stored, and return the client's row to store with it."""
        self.ref = ref
        self.is_stored = True
        refused = b"[]"
        if self._refused:
            self._forget()
            refused = _encode(list(self._refused.values()))
        return ClientRow(self.id, ref, refused, read_wall_clock())

    def refuse(self, ref: int, error: PlaitError) -> None:
        """Record that a push was refused, or could not be stored."""
        self.ref = max(self.ref, ref)
        self._refused[ref] = Refusal(ref, error.code, str(error), error.path)
        self._forget()

    def refusal(self, ref: int) -> Refusal | None:
        """Return the refusal of an earlier push; None if the push was accepted."""
        return self._refused.get(ref)

    def remembers(self, ref: int) -> bool:
        """Whether the outcome of an earlier push is still known."""
        return max(0, self.ref - UNANSWERED) < ref <= self.ref

    def _forget(self) -> None:
        while self._refused and min(self._refused) <= self.ref - UNANSWERED:
            del self._refused[min(self._refused)]


class ClientLog(Protocol):
    """The stored rows of clients."""

    async def client(self, id: str) -> ClientRow | None:
        """Return the row of a client; None without one. Raises StoreError."""
        ...


class PushLog:
    """The clients that have joined one thread, by connection id.

    `stored` has the ids of all clients that have a row in the store; it is None if there are too many to keep. A client
    that is not in `stored` has never pushed, so its row is not read from `log`.
    """

    __slots__ = ("_log", "_members", "_stored")

    def __init__(self, log: ClientLog, stored: Iterable[str] | None) -> None:
        self._members: dict[str, ClientPushes] = _NO_CLIENTS
        self._log = log
        self._stored: frozenset[str] | None = None if stored is None else frozenset(stored) or _NONE

    def __contains__(self, id: str) -> bool:
        """Whether a client has joined."""
        return id in self._members

    async def enter(self, id: str, *older_ids: str) -> ClientPushes:
        """Return the pushes of a client, and keep them until `leave`. Raises StoreError.

        The client's row may have been stored under one of `older_ids`.
        """
        row: ClientRow | None = None
        if id not in self._members:
            for each in (id, *older_ids):
                if row is None and (self._stored is None or each in self._stored):
                    row = await self._log.client(each)
        # Another socket of the client may have entered, and pushed, while the row was read.
        client = self._members.get(id)
        if client is None:
            if self._members is _NO_CLIENTS:
                self._members = {}
            client = self._members[id] = ClientPushes(id, row)
        client.users += 1
        return client

    def leave(self, client: ClientPushes) -> None:
        """Forget a client when its last user leaves. Its pushes must be durable, or have failed."""
        client.users -= 1
        if client.users == 0:
            del self._members[client.id]
            if client.is_stored and self._stored is not None and client.id not in self._stored:
                self._stored = self._stored | {client.id} if len(self._stored) < KNOWN_CLIENTS else None
