"""A change that is being stored, and the callbacks that wait for it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import Any

from plait.errors import PlaitError
from plait.state.revision import Revision
from plait.state.source import Source, StateTurn

__all__ = ["Commit"]

log = logging.getLogger("plait.thread")


class Commit:
    """A change that is being stored. Awaiting it returns its version once it is durable and sent.

    Awaiting raises StoreError when the change could not be stored; the thread then returns to its last durable state.
    """

    __slots__ = (
        "_callbacks",
        "_error",
        "_tasks",
        "began",
        "is_done",
        "maker",
        "outcome",
        "revision",
        "source",
        "trace",
        "undo",
        "whole",
    )

    def __init__(self, revision: Revision, source: Source, maker: StateTurn | None = None) -> None:
        self.revision = revision
        self.source: Source = source
        self.is_done = False
        # The outcome of the write in the store; None if the write was not submitted.
        self.outcome: asyncio.Future[int] | None = None
        # For the instruments: the trace and the time of the change; None without instruments, or if it made no version.
        self.trace: object = None
        self.began: float | None = None
        # The turn that has made the change, until the outcome is known.
        self.maker = maker
        # The commit with which this one is stored: its transaction's, or, if it changes nothing, the previous one.
        self.whole: Commit | None = None
        # Undoes the change of records in a part of the thread, once the commit is rolled back.
        self.undo: Callable[[], None] | None = None
        # The tasks that await the commit; None until the first.
        self._tasks: set[asyncio.Task[object] | None] | None = None
        self._error: PlaitError | None = None
        self._callbacks: list[Callable[[PlaitError | None], object]] = []

    @property
    def version(self) -> int:
        """The version of the state that this change made."""
        return self.revision.version

    @property
    def has_failed(self) -> bool:
        """Whether the store has refused the write, or never got it because the previous write had failed."""
        outcome = self.outcome
        return outcome is None or (outcome.done() and outcome.exception() is not None)

    @property
    def tasks(self) -> Collection[Any]:
        """The tasks that await the change, and get the error if it fails."""
        return self._tasks or ()

    def decide(self, *, may_be_stored: bool) -> None:
        """Tell the outcome to the turn that has made the change."""
        maker, self.maker = self.maker, None
        if maker is not None:
            maker.decide_change(may_be_stored=may_be_stored)

    def roll_back(self) -> None:
        """Undo the changes of records in the parts of the thread."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()

    def then(self, callback: Callable[[PlaitError | None], object]) -> None:
        """Call `callback` with None once the change is durable and sent, or with the error once it has failed."""
        if self.is_done:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    def finish(self, error: PlaitError | None) -> None:
        """Call the waiting callbacks, in order."""
        self.is_done = True
        self._error = error
        if error is None:
            self.undo = None
        else:
            self.roll_back()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(error)
            except BaseException:  # The later callbacks must still be called.
                log.exception("a callback of a change failed")

    async def wait(self) -> None:
        """Wait until the change is durable or has failed, without raising in the second case."""
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(partial(_wake, future))
            await future

    def __await__(self) -> Generator[Any, None, int]:
        if not self.is_done:
            whole, task = self.whole or self, asyncio.current_task()
            if whole._tasks is None:
                whole._tasks = {task}
            else:
                whole._tasks.add(task)
            waiter = asyncio.get_running_loop().create_future()
            self._callbacks.append(partial(_wake, waiter))
            try:
                yield from waiter
            finally:
                whole._tasks.discard(task)
        if self._error is not None:
            raise self._error
        return self.version


def _wake(waiter: asyncio.Future[None], _: PlaitError | None) -> None:
    if not waiter.done():
        waiter.set_result(None)
