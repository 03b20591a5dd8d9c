"""Has the agent of a thread called for its queue: each call is an attempt, or a run of a task for a durable agent."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Protocol

from plait.actor.logs import about
from plait.clock import read_due_clock
from plait.errors import PlaitError
from plait.parts.attempt_runner import AttemptRunner
from plait.parts.attempts import PAUSES, RetryPolicy, Uncounted
from plait.parts.messages.changes import Changes
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.model_history import OpenCalls
from plait.parts.messages.own_metadata import make_own
from plait.parts.messages.state import QueueAttempts
from plait.parts.messages.tool_calls import STATUS, read_call
from plait.parts.part import find_role
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["FAILED", "QUEUE", "STOPPED", "AgentCaller", "TaskCaller", "make_caller"]

log = logging.getLogger("plait.agents")

FindOpenCalls = Callable[[], Awaitable[Sequence[OpenCalls]]]

FAILED: Final = "Something went wrong, so there is no answer."
"""The text of the failed message that a failed run leaves; its error is only in the log and in its `error`."""

QUEUE: Final = "queue"
"""The id of the queue in the `AttemptRunner`, which has no other work, and the key of the tasks that it begins."""


STOPPED: Final = "Execution stopped by user"
"""The result of a call that was open when its run was stopped."""

# The result of a call that was open when its thread was terminated.
_TERMINATED: Final = "The thread was terminated before this call had a result."


class TaskRuns(Protocol):
    """The runs of the tasks of one thread."""

    def is_running(self, name: str, key: str) -> bool: ...

    def run(self, name: str, *, key: str) -> object: ...

    def cancel_all(self, names: Collection[str]) -> bool: ...


class AgentCaller:
    """Begins runs of an agent, one at a time, while messages are queued."""

    def __init__(self, writer: MessageWriter, agent: str) -> None:
        self._writer = writer
        self.agent = agent
        self._runner = AttemptRunner(writer.actor, self)
        # Whether the app has no such agent.
        self._is_missing = False

    # Called by the thread's timer

    @property
    def due(self) -> int:
        """When the thread must be awake to call the agent; 0 for never, as in a terminated thread."""
        is_never = self._is_missing or self._writer.actor.terminated_at is not None
        return 0 if is_never else self._writer.state.head.attempts.due

    @property
    def wakes_at(self) -> int:
        """When the next attempt must be made; 0 for never."""
        is_busy = self._runner.running or self._writer.state.head.attempts.process
        return 0 if is_busy else self.due

    @property
    def keeps(self) -> bool:
        """Whether messages are queued, in a thread that was not terminated."""
        return self._writer.actor.terminated_at is None and bool(self._writer.state.queue or self.due)

    def terminate(self) -> None:
        """Do nothing, as queued messages stay pending."""

    def on_due(self, now: int) -> None:
        """Make an attempt, or give up the oldest message."""
        self.follow(None)

    # Called by the messages

    def recover(self) -> None:
        """Count an attempt that has ended with its process, when the thread wakes."""
        writer, state = self._writer, self._writer.state
        writer.load(
            state.with_attempts(
                state.head.attempts.recover_at(state.queue, read_due_clock(), writer.actor.host.process)
            )
        )

    def begin_with(self, changes: Changes) -> bool:
        """Begin an attempt in the write that queues a message, if nothing else must come first; return if it has begun.

        `follow` must then be called with that write.
        """
        if self._runner.running or self._is_missing or changes.attempts.due:
            return False
        changes.attempts = QueueAttempts(due=read_due_clock()).begin_at(changes.oldest, self._writer.actor.host.process)
        return True

    def follow(self, begun: Commit | None) -> None:
        """Call the agent when the attempt is durable: the one that a write has begun, or else another one."""
        self._runner.begin(QUEUE, f"agent {self.agent}", begun=begun)

    # The work of `AttemptRunner`

    def find(self, id: str) -> QueueAttempts | None:
        """Return the attempts at the queue; None if no other one is needed."""
        attempts = self._writer.state.head.attempts
        return attempts if attempts.due else None

    def retries(self, id: str) -> RetryPolicy:
        """Return how often a message is attempted."""
        return PAUSES

    def put(self, id: str, attempts: QueueAttempts) -> Commit:
        """Store that an attempt begins, or that it has ended without success."""
        writer = self._writer

        def work(changes: Changes) -> None:
            if attempts.process:
                changes.attempts = attempts.begin_at(changes.oldest, attempts.process)
                return
            before = changes.attempts
            # An attempt that does not count has not failed for what it took.
            taken = writer.taken_until if attempts.failures > before.failures else 0
            changes.attempts = attempts.end(changes.oldest, taken)
            if before.process and not writer.has_streamed:
                changes.remove_left()

        return writer.write(work)[1]

    async def attempt(self, id: str) -> None:
        """Run the agent; it must take what is queued."""
        writer = self._writer
        writer.taken_until, writer.has_streamed = 0, False
        try:
            run = writer.actor.run_agent(self.agent, writer)
        except (ValueError, PlaitError) as failure:  # The agent does not exist, or takes an input.
            log.error("queued messages are not handled: %s", failure, extra=about(writer.actor.key))
            self._is_missing = True
            raise Uncounted from failure
        is_interrupted = await run
        if not writer.state.head.attempts.process:
            return  # The run's last write has ended it.
        if (error := self._end(counts=not is_interrupted)) is not None:
            raise error

    def give_up(self, id: str, error: BaseException) -> Commit:
        """Move the oldest message to the history as failed, and continue with the next one."""
        attempts = self._writer.state.head.attempts
        after = attempts.end(attempts.oldest, self._writer.taken_until)

        def work(changes: Changes) -> None:
            if changes.queue and changes.oldest == attempts.oldest:
                changes.give_up(changes.queue[0])
            changes.attempts = after.succeed(changes.oldest, read_due_clock())

        return self._writer.write(work)[1]

    def ended(self, id: str, unstored: QueueAttempts | None) -> None:
        """Keep what could not be stored in memory."""
        if unstored is not None:
            self._writer.state = self._writer.state.with_attempts(unstored)

    # Inside

    def _end(self, *, counts: bool) -> Exception | None:
        """Store that an attempt has succeeded if it has taken the oldest message; return the error otherwise."""
        attempts = self._writer.state.head.attempts
        if attempts.has_taken(self._writer.state.oldest):
            self._writer.write(self._writer.succeed)
            return None
        times = "its run" if not attempts.failures else f"{attempts.failures + 1} runs"
        what = f"has not taken a queued message in {times}: it must call `messages.take()`"
        return RuntimeError(f"the agent {self.agent} {what}") if counts else Uncounted()


class TaskCaller(AgentCaller):
    """Begins runs of a durable agent, one at a time, while messages are queued.

    A run is an attempt that takes them in its steps, and may leave the memory in between. The task counts its crashes.
    """

    def __init__(self, writer: MessageWriter, agent: str, tasks: TaskRuns, find_open_calls: FindOpenCalls) -> None:
        super().__init__(writer, agent)
        self._tasks = tasks
        self._find_open_calls = find_open_calls
        # When the open calls of a terminated thread are answered; 0 if they are.
        self._closes_at = 0

    @property
    def due(self) -> int:
        if self._writer.actor.terminated_at is not None:
            return self._closes_at
        is_running = self._tasks.is_running(self._writer.part, QUEUE)
        return 0 if is_running or self._writer.state.head.is_stopped else super().due

    def terminate(self) -> None:
        self._closes_at = read_due_clock()

    def recover(self) -> None:
        super().recover()
        self._closes_at = read_due_clock()  # The process may have ended before they were answered.

    def on_due(self, now: int) -> None:
        if self._writer.actor.terminated_at is None:
            self.follow(None)
            return
        self._closes_at = 0
        self._writer.actor.begin("end of calls", self._close_calls, self._follow_close, is_used=False)

    def begin_with(self, changes: Changes) -> bool:
        """Begin nothing: the queue is due when the write is durable."""
        return False

    def follow(self, begun: Commit | None) -> None:
        """Begin a run, in one write with the attempt."""
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            self._tasks.run(self._writer.part, key=QUEUE)
            self._writer.write(self._begin)

    def follow_end(self, status: str) -> None:
        """Follow the end of a run in its write, as that of an attempt; one that was cancelled does not count.

        A run that has taken the messages is not repeated: if it fails, the conversation says so.
        """
        error = self._end(counts=status != "cancelled")
        if error is None and status == "failed":
            message = self._writer.make("assistant", FAILED, status="failed", is_new=False)
            self._writer.write(lambda changes: changes.add(message))
        self._runner.end(QUEUE, f"agent {self.agent}", error)

    def stop(self, open_calls: Sequence[OpenCalls]) -> tuple[bool, Commit]:
        """Store in one write that no run may begin, the ends of all, and the results of the open calls.

        Returns whether there was a run, and the write.
        """

        with Transaction(self._writer.actor.state, self._writer.actor.key):
            has_run = self._tasks.cancel_all(self._writer.actor.kind.tasks)
            self._answer_calls(open_calls, STOPPED)
            _, commit = self._writer.write(lambda changes: setattr(changes, "is_stopped", True))
        return has_run, commit

    def resume(self) -> tuple[bool, Commit | None]:
        """Begin a run after a stop; return whether there was one, and the write."""
        if not self._writer.state.head.is_stopped:
            return False, None
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            _, commit = self._writer.write(lambda changes: setattr(changes, "is_stopped", False))
            self.follow(None)
        return True, commit

    # Inside

    async def _close_calls(self) -> None:
        self._answer_calls(await self._find_open_calls(), _TERMINATED)

    def _follow_close(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._closes_at = read_due_clock() + PAUSES.pause(1)
        self._writer.actor.arm()

    def _answer_calls(self, open_calls: Sequence[OpenCalls], text: str) -> None:
        """Add results to calls that are left without one; no hook can refuse them."""
        metadata = make_own({STATUS: "error"})
        for place in reversed(open_calls):
            where: dict[str, Any] = {"parent_id": place.parent_id, "depth": place.depth, "metadata": metadata}
            for id, name, _ in map(read_call, place.calls):
                made = self._writer.make("tool", text, name=name, tool_call_id=id, is_new=False, **where)
                self._writer.write(partial(Changes.add, message=made))

    def _begin(self, changes: Changes) -> None:
        changes.attempts = changes.attempts.begin_at(changes.oldest, process="")


def make_caller(writer: MessageWriter, find_open_calls: FindOpenCalls) -> AgentCaller | None:
    """Return what has the agent of a queue called; None if there is none."""
    if (agent := writer.agent) is None:
        return None
    actor = writer.actor
    tasks = find_role(type(actor.thread), "tasks") if agent in actor.kind.tasks else None
    return AgentCaller(writer, agent) if tasks is None else TaskCaller(writer, agent, tasks.of(actor), find_open_calls)
