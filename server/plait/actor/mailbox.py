"""The turns of one thread, which run one at a time, in order of arrival. No I/O.

A turn is one run of a hook, an rpc or a request. In a call chain, a turn calls back into a thread in which one of its
callers runs; it then runs at once, nested in that caller, instead of waiting for it forever.
"""

import asyncio
import inspect
import logging
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from types import FrameType
from typing import Any, Final, NamedTuple

from plait.actor.outcome import Done
from plait.errors import CallFailed, Indeterminate, PlaitError, StoreError, TurnTimeout
from plait.instruments.protocol import find_outcome

__all__ = ["Cause", "Mailbox", "Turn", "current_turn", "find_client_turn", "latest_turn"]

log = logging.getLogger("plait.thread")

_turn: Final[ContextVar["Turn | None"]] = ContextVar("plait_turn", default=None)

# What most turns return; `inspect.isawaitable` is slow for all that is not a coroutine.
_NOT_AWAITABLE: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})
# After this many turns, or after a turn that has set context variables, the rest run in a new task.
_TURNS_AT_ONCE: Final = 64
# So many turns may wait for each other in one chain of calls.
_MOST_CALLS: Final = 64


def latest_turn() -> "Turn | None":
    """Return the turn in which the calling code runs, or that has begun the task that it is, also after its end."""
    return _turn.get()


def current_turn() -> "Turn | None":
    """Return the turn in which the calling code runs, None outside of turns."""
    turn = _turn.get()
    return turn if turn is not None and turn.is_running else None


def find_client_turn() -> "Turn | None":
    """Return the client's turn that caused the calling code to run, None if no client did.

    It may have ended: it is also the cause of tasks and timers that it started, and of turns that these start.
    """
    turn = _turn.get()
    return turn if turn is None or turn.by_client else turn.origin


class Turn:
    """One run of `work`, which may return a coroutine; the callbacks of `on_end` are called with its outcome.

    `actor` is the actor of the turn; `connection` and `request` are its cause. With `by_client` the turn does what a
    client asked for, and has no more rights than that client. `origin` is the client's turn that started this one, if
    there is one.
    """

    __slots__ = (
        "_callbacks",
        "_cancellations",
        "_is_counted",
        "_undecided",
        "actor",
        "by_client",
        "connection",
        "has_stored",
        "hurry",
        "is_abandoned",
        "is_expired",
        "is_running",
        "is_waiting",
        "loss",
        "mailbox",
        "name",
        "on_abandon",
        "origin",
        "parent",
        "party",
        "request",
        "sees_durable",
        "since",
        "size",
        "task",
        "trace",
        "work",
    )

    def __init__(
        self,
        name: str,
        work: Callable[[], Any],
        *,
        actor: Any,
        connection: Any = None,
        request: Any = None,
        by_client: bool = False,
        parent: "Turn | None" = None,
        origin: "Turn | None" = None,
        trace: Any = None,
    ) -> None:
        self.name = name
        self.work = work
        # Called when it has ended, in order; emptied then.
        self._callbacks: list[Done] = []
        self.actor = actor
        self.connection = connection
        self.request = request
        self.by_client = by_client
        self.origin = origin
        # The turn that waits for this one, if any.
        self.parent = parent
        # The mailbox that this turn holds; None if it runs concurrently with other turns.
        self.mailbox: Mailbox | None = None
        self.is_running = False
        # Whether the caller has stopped waiting: the turn is skipped if it has not begun.
        self.is_abandoned = False
        # Lets a turn that streams wait for its reader no more; None for others.
        self.hurry: Callable[[], None] | None = None
        # Called when the caller has stopped waiting, for a turn that decides itself what becomes of it; with whether
        # that was because the caller's socket was closed.
        self.on_abandon: Callable[[bool], None] | None = None
        self.is_expired = False
        # How often its task was cancelled for it.
        self._cancellations = 0
        # Whether it waits in the queue of runs: nothing of it has begun.
        self.is_waiting = False
        # Whether a change that it has made, or a turn that it has called, is durable, or may be; and how many of these
        # changes and turns have no outcome yet. The turns that wait for this one count it in `_undecided`.
        self.has_stored = False
        self._undecided = 0
        self._is_counted = False
        # Whether its code is shown only what is durable, as it decides what a client may do.
        self.sees_durable = False
        # Why it was cut short, if it was.
        self.loss: PlaitError | None = None
        # The connection, principal or address for which it counts while it waits; None for plait's and server code's.
        self.party: Hashable | None = None
        # Bytes that it counts for its connection until it ends.
        self.size = 0
        # The task that runs it: the mailbox's, or its own.
        self.task: asyncio.Task[Any] | None = None
        # The trace of its cause, and its own from when it begins.
        self.trace = trace
        # When it began to wait.
        self.since = perf_counter()

    def on_end(self, callback: Done) -> None:
        """Call `callback` when the turn has ended or was skipped, after the callbacks that were added before."""
        self._callbacks.append(callback)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Call the callbacks with the outcome, each once."""
        self.on_abandon = self.hurry = None  # They may refer to this turn, which would stay as garbage.
        if self._is_counted:
            self._withdraw()
        if self.size:
            size, self.size = self.size, 0
            self.connection.end_turn(size)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(result, error)
            except Exception:  # The callbacks after it must still be called.
                log.exception("a callback of the turn %s failed", self.name)

    def chain(self) -> Iterator["Turn"]:
        """Yield this turn and those that wait for it."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def find_refusal(self) -> PlaitError | None:
        """Return why the turn may not begin, None if it may.

        A turn of its thread that waits for it was cut short, and no longer holds the mailbox for it; or too many wait.
        """
        count = running = 0
        # The nearest turn whose caller has ended, and so does not wait for it.
        oldest: Turn | None = None
        for turn in self.chain():
            if turn.loss is not None and turn.actor is self.actor:
                return turn.loss
            count += 1
            running += turn is self or turn.is_running
            if oldest is None and turn.parent is not None and not turn.parent.is_running:
                oldest = turn
        if count <= _MOST_CALLS:
            return None
        if running <= _MOST_CALLS and oldest is not None:
            oldest._forget_callers()  # They would be kept as long as one turn hands on to the next.
            return None
        return CallFailed(
            f"{self.name} of {self.actor.key} is called in a chain of more than {_MOST_CALLS} calls that wait for each "
            "other: does a method call itself, directly or through other threads?"
        )

    def _forget_callers(self) -> None:
        """Be no part of the turns that have called it; what becomes of its changes is in doubt for them."""
        undecided, turn = self._undecided + self._is_counted, self.parent
        self.parent, self._is_counted = None, False
        while turn is not None:
            turn._undecided -= undecided
            turn.has_stored = turn.has_stored or undecided > 0
            turn = turn.parent

    def holds(self, mailbox: "Mailbox") -> bool:
        """Whether this turn, or one that waits for it, runs in `mailbox`."""
        return any(turn.mailbox is mailbox and turn.is_running for turn in self.chain())

    def start(self, loop: asyncio.AbstractEventLoop, context: Context | None = None) -> None:
        """Run in a task of its own, concurrently with other turns, by default with the caller's context variables."""

        async def run() -> None:
            if self.is_abandoned:
                self.task = None
                self.end(None, asyncio.CancelledError())
            else:
                await self.run(task)

        self.task = task = loop.create_task(run(), name=self.name, context=context)

    def enter(self) -> None:
        """Let the calling context, and the tasks that it begins, be a part of this turn."""
        _turn.set(self)

    async def run(self, task: asyncio.Task[None]) -> None:
        """Run to the end in `task`, the current task, and call the callbacks."""
        self.task = task
        _turn.set(self)
        self.is_running = True
        instruments, (kind, name), began = self.actor.instruments, self.actor.key, perf_counter()
        self.trace = instruments.turn_began(kind, name, self.name, began - self.since, self.trace)
        result: Any = None
        error: BaseException | None = None
        exiting: BaseException | None = None
        try:
            result = self.work()
            if type(result) not in _NOT_AWAITABLE and inspect.isawaitable(result):
                result = await result
        except asyncio.CancelledError as cancelled:
            error = self._explain_cancelled(cancelled, task)
        except StopIteration as stop:  # No future can have it as its outcome.
            error = RuntimeError(f"{self.name} raised StopIteration")
            error.__cause__ = stop
        except (KeyboardInterrupt, SystemExit) as exit:
            exiting, error = exit, asyncio.CancelledError()
        except BaseException as failure:  # Such as Interrupted, of the run that waits for this turn.
            error = failure
        finally:
            self.is_running = False
            self.task = None
            for _ in range(self._cancellations):  # Also where its code has caught them.
                task.uncancel()
        if error is not None or self.loss is not None:
            error = self._find_error(error)
        instruments.turn_ended(self.trace, perf_counter() - began, "ok" if error is None else find_outcome(error))
        self.end(result if error is None else None, error)
        if exiting is not None:
            raise exiting
        if task.cancelling():
            # The task was cancelled from outside, as when the loop is closed.
            raise asyncio.CancelledError

    def _find_error(self, error: BaseException | None) -> BaseException | None:
        """Return the error that the turn ends with, for what its code has raised, if anything."""
        error = self.loss or error  # What it returns or raises may be based on what was lost.
        return self.explain_loss(error) if isinstance(error, StoreError) else error

    def _explain_cancelled(self, cancelled: asyncio.CancelledError, task: asyncio.Task[None]) -> BaseException:
        """Return the outcome of a turn that ended with a CancelledError."""
        if self.is_expired:
            return TurnTimeout(f"{self.name} took too long")
        if task.cancelling():
            return cancelled
        # Nobody cancelled the turn; with a CancelledError, the caller would believe that it was cancelled itself.
        error = RuntimeError(f"{self.name}: a task or future that it awaited was cancelled")
        error.__cause__ = cancelled
        return error

    # What is stored, and what is lost

    def expect_change(self) -> None:
        """Note that a change is being stored that it has made."""
        turn: Turn | None = self
        while turn is not None:
            turn._undecided += 1
            turn = turn.parent

    def decide_change(self, *, may_be_stored: bool) -> None:
        """Note the outcome of a change that it has made."""
        turn: Turn | None = self
        while turn is not None:
            turn._undecided -= 1
            turn.has_stored = turn.has_stored or may_be_stored
            turn = turn.parent

    def count(self) -> None:
        """Let the turns that wait for this one know that it may make changes, until it ends or is skipped."""
        if self.parent is not None:
            self.parent.expect_change()
            self._is_counted = True

    def _withdraw(self) -> None:
        if self._is_counted and self.parent is not None:
            self._is_counted = False
            self.parent.decide_change(may_be_stored=False)

    def explain_loss(self, failure: PlaitError) -> PlaitError:
        """Return the error that the turn is answered with when the store has failed.

        A StoreError says that nothing was done; it is an Indeterminate if a part was, or may be yet.
        """
        if type(failure) is not StoreError or not (self.has_stored or self._undecided):
            return failure
        return Indeterminate(f"a part of what {self.name} has done is stored, or may be: {failure}")

    def cut(self, failure: PlaitError) -> None:
        """Cancel the turn, which runs; it ends with this error, and can change and send nothing more."""
        if self.loss is None:
            self.loss = failure
            self.cancel()

    def cancel(self) -> None:
        """Cancel the turn if it runs, and skip it if it has not begun."""
        self.skip()
        # A task that is cancelled before its first step would never end the turn.
        if self.task is not None and self.is_running:
            self._cancellations += 1
            self.task.cancel()

    def skip(self) -> None:
        """Skip the turn if it has not begun."""
        self.is_abandoned = True
        if self.is_waiting or not self.is_running:
            self._withdraw()

    def abandon(self, *, is_closed: bool = False) -> None:
        """Skip the turn if it has not begun, and cancel it if it runs concurrently with other turns.

        `is_closed` tells that the caller's socket was closed.
        """
        self.skip()
        if self.on_abandon is not None:
            self.on_abandon(is_closed)
        elif self.mailbox is None:
            self.cancel()

    def expire(self) -> None:
        """Cancel the turn because it runs too long; its outcome will be TurnTimeout."""
        self.is_expired = True
        self.cancel()

    def stack(self) -> str:
        """Return the stack of the turn, formatted like a traceback."""
        frames: list[tuple[FrameType, int]] = []
        awaitable: Any = self.task.get_coro() if self.task else None
        while awaitable is not None:
            frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
        return "".join(traceback.StackSummary.extract(iter(frames)).format())


class Cause(NamedTuple):
    """What a turn is for: the turn that waits for it, the client's turn that started it, and the trace of these."""

    parent: Turn | None = None
    origin: Turn | None = None
    trace: Any = None


class Mailbox:
    """Runs turns one at a time, in order of arrival."""

    __slots__ = (
        "_loop",
        "_nested_ended",
        "_queue",
        "_refusal",
        "_waiting",
        "is_held",
        "nested",
        "running",
        "started",
        "task",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # None while no turn waits, to save memory.
        self._queue: deque[Turn] | None = None
        # How many turns of each party wait; None while no turn waits, too.
        self._waiting: dict[Hashable, int] | None = None
        # The task that runs turns, None while there are none.
        self.task: asyncio.Task[None] | None = None
        self.running: Turn | None = None
        # Turns of a call chain that run inside the running one, and a future for when one of them has ended.
        self.nested: set[Turn] = set()
        self._nested_ended: asyncio.Future[None] | None = None
        # Whether no other turn begins, except those of a call chain.
        self.is_held = False
        # What all turns end with from now on; None while they run.
        self._refusal: BaseException | None = None
        # When the running turn began, by the loop's clock.
        self.started = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.task is None

    def count_waiting(self, party: Hashable) -> int:
        """Return how many turns of a connection, principal or address wait."""
        return 0 if self._waiting is None else self._waiting.get(party, 0)

    def post(self, turn: Turn) -> None:
        """Run `turn` after those before it, or at once if its caller holds this mailbox."""
        if self._refusal is not None:
            turn.end(None, self._refusal)
            return
        turn.mailbox = self
        if turn.parent is not None and turn.parent.holds(self):
            self.nested.add(turn)
            turn.on_end(lambda *_: self._finish_nested(turn))
            turn.start(self._loop)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(turn)
        if turn.party is not None:
            if self._waiting is None:
                self._waiting = {}
            self._waiting[turn.party] = self._waiting.get(turn.party, 0) + 1
        if self.task is None and not self.is_held:
            self._run()

    def run_last(self, turn: Turn) -> None:
        """Run a turn while the mailbox is held, with the turns that it calls inside of it."""
        turn.mailbox = self
        turn.start(self._loop)

    def refuse(self, error: BaseException) -> None:
        """End the waiting turns with an error, and all later ones."""
        self._refusal = error
        waiting = self._empty()
        for turn in waiting:
            turn.end(None, error)

    def close(self) -> None:
        """Cancel the running and the waiting turns; they end with CancelledError."""
        waiting = self._empty()
        if self.running is not None:
            self.running.cancel()
        for turn in waiting:
            turn.end(None, asyncio.CancelledError())

    def _empty(self) -> Iterable[Turn]:
        waiting, self._queue = self._queue or (), None
        self._waiting = None
        return waiting

    def _run(self) -> None:
        # Turns do not inherit the context variables of the code that posted them.
        self.task = self._loop.create_task(self._take_turns(), context=Context(), name="plait turns")

    async def _take_turns(self) -> None:
        """Run the waiting turns, many in one task, so that a burst of turns costs little."""
        task = self.task
        assert task is not None
        try:
            for _ in range(_TURNS_AT_ONCE):
                turn = self._pop()
                if turn is None:
                    break
                self.running = turn
                self.started = self._loop.time()
                await turn.run(task)
                while self.nested:
                    # The turn was cancelled, but the turns nested in it were not: wait for them.
                    self._nested_ended = self._loop.create_future()
                    await self._nested_ended
                if _has_set_variables(turn):
                    break
        finally:
            self.running = self.task = None
            if self._queue and not self.is_held:
                self._run()

    def _finish_nested(self, turn: Turn) -> None:
        self.nested.discard(turn)
        if self._nested_ended is not None and not self._nested_ended.done():
            self._nested_ended.set_result(None)

    def _pop(self) -> Turn | None:
        """Return the next turn that has not been abandoned."""
        if self.is_held:
            return None
        while self._queue:
            turn = self._queue.popleft()
            if turn.party is not None:
                assert self._waiting is not None
                if (count := self._waiting[turn.party] - 1) > 0:
                    self._waiting[turn.party] = count
                else:
                    del self._waiting[turn.party]
            if not turn.is_abandoned:
                return turn
            turn.end(None, asyncio.CancelledError())
        self._queue = self._waiting = None
        return None


def _has_set_variables(turn: Turn) -> bool:
    """Whether a turn has set context variables, which the next turn must not see."""
    context = copy_context()
    return len(context) != 1 or context.get(_turn) is not turn
