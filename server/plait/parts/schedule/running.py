"""Runs the due effects of one thread, and changes their rows when they end."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Final

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.turn import Turn
from plait.clock import read_due_clock
from plait.errors import PlaitError, is_outage
from plait.parts.attempts import CRASHES, PAUSES
from plait.parts.schedule.agenda import Agenda
from plait.parts.schedule.draft import EffectRun, ScheduleDraft
from plait.parts.schedule.effect import Effect
from plait.parts.schedule.rows import Row
from plait.parts.stage import Stage
from plait.state.commit import Commit

__all__ = ["Runner"]

log = logging.getLogger("plait.schedule")

# Maximum number of effects of one thread that run at the same time.
_MOST_AT_ONCE: Final = 64
# Seconds after which an effect without a timeout is reported.
_LONG: Final = 600.0


class _Attempt:
    """One attempt to run the effect of a row."""

    __slots__ = ("row", "timer", "turn")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.turn: Turn | None = None
        self.timer: asyncio.TimerHandle | None = None


class Runner:
    """Runs the rows of an agenda. `owner` is the schedule's key in a stage, and `put` stores rows."""

    def __init__(
        self,
        owner: Hashable,
        actor: Actor,
        agenda: Agenda,
        effects: Mapping[str, Effect],
        put: Callable[[Mapping[str, Row | None]], Commit],
    ) -> None:
        self._owner = owner
        self._actor = actor
        self._agenda = agenda
        self._effects = effects
        self._put = put
        # The running attempts by the ids of their rows, and the number of attempts in a row for which the store failed.
        self._attempts: dict[str, _Attempt] = {}
        self._outages: dict[str, int] = {}

    @property
    def wakes_at(self) -> int:
        """When the next effect may begin; 0 for never, or if one of the running effects must end first."""
        return 0 if len(self._attempts) >= _MOST_AT_ONCE else self._agenda.wakes_at

    def has(self, id: str) -> bool:
        """Whether an attempt to run a row is running."""
        return id in self._attempts

    def begin_due(self, now: int) -> None:
        """Begin the due rows."""
        for row in self._agenda.take_due(now, _MOST_AT_ONCE - len(self._attempts)):
            attempt = self._attempts[row.id] = _Attempt(row)
            work, done = partial(self._run, attempt), partial(self._finish, attempt)
            attempt.turn = self._actor.begin(f"effect {row.effect}", work, done)

    def cancel(self, *, besides: EffectRun | None) -> None:
        """Cancel the running effects, except one."""
        for id, attempt in self._attempts.items():
            if attempt.turn is not None and (besides is None or id != besides.id):
                attempt.turn.cancel()

    # An attempt

    async def _run(self, attempt: _Attempt) -> None:
        if attempt.row.has_crashed_out:
            row, times = attempt.row, "once more" if attempt.row.lost_runs else f"{CRASHES} times"
            text = f"the effect {row.effect} has ended the process {times}, and this run is not tried again"
            await self._give_up(row, RuntimeError(text))
        elif attempt.row.is_suspect:
            # One at a time, so that a crash is not counted for the others too.
            async with self._actor.host.suspects:
                await self._try(attempt)
        else:
            await self._try(attempt)

    async def _try(self, attempt: _Attempt) -> None:
        row = self._agenda.rows.get(attempt.row.id)
        if row is None:
            return  # It was cancelled before it began.
        # Store the beginning first, so that a crash is counted.
        await self._put({row.id: row.begin(self._actor.host.process)})
        current = EffectRun(row.id, row.run_id, row.attempt, row.at)
        stage = Stage(self._actor, _do_nothing)
        draft = stage.drafts[self._owner] = ScheduleDraft(self._agenda, self._put, current)
        stage.enter()
        effect = self._effects[row.effect]
        self._watch(attempt, effect)
        try:
            args = effect.decode(bytes(row.args), depth=self._actor.limits.depth)
            if inspect.isawaitable(result := effect.function(self._actor.thread, *args)):
                await result
            self._unwatch(attempt)
            draft.end()
            await stage.commit(is_last=True)
        except BaseException:
            stage.drop()
            raise
        finally:
            self._unwatch(attempt)
            stage.close()  # Tasks that it has started and left running stage nothing.

    def _watch(self, attempt: _Attempt, effect: Effect) -> None:
        seconds = _LONG if effect.timeout is None else effect.timeout
        report = partial(self._report_long, attempt, seconds, is_cancelled=effect.timeout is not None)
        attempt.timer = self._actor.loop.call_later(seconds, report)

    def _unwatch(self, attempt: _Attempt) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
            attempt.timer = None

    def _report_long(self, attempt: _Attempt, seconds: float, *, is_cancelled: bool) -> None:
        turn = attempt.turn
        assert turn is not None
        assert turn.task is not None
        what = " and is cancelled (timeout)" if is_cancelled else ""
        text = "%s has run for %g s%s; its stack:\n%s"
        log.error(text, turn.name, seconds, what, turn.task.stack().rstrip(), extra=about(self._actor.key))
        if is_cancelled:
            turn.expire()

    # Its end

    def _finish(self, attempt: _Attempt, _: object, error: BaseException | None) -> None:
        id = attempt.row.id
        del self._attempts[id]
        self._agenda.release(id)
        if error is None or not is_outage(error):
            self._outages.pop(id, None)
        if error is not None and not self._actor.is_ending:
            try:
                self._finish_failed(attempt, error)
            except PlaitError as refusal:  # The thread has been stopped, or has ended.
                log.debug("the end of %s could not be stored: %s", attempt.row.effect, refusal)
        self._actor.arm()

    def _finish_failed(self, attempt: _Attempt, error: BaseException) -> None:
        id = attempt.row.id
        row = self._agenda.rows.get(id)
        if row is not None and (row.run_id, row.attempt) != (attempt.row.run_id, attempt.row.attempt):
            row = None  # The end of this run is stored, or is being stored.
        if is_outage(error):
            if row is not None:
                self._rest(row)
        elif row is None:
            self._actor.turns.report(error, None)
        elif (after := row.fail(self._effects[row.effect].retries, read_due_clock())) is None:
            self._give_up(row, error)
        else:
            log.warning(
                "the effect %s has failed, and is tried again in %.3g s: %r",
                row.effect,
                (after.due - read_due_clock()) / 1e6,
                error,
                extra=about(self._actor.key),
            )
            self._put({id: after})

    def _give_up(self, row: Row, error: BaseException) -> Commit:
        """End a failed run: `on_error` is called when that is durable."""
        commit = self._put({row.id: row.advance(read_due_clock())})
        commit.then(lambda failure: None if failure is not None else self._actor.turns.report(error, None))
        return commit

    def _rest(self, row: Row) -> None:
        """Run a row again later, without counting the attempt."""
        count = self._outages[row.id] = self._outages.get(row.id, 0) + 1
        rested = row.rest(read_due_clock() + PAUSES.pause(count))
        try:
            commit = self._put({row.id: rested})
        except PlaitError:
            self._agenda.set(row.id, rested)
        else:
            commit.then(partial(self._rest_unstored, rested))

    def _rest_unstored(self, rested: Row, failure: PlaitError | None) -> None:
        if failure is not None and rested.id in self._agenda.rows:
            self._agenda.set(rested.id, rested)
            self._actor.arm()


def _do_nothing() -> None:
    pass
