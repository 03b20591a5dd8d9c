"""One execution of an agent, its interrupts, and the mark of a thread whose run has not ended."""

import asyncio
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from plait.actor.actor import Actor
from plait.actor.thread import ThreadActor
from plait.actor.turn import Turn, find_user
from plait.agents.agent import Agent
from plait.agents.session import Session
from plait.author_code import Interrupted, find_error
from plait.errors import PlaitError, TurnTimeout, Unavailable
from plait.parts.messages.run_stage import RunStage
from plait.parts.stage import Stage
from plait.parts.written import Draft
from plait.store.thread_rows import Record

__all__ = ["MARK", "Interruption", "Mark", "Marks", "Run"]

MARK: Final = ("agents", "cut-off")
"""The part and the key of the record."""

_MARKED: Final = Record(*MARK, b"{}")
_NOT_MARKED: Final = Record(*MARK, None)

# Seconds after which the thread of a run is marked: most runs end earlier, and cost no write.
_DELAY: Final = 0.1
# Maximum number of threads that are marked in one iteration of the loop.
_AT_ONCE: Final = 64


class Marks:
    """Marks threads whose runs take long, with one timer for all of them."""

    def __init__(self) -> None:
        # The threads to mark, and their times, in order of time.
        self.due: dict[Mark, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer, unless it is set or there are no threads to mark."""
        if self._timer is None and self.due:
            # An empty context: the timer belongs to no run.
            self._timer = loop.call_at(next(iter(self.due.values())), self._fire, loop, context=Context())

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now = None, loop.time()
        for mark in [each for each, time in islice(self.due.items(), _AT_ONCE) if time <= now]:
            del self.due[mark]
            mark.write()
        self.arm(loop)


class Mark:
    """The mark of one thread. The last writes of a run and the removal of the mark are stored as one."""

    __slots__ = ("_actor", "_is_stored", "_marks", "is_untold")

    def __init__(self, actor: ThreadActor, marks: Marks) -> None:
        self._actor = actor
        self._marks = marks
        # Whether the record is or may be stored; None if that is not known.
        self._is_stored: bool | None = None
        # Whether a run was cut off and no later run has been told and has ended.
        self.is_untold = False

    async def begin(self) -> bool:
        """Mark the thread if the run takes long; return whether one was cut off before. Raises StoreError."""
        if self._is_stored is None:
            self._is_stored = self.is_untold = await self._actor.records.read(*MARK) is not None
        if not self._is_stored:
            loop = asyncio.get_running_loop()
            self._marks.due[self] = loop.time() + _DELAY
            self._marks.arm(loop)
        return self.is_untold

    def write(self) -> None:
        """Store the mark."""
        with suppress(PlaitError):  # The thread has ended.
            self._actor.records.write([_MARKED])
            self._is_stored = True

    def end(self, stage: Stage, *, is_cut_off: bool) -> None:
        """Remove the mark with the last writes of a run, or make sure that it is stored if the run was cut off."""
        self._marks.due.pop(self, None)
        self.is_untold = is_cut_off
        if is_cut_off or self._is_stored:
            stage.drafts[MARK] = _Draft(self, _MARKED if is_cut_off else _NOT_MARKED)

    def store(self, record: Record) -> None:
        """Store the mark, or remove it. Raises what `Pipeline.store` raises."""
        commit = self._actor.records.write([record])
        self._is_stored = record is _MARKED
        commit.then(self._finish)

    def leave(self, *, is_last: bool) -> None:
        """Remove the mark if the run could not, and is the last one; otherwise the next run removes it when it ends."""
        self._marks.due.pop(self, None)
        if is_last and self._is_stored and not self.is_untold and self._actor.state.history.is_begun:
            with suppress(PlaitError):  # The thread has been stopped, or has ended.
                self.store(_NOT_MARKED)

    def _finish(self, error: PlaitError | None) -> None:
        if error is not None:
            self._is_stored = True  # The record may be stored.


class _Draft(Draft):
    """The part of a mark in a run's stage, which is stored with the run."""

    def __init__(self, mark: Mark, record: Record) -> None:
        self._mark = mark
        self._record: Record | None = record

    @property
    def is_dirty(self) -> bool:
        return self._record is not None

    def write(self) -> None:
        assert self._record is not None
        self._mark.store(self._record)
        self._record = None

    def drop(self) -> None:
        self._record = None


# The number of versions of a thread that need not be durable before its agent continues.
_AHEAD: Final = 64


class Interruption(msgspec.Struct, frozen=True):
    """The result of an interrupted run: the message of the interrupt, and the return value of the agent, if any."""

    message: Any = None
    output: Any = None
    interrupted: Literal[True] = True


class Run:
    """One execution of an agent in a thread. Agents that it calls there have their own runs inside of this one."""

    def __init__(
        self,
        agent: Agent,
        actor: Actor,
        session: Session,
        *,
        turn: Turn | None,
        outer: "Run | None",
        caller: "Run | None",
    ) -> None:
        self._id = ""
        self.agent = agent
        self.actor = actor
        self.session = session
        # The turn in which it runs.
        self.turn = turn
        # The run that called it, in any thread, and the outermost run of the request, if that is another one.
        self.caller = caller
        self._outermost = None if outer is None else outer.outermost
        # The staged writes to the thread's parts, shared by all runs of the request.
        self.stage: RunStage = RunStage(actor, self.check) if outer is None else outer.stage
        # The background work of the request, which the outermost run owns.
        self.background: set[asyncio.Task[None]] = set()
        # Functions that begin background work after the run, in the turn that they get, and return its task.
        self._later: list[Callable[[Turn | None], asyncio.Task[None]]] = []
        # The message of the interrupt.
        self.interrupt_message: Any = None
        self.is_interrupted = False
        # Whether the agent has begun, whether it must still get the last interrupt, and whether it has ended.
        self.has_begun = False
        self._is_untold = False
        self.is_over = False
        # The mark of its thread, after the queue has admitted the run.
        self.mark: Mark | None = None
        # Cancels the work after the answer, while it runs.
        self.cut_rest: Callable[[], None] | None = None
        # Whether the run is interrupted because the server is shutting down.
        self.is_cut_off = False
        # Whether the run before it was cut off.
        self.follows_cut_off = False
        # Whether the run is repeated unless it ends by itself; its writes are then dropped.
        self.is_repeated = False
        # Stores the end of the attempt at a queue that the run is; None for other runs.
        self.end_attempt: Callable[[], object] | None = None
        # The id of the user whose session the thread is, if the message queue has begun the run.
        self.session_user: str | None = None
        # The ids of the principals that have begun it, by a call or by messages.
        self.users: Collection[str] = [] if (user := find_user()) is None else [user]

    @property
    def id(self) -> str:
        """`run_` and 32 hexadecimal digits."""
        if not self._id:
            self._id = f"run_{secrets.token_hex(16)}"
        return self._id

    @property
    def outermost(self) -> "Run":
        """The run of the request, which holds the place in the queue for this one."""
        return self if self._outermost is None else self._outermost

    @property
    def ends_interrupted(self) -> bool:
        """Whether the request ends with an Interruption when this run ends."""
        return self.outermost is self and self.is_interrupted

    def interrupt(self, message: Any = None) -> None:
        """Interrupt the agent at its next checkpoint; without a message, keep the message of the earlier interrupt."""
        if message is not None:
            self.interrupt_message = message
        self.is_interrupted = self._is_untold = True
        if self.turn is not None and self.turn.hurry is not None:
            self.turn.hurry()

    def cut_off(self) -> None:
        """Interrupt the run as the server shuts down."""
        self.is_cut_off = True
        self.interrupt()

    @property
    def has_background(self) -> bool:
        """Whether there is background work that is running or waits for the end of the run."""
        return bool(self.background or self._later)

    def begin_after(self, begin: Callable[[Turn | None], asyncio.Task[None]]) -> None:
        """Begin background work when the run has ended; at once, in the calling turn, if it has already ended."""
        if self.is_over:
            self.background.add(begin(None))
        else:
            self._later.append(begin)

    def begin_background(self, turn: Turn) -> None:
        """Begin the waiting background work, as a part of the turn that waits for it."""
        later, self._later = self._later, []
        self.background.update([begin(turn) for begin in later])

    def check(self) -> None:
        """Raise Interrupted if the request was interrupted after the last check, and its agents are running."""
        if (interrupted := self.take_interrupt()) is not None:
            raise interrupted

    async def wait_for_store(self) -> None:
        """If more than 64 versions are not durable, wait until all changes so far are."""
        pipeline = self.actor.state
        history = pipeline.history
        if history.current.version - history.durable.version > _AHEAD:
            await pipeline.wait_until_stored()

    def take_interrupt(self) -> Interrupted | None:
        """Return the exception that `check` would raise."""
        run = self.outermost
        if not run._is_untold or not run.has_begun or run.is_over:
            return None
        run._is_untold = False
        return Interrupted(run.interrupt_message)

    def explain(self, failure: BaseException, has_expired: bool) -> BaseException | None:
        """Return the error of the run; None if it was interrupted. An inner run passes an interrupt on."""
        name = f"the agent {self.agent.name}"
        failure = find_error(failure, name, Interrupted, asyncio.CancelledError, GeneratorExit)
        if (isinstance(failure, Interrupted) and (self.outermost is not self or self.is_interrupted)) or (
            isinstance(failure, asyncio.CancelledError) and self.outermost.is_cut_off
        ):
            if (
                self.outermost is self
                and self.is_repeated
                and (self.is_cut_off or self.actor.terminated_at is not None)
            ):
                return Unavailable("the server is shutting down, or the thread was terminated")
            return None if self.outermost is self else failure
        if has_expired and isinstance(failure, TimeoutError | asyncio.CancelledError | GeneratorExit):
            return TurnTimeout(f"{name} took longer than {self.agent.timeout:g} s")
        # An inner agent may be cancelled by the agent that called it.
        is_cancelled = self.outermost is not self or self.turn is None or self.turn.is_cancelled
        return find_error(failure, name, GeneratorExit, *((asyncio.CancelledError,) if is_cancelled else ()))
