"""Runs the queries of a node that must run again: a few milliseconds at a time, and then other work has its turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from time import thread_time
from typing import Final

__all__ = ["QueryPasses"]

# Seconds of processor time for which queries run at once, and how many times as long other work has its turn then.
_AT_ONCE: Final = 0.005
_REST: Final = 3.0


class QueryPasses:
    """Calls functions in the order in which they were added. The threads of a node share it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._handle: asyncio.Handle | None = None
        # The time of the loop at which the next pass may begin.
        self._next = 0.0
        # What was logged of the errors of queries, by kind, query and class.
        self.logged: dict[tuple[str, str, type[BaseException]], str] = {}

    def add(self, work: Callable[[], object]) -> None:
        """Call a function soon."""
        self._waiting.append(work)
        if self._handle is None:
            self._schedule()

    def close(self) -> None:
        """Call nothing more."""
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _schedule(self) -> None:
        # An empty context, as the code belongs to no turn.
        self._handle = asyncio.get_running_loop().call_at(self._next, self._run_some, context=Context())

    def _run_some(self) -> None:
        began = thread_time()
        try:
            while self._waiting and thread_time() - began < _AT_ONCE:
                self._waiting.popleft()()
        finally:
            self._handle = None
            self._next = asyncio.get_running_loop().time() + _REST * (thread_time() - began)
            if self._waiting:
                self._schedule()
