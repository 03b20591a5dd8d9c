"""One query of a thread in a client, as an async iterator."""

import asyncio
import weakref
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from typing import Any, Generic, TypeVar, cast

import msgspec

from plait_client.live import Live
from plait_client.queries import FollowedQuery
from plait_schemas.rpc import Rpc

__all__ = ["RoomQuery"]

T = TypeVar("T")


class RoomQuery(Generic[T]):
    """The results of a query, at first and after each change; only the last one of those that were not awaited.

    An error of the query is raised as CallError, and does not end it: the next step waits for its next result or error.
    All else that is raised is final, as is the CallError of a query that the server refuses or ends.
    """

    def __init__(self, live: Live, rpc: Rpc, args: Iterable[Any]) -> None:
        # The version of the state at which the last returned result was read.
        self.at = 0
        self._live = live
        self._rpc = rpc
        # This has no reference to the iterator, so that an iterator that was dropped is collected.
        self._news = asyncio.Event()
        self._query = FollowedQuery(rpc.name, args, self._news.set)
        # The last result that was returned, by its number, and the error that was raised after it.
        self._returned = 0
        self._raised: Exception | None = None
        self._leaving: weakref.finalize[[asyncio.AbstractEventLoop, Live, FollowedQuery], RoomQuery[T]] | None = None
        self._is_closed = False

    def __aiter__(self) -> "RoomQuery[T]":
        return self

    async def __anext__(self) -> T:
        query = self._query
        while not self._is_closed:
            self._follow()
            if query.changes > self._returned or (self._raised is not None and query.error is None):
                return self._return()
            if query.error is not self._raised and query.error is not None:
                self._raised = query.error
                # A copy while the query goes on: its traceback leads to this iterator, which could not be collected.
                raise query.error if query.is_ended else copy(query.error)
            if query.is_ended:
                break
            self._news.clear()
            await self._news.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop following the query."""
        self._is_closed = True
        if self._leaving is not None:
            self._leaving.detach()
        self._live.queries.unfollow(self._query)
        self._news.set()

    def _follow(self) -> None:
        if self._leaving is None:
            self._live.check_open()
            self._leaving = weakref.finalize(self, _leave, asyncio.get_running_loop(), self._live, self._query)
            self._leaving.atexit = False
            self._live.queries.follow(self._query)

    def _return(self) -> T:
        query = self._query
        self._returned, self._raised, self.at = query.changes, None, query.at
        # The values of the last result are also in the next one.
        return cast(T, self._rpc.convert(msgspec.to_builtins(query.rows)))


def _leave(loop: asyncio.AbstractEventLoop, live: Live, query: FollowedQuery) -> None:
    """Stop following the query of an iterator that was dropped, perhaps in another thread or after the loop."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(live.queries.unfollow, query)
