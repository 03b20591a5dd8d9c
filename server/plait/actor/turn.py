"""One run of a hook, an rpc or a request in a thread. No I/O."""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from starlette.requests import Request

from plait.actor.begun import Begun, keep_begun
from plait.actor.connection import Connection, Party
from plait.actor.outcome import Done
from plait.errors import CallFailed, Indeterminate, PlaitError, StoreError, TurnTimeout
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, find_outcome
from plait.limits import Limits
from plait.store.protocol import ThreadKey

__all__ = ["Cause", "Turn", "TurnActor", "begin_write", "current_turn", "find_client_turn", "find_user", "latest_turn"]

T = TypeVar("T")

log = logging.getLogger("plait.thread")

_turn: Final[ContextVar["Turn | None"]] = ContextVar("plait_turn", default=None)

# The types that most turns return; `inspect.isawaitable` is slow for anything but a coroutine.
_NOT_AWAITABLE: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})
# Maximum number of turns that wait for each other in one chain of calls.
_MOST_CALLS: Final = 64


def latest_turn() -> "Turn | None":
    """Return the turn that runs the calling code or has started its task; the turn may have ended."""
    return _turn.get()


def current_turn() -> "Turn | None":
    """Return the turn in which the calling code runs; None outside of turns."""
    turn = _turn.get()
    return turn if turn is not None and turn.is_running else None


def begin_write(work: Coroutine[Any, Any, T]) -> Begun[T]:
    """Begin a write in a task; the turn of the calling code ends after it, with its error if nothing awaits it."""
    begun = Begun(work)
    if (turn := current_turn()) is not None:
        turn.begun = keep_begun(turn.begun, begun)
    return begun


def find_client_turn() -> "Turn | None":
    """Return the client's turn that caused the calling code to run; None if no client did.

    It may have ended: it also causes the tasks and timers that it started, and the turns that those start.
    """
    turn = _turn.get()
    return turn if turn is None or turn.by_client else turn.origin


def find_user() -> str | None:
    """Return the id of the principal that the calling code runs for; None if there is none."""
    if (client := find_client_turn()) is not None:
        return client.user
    turn = _turn.get()
    # Of the server's turns, those of hooks and `on_request` have one.
    return None if turn is None else next((user for each in turn.chain() if (user := each.user) is not None), None)


class TurnActor(Protocol):
    """The part of an actor that turns use."""

    key: ThreadKey
    limits: Limits
    instruments: Instruments
    # The actors that the node checks next.
    active: dict[Any, None]

    @property
    def thread(self) -> object:
        """The instance of the author's class."""
        ...

    def touch(self) -> None:
        """Reset the idle timer."""
        ...


class Turn:
    """One run of `work`, which may return a coroutine; the callbacks of `on_end` are called with its outcome.

    `connection` and `request` are its cause. With `by_client`, the turn does what a client asked for, and has only the
    rights of that client. `origin` is the client's turn that started this one, if there is one.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_cancellations",
        "_is_counted",
        "_undecided",
        "actor",
        "begun",
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
        "number",
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
        actor: TurnActor,
        connection: Connection | None = None,
        request: Request | None = None,
        by_client: bool = False,
        parent: "Turn | None" = None,
        origin: "Turn | None" = None,
        trace: object = None,
    ) -> None:
        self.name = name
        self.work = work
        # Its number among the turns that have called threads of other nodes; 0 if it has called none.
        self.number = 0
        # Called in order when it has ended, and then removed.
        self._callbacks: list[Done] = []
        # The writes that its code has begun, before whose end it does not end.
        self.begun: Sequence[Begun[Any]] = ()
        self.actor = actor
        self.connection = connection
        self.request = request
        self.by_client = by_client
        self.origin = origin
        # The turn that waits for this one, if any.
        self.parent = parent
        # The mailbox that this turn holds; None if it runs concurrently with other turns.
        self.mailbox: object | None = None
        self.is_running = False
        # Whether the caller has stopped waiting: the turn is skipped if it has not begun.
        self.is_abandoned = False
        # Makes a streaming turn stop waiting for its reader; None for other turns.
        self.hurry: Callable[[], None] | None = None
        # For a turn that handles it itself: called when the caller has stopped waiting, with True if the caller's
        # socket was closed.
        self.on_abandon: Callable[[bool], None] | None = None
        self.is_expired = False
        # How often this turn has cancelled its task.
        self._cancellations = 0
        # Whether it waits in the queue of runs, before any code of the run.
        self.is_waiting = False
        # Whether the turn, or a turn that it has called, has made a change that is or may be durable; and the number of
        # its changes and called turns without an outcome. The turns that wait for this one count it in `_undecided`.
        self.has_stored = False
        self._undecided = 0
        self._is_counted = False
        # Whether its code sees only durable states, as it decides what a client may do.
        self.sees_durable = False
        # The error if it was cut short: a change that it made or read is lost.
        self.loss: PlaitError | None = None
        # The connection, principal or address that is charged while it waits; None for turns of plait and server code.
        self.party: Hashable | None = None
        # The bytes that its connection is charged until it ends.
        self.size = 0
        # The task that runs it: that of the mailbox, or its own.
        self.task: asyncio.Task[Any] | None = None
        # The trace of its cause; after it has begun, its own.
        self.trace = trace
        # When it began to wait, for the instruments.
        self.since = 0.0 if actor.instruments is NO_INSTRUMENTS else perf_counter()

    def on_end(self, callback: Done) -> None:
        """Call `callback` when the turn has ended or was skipped, after the callbacks that were added before."""
        self._callbacks.append(callback)

    def end(self, result: object, error: BaseException | None) -> None:
        """Call the callbacks with the outcome, each once."""
        self.on_abandon = self.hurry = None  # Breaks reference cycles.
        if self._is_counted:
            self._withdraw()
        if self.size and self.connection is not None:
            size, self.size = self.size, 0
            self.connection.end_turn(size)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(result, error)
            except Exception:  # The later callbacks must still be called.
                log.exception("a callback of the turn %s failed", self.name)

    def chain(self) -> Iterator["Turn"]:
        """Yield this turn and those that wait for it."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def find_refusal(self) -> PlaitError | None:
        """Return why the turn may not begin; None if it may.

        It may not if a turn of its thread that waits for it was cut short, or if too many turns wait for it.
        """
        count = running = 0
        # The nearest turn whose caller has ended, and so does not wait for the turn.
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
            oldest._forget_callers()  # An endless chain of such turns would keep them all.
            return None
        return CallFailed(
            f"{self.name} of {self.actor.key} is called in a chain of more than {_MOST_CALLS} calls that wait for each "
            "other: does a method call itself, directly or through other threads?"
        )

    def _forget_callers(self) -> None:
        """Separate the turn from its callers, for which the outcome of its changes stays unknown."""
        undecided, turn = self._undecided + self._is_counted, self.parent
        self.parent, self._is_counted = None, False
        while turn is not None:
            turn._undecided -= undecided
            turn.has_stored = turn.has_stored or undecided > 0
            turn = turn.parent

    def holds(self, mailbox: object) -> bool:
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
        """Make the calling context, and the tasks that it starts, a part of this turn."""
        _turn.set(self)

    async def run(self, task: asyncio.Task[None]) -> None:
        """Run to the end in `task`, the current task, and call the callbacks."""
        self.task = task
        _turn.set(self)
        self.is_running = True
        instruments, began = self.actor.instruments, 0.0
        if is_told := instruments is not NO_INSTRUMENTS:
            began = perf_counter()
            self.trace = instruments.turn_began(*self.actor.key, self.name, began - self.since, self.trace)
        result: Any = None
        error: BaseException | None = None
        exiting: BaseException | None = None
        try:
            result = self.work()
            if type(result) not in _NOT_AWAITABLE and inspect.isawaitable(result):
                result = await result
            if self.begun:
                await self._finish_begun()
        except asyncio.CancelledError as cancelled:
            error = self._explain_cancelled(cancelled, task)
        except StopIteration as stop:  # A future cannot have this exception.
            error = RuntimeError(f"{self.name} raised StopIteration")
            error.__cause__ = stop
        except (KeyboardInterrupt, SystemExit) as exit:
            exiting, error = exit, asyncio.CancelledError()
        except BaseException as failure:  # For example Interrupted, of the run that waits for this turn.
            error = failure
        finally:
            self.is_running = False
            self.task = None
            for _ in range(self._cancellations):  # Even if its code has caught the cancellations.
                task.uncancel()
        error = self._find_error(error)
        if is_told:
            instruments.turn_ended(self.trace, perf_counter() - began, "ok" if error is None else find_outcome(error))
        self.end(result if error is None else None, error)
        if exiting is not None:
            raise exiting
        if task.cancelling():
            # The task was cancelled from outside, as when the loop is closed.
            raise asyncio.CancelledError

    async def _finish_begun(self) -> None:
        while self.begun:
            first, *self.begun = self.begun
            await first.finish()

    def _find_error(self, error: BaseException | None) -> BaseException | None:
        """Return the error that the turn ends with; `error` is what its code has raised, if anything."""
        error = self.loss or error  # Its own outcome may depend on the lost change.
        return self.explain_loss(error) if isinstance(error, StoreError) else error

    def _explain_cancelled(self, cancelled: asyncio.CancelledError, task: asyncio.Task[None]) -> BaseException:
        """Return the outcome of a turn that ended with a CancelledError."""
        if self.is_expired:
            return TurnTimeout(f"{self.name} took too long")
        if task.cancelling():
            return cancelled
        # The turn was not cancelled; the caller would take a CancelledError for its own cancellation.
        error = RuntimeError(f"{self.name}: a task or future that it awaited was cancelled")
        error.__cause__ = cancelled
        return error

    # Stored and lost changes

    def expect_change(self) -> None:
        """Record that a change of this turn is being stored."""
        turn: Turn | None = self
        while turn is not None:
            turn._undecided += 1
            turn = turn.parent

    def decide_change(self, *, may_be_stored: bool) -> None:
        """Record the outcome of a change of this turn."""
        turn: Turn | None = self
        while turn is not None:
            turn._undecided -= 1
            turn.has_stored = turn.has_stored or may_be_stored
            turn = turn.parent

    def count(self) -> None:
        """Count this turn, until it ends or is skipped, in the turns that wait for it, as it may make changes."""
        if self.parent is not None:
            self.parent.expect_change()
            self._is_counted = True

    @property
    def user(self) -> str | None:
        """The id of the principal of its connection or request; None if there is none."""
        if self.connection is not None:
            return None if self.connection.principal is None else self.connection.principal.id
        return self.party.user if isinstance(self.party, Party) else None

    @property
    def party_of_runs(self) -> Hashable | None:
        """The party that waiting runs are charged to: without a principal the socket, as many may share its address."""
        connection = self.connection
        if not self.by_client or connection is None or connection.session is None or connection.principal is not None:
            return self.party
        return connection

    @property
    def may_have_stored(self) -> bool:
        """Whether a change of the turn, or of a turn that it has called, is durable or may become durable."""
        return self.has_stored or self._undecided > 0

    def _withdraw(self) -> None:
        if self._is_counted and self.parent is not None:
            self._is_counted = False
            self.parent.decide_change(may_be_stored=False)

    def explain_loss(self, failure: PlaitError) -> PlaitError:
        """Return the error that the caller of the turn gets when the store has failed.

        A StoreError says that nothing was stored; an Indeterminate replaces it if a part was stored, or may be.
        """
        if type(failure) is not StoreError or not self.may_have_stored:
            return failure
        return Indeterminate(f"a part of the changes of {self.name} is stored, or may be: {failure}")

    def cut(self, failure: PlaitError) -> None:
        """Cancel the running turn; it ends with this error, and can make no change and send nothing."""
        if self.loss is None:
            self.loss = failure
            self.cancel()

    def cancel(self) -> None:
        """Cancel the turn if it is running; skip it if it has not begun."""
        self.skip()
        # A task that is cancelled before its first step would never end the turn.
        if self.task is not None and self.is_running:
            self._cancellations += 1
            self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether plait has cancelled the turn; its code may have cancelled itself."""
        return self._cancellations > 0

    def skip(self) -> None:
        """Skip the turn if it has not begun."""
        self.is_abandoned = True
        if self.is_waiting or not self.is_running:
            self._withdraw()

    def abandon(self, *, is_closed: bool = False) -> None:
        """Skip the turn if it has not begun; cancel it if it runs concurrently with other turns.

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

    def has_set_variables(self) -> bool:
        """Whether it has set context variables of the calling task, which the next turn must not see."""
        context = copy_context()
        return len(context) != 1 or context.get(_turn) is not self

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
    """The cause of a turn: the turn that waits for it, the client's turn that started it, and their trace."""

    parent: Turn | None = None
    origin: Turn | None = None
    trace: object = None
