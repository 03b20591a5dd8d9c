"""One execution of an agent, and how it is interrupted."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from plait.actor.actor import Actor
from plait.actor.turn import Turn
from plait.agents.agent import Agent
from plait.agents.cut_off import Mark
from plait.agents.session import Session
from plait.errors import TurnTimeout, Unavailable
from plait.parts.stage import Stage

__all__ = ["Interrupted", "Interruption", "Run"]

# Versions of a thread that need not be durable before its agent goes on.
_AHEAD: Final = 64


class Interrupted(BaseException):
    """Raised in an agent at its next checkpoint when its run is interrupted; `message` is what the caller gave.

    An agent may catch it to end in its own way; what it returns then is the output of the interruption. It is no
    Exception, so that code which handles errors does not stop it.
    """

    def __init__(self, message: Any = None) -> None:
        super().__init__("the run was interrupted")
        self.message = message


class Interruption(msgspec.Struct, frozen=True):
    """The result of a run that was interrupted: the message with which, and what the agent returned, if anything."""

    message: Any = None
    output: Any = None
    interrupted: Literal[True] = True


class Run:
    """One execution of an agent in a thread. Agents that it calls there have runs of their own inside of this one."""

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
        # The run that called it, in any thread, and the one of the request, if that is another one.
        self.caller = caller
        self._outermost = None if outer is None else outer.outermost
        # What is staged of the thread's parts, shared by all runs of the request.
        self.stage: Stage = Stage(actor, self.check) if outer is None else outer.stage
        # The background work of the request, which the outermost run owns.
        self.background: set[asyncio.Task[None]] = set()
        # What begins when the run has ended, in the turn that it is given: each returns its task.
        self._later: list[Callable[[Turn | None], asyncio.Task[None]]] = []
        # With which message it was interrupted.
        self.interrupt_message: Any = None
        self.is_interrupted = False
        # Whether the agent has begun, has yet to be told of the last interrupt, and has ended.
        self.has_begun = False
        self._is_untold = False
        self.is_over = False
        # The mark of its thread, once it is let in.
        self.mark: Mark | None = None
        # Ends what follows the answer, while that runs.
        self.cut_rest: Callable[[], None] | None = None
        # Whether it is interrupted because the server shuts down.
        self.is_cut_off = False
        # Whether the run before it was.
        self.follows_cut_off = False
        # Whether it is begun again unless it ends by itself, so that what it has written is dropped then.
        self.is_repeated = False

    @property
    def id(self) -> str:
        """`run_` and 32 hexadecimal digits."""
        if not self._id:
            self._id = f"run_{secrets.token_hex(16)}"
        return self._id

    @property
    def outermost(self) -> "Run":
        """The run of the request, in whose place in the queue this one runs."""
        return self if self._outermost is None else self._outermost

    @property
    def ends_interrupted(self) -> bool:
        """Whether the request ends with an Interruption when this run ends."""
        return self.outermost is self and self.is_interrupted

    def interrupt(self, message: Any = None) -> None:
        """Let the agent be interrupted at its next checkpoint; a message of an earlier interrupt stays without one."""
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
        """Whether there is background work that runs, or waits for the end of the run."""
        return bool(self.background or self._later)

    def begin_after(self, begin: Callable[[Turn | None], asyncio.Task[None]]) -> None:
        """Let background work begin when the run has ended: at once, in the calling turn, if it has."""
        if self.is_over:
            self.background.add(begin(None))
        else:
            self._later.append(begin)

    def begin_background(self, turn: Turn) -> None:
        """Begin the work that has waited for the end of the run, as a part of the turn that waits for it."""
        later, self._later = self._later, []
        self.background.update([begin(turn) for begin in later])

    def check(self) -> None:
        """Raise Interrupted if the request was interrupted since the last time, and its agents run."""
        run = self.outermost
        if run._is_untold and run.has_begun and not run.is_over:
            run._is_untold = False
            raise Interrupted(run.interrupt_message)

    async def wait_for_store(self) -> None:
        """Wait until what was changed so far is durable, if that is more than 64 versions."""
        pipeline = self.actor.state
        history = pipeline.history
        if history.current.version - history.durable.version > _AHEAD:
            await pipeline.wait_until_stored()

    def take_interrupt(self) -> Interrupted | None:
        """Return what `check` would raise."""
        try:
            self.check()
        except Interrupted as interrupted:
            return interrupted
        return None

    def explain(self, failure: BaseException, has_expired: bool) -> BaseException | None:
        """Return what the run fails with, None if it was interrupted; an inner one passes that on."""
        if isinstance(failure, BaseExceptionGroup):
            failure = _take_out_interrupts(failure)
        if isinstance(failure, Interrupted) or (
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
            return TurnTimeout(f"the agent {self.agent.name} took longer than {self.agent.timeout:g} s")
        if not isinstance(failure, Exception | asyncio.CancelledError | GeneratorExit):
            # It would end the loop, and leave the caller waiting.
            error = RuntimeError(f"the agent {self.agent.name} raised {type(failure).__name__}")
            error.__cause__ = failure
            return error
        return failure


def _take_out_interrupts(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the other errors of a group, as a task group raises it, or Interrupted if there are none."""
    interrupts, others = group.split(Interrupted)
    if interrupts is None:
        return group  # Of what class it is.
    if others is not None:
        return others
    first: BaseException = interrupts
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
