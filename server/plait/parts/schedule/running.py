"""Runs the due effects of one thread, and changes their rows when they end."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Final

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.turn import Turn, current_turn
from plait.clock import read_due_clock
from plait.parts.attempts import Retries
from plait.parts.schedule.agenda import Agenda
from plait.parts.schedule.draft import EffectRun, ScheduleDraft
from plait.parts.schedule.effect import Effect
from plait.parts.schedule.rows import Row
from plait.parts.stage import Stage
from plait.parts.trials import Trials
from plait.state.commit import Commit

__all__ = ["Runner"]

log = logging.getLogger("plait.schedule")

# Maximum number of effects of one thread that run at the same time.
_MOST_AT_ONCE: Final = 64
# Seconds after which an effect without a timeout is reported.
_LONG: Final = 600.0


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
        self._trials = Trials(actor, self)

    @property
    def wakes_at(self) -> int:
        """When the next effect may begin; 0 for never, or if one of the running effects must end first."""
        return 0 if len(self._trials.running) >= _MOST_AT_ONCE else self._agenda.wakes_at

    def has(self, id: str) -> bool:
        """Whether an attempt to run a row is running."""
        return id in self._trials.running

    def begin_due(self, now: int) -> None:
        """Begin the due rows."""
        for row in self._agenda.take_due(now, _MOST_AT_ONCE - len(self._trials.running)):
            self._trials.begin(row.id, f"effect {row.effect}")

    def cancel(self, *, besides: EffectRun | None) -> None:
        """Cancel the running effects, except one."""
        self._trials.cancel(besides=None if besides is None else besides.id)

    # The work of `Trials`

    def find(self, id: str) -> Row | None:
        """Return a row."""
        return self._agenda.rows.get(id)

    def retries(self, id: str) -> Retries:
        """Return how often an effect is attempted."""
        return self._effects[self._agenda.rows[id].effect].retries

    def put(self, id: str, tries: Row) -> Commit:
        """Store a row."""
        return self._put({id: tries})

    async def attempt(self, id: str) -> None:
        """Run an effect; what it writes to parts, and the end of its row, are one write."""
        row, turn = self._agenda.rows[id], current_turn()
        assert turn is not None
        current = EffectRun(row.id, row.run_id, row.attempt, row.at)
        stage = Stage(self._actor, _do_nothing)
        draft = stage.drafts[self._owner] = ScheduleDraft(self._agenda, self._put, current)
        stage.enter()
        effect = self._effects[row.effect]
        timer = self._watch(turn, effect)
        try:
            args = effect.decode(bytes(row.args), depth=self._actor.limits.depth)
            if inspect.isawaitable(result := effect.function(self._actor.thread, *args)):
                await result
            timer.cancel()
            draft.end()
            await stage.commit(is_last=True)
        except BaseException:
            stage.drop()
            raise
        finally:
            timer.cancel()
            stage.close()  # Tasks that it has started and left running stage nothing.

    def give_up(self, id: str, error: BaseException) -> Commit:
        """End a failed run; a recurring row waits for its next one."""
        return self._put({id: self._agenda.rows[id].advance(read_due_clock())})

    def ended(self, id: str, unstored: Row | None) -> None:
        """Allow a row to run again when it is due."""
        if unstored is not None:
            self._agenda.set(id, unstored)
        self._agenda.release(id)

    # Inside

    def _watch(self, turn: Turn, effect: Effect) -> asyncio.TimerHandle:
        seconds = _LONG if effect.timeout is None else effect.timeout
        report = partial(self._report_long, turn, seconds, is_cancelled=effect.timeout is not None)
        return self._actor.loop.call_later(seconds, report)

    def _report_long(self, turn: Turn, seconds: float, *, is_cancelled: bool) -> None:
        assert turn.task is not None
        what = " and is cancelled (timeout)" if is_cancelled else ""
        text = "%s has run for %g s%s; its stack:\n%s"
        log.error(text, turn.name, seconds, what, turn.task.stack().rstrip(), extra=about(self._actor.key))
        if is_cancelled:
            turn.expire()


def _do_nothing() -> None:
    pass
