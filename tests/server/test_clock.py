"""The two clocks of a process, and that nothing else reads the time of day."""

import ast
import logging

import pytest
from benchmarks.chains import MODULES
from tests.cases import each_case
from tests.clocks import Clock

from plait.clock import Clock as ClockOfProcess
from plait.clock import ClockWatch, read_due_clock, read_wall_clock

HOUR = 3600
SECOND = 1_000_000
# What reads the time of day, in the standard library.
READERS = {
    "time": {
        "asctime",
        "clock_gettime",
        "clock_gettime_ns",
        "ctime",
        "gmtime",
        "localtime",
        "strftime",
        "time",
        "time_ns",
    },
    "datetime": {"now", "today", "utcnow"},
    "date": {"today"},
}
# The clock of the machine since its start, which no one sets.
STEADY = {"plait.cluster.lease": {"clock_gettime"}}


def find_reads(tree: ast.AST) -> set[str]:
    """Return what a module uses of `READERS`."""
    names = {name for names in READERS.values() for name in names}
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                if name in READERS.get(owner, ()):
                    found.add(name)
            case ast.ImportFrom(module="time", names=imported):
                found |= {each.name for each in imported} & names
            case _:
                pass
    return found


@each_case("text", ["time.time()", "datetime.now(UTC)", "datetime.datetime.utcnow()", "from time import time_ns"])
def test_what_reads_the_time_of_day_is_found(text: str) -> None:
    assert find_reads(ast.parse(text))


def test_only_the_clock_reads_the_time_of_day() -> None:
    found = {module: find_reads(ast.parse(path.read_text())) for module, path in MODULES.items()}
    offenders = {module: reads for module, reads in found.items() if reads - STEADY.get(module, set())}
    assert offenders == {"plait.clock": {"time_ns"}}


def test_due_times_follow_the_wall_clock_forward_and_never_back(clock: Clock) -> None:
    begin = clock.now
    clock.jump(HOUR)
    assert read_due_clock() == read_wall_clock() == begin + HOUR * SECOND
    clock.jump(-2 * HOUR)
    assert (read_wall_clock(), read_due_clock()) == (begin - HOUR * SECOND, begin + HOUR * SECOND)
    clock.move(10)
    assert (read_wall_clock(), read_due_clock()) == (begin - (HOUR - 10) * SECOND, begin + (HOUR + 10) * SECOND)
    clock.jump(3 * HOUR)
    assert read_due_clock() == read_wall_clock() == begin + (2 * HOUR + 10) * SECOND


def test_time_that_passes_while_the_clocks_are_read_is_no_jump() -> None:
    # The seconds that pass at each look at one of the clocks.
    now, passing = 1_000 * SECOND * 1000, iter([0, 0, 0, 10])

    def look() -> int:
        nonlocal now
        now += next(passing, 0) * SECOND * 1000
        return now

    clock = ClockOfProcess()
    clock.use(look, look)
    clock.read_due()
    assert clock.read_due() == clock.read_wall() == 1_010 * SECOND


def test_a_jump_is_noticed_once_and_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    watch = ClockWatch()
    clock.move(HOUR)
    assert not watch.look()
    clock.jump(0.5)
    assert not watch.look()
    clock.jump(HOUR)
    assert (watch.look(), watch.look()) == (True, False)
    assert [each.getMessage() for each in caplog.records] == [
        "the clock was set forward by 3600.000 s, or the machine has slept"
    ]


def test_a_clock_that_is_set_back_is_an_error_in_the_log_until_it_is_right_again(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ClockWatch()
    read_due_clock()
    clock.jump(-HOUR)
    assert (watch.look(), watch.look()) == (True, False)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.WARNING, "the clock was set back by 3600.000 s; due times are not affected"),
        (
            logging.ERROR,
            "if the clock was wrong before, cron and at run 3600 s early until the server is restarted",
        ),
    ]
    caplog.clear()
    clock.jump(HOUR)
    assert watch.look()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
