"""One execution of an agent, and its interrupts."""

import asyncio
import secrets
from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec

from plait.actor.actor import Actor
from plait.actor.turn import Turn, find_user
from plait.agents.agent import Agent
from plait.agents.cut_off import Mark
from plait.agents.session import Session
from plait.author_code import Interrupted, find_error
from plait.errors import TurnTimeout, Unavailable
from plait.parts.stage import Stage

__all__ = ["Interruption", "Run"]

# The number of versions of a thread that need not be durable before its agent continues.
_AHEAD: Final = 64


class Interruption(msgspec.Struct, frozen=True):
    """The result of an interrupted run: the message of the interrupt, and what the agent returned, if anything."""

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
        self.stage: Stage = Stage(actor, self.check) if outer is None else outer.stage
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
        # Whether it is interrupted because the server is shutting down.
        self.is_cut_off = False
        # Whether the run before it was cut off.
        self.follows_cut_off = False
        # Whether it is repeated unless it ends by itself; its writes are then dropped.
        self.is_repeated = False
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
        """Interrupt the agent at its next checkpoint; without a message, that of an earlier interrupt is kept."""
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
                and (self.is_cut_off or self.actor.termination.at is not None)
            ):
                return Unavailable("the server is shutting down, or the thread was terminated")
            return None if self.outermost is self else failure
        if has_expired and isinstance(failure, TimeoutError | asyncio.CancelledError | GeneratorExit):
            return TurnTimeout(f"{name} took longer than {self.agent.timeout:g} s")
        # An inner agent may be cancelled by the agent that called it.
        is_cancelled = self.outermost is not self or self.turn is None or self.turn.is_cancelled
        return find_error(failure, name, GeneratorExit, *((asyncio.CancelledError,) if is_cancelled else ()))
