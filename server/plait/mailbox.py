"""The turns of one thread: one at a time, in order of arrival. No I/O.

A turn is one run of a hook, an rpc or a request. A turn that comes back to a thread that it holds already, by way of
other threads, runs at once instead of waiting for itself (a call chain).
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any, Final

from plait.errors import TurnTimeout

__all__ = ["Done", "Mailbox", "Turn", "current_turn", "resolving"]

Done = Callable[[Any, BaseException | None], None]
"""Is told what a turn returned, or what it raised."""

_turn: Final[ContextVar["Turn | None"]] = ContextVar("plait_turn", default=None)


def current_turn() -> "Turn | None":
    """Return the turn that the calling code runs in, None outside of turns."""
    turn = _turn.get()
    return turn if turn is not None and turn.is_running else None


def resolving(future: asyncio.Future[Any]) -> Done:
    """Return a Done that hands the outcome to `future`, unless nobody waits for that any more."""

    def done(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return done


class Turn:
    """One run of `work`, which may return a coroutine; `done` is told its outcome.

    `owner` is the actor it is a turn of, `connection` and `request` what it was caused by. `by_client` says that it
    does what a client asked for, and so may do no more than that client.
    """

    __slots__ = (
        "_task",
        "by_client",
        "connection",
        "done",
        "is_abandoned",
        "is_expired",
        "is_running",
        "mailbox",
        "name",
        "owner",
        "parent",
        "request",
        "work",
    )

    def __init__(
        self,
        name: str,
        work: Callable[[], Any],
        done: Done,
        *,
        owner: Any,
        connection: Any = None,
        request: Any = None,
        by_client: bool = False,
    ) -> None:
        self.name = name
        self.work = work
        self.done = done
        self.owner = owner
        self.connection = connection
        self.request = request
        self.by_client = by_client
        # The turn that waits for this one, if any.
        self.parent = current_turn()
        # The mailbox that this turn holds; None when it runs beside other turns.
        self.mailbox: Mailbox | None = None
        self.is_running = False
        # The caller went away: the turn is skipped if it has not begun.
        self.is_abandoned = False
        self.is_expired = False
        self._task: asyncio.Task[Any] | None = None

    def holds(self, mailbox: "Mailbox") -> bool:
        """Tell whether this turn, or one that waits for it, is the one that runs in `mailbox`."""
        turn: Turn | None = self
        while turn is not None:
            if turn.mailbox is mailbox and turn.is_running:
                return True
            turn = turn.parent
        return False

    def start(self, loop: asyncio.AbstractEventLoop, finished: "Finished") -> None:
        """Begin; `finished` is called before this returns if there was nothing to wait for."""
        self.is_running = True
        context = copy_context()
        try:
            result = context.run(self._enter)
        except Exception as error:
            self._end(finished, None, error)
            return
        if not isinstance(result, Coroutine):
            self._end(finished, result, None)
            return
        self._task = loop.create_task(result, context=context, name=self.name)
        self._task.add_done_callback(lambda task: self._end(finished, *self._outcome(task)))

    def cancel(self) -> None:
        """Cancel the turn, which ends when its code has taken note."""
        if self._task is not None:
            self._task.cancel()

    def expire(self) -> None:
        """Cancel the turn for having run too long: its outcome will be TurnTimeout."""
        self.is_expired = True
        self.cancel()

    def stack(self) -> str:
        """Return where the turn is, as the lines of a traceback."""
        frames: list[tuple[FrameType, int]] = []
        awaitable: Any = self._task.get_coro() if self._task else None
        while awaitable is not None:
            frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
        return "".join(traceback.StackSummary.extract(iter(frames)).format())

    def _enter(self) -> Any:
        _turn.set(self)
        return self.work()

    def _end(self, finished: "Finished", result: Any, error: BaseException | None) -> None:
        self.is_running = False
        finished(self, result, error)

    def _outcome(self, task: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
        if task.cancelled():
            return None, TurnTimeout(f"{self.name} took too long") if self.is_expired else asyncio.CancelledError()
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)


Finished = Callable[[Turn, Any, BaseException | None], None]


class Mailbox:
    """Runs turns one at a time, first come first served."""

    __slots__ = ("_is_pumping", "_loop", "_queue", "running", "started")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # None while nothing waits: most threads sleep most of the time.
        self._queue: deque[Turn] | None = None
        self._is_pumping = False
        self.running: Turn | None = None
        # When the running turn began, by the loop's clock.
        self.started = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.running is None and self._queue is None

    def post(self, turn: Turn) -> None:
        """Run `turn` when those before it have ended, or at once when its caller holds this mailbox already."""
        turn.mailbox = self
        if turn.parent is not None and turn.parent.holds(self):
            turn.start(self._loop, lambda turn, result, error: turn.done(result, error))
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(turn)
        self._pump()

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._queue and self.running is None:
                turn = self._queue.popleft()
                if not turn.is_abandoned:
                    self.running = turn
                    self.started = self._loop.time()
                    turn.start(self._loop, self._finish)
        finally:
            self._is_pumping = False
        if not self._queue:
            self._queue = None

    def _finish(self, turn: Turn, result: Any, error: BaseException | None) -> None:
        self.running = None
        turn.done(result, error)
        self._pump()
