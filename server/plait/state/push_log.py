"""What a thread knows of the pushes of its clients, so that none is applied twice."""

import time
from typing import Final

import msgspec

from plait.errors import PlaitError
from plait.store.protocol import ClientRow
from plait_schemas.messages import UNANSWERED

__all__ = ["MOST_PUSHES", "Client", "PushLog", "Refusal"]


class Refusal(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Why a push was refused."""

    ref: int
    code: str
    message: str
    path: str | None = None


_decode = msgspec.json.Decoder(list[Refusal]).decode
_encode: Final = msgspec.json.Encoder().encode

MOST_PUSHES: Final = 2**53 - 1
"""The largest number that a push may have, as JavaScript has no larger integers, and a store's columns not many."""


class Client:
    """One client: the last of its pushes that was answered for, and which of the last ones were refused."""

    __slots__ = ("_is_known", "_refused", "id", "ref", "users")

    def __init__(self, id: str, row: ClientRow | None = None) -> None:
        self.id = id
        self.ref = row.ref if row else 0
        # Whether it is known which of its pushes is to come; otherwise any is taken as the first.
        self._is_known = row is not None
        # Sockets that are joined, or about to be.
        self.users = 0
        self._refused = {refusal.ref: refusal for refusal in _decode(row.refused)} if row else {}

    def is_next(self, ref: int) -> bool:
        """Whether a push is the one that is to come."""
        return 0 < ref <= MOST_PUSHES and (ref == self.ref + 1 or not self._is_known)

    def expect(self, ref: int) -> None:
        """Take note of a push that has come: where nothing is known of the client, it is the first."""
        if not self._is_known and 0 < ref <= MOST_PUSHES:
            self._is_known = True
            self.ref = ref - 1

    def accept(self, ref: int) -> ClientRow:
        """Take note that a push is on its way to the disk; returns what is stored with it."""
        self.ref = ref
        self._forget()
        refused = _encode(list(self._refused.values()))
        return ClientRow(self.id, ref, refused, time.time_ns() // 1000)

    def refuse(self, ref: int, error: PlaitError) -> None:
        """Take note that a push was refused, or could not be stored."""
        self.ref = max(self.ref, ref)
        self._refused[ref] = Refusal(ref, error.code, str(error), error.path)
        self._forget()

    def refusal(self, ref: int) -> Refusal | None:
        """Return why an earlier push was refused, None if it was not."""
        return self._refused.get(ref)

    def remembers(self, ref: int) -> bool:
        """Whether it is known what became of a push that has been answered for."""
        return max(0, self.ref - UNANSWERED) < ref <= self.ref

    def _forget(self) -> None:
        while self._refused and min(self._refused) <= self.ref - UNANSWERED:
            del self._refused[min(self._refused)]


class PushLog:
    """The clients that are joined to one thread, by connection id."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[str, Client] = {}

    def get(self, id: str) -> Client | None:
        """Return a client that is known in memory, which is newer than what is stored."""
        return self._members.get(id)

    def enter(self, id: str, row: ClientRow | None) -> Client:
        """Return a client as it is known here or else as it is stored, and keep it until `leave`."""
        client = self._members.get(id)
        if client is None:
            client = self._members[id] = Client(id, row)
        client.users += 1
        return client

    def leave(self, client: Client) -> None:
        """Forget a client with its last user. Its pushes must have become durable, or have failed."""
        client.users -= 1
        if client.users == 0:
            del self._members[client.id]
