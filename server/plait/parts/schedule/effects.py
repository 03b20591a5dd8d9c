"""`@effect`, which marks the methods of a Thread that its schedule may call, and the attempts to run them."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, overload

import msgspec

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import Turn, current_turn
from plait.clock import read_due_clock
from plait.limits import Limits
from plait.parts.attempts import RetryPolicy
from plait.parts.schedule.row_runner import RowRunner, RowsDraft
from plait.parts.schedule.rows import EffectRun, Row
from plait.parts.stage import Stage, do_nothing, find_draft
from plait.state.commit import Commit
from plait.store.thread_rows import Record

__all__ = ["Effect", "EffectRunner", "effect", "find_effects"]

log = logging.getLogger("plait.schedule")

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__plait_effect__"
# Seconds after which an effect without a timeout is reported.
_LONG: Final = 600.0

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _EffectOptions(msgspec.Struct, frozen=True):
    retries: RetryPolicy
    timeout: float | None


@overload
def effect(function: F, /) -> F: ...
@overload
def effect(
    *, attempts: int = 3, base: float = 0.5, most: float = 60.0, timeout: float | None = None
) -> Callable[[F], F]: ...
def effect(
    function: F | None = None,
    /,
    *,
    attempts: int = 3,
    base: float = 0.5,
    most: float = 60.0,
    timeout: float | None = None,
) -> F | Callable[[F], F]:
    """Mark a method of a Thread that its schedule may call.

    A run that raises is repeated, up to `attempts` times in all: after about `base` seconds, then twice as long each
    time, at most `most`. An attempt that takes longer than `timeout` seconds is logged with its stack, cancelled, and
    counts as one that has raised; None means never. Arguments are JSON, and are converted to their annotations.
    """
    retries = RetryPolicy.of(attempts, base, most)
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout must be above 0, or None for never, not {timeout!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, _EffectOptions(retries, timeout))
        return function

    return mark if function is None else mark(function)


class Effect:
    """One method that a schedule may call: its retries, and the decoders of its arguments."""

    def __init__(self, name: str, function: Callable[..., Any], options: _EffectOptions) -> None:
        self.name = name
        self.function = function
        self.retries = options.retries
        self.timeout = options.timeout
        self._method = Method(name, name, function, concurrent=False, noun="effect")
        if self._method.is_stream:
            raise TypeError(f"the effect {name!r} must not stream: there is no reader")

    def decode(self, args: bytes, *, limits: Limits) -> list[Any]:
        """Return the arguments of a JSON array. Raises InvalidArguments."""
        found: Sequence[Any] = self._method.arguments(_decode_array(args), limits=limits)[0]
        return list(found)


def find_effects(cls: type[Thread[Any]]) -> dict[str, Effect]:
    """Return the effects of a class, by name. Raises TypeError."""
    found: dict[str, Effect] = {}
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        options = getattr(function, _MARK, None)
        if isinstance(options, _EffectOptions):
            if hasattr(Thread, name):
                raise TypeError(f"{cls.__name__}.{name} is an attribute of Thread and cannot be an effect")
            found[name] = Effect(name, function, options)
    return found


class EffectRunner(RowRunner[Row]):
    """The rows of one thread's schedule: stores them, and runs the due ones."""

    noun = "effect"

    def __init__(self, actor: Actor, part: str, effects: Mapping[str, Effect]) -> None:
        super().__init__(actor, part, effects, Row)
        self._effects = effects
        # Whether rows that were loaded may be due too late, as a clock that was ahead has set their times.
        self._is_late = False

    def load(self, records: Sequence[Record]) -> None:
        super().load(records)
        now = read_due_clock()
        self._is_late = any(row.correct(now) is not row for row in self.agenda.rows.values())

    @property
    def current(self) -> EffectRun | None:
        """The run of an effect that the calling code is a part of; None outside of runs of this schedule."""
        draft: RowsDraft[Row] | None = find_draft(self._actor, self, RowsDraft)
        if draft is None or (row := draft.current) is None:
            return None
        return EffectRun(row.id, row.run_id, row.attempt, row.at)

    # Called by the timer of the thread

    @property
    def times(self) -> tuple[int, int]:
        due, wakes_at = super().times
        return due, 1 if self._is_late else wakes_at

    def on_due(self, now: int) -> None:
        if self._is_late:
            self._is_late = False
            rows = self.agenda.rows.items()
            self.store({id: after for id, row in rows if (after := row.correct(now)) is not row})
        super().on_due(now)

    def terminate(self) -> None:
        self.store(dict.fromkeys(self.agenda.rows))
        self._runner.cancel(self._runner.running)

    # The work of `AttemptRunner`

    def retries(self, id: str) -> RetryPolicy:
        return self._effects[self.agenda.rows[id].effect].retries

    async def attempt(self, id: str) -> None:
        """Run an effect; its writes to parts, and the end of its row, are one write."""
        row, turn = self.agenda.rows[id], current_turn()
        assert turn is not None
        stage = Stage(self._actor, do_nothing)
        stage.drafts[self] = RowsDraft(self._actor, self.agenda, row)
        effect = self._effects[row.effect]
        timer = self._watch(turn, effect)
        try:
            with stage.use():  # Tasks that the effect has left running stage nothing afterwards.
                args = effect.decode(bytes(row.args), limits=self._actor.limits)
                if inspect.isawaitable(result := effect.function(self._actor.thread, *args)):
                    await result
                timer.cancel()
                await stage.commit(is_last=True, end=partial(self._end, id))
        finally:
            timer.cancel()

    def give_up(self, id: str, error: BaseException) -> Commit:
        """End a failed run; a recurring row waits for its next one."""
        return self._end(id)

    # Inside

    def _end(self, id: str) -> Commit:
        row = self.agenda.rows.get(id)
        return self.store({} if row is None else {id: row.advance(read_due_clock())})

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
            turn.time_out()
