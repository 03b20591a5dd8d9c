"""One query of a thread, without asyncio."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

from plait_client.errors import Closed
from plait_client.room_query import RoomQuery

__all__ = ["SyncQuery"]

T = TypeVar("T")

_END: Final = object()


class SyncQuery(Generic[T]):
    """The results of a query, as an iterator like RoomQuery; it raises TimeoutError if none comes in time."""

    def __init__(self, query: RoomQuery[T], wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        self._query = query
        self._wait = wait

    @property
    def at(self) -> int:
        """The version of the state at which the last returned result was read."""
        return self._query.at

    def __iter__(self) -> "SyncQuery[T]":
        return self

    def __next__(self) -> T:
        rows = self._wait(lambda: anext(self._query, _END))
        if rows is _END:
            raise StopIteration
        return cast(T, rows)

    def close(self) -> None:
        """Stop following the query."""
        with suppress(Closed):
            self._wait(self._query.aclose)
