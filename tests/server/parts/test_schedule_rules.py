"""The times of effects that recur, also when clocks are changed."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.parts.schedule.rules import Cron, Every, Rule, to_datetime, to_microseconds

SECOND = 1_000_000
HOUR = 3600 * SECOND
# Where clocks are changed: by an hour at 2 and at midnight, by half an hour, never, and where a day was skipped.
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "UTC",
)
# Microseconds from 2021 to 2030.
times = st.integers(1_609_459_200 * SECOND, 1_893_456_000 * SECOND)


def at(text: str, zone: str = "Europe/Berlin", *, fold: int = 0) -> int:
    """Return a local time in microseconds."""
    return to_microseconds(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def show(when: int, zone: str = "Europe/Berlin") -> str:
    return to_datetime(when).astimezone(ZoneInfo(zone)).isoformat()


def iterate(rule: Rule, now: int) -> Iterator[int]:
    while True:
        now = rule.next(now, now)
        yield now


@given(times, st.integers(1, 10_000_000), times)
def test_every_stays_on_its_intervals_and_makes_one_of_those_that_were_missed(
    last: int, seconds: int, now: int
) -> None:
    found = Every.of(seconds).next(last, now)
    assert found > last
    assert found > now
    assert (found - last) % (seconds * SECOND) == 0
    assert found - max(last, now) <= seconds * SECOND


@each_case("seconds", [0, 0.999, -1])
def test_every_is_refused_below_a_second(seconds: float) -> None:
    with pytest.raises(ValueError, match="shortest interval is 1 s"):
        Every.of(seconds)


@each_case(
    ("rule", "tz", "why"),
    [
        ("* * *", "UTC", "not valid"),
        ("61 * * * *", "UTC", "not valid"),
        ("", "UTC", "not valid"),
        ("0 0 30 2 *", "UTC", "not valid"),
        ("0 0 * 2 MON#5,TUE#6", "UTC", "not valid"),
        ("0 0 * * *", "Europe/Atlantis", "no time zone"),
        ("0 0 * * *", "Europe", "no time zone"),
        ("0 0 * * *", "/etc/passwd", "no time zone"),
        ("0 0 * * *", "", "no time zone"),
    ],
)
def test_a_cron_rule_that_can_never_run_is_refused(rule: str, tz: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Cron.of(rule, tz, at("2026-01-01"))


@given(
    times, times, st.sampled_from(ZONES), st.sampled_from(["*/15 * * * *", "30 2 * * *", "0 1,3 * * MON", "5 * 1 * *"])
)
def test_the_next_time_is_later_than_now_and_never_moves_back(one: int, other: int, zone: str, rule: str) -> None:
    first, second = sorted((one, other))
    cron = Cron(rule, zone)
    assert first < cron.next(first, first) <= cron.next(second, second)
    assert cron.next(second, first) == cron.next(first, second) == cron.next(second, second)


@given(times, st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_comes_once_on_each_day(begin: int, zone: str, hour: int, minute: int) -> None:
    tz = ZoneInfo(zone)
    found = iterate(Cron(f"{minute} {hour} * * *", zone), begin)
    runs = [to_datetime(next(found)).astimezone(tz) for _ in range(370)]  # Over both changes of a year.
    for before, after in pairwise(runs):
        assert _day_of(after, hour, minute) - _day_of(before, hour, minute) == timedelta(days=1)


def _day_of(run: datetime, hour: int, minute: int) -> date:
    """Return the day for which a run is; one whose time was skipped comes at the end of the gap."""
    wanted = datetime.combine(run.date(), time(hour, minute), run.tzinfo)
    if (run.hour, run.minute) == (hour, minute):
        assert run.fold == 0
        return run.date()
    if wanted > run:  # The gap ends on the next day.
        wanted -= timedelta(days=1)
    assert wanted.astimezone(UTC).astimezone(run.tzinfo) != wanted, f"{run} is not the end of a gap"
    return wanted.date()


@given(times, st.sampled_from(ZONES), st.sampled_from([5, 10, 15, 30]))
def test_a_rule_with_any_hour_goes_by_elapsed_time(begin: int, zone: str, minutes: int) -> None:
    found = iterate(Cron(f"*/{minutes} * * * *", zone), begin)
    runs = [next(found) for _ in range(50)]
    assert {after - before for before, after in pairwise(runs)} == {minutes * 60 * SECOND}


def test_in_spring_a_skipped_time_comes_at_the_end_of_the_gap() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = iterate(cron, at("2026-03-28T12:00"))
    assert [show(next(found)) for _ in range(2)] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_in_autumn_a_doubled_time_comes_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = iterate(cron, at("2026-10-24T12:00"))
    assert [show(next(found)) for _ in range(2)] == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    # The run of the first 2:30 ends at the second 2:15.
    ended = at("2026-10-25T02:15", fold=1)
    assert show(cron.next(at("2026-10-25T02:30"), ended)) == "2026-10-26T02:30:00+01:00"


def test_a_time_that_was_missed_is_not_made_up_for_each_time() -> None:
    cron = Cron.of("0  9 * * *", "Europe/Berlin", at("2026-01-01"))
    assert cron.rule == "0 9 * * *"
    assert show(cron.next(at("2026-01-02T09:00"), at("2026-02-05T10:00"))) == "2026-02-06T09:00:00+01:00"


@given(times)
def test_a_time_survives_as_a_datetime(when: int) -> None:
    assert to_microseconds(to_datetime(when)) == when


def test_rules_say_what_they_are() -> None:
    assert str(Every.of(1.5)) == "every 1.5 s"
    assert str(Cron("0 9 * * *", "Europe/Berlin")) == "cron 0 9 * * * in Europe/Berlin"
