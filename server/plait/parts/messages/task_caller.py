"""Has the task of a durable agent run for the queue of a thread."""

import logging
from functools import partial
from typing import Any, Final, Protocol

from plait.actor.logs import about
from plait.clock import read_due_clock
from plait.parts.attempts import PAUSES
from plait.parts.messages.caller import AgentCaller
from plait.parts.messages.changes import Changes
from plait.parts.messages.message import Message
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.model_history import OpenCalls
from plait.parts.messages.own_metadata import make_own
from plait.parts.messages.reading import MessageReader
from plait.parts.messages.tool_calls import STATUS, read_call
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["STOPPED", "QueuedRuns", "TaskCaller", "make_caller"]

log = logging.getLogger("plait.agents")

STOPPED: Final = "Execution stopped by user"
"""The result of a call that was open when its run was stopped."""

_NO_PROCESS: Final = ""


class QueuedRuns(Protocol):
    """The runs of a durable agent for the queue of one thread."""

    @property
    def is_running(self) -> bool:
        """Whether one has not ended."""
        ...

    def begin(self) -> object:
        """Begin one, in the open transaction."""
        ...

    def cancel(self) -> bool:
        """Cancel all runs of durable agents of the thread, in the open transaction; return whether there are any."""
        ...


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
        return 0 if self._runs.is_running or self._writer.state.head.is_stopped else super().due

    @property
    def wakes_at(self) -> int:
        return self.due

    def recover(self) -> None:
        """Do nothing, as the task counts its crashes."""

    def begin_with(self, changes: Changes) -> bool:
        """Begin nothing: the queue is due when the write is durable."""
        return False

    def follow(self, begun: Commit | None) -> None:
        """Begin a run, and note in the same write which message was the oldest then."""
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            self._runs.begin()
            self._writer.write(self._note_begin)

    def follow_end(self, *, is_cancelled: bool) -> None:
        """Follow the end of a run, in the same write: the next one begins at once, or later if it has taken nothing."""
        self._writer.write(partial(self._end, is_cancelled))

    async def stop(self, reader: MessageReader) -> bool:
        """Store in one write that no run may begin, the ends of all, and the results of open calls.

        Returns whether there was a run.
        """
        writer = self._writer
        while True:
            edits, last = writer.edits, writer.state.head.last
            found = await reader.find_open_calls()
            if (edits, last) == (writer.edits, writer.state.head.last):
                break

        def work(changes: Changes) -> None:
            changes.is_stopped = True
            for each in results:
                changes.add(each)

        with Transaction(writer.actor.state, writer.actor.key):
            has_run = self._runs.cancel()
            results = [self._answer(each, *read_call(call)[:2]) for each in reversed(found) for call in each.calls]
            _, commit = writer.write(work)
        await commit
        return has_run

    def resume(self) -> tuple[bool, Commit | None]:
        """Begin a run after a stop; return whether there was one, and the write."""
        if not self._writer.state.head.is_stopped:
            return False, None
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            _, commit = self._writer.write(lambda changes: setattr(changes, "is_stopped", False))
            self.follow(None)
        return True, commit

    # Inside

    def _answer(self, place: OpenCalls, id: str, name: str) -> Message:
        """Return the result of a call that a stop has left without one; no hook can refuse it."""
        metadata = make_own({STATUS: "error"})
        where: dict[str, Any] = {"parent_id": place.parent_id, "depth": place.depth}
        return self._writer.make("tool", STOPPED, name=name, tool_call_id=id, metadata=metadata, is_new=False, **where)

    def _note_begin(self, changes: Changes) -> None:
        changes.attempts = changes.attempts.begin_at(changes.oldest, _NO_PROCESS)

    def _end(self, is_cancelled: bool, changes: Changes) -> None:
        before, now = changes.attempts, read_due_clock()
        if before.oldest != changes.oldest:
            changes.attempts = before.succeed(changes.oldest, now)
        elif is_cancelled:
            changes.attempts = before.rest(now + PAUSES.pause(1))
        elif (after := before.fail(PAUSES, now)) is not None:
            changes.attempts = after
        elif changes.queue:
            text = "the agent %s has not taken a queued message in %d runs: it must call `messages.take()` in a step"
            log.error(text, self._agent, PAUSES.attempts, extra=about(self._writer.actor.key))
            changes.give_up(changes.queue[0])
            changes.attempts = before.succeed(changes.oldest, now)


def make_caller(writer: MessageWriter) -> AgentCaller | None:
    """Return what has the agent of a queue called; None if there is none."""
    if (agent := writer.agent) is None:
        return None
    task = writer.actor.kind.tasks.get(agent)
    return AgentCaller(writer, agent) if task is None else TaskCaller(writer, agent, task.bind(writer.actor))
