"""Has the task of a durable agent run for the queue of a thread."""

from typing import Final, Protocol

from plait.clock import read_due_clock
from plait.parts.attempts import PAUSES
from plait.parts.messages.caller import AgentCaller
from plait.parts.messages.changes import Changes
from plait.parts.messages.message_writer import MessageWriter
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["QueuedRuns", "TaskCaller", "make_caller"]

_NO_PROCESS: Final = ""


class QueuedRuns(Protocol):
    """The runs of a durable agent for the queue of one thread."""

    @property
    def is_running(self) -> bool:
        """Whether one has not ended."""
        ...

    def begin(self) -> object:
        """Begin one, in the open transaction."""


class TaskCaller(AgentCaller):
    """Begins runs of a durable agent, one at a time, while messages are queued.

    A run takes them in its steps, and may leave the memory in between; crashes and attempts are those of the task. The
    head of the messages only counts the runs that have taken nothing.
    """

    def __init__(self, writer: MessageWriter, agent: str, runs: QueuedRuns) -> None:
        super().__init__(writer, agent)
        self._runs = runs

    @property
    def due(self) -> int:
        return 0 if self._runs.is_running else super().due

    @property
    def wakes_at(self) -> int:
        return self.due

    def recover(self) -> None:
        """Do nothing, as the task counts its crashes."""

    def begin_with(self, changes: Changes) -> bool:
        """Begin nothing: the queue is due when the write is durable."""
        return False

    def follow(self, begun: Commit | None) -> None:
        """Begin a run, in one write with the message for which it begins."""
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            self._runs.begin()
            self._writer.write(self._note_begin)

    def follow_end(self, *, has_failed: bool) -> None:
        """Follow the end of a run, in the same write: the next one begins at once, or later if it has taken nothing."""
        self._writer.write(self._fail if has_failed else self._succeed)

    # Inside

    def _note_begin(self, changes: Changes) -> None:
        changes.attempts = changes.attempts.begin_at(changes.oldest, _NO_PROCESS)

    def _fail(self, changes: Changes) -> None:
        before, now = changes.attempts, read_due_clock()
        if before.oldest != changes.oldest:
            changes.attempts = before.succeed(changes.oldest, now)
        elif (after := before.fail(PAUSES, now)) is not None:
            changes.attempts = after
        elif changes.queue:
            changes.give_up(changes.queue[0])
            changes.attempts = before.succeed(changes.oldest, now)


def make_caller(writer: MessageWriter) -> AgentCaller | None:
    """Return what has the agent of a queue called; None if there is none."""
    if (agent := writer.agent) is None:
        return None
    task = writer.actor.kind.tasks.get(agent)
    return AgentCaller(writer, agent) if task is None else TaskCaller(writer, agent, task.bind(writer.actor))
