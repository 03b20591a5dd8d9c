"""The queries that a client follows: their last results, and their calls on one socket after the other; no I/O."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from plait_client.errors import CallError, TooLarge
from plait_client.events import CallLost, Dropped
from plait_client.session import Session
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given
from plait_schemas.messages import UNSET, Error, Result, Unset
from plait_schemas.patch import Op, PatchError, apply

__all__ = ["FollowedQuery", "Queries"]


class _Failure(msgspec.Struct):
    code: str
    message: str


class _Chunk(msgspec.Struct):
    """A result of a query, operations on the last one, or an error; without these, the last result still holds."""

    at: int
    tag: str = ""
    rows: Any = UNSET
    ops: list[Op] | Unset = UNSET
    error: _Failure | None = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class FollowedQuery:
    """A query with its arguments, and its last result. `tell` is called when there is anything new."""

    def __init__(self, method: str, args: Iterable[Any], tell: Callable[[], None]) -> None:
        if isinstance(args, str | bytes):
            raise TypeError("the arguments of a query are a list")
        self.method: Final = method
        # Encoded once, as the caller may change them before the next socket.
        self.args: Final = [msgspec.Raw(encode_given(arg)) for arg in args]
        self.tell: Final = tell
        # The last result, JSON values that are never changed, and the version of the state at which it was read.
        self.rows: Any = None
        self.at = 0
        # How often the result has changed.
        self.changes = 0
        # The tag of the last result; empty if the next one must be whole.
        self.tag = ""
        # Why there is nothing after the last result; the query goes on unless it has ended.
        self.error: Exception | None = None
        self.is_ended = False
        # The call on this socket.
        self.ref: int | None = None

    def take(self, chunk: _Chunk) -> None:
        """Take in what the server has told. Raises PatchError, and changes nothing, if it does not fit."""
        if chunk.error is not None:
            self.error = CallError(chunk.error.code, chunk.error.message)
            return
        is_same = chunk.rows is UNSET and chunk.ops is UNSET
        if chunk.rows is UNSET and (not self.tag or (is_same and chunk.tag != self.tag)):
            raise PatchError("the result is missing")
        if not is_same:
            self.rows = chunk.rows if chunk.ops is UNSET else apply(self.rows, chunk.ops)
            self.changes += 1
        self.at, self.tag, self.error = chunk.at, chunk.tag, None

    def end(self, error: Exception) -> None:
        """End it for good."""
        self.ref, self.error, self.is_ended = None, error, True
        self.tell()


class Queries:
    """The queries of one client. `wake` is called when there are frames to send."""

    def __init__(self, session: Session, wake: Callable[[], None]) -> None:
        self._session = session
        self._wake = wake
        # In the order in which they were followed.
        self._followed: dict[FollowedQuery, None] = {}

    def follow(self, query: FollowedQuery) -> None:
        """Follow a query until its end, over all sockets."""
        self._followed[query] = None
        if self._session.status == "online":
            self._call(query)
            self._wake()

    def unfollow(self, query: FollowedQuery) -> None:
        """Stop following a query, if it is followed."""
        self._followed.pop(query, None)
        self._cancel(query)
        self._wake()

    def join(self) -> None:
        """Call all queries on a socket that has joined."""
        for query in tuple(self._followed):
            self._call(query)

    def end(self, error: Exception) -> None:
        """End all queries."""
        for query in tuple(self._followed):
            self._end(query, error)

    def put(self, answer: Result | Error | CallLost | Dropped) -> None:
        """Take in the answer to a call, if it is one of a query."""
        query = next((each for each in self._followed if each.ref is not None and each.ref == answer.ref), None)
        if query is None:
            return
        match answer:
            case Result(done=False, value=msgspec.Raw() as value):
                self._take(query, value)
            case Result():
                self._end(query, _not_a_query(query))
            case Error(code=code, message=message, path=path):
                self._end(query, CallError(code, message, path))
            case Dropped(error=too_large):
                self._end(query, too_large)
            case CallLost():
                query.ref = None

    def _take(self, query: FollowedQuery, value: msgspec.Raw) -> None:
        try:
            chunk = _decode(value)
        except NOT_JSON:
            # A server that does not know queries has called a method that streams: calling it again may do harm.
            self._cancel(query)
            self._end(query, _not_a_query(query))
            return
        self._session.reach(chunk.at)
        try:
            query.take(chunk)
        except PatchError:
            self._cancel(query)
            query.tag = ""
            self._call(query)
        else:
            query.tell()

    def _call(self, query: FollowedQuery) -> None:
        try:
            query.ref = self._session.call(query.method, query.args, have=query.tag)
        except TooLarge as error:
            self._end(query, error)

    def _cancel(self, query: FollowedQuery) -> None:
        if query.ref is not None:
            self._session.cancel(query.ref)
            query.ref = None

    def _end(self, query: FollowedQuery, error: Exception) -> None:
        self._followed.pop(query, None)
        query.end(error)


def _not_a_query(query: FollowedQuery) -> CallError:
    return CallError("invalid_arguments", f"{query.method} is not a query")
