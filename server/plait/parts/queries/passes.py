"""Runs the queries of a node that must run again: a few milliseconds at a time, and then other work has its turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from math import inf
from time import thread_time
from typing import Final

__all__ = ["QueryPasses"]

# Seconds of processor time for which queries run at once, and how many times as long other work has its turn then.
_AT_ONCE: Final = 0.005
_REST: Final = 3.0


class QueryPasses:
    """Calls functions in the order in which they were added, of each thread in turn. The threads of a node share it."""

    # Seconds between the beginnings of passes for changes, so that one run sees several changes.
    interval = 0.1

    def __init__(self) -> None:
        # By thread; the first thread is the next one.
        self._waiting: dict[object, deque[Callable[[], object]]] = {}
        # The next pass, if one is scheduled, and its time of the loop.
        self._handle: asyncio.Handle | None = None
        self._at = inf
        # The times of the loop at which the next pass may begin, and at which one for changes may.
        self._next = self._next_for_changes = 0.0
        # What was logged of the errors of queries, by kind, query and class.
        self.logged: dict[tuple[str, str, type[BaseException]], str] = {}

    def add(self, thread: object, work: Callable[[], object], *, for_change: bool) -> None:
        """Call a function of a thread soon; if it is `for_change`, other changes may come before."""
        self._waiting.setdefault(thread, deque()).append(work)
        at = max(self._next, self._next_for_changes) if for_change else self._next
        if at < self._at:
            self._schedule(at)

    def close(self) -> None:
        """Call nothing more."""
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _schedule(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._at = at
        # An empty context, as the code belongs to no turn.
        self._handle = asyncio.get_running_loop().call_at(at, self._run_some, context=Context())

    def _run_some(self) -> None:
        loop, began = asyncio.get_running_loop(), thread_time()
        self._next = inf  # Nothing is scheduled while a pass runs.
        self._next_for_changes = loop.time() + self.interval
        try:
            while self._waiting and thread_time() - began < _AT_ONCE:
                thread = next(iter(self._waiting))
                works = self._waiting.pop(thread)
                work = works.popleft()
                if works:
                    self._waiting[thread] = works
                work()
        finally:
            self._handle, self._at = None, inf
            self._next = loop.time() + _REST * (thread_time() - began)
            if self._waiting:
                self._schedule(self._next)
