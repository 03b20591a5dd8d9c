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
from plait.errors import CorruptThread
from plait.parts.attempt_runner import AttemptRunner
from plait.parts.attempts import RetryPolicy
from plait.parts.schedule.draft import EffectRun, ScheduleDraft
from plait.parts.schedule.rows import Agenda, Row, decode_row
from plait.parts.stage import Stage, find_draft
from plait.state.commit import Commit
from plait.store.thread_rows import Record

__all__ = ["Effect", "EffectRunner", "effect", "find_effects"]

log = logging.getLogger("plait.schedule")

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__plait_effect__"
# Maximum number of effects of one thread that run at the same time.
_MOST_AT_ONCE: Final = 64
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
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"attempts must be an integer of at least 1, not {attempts!r}")
    if not (base > 0 and most > 0):
        raise ValueError(f"base and most must be above 0, not {base!r} and {most!r}")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout must be above 0, or None for never, not {timeout!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, _EffectOptions(RetryPolicy(attempts, base, most), timeout))
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

    def decode(self, args: bytes, *, depth: int) -> list[Any]:
        """Return the arguments of a JSON array. Raises InvalidArguments."""
        found: Sequence[Any] = self._method.arguments(_decode_array(args), depth=depth)[0]
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


class EffectRunner:
    """The rows of one thread: stores them, and runs the due ones."""

    def __init__(self, actor: Actor, part: str, effects: Mapping[str, Effect]) -> None:
        self._actor = actor
        self._part = part
        self._effects = effects
        self.agenda = Agenda(is_known=effects.__contains__)
        self._runner = AttemptRunner(actor, self)
        # The newest time at which a row was created.
        self.newest = 0
        # Whether rows that were loaded may be due too late, as a clock that was ahead has set their times.
        self._is_late = False

    # Called by the part

    def load(self, records: Sequence[Record]) -> None:
        """Load the stored rows of a waking thread. Raises CorruptThread."""
        now = read_due_clock()
        for record in records:
            assert record.value is not None
            try:
                row = decode_row(record.value).recover(self._actor.host.process)
            except msgspec.MsgspecError as error:
                raise CorruptThread(
                    f"{self._part}/{record.key} of {self._actor.key} cannot be read", detail=str(error)
                ) from None
            self.newest = max(self.newest, row.created_at)
            self._is_late |= row.correct(now) is not row
            self.agenda.set(row.id, row)
        if stranded := {row.effect for row in self.agenda.stranded}:
            names = ", ".join(sorted(stranded))
            log.warning(
                "there are no effects with these names: %s; their rows wait for a class that has them",
                names,
                extra=about(self._actor.key),
            )

    def clear(self) -> Sequence[Record]:
        """Forget all rows, and return the records that remove them."""
        return [Record(self._part, id, None) for id in [*self.agenda.rows] if self.agenda.set(id, None)]

    def store(self, rows: Mapping[str, Row | None]) -> Commit:
        """Store or remove rows, as one write. No row is added to a terminated thread."""
        if self._actor.terminated_at is not None:
            rows = {id: row for id, row in rows.items() if row is None}
        before = {id: self.agenda.set(id, row) for id, row in rows.items()}

        def undo() -> None:
            for id, row in reversed(before.items()):
                self.agenda.set(id, row)

        records = [Record(self._part, id, None if row is None else row.encode()) for id, row in rows.items()]
        try:
            return self._actor.records.write(records, undo=undo)
        except BaseException:
            undo()
            raise

    @property
    def current(self) -> EffectRun | None:
        """The run of an effect that the calling code is a part of; None outside of runs of this schedule."""
        draft = find_draft(self._actor, self, ScheduleDraft)
        return None if draft is None else draft.current

    # Called by the timer of the thread

    @property
    def due(self) -> int:
        """When the first row is due; 0 for never, as in a terminated thread, which has none."""
        return self.agenda.due

    @property
    def wakes_at(self) -> int:
        """When the next effect may begin; 0 for never, or if one of the running effects must end first."""
        if self._is_late:
            return 1
        return 0 if len(self._runner.running) >= _MOST_AT_ONCE else self.agenda.wakes_at

    @property
    def keeps(self) -> bool:
        """Whether there are rows that run once or are queued."""
        return self.agenda.keeps

    def on_due(self, now: int) -> None:
        """Begin the due rows."""
        if self._is_late:
            self._is_late = False
            rows = self.agenda.rows.items()
            self.store({id: after for id, row in rows if (after := row.correct(now)) is not row})
        for row in self.agenda.take_due(now, _MOST_AT_ONCE - len(self._runner.running)):
            self._runner.begin(row.id, f"effect {row.effect}")

    def terminate(self) -> None:
        """Remove all rows, and cancel the running effects, except the one that the calling code is a part of."""
        self.store(dict.fromkeys(self.agenda.rows))
        self._runner.cancel(besides=None if (current := self.current) is None else current.id)

    def has(self, id: str) -> bool:
        """Whether an attempt to run a row is running."""
        return id in self._runner.running

    # The work of `AttemptRunner`

    def find(self, id: str) -> Row | None:
        """Return a row."""
        return self.agenda.rows.get(id)

    def retries(self, id: str) -> RetryPolicy:
        """Return how often an effect is attempted."""
        return self._effects[self.agenda.rows[id].effect].retries

    def put(self, id: str, attempts: Row) -> Commit:
        """Store a row."""
        return self.store({id: attempts})

    async def attempt(self, id: str) -> None:
        """Run an effect; what it writes to parts, and the end of its row, are one write."""
        row, turn = self.agenda.rows[id], current_turn()
        assert turn is not None
        current = EffectRun(row.id, row.run_id, row.attempt, row.at)
        stage = Stage(self._actor, _do_nothing)
        draft = stage.drafts[self] = ScheduleDraft(self.agenda, self.store, current)
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
        return self.store({id: self.agenda.rows[id].advance(read_due_clock())})

    def ended(self, id: str, unstored: Row | None) -> None:
        """Allow a row to run again when it is due."""
        if unstored is not None:
            self.agenda.set(id, unstored)
        self.agenda.release(id)

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
            turn.time_out()


def _do_nothing() -> None:
    pass
