"""One run of a hook, an rpc or a request in a thread. No I/O."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from types import CoroutineType
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from plait.actor.begun import Begun, keep_begun
from plait.actor.connection import Connection, Lease, Party, Rights
from plait.actor.outcome import Done
from plait.actor.turn_task import TurnTask
from plait.author_code import NOT_AWAITABLE
from plait.errors import Indeterminate, PlaitError, Readonly, Unauthenticated, admit_change
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, find_outcome
from plait.store.thread_rows import ThreadKey

__all__ = [
    "Turn",
    "TurnOwner",
    "begin_write",
    "check_may_write",
    "current_turn",
    "find_client_turn",
    "find_rights",
    "find_user",
    "has_turn",
    "latest_turn",
    "wait_for_birth",
]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

log = logging.getLogger("plait.thread")

_turn: Final[ContextVar["Turn | None"]] = ContextVar("plait_turn", default=None)


def latest_turn() -> "Turn | None":
    """Return the turn that runs the calling code or has started its task; the turn may have ended."""
    return _turn.get()


def has_turn(context: Context | None) -> bool:
    """Whether a turn runs code in a context, by default the calling one, or has started its task."""
    return _turn.get() is not None if context is None else context.get(_turn) is not None


def current_turn() -> "Turn | None":
    """Return the turn in which the calling code runs; None outside of turns."""
    turn = _turn.get()
    return turn if turn is not None and turn.is_running else None


def begin_write(work: Coroutine[Any, Any, T]) -> Begun[T]:
    """Begin a write in a task. The calling turn ends only after the write, and with its error if nothing awaits it."""
    begun = Begun(work)
    if (turn := current_turn()) is not None:
        turn.begun = keep_begun(turn.begun, begun)
    return begun


def find_client_turn() -> "Turn | None":
    """Return the client's turn that caused the calling code to run; None if no client did.

    The turn may have ended: it also counts as the cause of its tasks and timers, and of the turns that these start.
    """
    turn = _turn.get()
    return turn if turn is None or turn.by_client else turn.origin


def find_user() -> str | None:
    """Return the id of the principal for whom the calling code runs; None without one."""
    if (client := find_client_turn()) is not None:
        return client.user
    turn = _turn.get()
    # Some turns of the server have a user: hooks and `on_request`.
    return None if turn is None else next((user for each in turn.chain() if (user := each.user) is not None), None)


class TurnOwner(Protocol):
    """The thread of a turn."""

    key: ThreadKey
    instruments: Instruments

    @property
    def thread(self) -> object:
        """The instance of the author's class; None if it is in another process."""
        ...

    @property
    def is_shutting_down(self) -> bool:
        """Whether the server is shutting down, which may cancel tasks."""
        ...


class Turn(msgspec.Struct, eq=False, weakref=True):
    """One run of `work`, which may return a coroutine; the callbacks of `on_end` are called with its outcome.

    `connection` and `request` are the cause of the turn. With `by_client`, the turn handles a client's demand, and has
    only that client's rights. `origin` is the client's turn that started this one, if there is one.
    """

    # The work and its cause
    name: str
    work: Callable[[], Any]
    actor: TurnOwner
    connection: Connection | None = None
    request: Request | None = None
    by_client: bool = False
    # Whether the client has the right to approve, which is all that the work needs.
    approves: bool = False
    # The turn that waits for this one, if any.
    parent: "Turn | None" = None
    origin: "Turn | None" = None
    # The trace of the cause; after the beginning, the turn's own trace.
    trace: object = None

    # Before the beginning
    # The turn does not begin after the end of this lease.
    lease: Lease | None = None
    # The connection, principal or address that is charged while the turn waits; None for turns of plait and server
    # code.
    party: Hashable | None = None
    # The bytes that the connection is charged until the turn ends.
    size: int = 0
    # The time at which the turn was made, for the instruments.
    since: float = msgspec.field(default_factory=perf_counter)
    # Whether the caller has stopped waiting, or has lost its rights: the turn is skipped if it has not begun.
    is_abandoned: bool = False
    # Whether the turn waits in the queue of runs, before any code of its run.
    is_waiting: bool = False
    # Whether the turn counts as a use of the thread.
    is_use: bool = True

    # While the turn runs
    is_running: bool = False
    # The mailbox that this turn holds; None if it runs concurrently with other turns.
    mailbox: object | None = None
    # The task of the turn; None before the start, and after the end.
    task: TurnTask | None = None
    # The numbers of the births that it has begun, for which its caller waits; None if no caller does.
    births: Sequence[int] | None = None
    # The writes that its code has begun. The turn does not end before them.
    begun: Sequence[Begun[Any]] = ()
    # Whether its code sees only durable states, as it decides about the rights of a client.
    sees_durable: bool = False
    # Makes a streaming turn stop waiting for its reader; None for other turns.
    hurry: Callable[[], None] | None = None
    # Called when the caller has stopped waiting, with True if the caller's socket was closed; None for the default
    # handling.
    on_abandon: Callable[[bool], None] | None = None
    # Called with the version of the first change of its thread, by this turn or one that it has called, just before the
    # change is sent; None if no client waits for it.
    on_made: Callable[[int], None] | None = None

    # The outcome
    # Called in order after the end, and then removed.
    _callbacks: list[Done] = []
    # Whether the turn, or a turn that it has called, has made a change that is or may be durable; and the number of its
    # changes and called turns without an outcome. A waiting caller counts this turn in its own `_undecided`.
    has_stored: bool = False
    _undecided: int = 0
    _is_counted: bool = False
    # The error if the turn was cut short, as a change that it made or read is lost.
    loss: PlaitError | None = None

    def on_end(self, callback: Done) -> None:
        """Call `callback` when the turn has ended or was skipped, after the callbacks that were added earlier."""
        self._callbacks.append(callback)

    def end(self, result: object, error: BaseException | None) -> None:
        """Call the callbacks with the outcome, each once."""
        if self.on_abandon is not None or self.hurry is not None:
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
            except BaseException:  # The later callbacks must still be called.
                log.exception("a callback of the turn %s failed", self.name)

    def chain(self) -> Iterator["Turn"]:
        """Yield this turn and the turns that wait for it."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def forget_callers(self) -> None:
        """Separate the turn from its callers; for them, the outcome of its changes stays unknown."""
        undecided, turn = self._undecided + self._is_counted, self.parent
        self.parent, self._is_counted = None, False
        while turn is not None:
            turn._undecided -= undecided
            turn.has_stored = turn.has_stored or undecided > 0
            turn = turn.parent

    def holds(self, mailbox: object) -> bool:
        """Whether this turn, or a turn that waits for it, runs in `mailbox`."""
        return any(turn.mailbox is mailbox and turn.is_running for turn in self.chain())

    def start(self, loop: asyncio.AbstractEventLoop, context: Context | None = None) -> None:
        """Run in a task of its own, concurrently with other turns, by default with the caller's context variables."""
        self.task = TurnTask(self._begin(), loop=loop, name=self.name, context=context)

    async def _begin(self) -> None:
        assert self.task is not None
        if not self.is_abandoned:
            await self.run(self.task)
        else:
            self.task = None
            self.end(None, asyncio.CancelledError())

    def enter(self) -> None:
        """Make the calling context, and the tasks that it starts, a part of this turn."""
        _turn.set(self)

    async def run(self, task: TurnTask) -> None:
        """Run to the end in `task`, the current one, and call the callbacks."""
        self.task = task
        _turn.set(self)
        self.is_running = True
        instruments, began = self.actor.instruments, 0.0
        if is_told := instruments is not NO_INSTRUMENTS:
            began = perf_counter()
            self.trace = instruments.turn_began(*self.actor.key, self.name, began - self.since, self.trace)
        result: Any = None
        error: BaseException | None = None
        try:
            result = self.work() if self.lease is None or self.lease.holds else self._work_with_rights()
            if (made := type(result)) is CoroutineType or (made not in NOT_AWAITABLE and inspect.isawaitable(result)):
                result = await result
            if task.cancelling() > task.cancellations:  # Cancelled by its own code: it comes at the next await.
                await asyncio.sleep(0)
            if self.begun:
                await self._finish_begun()
        except BaseException as failure:
            error = task.explain(failure, self.name, is_cancelled=self.is_cancelled)
        finally:
            self.is_running = False
            self.task = None
            if task.cancellations:
                task.leave()
        if (error := self.loss or error) is not None:  # The result may depend on the lost change.
            error = self.explain_loss(error)
        if is_told:
            instruments.turn_ended(self.trace, perf_counter() - began, "ok" if error is None else find_outcome(error))
        self.end(result if error is None else None, error)
        error = None  # The traceback holds this frame, and the arguments of the turn.
        if task.cancelling():
            # The task was cancelled from outside, as when the loop is closed, or by the code of the turn.
            raise asyncio.CancelledError

    def _work_with_rights(self) -> object:
        self.check_rights()
        return self.work()

    def check_rights(self) -> None:
        """Skip the turn and raise Unauthenticated if the rights of its client have ended."""
        try:
            if self.lease is not None and not self.lease.holds:
                self.lease.check()
        except Unauthenticated:
            self.is_abandoned = True
            raise

    async def _finish_begun(self) -> None:
        while self.begun:
            first, *self.begun = self.begun
            await first.finish()

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

    def tell_made(self, sockets: object, version: int) -> None:
        """Call `on_made` of this turn and of those that wait for it, if they are turns of the thread of `sockets`."""
        for turn in self.chain():
            if turn.on_made is not None and getattr(turn.actor, "sockets", None) is sockets:
                tell, turn.on_made = turn.on_made, None
                tell(version)

    def count(self) -> None:
        """Count this turn in the turns that wait for it, until it ends or is skipped, as it may make changes."""
        if self.parent is not None:
            self.parent.expect_change()
            self._is_counted = True

    @property
    def is_readonly(self) -> bool:
        """Whether the turn may not write."""
        return self.connection is not None and self.connection.readonly and not self.approves

    @property
    def user(self) -> str | None:
        """The id of the principal of the connection or request; None without one."""
        if self.connection is not None:
            return self.connection.user
        return self.party.user if isinstance(self.party, Party) else None

    @property
    def may_have_stored(self) -> bool:
        """Whether a change of the turn, or of a turn that it has called, is durable or may become durable."""
        return self.has_stored or self._undecided > 0

    def _withdraw(self) -> None:
        if self._is_counted and self.parent is not None:
            self._is_counted = False
            self.parent.decide_change(may_be_stored=False)

    def explain_loss(self, failure: E) -> E | Indeterminate:
        """Return the error that the caller gets for the error that has ended the turn."""
        return admit_change(failure, self.name) if self.may_have_stored else failure

    def cut(self, failure: PlaitError) -> None:
        """Cancel the running turn: it ends with this error, and can no longer change or send anything."""
        if self.loss is None:
            self.loss = failure
            self.cancel()

    def cancel(self) -> None:
        """Cancel the turn if it is running; skip it if it has not begun."""
        self.skip()
        # A task that is cancelled before its first step would never end the turn.
        if self.task is not None and self.is_running:
            self.task.cancel_turn()

    @property
    def is_cancelled(self) -> bool:
        """Whether plait or the ending loop has cancelled the running turn; its code may have cancelled itself."""
        task = self.task
        return task is not None and task.cancelling() > 0 and (task.cancellations > 0 or self.actor.is_shutting_down)

    def skip(self) -> None:
        """Skip the turn if it has not begun."""
        self.is_abandoned = True
        if self.is_waiting or not self.is_running:
            self._withdraw()

    def abandon(self, *, is_closed: bool = False) -> None:
        """Skip the turn if it has not begun; cancel it if it runs concurrently with other turns.

        `is_closed` means that the caller's socket was closed.
        """
        self.skip()
        if self.on_abandon is not None:
            self.on_abandon(is_closed)
        elif self.mailbox is None:
            self.cancel()

    def time_out(self) -> None:
        """Cancel the turn because it runs too long; its outcome will be TurnTimeout."""
        if self.task is not None:
            self.task.is_timed_out = True
        self.cancel()

    def has_set_variables(self) -> bool:
        """Whether the turn has set context variables of the calling task, which the next turn must not see."""
        context = copy_context()
        return len(context) != 1 or context.get(_turn) is not self


def check_may_write(key: ThreadKey) -> None:
    """Raise Readonly if a read-only client of this thread caused the calling code to run."""
    turn = find_client_turn()
    # The rights of a connection apply only to its own thread.
    if turn is not None and turn.is_readonly and turn.actor.key == key:
        raise Readonly("Connection is readonly")


def find_rights() -> Rights | None:
    """Return the rights of the client that has called the running method; None for code of the server."""
    turn = current_turn()
    return turn.connection.rights if turn is not None and turn.by_client and turn.connection is not None else None


async def wait_for_birth(key: ThreadKey) -> None:
    """Wait until a thread is born, if it is a child of the calling turn or of a turn that waits for it."""
    latest = latest_turn()
    for turn in () if latest is None else latest.chain():
        if (relatives := getattr(turn.actor, "relatives", None)) is not None:
            await relatives.wait_until_born(str(key))
