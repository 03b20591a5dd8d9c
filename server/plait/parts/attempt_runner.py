"""Runs the attempts at the work of a part, and follows failures, outages and crashes of the process.

An attempt is stored before it begins; one that ends its process is then found and counted when the thread wakes.
"""

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Generic, TypeVar

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.turn import Turn, current_turn
from plait.clock import read_due_clock
from plait.errors import PlaitError, RolledBack, escape_traceback, is_outage
from plait.parts.attempts import PAUSES, Attempts, RetryPolicy, Uncounted
from plait.state.commit import Commit
from plait.state.timer import Timed

__all__ = ["AttemptRunner", "Work"]

log = logging.getLogger("plait.thread")
log.addFilter(escape_traceback)

T = TypeVar("T", bound=Attempts)


class Work(Timed, Generic[T]):
    """Work of a part that is attempted, by id, when it is due."""

    def find(self, id: str) -> T | None:
        """Return the attempts so far; None if the work is done or was removed."""
        raise NotImplementedError

    def retries(self, id: str) -> RetryPolicy:
        """Return how often the work is attempted."""
        raise NotImplementedError

    def put(self, id: str, attempts: T) -> Commit:
        """Store that an attempt begins, or that it has ended without success. Raises PlaitError."""
        raise NotImplementedError

    async def attempt(self, id: str) -> None:
        """Do the work, and store its end, with an empty `process` or without the attempts. Raises if it fails."""
        raise NotImplementedError

    def give_up(self, id: str, error: BaseException) -> Commit:
        """Store that the work has failed. Raises PlaitError."""
        raise NotImplementedError

    def ended(self, id: str, unstored: T | None) -> None:
        """Record that an attempt has ended; `unstored` is data that could not be stored, and counts until it can be."""
        raise NotImplementedError


class _RunningAttempt(Generic[T]):
    """One attempt that is running, until its end is stored."""

    __slots__ = ("has_begun", "name", "rested", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: Turn | None = None
        # Whether the beginning of the attempt is stored.
        self.has_begun = False
        # The state after the attempt, if it does not count.
        self.rested: T | None = None


class AttemptRunner(Generic[T]):
    """Attempts the work of one part of a thread, each piece in a turn of its own."""

    def __init__(self, actor: Actor, work: Work[T]) -> None:
        self._actor = actor
        self._work = work
        # The running attempts, and the number of attempts in a row that did not count, by id.
        self.running: dict[str, _RunningAttempt[T]] = {}
        self._outages: dict[str, int] = {}

    def begin(self, id: str, name: str, *, begun: Commit | None = None) -> None:
        """Begin an attempt in a turn with a name; `begun` is the write that already stores its start."""
        running = self.running[id] = _RunningAttempt(name)
        run, finish = partial(self._run, id, running, begun), partial(self._finish, id, running)
        running.turn = self._actor.begin(name, run, finish)

    def end(self, id: str, name: str, error: BaseException | None) -> None:
        """Record the end of an attempt that was made elsewhere, in the write that ends it."""
        if error is None:
            self._outages.pop(id, None)
        else:
            self._store_end(id, _RunningAttempt(name), error)

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel the running attempts of some work, except the one that the calling code is a part of."""
        for id in ids:
            if (running := self.running.get(id)) is not None and running.turn is not None and not self.is_within(id):
                running.turn.cancel()

    def is_within(self, id: str) -> bool:
        """Whether the calling code is a part of the running attempt at some work."""
        running, turn = self.running.get(id), current_turn()
        return running is not None and turn is not None and any(each is running.turn for each in turn.chain())

    async def _run(self, id: str, running: _RunningAttempt[T], begun: Commit | None) -> None:
        if (attempts := self._work.find(id)) is None:
            return  # The attempt was removed before it began.
        if attempts.has_crashed_out:
            times = "once more" if attempts.crashes == 1 else f"{attempts.crashes} times"
            raise RuntimeError(f"the {running.name} has ended the process {times}, and this run is not tried again")
        # One suspect at a time, so that a crash is not counted for the others too.
        async with self._actor.host.suspects if attempts.is_suspect else nullcontext():
            if begun is None:
                if (attempts := self._work.find(id)) is None or attempts.due > read_due_clock():
                    return  # The write that made the work due was rolled back.
                begun = self._work.put(id, attempts.begin(self._actor.host.process))
            try:
                await begun
            except RolledBack:
                return  # No attempt has begun.
            running.has_begun = True
            if self._work.find(id) is not None:
                await self._work.attempt(id)

    # The end of an attempt

    def _finish(self, id: str, running: _RunningAttempt[T], _: object, error: BaseException | None) -> None:
        if error is None:
            self._outages.pop(id, None)
        commit = None
        if error is not None and not self._actor.is_ending:
            try:
                commit = self._store_end(id, running, error)
            except BaseException as refusal:
                self._free(id, running, refusal)
                if not isinstance(refusal, PlaitError):
                    raise
                log.debug("the end of the %s could not be stored: %s", running.name, refusal)
                return
        if commit is None:
            self._free(id, running, None)
        else:
            commit.then(partial(self._free, id, running))

    def _store_end(self, id: str, running: _RunningAttempt[T], error: BaseException) -> Commit | None:
        """Store the end of an attempt that has raised; return None if no write is needed."""
        attempts = self._work.find(id)
        if attempts is not None and running.has_begun and not attempts.process:
            attempts = None  # The end of this attempt is stored.
        if isinstance(error, Uncounted) or is_outage(error):
            return None if attempts is None else self._work.put(id, self._rest(id, running, attempts))
        self._outages.pop(id, None)
        if attempts is None:
            self._actor.turns.report(error, None)
            return None
        retries, now = self._work.retries(id), read_due_clock()
        if (after := attempts.fail(retries, now)) is None:
            commit = self._work.give_up(id, error)
            commit.then(lambda failure: self._actor.turns.report(error, None) if failure is None else None)
            return commit
        text = "the %s has failed, attempt %d of %d, and is tried again in %.3g s"
        numbers = (after.failures, retries.attempts, (after.due - now) / 1e6)
        log.warning(text, running.name, *numbers, exc_info=error, extra=about(self._actor.key))
        return self._work.put(id, after)

    def _free(self, id: str, running: _RunningAttempt[T], failure: BaseException | None) -> None:
        """Allow the next attempt when it is due: after a pause, if the end of this one could not be stored."""
        attempts = None if failure is None else self._work.find(id)
        del self.running[id]
        self._work.ended(id, None if attempts is None else running.rested or self._rest(id, running, attempts))
        self._actor.timer.arm(self._work)

    def _rest(self, id: str, running: _RunningAttempt[T], attempts: T) -> T:
        """End an attempt that does not count; the next one begins after a pause, which grows."""
        count = self._outages[id] = self._outages.get(id, 0) + 1
        running.rested = rested = attempts.rest(read_due_clock() + PAUSES.pause(count))
        return rested
