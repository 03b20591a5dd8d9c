"""The task that runs the code of a turn, and its cancellation. No I/O."""

import asyncio
import traceback
from types import FrameType
from typing import Any

from plait.author_code import Interrupted, find_error
from plait.errors import TurnTimeout

__all__ = ["TurnTask"]


class TurnTask(asyncio.Task[None]):
    """The task of a turn, from its start to its end: the mailbox's task, or its own."""

    # The number of times that the turn has cancelled the task.
    cancellations = 0
    # Whether the turn has run too long.
    is_timed_out = False

    def cancel_turn(self) -> None:
        """Cancel the code of the turn, which may catch the cancellation."""
        self.cancellations += 1
        self.cancel()

    def leave(self) -> None:
        """Take the cancellations back when the turn ends, even if its code has caught them."""
        for _ in range(self.cancellations):
            self.uncancel()
        self.cancellations, self.is_timed_out = 0, False

    def explain(self, failure: BaseException, name: str, *, is_cancelled: bool) -> BaseException:
        """Return the error of the turn `name` after its code has raised `failure`."""
        if self.is_timed_out and isinstance(failure, asyncio.CancelledError):
            return TurnTimeout(f"{name} took too long")
        return find_error(failure, name, Interrupted, *((asyncio.CancelledError,) if is_cancelled else ()))

    def stack(self) -> str:
        """Return the stack of the turn, formatted like a traceback."""
        frames: list[tuple[FrameType, int]] = []
        awaitable: Any = self.get_coro()
        while awaitable is not None:
            frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
        return "".join(traceback.StackSummary.extract(iter(frames)).format())
