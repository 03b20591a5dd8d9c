"""Whether writes succeed, and what is logged about that."""

import sqlite3
from collections.abc import Sequence

import pytest

from plait.errors import Fenced, StoreError
from plait.store.outcomes import FileLost, Health, Unreachable
from plait.store.sqlite.failures import is_trouble


def failure(cause: Exception) -> StoreError:
    """Return the outcome of a write that failed for a reason."""
    error = StoreError(f"room/one could not be written: {cause}")
    error.__cause__ = cause
    return error


FULL = failure(sqlite3.OperationalError("database or disk is full"))


def record(health: Health, errors: Sequence[StoreError | None], now: float) -> None:
    """Record the outcomes of writes to as many threads."""
    health.record([(0 if error else 1, error) for error in errors], [1] * len(errors), now)


@pytest.fixture
def health() -> Health:
    return Health(is_trouble)


def test_writes_fail_until_one_succeeds(health: Health) -> None:
    assert health.trouble is None
    record(health, [None], 0)
    assert health.trouble is None
    record(health, [FULL], 1)
    assert health.trouble == "database or disk is full"
    record(health, [Fenced("room/one was written by another process")], 2)
    assert health.trouble is not None
    record(health, [None, None], 3)
    assert health.trouble is None
    record(health, [FULL, None], 4)
    assert health.trouble is not None
    record(health, [Fenced("room/one was written by another process"), None], 5)
    assert health.trouble is None


@pytest.mark.parametrize(
    "error",
    [
        Fenced("room/one was written by another process"),
        StoreError("room/one: change 7 is not the next one"),
        failure(OverflowError("int too large")),
        failure(sqlite3.DatabaseError("database disk image is malformed")),
    ],
)
def test_a_write_that_is_itself_at_fault_is_no_trouble_of_the_store(health: Health, error: StoreError) -> None:
    record(health, [error], 0)
    assert health.trouble is None
    record(health, [FULL], 1)
    record(health, [error, None], 2)
    assert health.trouble is None or isinstance(error, Fenced)


@pytest.mark.parametrize("others", [[], [None], [Fenced("room/one was written by another process"), None]])
def test_a_store_whose_file_is_lost_cannot_be_written_again(
    health: Health, caplog: pytest.LogCaptureFixture, others: list[StoreError | None]
) -> None:
    record(health, [FULL], 0)
    record(health, [FileLost(), *others], 1)
    assert health.trouble == "database or disk is full"
    assert "the store can be written again" not in caplog.messages


def test_of_writes_that_fail_there_is_a_line_at_once_and_then_each_minute(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(250):
        record(health, [FULL, FULL], number / 2)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"{count} changes are not stored; the last: {FULL}" for count in (2, 240, 240)]
    record(health, [None], 125)
    assert caplog.messages[3:] == ["18 more changes are not stored", "the store can be written again"]
    record(health, [FULL], 126)
    assert caplog.messages[5:] == [f"1 changes are not stored; the last: {FULL}"]


def test_a_write_is_tried_when_nobody_has_written_for_a_while(health: Health) -> None:
    assert not health.should_try(100)
    record(health, [FULL], 100)
    assert not health.should_try(104)
    assert health.should_try(105)
    health.postpone(105)
    assert not health.should_try(109)
    health.record_success()
    assert not health.should_try(200)
    assert health.trouble is None


def test_a_server_that_was_away_is_tried_at_once() -> None:
    health = Health(lambda cause: True)
    error = Unreachable("the connection is lost")
    error.__cause__ = OSError("reset")
    record(health, [error], 100)
    assert health.should_try(100)
