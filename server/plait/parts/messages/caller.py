"""Starts the agent of a thread for its queue: each call is an attempt, or a run of a task for a durable agent."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, NamedTuple, Protocol

from plait.actor.actor import MARK
from plait.actor.connection import Rights
from plait.actor.logs import about
from plait.clock import read_due_clock
from plait.errors import PlaitError
from plait.parts.attempt_runner import AttemptRunner, Work
from plait.parts.attempts import PAUSES, RetryPolicy, Uncounted
from plait.parts.messages.changes import Changes
from plait.parts.messages.message import APPROVAL, STATUS, Message, make_own, read_call
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.model_history import OpenCalls
from plait.parts.messages.run_stage import RunningAttempt
from plait.parts.messages.state import QueueAttempts
from plait.parts.part import find_role
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["FAILED", "QUEUE", "STOPPED", "AgentCaller", "TaskCaller", "make_caller"]

log = logging.getLogger("plait.agents")

FindOpenCalls = Callable[[], Awaitable[Sequence[OpenCalls]]]

FAILED: Final = "Something went wrong, so there is no answer."
"""The text of the message for a failed run; only the log and the message's `error` tell the error."""

QUEUE: Final = "queue"
"""The id of the queue in the `AttemptRunner`, which has no other work, and the key of the tasks that it begins."""


STOPPED: Final = "Execution stopped by user"
"""The result of a call that was open when its run was stopped."""

# The result of a call that was open when its thread was terminated.
_TERMINATED: Final = "The thread was terminated before this call had a result."


class Stopped(NamedTuple):
    """The outcome of a stop: whether there was a run, the results of its open calls, and the write."""

    has_run: bool
    results: Sequence[Message]
    commit: Commit


class TaskRuns(Protocol):
    """The runs of the tasks of one thread."""

    def is_running(self, name: str, key: str) -> bool: ...

    def find_waiting(self, name: str, key: str) -> Collection[str] | None: ...

    def run(self, name: str, *, key: str) -> object: ...

    def cancel_all(self, names: Collection[str]) -> bool: ...

    def check_end(self, tasks: Collection[str], rights: Rights) -> None: ...


class AgentCaller(Work[QueueAttempts]):
    """Begins runs of an agent, one at a time, while messages are queued."""

    def __init__(self, writer: MessageWriter, agent: str) -> None:
        self._writer = writer
        self.agent = agent
        # The parts whose records decide its times, such as the mark of a terminated thread.
        self.deciding: Sequence[str] = (writer.part, MARK.part)
        self._runner = AttemptRunner(writer.actor, self)
        # Whether the app has no such agent.
        self._is_missing = False
        # How many wait to change the branch: no attempt may begin. And the ends of an attempt for which they wait.
        self._holders = 0
        self._ends: list[asyncio.Future[None]] = []

    # Called by the thread's timer

    @property
    def times(self) -> tuple[int, int]:
        """When the next attempt at the queue must be made; never in a terminated thread."""
        attempts = self._writer.state.head.attempts
        is_never = self._is_missing or self._writer.actor.terminated_at is not None
        due = 0 if is_never else attempts.due
        return due, 0 if self._runner.running or attempts.process else due

    @property
    def status(self) -> Literal["idle", "queued", "running", "waiting"]:
        """Whether a run works, or waits for people to approve a call; or else whether one is due."""
        attempts = self._writer.state.head.attempts
        if attempts.process:
            return "running"
        return "queued" if attempts.due or self._writer.state.queue else "idle"

    @property
    def awaited(self) -> Collection[str]:
        """The ids of the calls for which the run waits until people approve them."""
        return ()

    @property
    def keeps(self) -> bool:
        """Whether messages are queued, in a thread that was not terminated."""
        return self._writer.actor.terminated_at is None and bool(self._writer.state.queue or self.times[0])

    def terminate(self) -> None:
        """Do nothing, because queued messages stay pending."""

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
        """Begin an attempt in the write that queues a message, if nothing comes first; return whether it has begun.

        `follow` must then be called with that write.
        """
        if self._runner.running or self._is_missing or changes.attempts.due:
            return False
        changes.attempts = QueueAttempts(due=read_due_clock()).begin_at(changes.oldest, self._writer.actor.host.process)
        return True

    def follow(self, begun: Commit | None) -> None:
        """Call the agent when the attempt is durable: the attempt that a write has begun, or else another one."""
        self._runner.begin(QUEUE, f"agent {self.agent}", begun=begun)

    @property
    def is_calling(self) -> bool:
        """Whether the calling code is a part of the running attempt."""
        return self._runner.is_within(QUEUE)

    def check_end(self, rights: Rights) -> None:
        """Raise Forbidden if a client with some rights may not end the run that is answering."""
        if QUEUE in self._runner.running:
            rights.check_end(self._writer.attempt.users)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Interrupt the running attempt, wait for its end, and begin no other one in the block."""
        writer = self._writer
        self._holders += 1
        try:
            while QUEUE in self._runner.running:
                writer.attempt.is_interrupted = True
                writer.actor.host.runs.interrupt_attempt(writer.actor, writer.attempt)
                self._ends.append(end := asyncio.get_running_loop().create_future())
                await end
            yield
        finally:
            self._holders -= 1
            writer.actor.timer.arm(self)

    # The work of `AttemptRunner`

    def find(self, id: str) -> QueueAttempts | None:
        """Return the attempts at the queue; None if no further attempt is needed."""
        attempts = self._writer.state.head.attempts
        return attempts if attempts.due else None

    def retries(self, id: str) -> RetryPolicy:
        """Return how often a message is attempted."""
        return PAUSES

    def put(self, id: str, attempts: QueueAttempts) -> Commit:
        """Store that an attempt begins, or that it has ended without success."""
        changes, attempt = self._writer.edit(), self._writer.attempt
        before = changes.attempts
        if attempts.process:
            changes.attempts = attempts.begin_at(changes.oldest, attempts.process)
        else:
            # An attempt that does not count has not failed for the messages that it took.
            taken = attempt.taken_until if attempts.failures > before.failures else 0
            changes.attempts = attempts.end(changes.oldest, taken)
            if before.process and not attempt.has_streamed:
                changes.remove_left()
        return self._writer.store(changes)

    async def attempt(self, id: str) -> None:
        """Run the agent, which must take the queued messages."""
        writer = self._writer
        if self._holders:
            raise Uncounted
        writer.attempt = RunningAttempt()
        try:
            run = writer.actor.run_agent(self.agent, writer)
        except (ValueError, PlaitError) as failure:  # The agent does not exist, or takes an input.
            log.error("queued messages are not handled: %s", failure, extra=about(writer.actor.key))
            self._is_missing = True
            raise Uncounted from failure
        is_interrupted = await run
        if not writer.state.head.attempts.process:
            return  # The run's last write has ended the attempt.
        if (error := self._end(counts=not is_interrupted)) is not None:
            raise error

    def give_up(self, id: str, error: BaseException) -> Commit:
        """Move the oldest message to the history as failed, and continue with the next one."""
        attempts = self._writer.state.head.attempts
        after = attempts.end(attempts.oldest, self._writer.attempt.taken_until)
        changes = self._writer.edit()
        if changes.asked_again is not None:
            changes.add(self._writer.make("assistant", FAILED, status="failed", is_new=False))
        elif changes.queue and changes.oldest == attempts.oldest:
            changes.give_up(changes.queue[0])
        changes.attempts = after.succeed(changes.oldest, read_due_clock())
        return self._writer.store(changes)

    def ended(self, id: str, unstored: QueueAttempts | None) -> None:
        """Keep the attempts in memory that could not be stored."""
        if unstored is not None:
            self._writer.state = self._writer.state.with_attempts(unstored)
        while self._ends:
            end = self._ends.pop()
            if not end.done():  # Who has waited may have been cancelled.
                end.set_result(None)

    # Inside

    def _end(self, *, counts: bool) -> Exception | None:
        """Store that an attempt has succeeded if it has taken the oldest message; return the error otherwise."""
        if self._writer.succeed():
            return None
        failures = self._writer.state.head.attempts.failures
        times = "its run" if not failures else f"{failures + 1} runs"
        what = f"has not taken a queued message in {times}: it must call `messages.take()`"
        return RuntimeError(f"the agent {self.agent} {what}") if counts else Uncounted()


class TaskCaller(AgentCaller):
    """Begins runs of a durable agent, one at a time, while messages are queued.

    A run is an attempt that takes messages in its steps, and may leave the memory. The task counts its crashes.
    """

    def __init__(self, writer: MessageWriter, agent: str, tasks: TaskRuns, find_open_calls: FindOpenCalls) -> None:
        super().__init__(writer, agent)
        self._tasks = tasks
        self._find_open_calls = find_open_calls
        # When the open calls of a terminated thread are answered; 0 if all are.
        self._closes_at = 0

    @property
    def times(self) -> tuple[int, int]:
        """When the next run must begin, or the open calls of a terminated thread are answered."""
        if self._writer.actor.terminated_at is not None:
            return self._closes_at, self._closes_at
        head = self._writer.state.head
        due = 0 if head.is_stopped else head.attempts.due
        if due and self.is_busy:
            due = 0
        return due, due

    @property
    def is_busy(self) -> bool:
        """Whether a run has not ended."""
        return self._tasks.is_running(self._writer.part, QUEUE)

    @property
    def status(self) -> Literal["idle", "queued", "running", "waiting"]:
        if not self.is_busy:
            return super().status
        return "waiting" if self.awaited else "running"

    @property
    def awaited(self) -> Collection[str]:
        found = self._tasks.find_waiting(self._writer.part, QUEUE) or ()
        return [each.removeprefix(APPROVAL) for each in found if each.startswith(APPROVAL)]

    def check_end(self, rights: Rights) -> None:
        self._tasks.check_end(self._writer.actor.kind.tasks, rights)

    def terminate(self) -> None:
        self._closes_at = read_due_clock()

    def recover(self) -> None:
        super().recover()
        self._closes_at = read_due_clock()  # The process may have ended before the open calls were answered.

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
            changes = self._writer.edit()
            changes.attempts = changes.attempts.begin_at(changes.oldest, process="")
            self._writer.store(changes)

    def follow_end(self, status: str) -> None:
        """Record the end of a run, in the write that ends it, as the end of an attempt; a cancelled run does not count.

        A run that has taken the messages is not repeated: if it fails, the conversation says so.
        """
        error = self._end(counts=status != "cancelled")
        if error is None and status == "failed":
            self._add(self._writer.make("assistant", FAILED, status="failed", is_new=False))
        self._runner.end(QUEUE, f"agent {self.agent}", error)

    def stop(self, open_calls: Sequence[OpenCalls]) -> Stopped:
        """Store in one write that no run may begin, the ends of all runs, and the results of the open calls."""

        with Transaction(self._writer.actor.state, self._writer.actor.key):
            has_run = self._tasks.cancel_all(self._writer.actor.kind.tasks)
            return Stopped(has_run, self._answer_calls(open_calls, STOPPED), self._set_stopped(True))

    def resume(self) -> tuple[bool, Commit | None]:
        """Begin a run after a stop; return whether there was one, and the write."""
        if not self._writer.state.head.is_stopped:
            return False, None
        with Transaction(self._writer.actor.state, self._writer.actor.key):
            commit = self._set_stopped(False)
            self.follow(None)
        return True, commit

    # Inside

    async def _close_calls(self) -> None:
        self._answer_calls(await self._find_open_calls(), _TERMINATED)

    def _follow_close(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._closes_at = read_due_clock() + PAUSES.pause(1)
        self._writer.actor.timer.arm(self)

    def _answer_calls(self, open_calls: Sequence[OpenCalls], text: str) -> Sequence[Message]:
        """Add results to the calls without one, and return them; hooks cannot refuse these."""
        results: list[Message] = []
        metadata = make_own({STATUS: "error"})
        for place in reversed(open_calls):
            where: dict[str, Any] = {"parent_id": place.parent_id, "depth": place.depth, "metadata": metadata}
            for id, name, _ in map(read_call, place.calls):
                made = self._writer.make("tool", text, name=name, tool_call_id=id, is_new=False, **where)
                results.append(self._add(made))
        return results

    def _add(self, message: Message) -> Message:
        changes = self._writer.edit()
        stored = changes.add(message)
        self._writer.store(changes)
        return stored

    def _set_stopped(self, is_stopped: bool) -> Commit:
        changes = self._writer.edit()
        changes.is_stopped = is_stopped
        return self._writer.store(changes)


def make_caller(writer: MessageWriter, find_open_calls: FindOpenCalls) -> AgentCaller | None:
    """Return the object that calls the agent of a queue; None if there is no agent."""
    if (agent := writer.agent) is None:
        return None
    actor = writer.actor
    if (tasks := find_role(type(actor.thread), "tasks") if agent in actor.kind.tasks else None) is None:
        return AgentCaller(writer, agent)
    caller = TaskCaller(writer, agent, tasks.of(actor), find_open_calls)
    caller.deciding = (*caller.deciding, tasks.name)
    return caller
