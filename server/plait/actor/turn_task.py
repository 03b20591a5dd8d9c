"""The task that runs the code of a turn: how it is cancelled, and what its end means. No I/O."""

import asyncio
import traceback
from types import FrameType
from typing import Any

import msgspec

from plait.errors import TurnTimeout

__all__ = ["TurnTask"]


class TurnTask(msgspec.Struct, eq=False):
    """The task of a turn, from its start to its end: that of the mailbox, or its own."""

    task: asyncio.Task[Any]
    # How often the turn has cancelled it.
    cancellations: int = 0
    # Whether the turn has run too long.
    is_timed_out: bool = False

    def cancel(self) -> None:
        """Cancel the code of the turn, which may catch that."""
        self.cancellations += 1
        self.task.cancel()

    def leave(self) -> None:
        """Take the cancellations back when the turn ends, even if its code has caught them."""
        for _ in range(self.cancellations):
            self.task.uncancel()

    def explain(self, cancelled: asyncio.CancelledError, name: str) -> BaseException:
        """Return the outcome of the turn `name`, which ended with a CancelledError."""
        if self.is_timed_out:
            return TurnTimeout(f"{name} took too long")
        if self.task.cancelling():
            return cancelled
        # The turn was not cancelled; the caller would take a CancelledError for its own cancellation.
        error = RuntimeError(f"{name}: a task or future that it awaited was cancelled")
        error.__cause__ = cancelled
        return error

    def stack(self) -> str:
        """Return the stack of the turn, formatted like a traceback."""
        frames: list[tuple[FrameType, int]] = []
        awaitable: Any = self.task.get_coro()
        while awaitable is not None:
            frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
        return "".join(traceback.StackSummary.extract(iter(frames)).format())
