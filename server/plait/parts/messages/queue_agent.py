"""The agent of a thread's queue: its name, and how it is changed, stopped and resumed."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from plait.actor.begun import Begun
from plait.errors import NotFound
from plait.parts.encoding import check_type
from plait.parts.messages.changes import Changes
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.reading import MessageReader
from plait.parts.part import check_writable
from plait.parts.stage import begin_staged
from plait.parts.written import STAGED, Result, Written
from plait.spelling import find_nearest
from plait.state.commit import Commit

__all__ = ["QueueAgent"]

T = TypeVar("T")


class AgentDraft(Protocol):
    """The part of a run's draft that the agent of its thread uses."""

    @property
    def changes(self) -> Changes:
        """The messages as the run sees them."""
        ...

    def set(self, name: Literal["agent", "is_stopped"], value: Any) -> None:
        """Set an attribute of the changes."""
        ...


class StoppableRuns(Protocol):
    """The runs of a durable agent for the queue of a thread."""

    async def stop(self, reader: MessageReader) -> bool:
        """Cancel all runs, and begin none; return whether there was one."""
        ...

    def resume(self) -> tuple[bool, Commit | None]:
        """Begin a run after a stop; return whether there was one, and the write."""
        ...


class QueueAgent:
    """The agent that is called for the queued messages of one thread; ThreadMessages derives from it."""

    def __init__(self, writer: MessageWriter, reader: MessageReader, runs: StoppableRuns | None) -> None:
        self._actor = writer.actor
        self._writer = writer
        self._reader = reader
        # The runs of a durable agent; None without one.
        self._runs = runs

    @property
    def is_stopped(self) -> bool:
        """Whether its durable agent is stopped."""
        return self._writer.state.head.is_stopped

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers: that of the class, or the one to which the thread was handed over."""
        found = self._writer.state.head.agent
        return found if found in self._actor.kind.agent_names else self._writer.agent

    def hand_over(self, agent: str) -> Result[None]:
        """Make another agent of the execution that of the thread. Raises NotFound."""
        check_type("agent", agent, str)
        if agent not in (names := self._actor.kind.agent_names):
            near = find_nearest(agent, names)
            raise NotFound(f"there is no agent named {agent!r}" + (f"; did you mean {near!r}?" if near else ""))
        self._check_may_add()
        if (draft := self._use_draft()) is not None:
            draft.set("agent", agent)
            return Result(None, STAGED)
        return self._write(lambda changes: setattr(changes, "agent", agent))

    def stop(self) -> Begun[bool]:
        """Cancel the runs of durable agents, and begin none until `resume`, or until a `user` message is queued.

        Calls of tools without results get results that say so, and what streams becomes failed. What is queued stays.
        In a run, nothing is cancelled: the run ends after its step. Returns whether there was a run.
        """
        check_writable(self._actor)
        return begin_staged(self._actor, self._stop(self._use_draft()))

    async def _stop(self, draft: AgentDraft | None) -> bool:
        runs = self._find_runs()
        if draft is None:
            return await runs.stop(self._reader)
        draft.set("is_stopped", True)
        return True

    def resume(self) -> Result[bool]:
        """Begin a run of the durable agent where it was stopped; return whether it was. Raises Terminated."""
        self._check_may_add()
        runs = self._find_runs()
        if (draft := self._use_draft()) is not None:
            was_stopped = draft.changes.is_stopped
            draft.set("is_stopped", False)
            return Result(was_stopped, STAGED)
        was_stopped, commit = runs.resume()
        return Result(was_stopped, self._written(commit))

    # Inside

    def _find_runs(self) -> StoppableRuns:
        if self._runs is None:
            raise NotFound("only a durable agent can be stopped, and these messages have none: interrupt its run")
        return self._runs

    def _use_draft(self) -> AgentDraft | None:
        """Return the draft of the run; None outside of runs and in a transaction. Raises Interrupted."""
        raise NotImplementedError

    def _check_may_add(self) -> None:
        """Raise the errors of `check_writable`, and Terminated."""
        check_writable(self._actor)
        self._actor.check_active()

    def _write(self, work: Callable[[Changes], T]) -> Result[T]:
        result, commit = self._writer.write(work)
        return Result(result, self._written(commit))

    def _written(self, commit: Commit | None) -> Written:
        """Return an awaitable write; without a commit, it stands for all writes so far."""
        return Written(commit or self._actor.records.write([]), self._actor.state.find_own_transaction())
