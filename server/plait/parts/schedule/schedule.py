"""`schedule = Schedule()`: work that a thread does later, even if the thread sleeps or the server restarts before."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import msgspec

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.thread import Thread, ThreadActor
from plait.actor.turn import current_turn
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import TooMany
from plait.parts.encoding import check_type, encode_named, read_back
from plait.parts.part import ALL, Part, check_writable
from plait.parts.schedule.effects import Effect, EffectRunner, find_effects
from plait.parts.schedule.row_runner import RowChange
from plait.parts.schedule.rows import EffectRun, Row
from plait.parts.schedule.rules import LATEST, Cron, Every, Rule, to_microseconds
from plait.parts.written import STAGED, Result
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import decode_json

__all__ = ["MOST_ROWS", "Planned", "Schedule", "Scheduled", "ThreadSchedule"]

log = logging.getLogger("plait.schedule")

MOST_ROWS: Final = 10_000
"""The maximum number of schedules of a thread."""

_SECOND: Final = 1_000_000


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as `list` returns it. Times are in microseconds since the epoch."""

    id: str
    name: str
    args: list[Any]
    due: int
    created_at: int
    key: str | None = None
    # For a recurring schedule: the seconds of `every`, or the rule and the time zone of `cron`.
    every: float | None = None
    cron: str | None = None
    tz: str | None = None
    # Whether the run waits for the runs that were queued before it.
    is_queued: bool = False
    # The number of the next attempt, or of the running one.
    attempt: int = 1
    status: Literal["pending", "running"] = "pending"


class Planned(Result[str]):
    """The result of scheduling: awaiting it returns the id when the schedule is durable."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The id of the schedule, even before it is durable."""
        return self.value


class Schedule(Part["ThreadSchedule"]):
    """Declares a schedule: `schedule = Schedule()` in a Thread class gives each thread a `ThreadSchedule`."""

    reading = frozenset({"list"})

    def __init__(self) -> None:
        super().__init__()
        self._effects: dict[type[Thread[Any]], Mapping[str, Effect]] = {}

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        find_effects(owner)  # Raises for an invalid effect.

    def bind(self, actor: ThreadActor) -> "ThreadSchedule":
        assert isinstance(actor, Actor)
        cls = type(actor.thread)
        if (effects := self._effects.get(cls)) is None:
            effects = self._effects[cls] = find_effects(cls)
        return ThreadSchedule(actor, self.name, effects)

    def ranges(self) -> Sequence[RecordRange]:
        # Runs that end at the same time may add more than the limit.
        return (RecordRange(self.name, limit=ALL),)

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor)._runner.load(records[0])

    def leave_work(self, actor: ThreadActor) -> Sequence[Record]:
        return self.of(actor)._runner.clear()


class ThreadSchedule:
    """The schedule of one thread: at most 10,000 effects that will run later.

    The methods that write return at once; awaiting the result waits until the write is durable. In a transaction, the
    write is a part of it. In a run of an agent or of an effect, the write is staged, and stored with the run. The
    methods raise Readonly and Destroyed as `set_state` does; the ones that add also raise Terminated.
    """

    def __init__(self, actor: Actor, part: str, effects: Mapping[str, Effect]) -> None:
        self._actor = actor
        self._effects = effects
        self._runner = EffectRunner(actor, part, effects)
        actor.timer.add(self._runner, part)

    # Scheduling

    def after(self, seconds: float, name: str, *args: Any, key: str | None = None, replace: bool = False) -> Planned:
        """Run an effect once, after some seconds.

        While a schedule with the same name and key is waiting, nothing is added, and the id of the waiting one is
        returned; with `replace`, the new schedule replaces it. Raises ValueError for an unknown effect and after the
        year 9999, InvalidArguments for arguments that do not fit, and TooMany.
        """
        check_type("seconds", seconds, int, float)
        if not 0 <= seconds * _SECOND <= LATEST:
            raise ValueError(f"the number of seconds must be at least 0, and before the year 10000, not {seconds!r}")
        return self._add_once(
            read_due_clock() + round(seconds * _SECOND), "after", name, args, key=key, replaces=replace
        )

    def at(self, when: datetime, name: str, *args: Any, key: str | None = None, replace: bool = False) -> Planned:
        """Run an effect once, at a time, which must have a time zone; at once if it has passed. Raises as `after`."""
        check_type("when", when, datetime)
        if when.utcoffset() is None:
            raise ValueError(f"{when!r} has no time zone: use, for example, datetime(…, tzinfo=UTC)")
        return self._add_once(to_microseconds(when), "at", name, args, key=key, replaces=replace)

    def every(self, seconds: float, name: str, *args: Any) -> Planned:
        """Run an effect repeatedly, at intervals of at least one second; the first time after one interval.

        If there is a schedule with the same name, arguments and interval, nothing is added. Raises as `after`.
        """
        check_type("seconds", seconds, int, float)
        return self._add_rule(Every.of(seconds), name, args)

    def cron(self, rule: str, name: str, *args: Any, tz: str = "UTC") -> Planned:
        """Run an effect by a cron rule of five fields, in a time zone such as "Europe/Berlin".

        If there is a schedule with the same name, arguments, rule and zone, nothing is added. Raises as `after`, and
        ValueError for an invalid rule or zone.
        """
        check_type("rule", rule, str)
        check_type("tz", tz, str)
        return self._add_rule(Cron.of(rule, tz, read_due_clock()), name, args)

    def queue(self, name: str, *args: Any) -> Planned:
        """Run an effect once, after the earlier queued ones have ended or were given up. Raises as `after`."""
        now = read_due_clock()
        return self._add(self._make_row(name, args, now, is_queued=True))

    def cancel(self, id: str) -> Result[bool]:
        """Remove a schedule; return whether there was one. A running run continues, and is not repeated."""
        check_writable(self._actor)
        return self._runner.do(id, partial(self._runner.remove, id), removed=id)

    # Reading

    async def list(self, name: str | None = None) -> list[Scheduled]:
        """Return all schedules in the order of their times, or only those of one effect."""
        await self._actor.state.wait_for_shown()
        rows = [row for row in self._runner.rows.values() if name in (None, row.effect)]
        return [self._show(row) for row in sorted(rows, key=lambda row: (row.due, row.created_at))]

    @property
    def current(self) -> EffectRun | None:
        """The run of an effect that the calling code is a part of; None outside of runs of this schedule."""
        return self._runner.current

    # Inside

    def _add_once(
        self, at: int, method: str, name: str, args: Sequence[Any], *, key: str | None, replaces: bool
    ) -> Planned:
        check_type("replace", replaces, bool)
        if replaces and key is None:
            raise ValueError("replace needs a key: that of the schedule to replace")
        if key is None and (turn := current_turn()) is not None and turn.name == "on_start":
            text = "%s(…, %r) without a key in on_start adds another schedule each time that the thread wakes"
            log.warning(text, method, name, extra=about(self._actor.key))
        elif key == "":
            raise ValueError("a key must not be empty")
        return self._add(self._make_row(name, args, at, key="" if key is None else key), replaces=replaces)

    def _add_rule(self, rule: Rule, name: str, args: Sequence[Any]) -> Planned:
        now = read_due_clock()
        return self._add(self._make_row(name, args, rule.next(now, now), rule=rule))

    def _make_row(self, name: str, args: Sequence[Any], at: int, **options: Any) -> Row:
        effect = self._effects.get(name)
        if effect is None:
            names = ", ".join(self._effects) or "none"
            raise ValueError(f"there is no effect {name!r}; there are: {names}")
        data = encode_named("args", args)
        effect.decode(bytes(data), limits=self._actor.limits)
        if at > LATEST:
            raise ValueError(f"{name} would run after the year 9999")
        at = max(at, read_due_clock())  # A due time near or before the epoch has another meaning.
        id, created_at = secrets.token_hex(12), max(read_wall_clock(), self._runner.newest + 1)
        row = Row(id=id, effect=name, args=msgspec.Raw(data), created_at=created_at, at=at, due=at, **options)
        return read_back(row, Row)

    def _add(self, row: Row, *, replaces: bool = False) -> Planned:
        check_writable(self._actor)
        self._actor.check_active()
        draft = self._runner.use_draft()
        finder = self._runner.agenda if draft is None else draft
        same = None if row.identity is None else finder.find(row.identity)
        if same is not None and not replaces:
            return Planned(same.id, STAGED if draft is not None else self._runner.written(None))
        if same is not None:  # The new row has its own id, as the old one may be about to run. A crash counts for both.
            row = msgspec.structs.replace(row, crashes=same.crashes)
        elif len(finder) >= MOST_ROWS:
            raise TooMany(f"{self._actor.key} has {MOST_ROWS:,} schedules, and no more may be added")
        self._runner.newest = row.created_at
        if draft is None:
            replaced = {} if same is None else {same.id: None}
            return Planned(row.id, self._runner.written(self._runner.store({**replaced, row.id: row})))
        if same is not None:
            draft.add(RowChange(partial(self._runner.remove, same.id), removed=same.id))
        draft.add(RowChange(partial(self._runner.add, row), row))
        return Planned(row.id, STAGED)

    def _show(self, row: Row) -> Scheduled:
        rule = row.rule
        is_running = bool(row.process) and self._runner.has(row.id)
        return Scheduled(
            id=row.id,
            name=row.effect,
            args=decode_json(bytes(row.args)),
            due=row.due,
            created_at=row.created_at,
            key=row.key or None,
            every=rule.interval / _SECOND if isinstance(rule, Every) else None,
            cron=rule.rule if isinstance(rule, Cron) else None,
            tz=rule.tz if isinstance(rule, Cron) else None,
            is_queued=row.is_queued,
            attempt=row.attempt,
            status="running" if is_running else "pending",
        )
