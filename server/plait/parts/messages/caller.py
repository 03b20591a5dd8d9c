"""Has the agent of a thread called for its queue."""

import logging
from typing import Final

from plait.actor.logs import about
from plait.clock import read_due_clock
from plait.errors import PlaitError
from plait.parts.attempt_runner import AttemptRunner
from plait.parts.attempts import PAUSES, RetryPolicy, Uncounted
from plait.parts.messages.changes import Changes
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.state import QueueAttempts
from plait.state.commit import Commit

__all__ = ["AgentCaller"]

log = logging.getLogger("plait.agents")

# The id of the queue in the `AttemptRunner`, which has no other work.
_QUEUE: Final = ""


class AgentCaller:
    """Begins runs of an agent, one at a time, while messages are queued."""

    def __init__(self, writer: MessageWriter, agent: str) -> None:
        self._writer = writer
        self._agent = agent
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
        self._runner.begin(_QUEUE, f"agent {self._agent}", begun=begun)

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
            run = writer.actor.run_agent(self._agent)
        except (ValueError, PlaitError) as failure:  # The agent does not exist, or takes an input.
            log.error("queued messages are not handled: %s", failure, extra=about(writer.actor.key))
            self._is_missing = True
            raise Uncounted from failure
        is_interrupted = await run
        if writer.state.head.attempts.has_taken(writer.state.oldest):
            writer.write(self._succeed)
        elif is_interrupted:
            raise Uncounted
        else:
            what = "has ended without taking the queued messages: it must call `messages.take()`"
            raise RuntimeError(f"the agent {self._agent} {what}")

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

    def _succeed(self, changes: Changes) -> None:
        """End an attempt, without what earlier ones left."""
        if not self._writer.has_streamed:
            changes.remove_left()
        changes.attempts = changes.attempts.succeed(changes.oldest, read_due_clock())
