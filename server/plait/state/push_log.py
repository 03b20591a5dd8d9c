"""The outcomes of the last pushes of a thread's clients, so that no push is applied twice."""

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
"""The largest `ref` that a push may have: the largest safe integer in JavaScript."""


class Client:
    """One client: the `ref` of its last accepted or refused push, and the recent refusals."""

    __slots__ = ("_is_known", "_refused", "id", "ref", "users")

    def __init__(self, id: str, row: ClientRow | None = None) -> None:
        self.id = id
        self.ref = row.ref if row else 0
        # Whether its next `ref` is known; otherwise any is taken as the first.
        self._is_known = row is not None
        # The number of sockets that have joined or are joining.
        self.users = 0
        self._refused = {refusal.ref: refusal for refusal in _decode(row.refused)} if row else {}

    def is_next(self, ref: int) -> bool:
        """Whether `ref` is the next one."""
        return 0 < ref <= MOST_PUSHES and (ref == self.ref + 1 or not self._is_known)

    def expect(self, ref: int) -> None:
        """Take `ref` as the first one of a client of which nothing is known."""
        if not self._is_known and 0 < ref <= MOST_PUSHES:
            self._is_known = True
            self.ref = ref - 1

    def accept(self, ref: int) -> ClientRow:
        """Record that a push is being stored, and return the client's row to store with it."""
        self.ref = ref
        self._forget()
        refused = _encode(list(self._refused.values()))
        return ClientRow(self.id, ref, refused, time.time_ns() // 1000)

    def refuse(self, ref: int, error: PlaitError) -> None:
        """Record that a push was refused, or could not be stored."""
        self.ref = max(self.ref, ref)
        self._refused[ref] = Refusal(ref, error.code, str(error), error.path)
        self._forget()

    def refusal(self, ref: int) -> Refusal | None:
        """Return why an earlier push was refused, None if it was accepted."""
        return self._refused.get(ref)

    def remembers(self, ref: int) -> bool:
        """Whether the outcome of an earlier push is still known."""
        return max(0, self.ref - UNANSWERED) < ref <= self.ref

    def _forget(self) -> None:
        while self._refused and min(self._refused) <= self.ref - UNANSWERED:
            del self._refused[min(self._refused)]


class PushLog:
    """The clients that have joined one thread, by connection id."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[str, Client] = {}

    def get(self, id: str) -> Client | None:
        """Return a client that has joined, which is newer than its stored row; None if it has not."""
        return self._members.get(id)

    def enter(self, id: str, row: ClientRow | None) -> Client:
        """Return the client in memory, or else one made from its stored row, and keep it until `leave`."""
        client = self._members.get(id)
        if client is None:
            client = self._members[id] = Client(id, row)
        client.users += 1
        return client

    def leave(self, client: Client) -> None:
        """Forget a client when its last user leaves. Its pushes must be durable, or have failed."""
        client.users -= 1
        if client.users == 0:
            del self._members[client.id]
