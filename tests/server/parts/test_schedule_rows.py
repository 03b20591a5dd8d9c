"""How a row changes when its attempts end, and the order in which rows are due."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.cases import each_case
from tests.schedules import schedules

from plait.parts.attempts import RetryPolicy
from plait.parts.schedule.rows import Agenda, Row
from plait.parts.schedule.rules import LATEST, Cron, Every
from plait_schemas.codec import encode_json

SECOND = 1_000_000


def make_row(id: str = "a", due: int = 5 * SECOND, **options: Any) -> Row:
    given = {"effect": "ring", "args": msgspec.Raw(b"[]"), "created_at": 1, "at": due, "due": due, **options}
    return Row(id=id, **given)


# Rows


@given(st.integers(1, 20), st.floats(0.001, 100), st.floats(0.001, 1000))
def test_a_run_is_tried_again_as_often_as_its_retries_say_and_later_each_time(
    attempts: int, base: float, most: float
) -> None:
    retries, row, now = RetryPolicy(attempts, base, most), make_row(), 10 * SECOND
    for number in range(1, attempts):
        assert row.attempt == number
        after = row.begin("p").fail(retries, now)
        assert after is not None
        longest = min(most, base * 2 ** (number - 1))
        assert longest / 2 - 1e-5 <= (after.due - now) / SECOND <= longest
        assert (after.at, after.process, after.run_id) == (row.at, "", row.run_id)
        row = after
    assert row.fail(retries, now) is None


def test_an_attempt_of_another_process_counts_as_a_crash_and_one_of_this_process_does_not() -> None:
    row = make_row().begin("one")
    assert row.recover("one") == row
    crashed = row.recover("two")
    assert (crashed.crashes, crashed.process, crashed.attempt) == (1, "", 2)
    assert crashed.recover("three") == crashed
    assert row.rest(7).recover("two").crashes == 0


def test_what_runs_once_is_gone_and_what_recurs_begins_again_with_another_id() -> None:
    assert make_row().advance(10 * SECOND) is None
    row = make_row(rule=Every(2 * SECOND), failures=2, crashes=1, process="p")
    after = row.advance(10 * SECOND)
    assert after is not None
    assert (after.at, after.due, after.attempt, after.process) == (11 * SECOND, 11 * SECOND, 1, "")
    assert after.run_id != row.run_id


def test_what_recurs_in_a_zone_that_is_gone_waits_until_it_is_there() -> None:
    after = make_row(rule=Cron("0 9 * * *", "Europe/Atlantis")).advance(10 * SECOND)
    assert after is not None
    assert after.due == after.correct(10 * SECOND).due == LATEST
    there = msgspec.structs.replace(after, rule=Cron("* * * * *", "Europe/Berlin"))
    assert there.correct(10 * SECOND).due == 60 * SECOND


def test_what_crashes_again_and_again_goes_on_later_and_later_up_to_a_day() -> None:
    row, now = make_row(rule=Every(SECOND), crashes=3), 10 * SECOND
    assert row.has_crashed_out
    for minutes in (5, 10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440):
        after = row.advance(now)
        assert after is not None
        assert (after.at, after.crashes, after.attempt) == (now + (minutes * 60 + 1) * SECOND, 0, 1)
        assert (after.is_suspect, after.has_crashed_out, after.correct(now)) == (True, False, after)
        now, row = after.at, after.begin("one").recover("two")
        assert row.has_crashed_out  # After one crash.


@each_case("failures", [0, 2])
def test_a_run_that_ends_clears_its_row_of_suspicion(failures: int) -> None:
    after = make_row(rule=Every(SECOND), lost_runs=3, failures=failures).advance(10 * SECOND)
    assert after is not None
    assert (after.at, after.is_suspect) == (11 * SECOND, False)
    assert not msgspec.structs.replace(after, crashes=1).has_crashed_out


@each_case("rule", [Every(60 * SECOND), Cron("* * * * *", "UTC")])
def test_what_recurs_is_due_no_later_than_its_rule_says(rule: Every | Cron) -> None:
    row = make_row(due=365 * 86_400 * SECOND, rule=rule)
    assert row.correct(120 * SECOND).due == 180 * SECOND
    assert row.correct(row.at - SECOND) == row
    assert (once := make_row(due=365 * 86_400 * SECOND)).correct(0) == once


@each_case(
    "row",
    [
        make_row(),
        make_row(key="k", args=msgspec.Raw(b'[{"n":1}]'), is_queued=True, failures=1, crashes=2, process="p"),
        make_row(rule=Every(SECOND), lost_runs=1),
        make_row(rule=Cron("0 9 * * *", "UTC")),
    ],
)
def test_a_row_survives_being_stored(row: Row) -> None:
    assert msgspec.json.decode(encode_json(row), type=Row) == row


# Agenda


class Agendas(RuleBasedStateMachine):
    """Does the same to an agenda and to a list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, Row] = {}
        self.held: set[str] = set()
        self.undone: list[tuple[str, Row | None]] = []
        self.agenda = Agenda[Row](known={"ring"})
        self.created = 0

    @rule(due=st.integers(1, 20), is_queued=st.booleans(), effect=st.sampled_from(["ring", "ring", "unknown"]))
    def add(self, due: int, is_queued: bool, effect: str) -> None:
        self.created += 1
        id = f"{self.created}"
        row = make_row(id, due, created_at=self.created, is_queued=is_queued, effect=effect, key=f"key {id}")
        self.set(id, row)

    @rule(data=st.data(), due=st.integers(1, 20))
    def change(self, data: st.DataObject, due: int) -> None:
        if self.rows:
            id = data.draw(st.sampled_from(sorted(self.rows)))
            self.set(id, msgspec.structs.replace(self.rows[id], due=due))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.rows:
            self.set(data.draw(st.sampled_from(sorted(self.rows))), None)

    def set(self, id: str, row: Row | None) -> None:
        before = self.rows.pop(id, None)
        assert self.agenda.set(id, row) == before
        self.undone.append((id, before))
        if row is not None:
            self.rows[id] = row

    @rule()
    def undo(self) -> None:
        if self.undone:
            id, row = self.undone.pop()
            self.set(id, row)
            self.undone.pop()

    @rule(now=st.integers(0, 20), most=st.integers(1, 3))
    def take(self, now: int, most: int) -> None:
        found = self.agenda.take_due(now, most)
        for row in found:
            waiting = self.waiting()
            first = min(waiting, key=lambda each: (each.due, each.created_at))
            assert row == first
            assert row.due <= now
            self.held.add(row.id)
        assert len(found) == most or all(row.due > now for row in self.waiting())

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            id = data.draw(st.sampled_from(sorted(self.held)))
            self.agenda.release(id)
            self.held.discard(id)

    def waiting(self) -> list[Row]:
        known = [row for row in self.rows.values() if row.effect != "unknown"]
        queue = sorted((row for row in known if row.is_queued), key=lambda row: row.created_at)[:1]
        return [row for row in (*queue, *(row for row in known if not row.is_queued)) if row.id not in self.held]

    @invariant()
    def is_the_same(self) -> None:
        assert self.agenda.rows == self.rows
        assert self.agenda.times[1] == min((row.due for row in self.waiting()), default=0)
        stuck = [row for row in self.rows.values() if row.id in self.held or row.effect == "unknown"]
        dues = [row.due for row in (*self.waiting(), *stuck)]
        assert self.agenda.times[0] == min(dues, default=0)
        assert {row.id for row in self.agenda.stranded} == {
            row.id for row in self.rows.values() if row.effect == "unknown"
        }
        for row in self.rows.values():
            assert self.agenda.find((row.effect, row.key, None)) == row
        assert self.agenda.find(("ring", "none", None)) is None
        assert self.agenda.keeps == any(row.rule is None for row in self.rows.values())
        again = Agenda(self.rows.values(), known={"ring"})
        assert again.times[1] == min((row.due for row in (*self.waiting(), *self.first_held())), default=0)

    def first_held(self) -> list[Row]:
        """Return the rows that are held; a queued one would be the first of the queue again."""
        return [row for id in self.held if (row := self.rows.get(id)) is not None and row.effect != "unknown"]


TestAgenda = Agendas.TestCase
TestAgenda.settings = settings(max_examples=schedules(25), stateful_step_count=30, deadline=None)


def test_an_agenda_forgets_entries_of_rows_that_have_changed() -> None:
    agenda = Agenda([make_row("first", 1), make_row("last", 10**9)])
    for due in range(2, 10_000):
        agenda.set("first", make_row("first", due))
    assert len(agenda._timed) < 2000
    assert agenda.times[1] == 9999
