"""One execution of an agent, and how it is interrupted."""

import asyncio
import secrets
from contextvars import ContextVar
from typing import Any, Final, Literal

import msgspec

from plait.actor.actor import Actor
from plait.actor.mailbox import Turn
from plait.agents.agent import Agent
from plait.agents.session import Session
from plait.parts.stage import Stage

__all__ = ["Interrupted", "Interruption", "Run", "enter_background"]

# Whether the calling code is background work, which is not interrupted.
_is_background: Final[ContextVar[bool]] = ContextVar("plait_background", default=False)


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
        core: Actor,
        session: Session,
        *,
        turn: Turn | None,
        outer: "Run | None",
        caller: "Run | None",
    ) -> None:
        self.id = f"run_{secrets.token_hex(16)}"
        self.agent = agent
        self.core = core
        self.session = session
        # The turn in which it runs.
        self.turn = turn
        # The run that called it, in any thread, and the one of the request, in whose place in the queue it runs.
        self.caller = caller
        self.outermost: Run = self if outer is None else outer.outermost
        # What is staged of the thread's parts, shared by all runs of the request.
        self.stage: Stage = Stage(core.thread._core, self.check) if outer is None else outer.stage
        # The background work of the request, which the outermost run owns.
        self.background: set[asyncio.Task[None]] = set()
        # With which message it was interrupted.
        self.interrupt_message: Any = None
        self.is_interrupted = False
        # Whether the agent has been told, and whether it has ended.
        self._is_told = False
        self.is_over = False
        # Whether it is interrupted because the server shuts down.
        self.is_cut_off = False
        # Whether the run before it was.
        self.follows_cut_off = False

    def interrupt(self, message: Any = None) -> None:
        """Let the agent be interrupted at its next checkpoint."""
        self.interrupt_message = message
        self.is_interrupted = True

    def check(self) -> None:
        """Raise Interrupted, once, if the request is interrupted while its agents run."""
        run = self.outermost
        if run.is_interrupted and not run._is_told and not run.is_over and not _is_background.get():
            run._is_told = True
            raise Interrupted(run.interrupt_message)

    def take_interrupt(self) -> Interrupted | None:
        """Return what `check` would raise."""
        try:
            self.check()
        except Interrupted as interrupted:
            return interrupted
        return None


def enter_background() -> None:
    """Let the calling task be background work."""
    _is_background.set(True)
