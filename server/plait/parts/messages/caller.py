"""Calls the agent of a thread for its queue, and repeats failed attempts."""

import asyncio
import logging
from collections.abc import Callable

from plait.actor.logs import about
from plait.clock import read_due_clock
from plait.errors import PlaitError, RolledBack
from plait.parts.attempts import CRASHES, PAUSES
from plait.parts.messages.changes import Changes
from plait.parts.messages.state import Attempts
from plait.parts.messages.writer import Writer
from plait.state.commit import Commit

__all__ = ["AgentCaller"]

log = logging.getLogger("plait.agents")


class AgentCaller:
    """Begins runs of an agent, one at a time, while messages are queued."""

    def __init__(self, writer: Writer, agent: str) -> None:
        self._writer = writer
        self._agent = agent
        # Whether an attempt is running, from before it is stored until its end is stored.
        self._is_busy = False
        # Whether the app has no such agent.
        self._is_missing = False
        # When the next attempt may be made after attempts that do not count, and the number of these in a row.
        self._paused_until = 0
        self._pauses = 0
        # Done when the attempt that runs alone in the process has ended.
        self._alone: asyncio.Future[None] | None = None

    # Called by the thread's timer

    @property
    def due(self) -> int:
        """When the thread must be awake to call the agent; 0 for never."""
        return 0 if self._is_missing else self._writer.state.head.attempts.due

    @property
    def wakes_at(self) -> int:
        """When the next attempt must be made; 0 for never."""
        due = self.due
        return 0 if self._is_busy or not due else max(due, self._paused_until)

    @property
    def keeps(self) -> bool:
        """Whether messages are queued."""
        return bool(self._writer.state.queue or self.due)

    def terminate(self) -> None:
        """Do nothing, as queued messages stay pending."""

    def on_due(self, now: int) -> None:
        """Make an attempt, or give up the oldest message."""
        state = self._writer.state
        attempts = state.head.attempts
        self._begin()
        if attempts.has_crashed_out:
            self._give_up(attempts, RuntimeError(f"the agent {self._agent} has ended the process {CRASHES} times"))
        elif attempts.is_suspect and state.oldest == attempts.oldest:
            self._begin_alone()
        else:
            self._attempt()

    # An attempt

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
        if self._is_busy or self._is_missing or changes.attempts.due or self._paused_until > read_due_clock():
            return False
        changes.attempts = Attempts(due=read_due_clock()).begin_at(changes.oldest, self._writer.actor.host.process)
        self._begin()
        return True

    def _begin(self) -> None:
        self._is_busy = True
        self._writer.taken_until, self._writer.has_streamed = 0, False

    def follow(self, commit: Commit) -> None:
        """Call the agent when the attempt that a write has begun is durable."""
        commit.then(self._call)

    def _attempt(self) -> None:
        process = self._writer.actor.host.process

        def work(changes: Changes) -> None:
            changes.attempts = changes.attempts.begin_at(changes.oldest, process)

        if (commit := self._write(work)) is not None:
            self.follow(commit)

    def _call(self, error: PlaitError | None) -> None:
        """Call the agent, as the attempt is durable."""
        if isinstance(error, RolledBack):
            self.free()
            return
        if error is not None:
            self._pause()
            return
        try:
            self._writer.actor.begin_run(self._agent, self._end)
        except (ValueError, PlaitError) as failure:  # The agent does not exist, or takes an input.
            log.error("queued messages are not handled: %s", failure, extra=about(self._writer.actor.key))
            self._is_missing = True
            self._settle(_rest)

    def _end(self, error: BaseException | None, is_cut: bool) -> None:
        """Store the outcome of an attempt."""
        now, taken = read_due_clock(), self._writer.taken_until
        attempts = self._writer.state.head.attempts
        if error is None and attempts.has_taken(self._writer.state.oldest):
            self._pauses = 0
            self._settle(lambda attempts, oldest: attempts.succeed(oldest, now))
        elif is_cut:
            self._pause_later()
            self._settle(_rest)
        else:
            error = error or RuntimeError(
                f"the agent {self._agent} has ended without taking the queued messages: it must call `messages.take()`"
            )
            text = "the agent %s failed to handle queued messages, attempt %d of %d"
            about_it = about(self._writer.actor.key)
            log.error(text, self._agent, attempts.failures + 1, PAUSES.attempts, exc_info=error, extra=about_it)
            if attempts.fail(PAUSES, now) is None:
                self._give_up(attempts.end(attempts.oldest, taken), error)
            else:
                self._settle(lambda attempts, oldest: (attempts.fail(PAUSES, now) or attempts).end(oldest, taken))

    def _settle(self, end: Callable[[Attempts, int], Attempts]) -> None:
        """Store the end of an attempt, without what earlier ones left; after that, the next one may be made."""

        def work(changes: Changes) -> None:
            if not self._writer.has_streamed:
                changes.remove_left()
            changes.attempts = end(changes.attempts, changes.oldest)

        self._finish(self._write(work))

    def _give_up(self, attempts: Attempts, error: BaseException) -> None:
        """Move the oldest message to the history as failed, and continue with the next one."""

        def work(changes: Changes) -> None:
            if changes.queue and changes.oldest == attempts.oldest:
                changes.give_up(changes.queue[0])
            changes.attempts = attempts.succeed(changes.oldest, read_due_clock())

        commit = self._write(work)
        if commit is not None:
            report = self._writer.actor.turns.report
            commit.then(lambda failure: report(error, None) if failure is None else None)
        self._finish(commit)

    def _write(self, work: Callable[[Changes], None]) -> Commit | None:
        """Write a step of an attempt; if it is refused, as the thread has been stopped, end the attempt."""
        try:
            return self._writer.write(work)[1]
        except PlaitError:
            self.free()
            return None
        except BaseException:
            self._pause()
            raise

    def _finish(self, commit: Commit | None) -> None:
        if commit is not None:
            commit.then(lambda error: self.free() if error is None else self._pause())

    # Between attempts

    def _pause(self) -> None:
        """Delay the next attempt, as this one could not be stored."""
        self._pause_later()
        self.free()

    def _pause_later(self) -> None:
        self._pauses += 1
        self._paused_until = read_due_clock() + PAUSES.pause(self._pauses)

    def free(self) -> None:
        """Record that no attempt is running."""
        self._is_busy = False
        if self._alone is not None and not self._alone.done():
            self._alone.set_result(None)
        self._writer.actor.arm()

    # Attempts that run alone in the process

    def _begin_alone(self) -> None:
        """Make an attempt when no other one runs alone."""
        has_begun = False

        async def work() -> None:
            nonlocal has_begun
            async with self._writer.actor.host.suspects:
                has_begun = True
                self._alone = self._writer.actor.loop.create_future()
                try:
                    self._attempt()
                    await self._alone
                finally:
                    self._alone = None

        def end(_: object, error: BaseException | None) -> None:
            if not has_begun:
                self._pause()  # It was cancelled while it waited for others.

        self._writer.actor.begin(f"queue for {self._agent}", work, end)


def _rest(attempts: Attempts, oldest: int) -> Attempts:
    """End an attempt that does not count."""
    return attempts.rest(attempts.due).end(oldest)
