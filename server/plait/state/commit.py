"""A change that is being stored, and the callbacks that wait for it."""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from plait.errors import PlaitError
from plait.state.revision import Revision
from plait.state.source import Source

__all__ = ["Commit"]

log = logging.getLogger("plait.thread")


class Commit:
    """A change that is being stored. Awaiting it returns its version once it is durable and sent.

    Awaiting raises StoreError when the change could not be stored; the thread then returns to its last durable state.
    """

    __slots__ = ("_callbacks", "_error", "_on_raise", "began", "is_done", "outcome", "revision", "source", "trace")

    def __init__(
        self, revision: Revision, source: Source, on_raise: Callable[[PlaitError], None] | None = None
    ) -> None:
        self.revision = revision
        self.source: Source = source
        self.is_done = False
        # The store's outcome of the write; None for one that is not submitted.
        self.outcome: asyncio.Future[int] | None = None
        # For the instruments: its trace, and when it was made; None if they are not told of it.
        self.trace: Any = None
        self.began: float | None = None
        self._error: PlaitError | None = None
        # Called with the error before code that awaits the change is given it; None once there is none.
        self._on_raise = on_raise
        self._callbacks: list[Callable[[PlaitError | None], None]] = []

    @property
    def version(self) -> int:
        """The version of the state that this change made."""
        return self.revision.version

    @property
    def has_failed(self) -> bool:
        """Whether the store has refused the write, or was not given it as the one before had failed."""
        outcome = self.outcome
        return outcome is None or (outcome.done() and outcome.exception() is not None)

    def then(self, callback: Callable[[PlaitError | None], None]) -> None:
        """Call `callback` with None when the change is durable and sent, or with the error when it has failed."""
        if self.is_done:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    def finish(self, error: PlaitError | None) -> None:
        """Call the waiting callbacks, in order."""
        self.is_done = True
        self._error = error
        if error is None:
            self._on_raise = None  # It would keep the thread in memory.
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(error)
            except Exception:  # The callbacks after it must still be called.
                log.exception("a callback of a change failed")

    async def wait(self) -> None:
        """Wait until the change is durable or has failed; the calling code is not told which."""
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if future.done() else future.set_result(None))
            await future

    def __await__(self) -> Generator[Any, None, int]:
        if not self.is_done:
            yield from self.wait().__await__()
        if self._error is not None:
            if self._on_raise is not None:
                self._on_raise(self._error)
            raise self._error
        return self.version
