"""Whether writes succeed, and what is logged about that."""

import sqlite3

import pytest

from plait.errors import Fenced, StoreError
from plait.store.health import Health


def failure(cause: Exception) -> StoreError:
    """Return the outcome of a write that failed for a reason."""
    error = StoreError(f"room/one could not be written: {cause}")
    error.__cause__ = cause
    return error


FULL = failure(sqlite3.OperationalError("database or disk is full"))


@pytest.fixture
def health() -> Health:
    return Health()


def test_writes_fail_until_one_succeeds(health: Health) -> None:
    assert health.trouble is None
    health.record([None], 0)
    assert health.trouble is None
    health.record([FULL], 1)
    assert health.trouble == "database or disk is full"
    health.record([Fenced("room/one was written by another process")], 2)
    assert health.trouble is not None
    health.record([None, None], 3)
    assert health.trouble is None
    health.record([FULL, None], 4)
    assert health.trouble is not None
    health.record([Fenced("room/one was written by another process"), None], 5)
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
    health.record([error], 0)
    assert health.trouble is None
    health.record([FULL], 1)
    health.record([error, None], 2)
    assert health.trouble is None or isinstance(error, Fenced)


def test_of_writes_that_fail_there_is_a_line_a_second(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(250):
        health.record([FULL, FULL], number / 100)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"{count} changes are not stored; the last: {FULL}" for count in (2, 200, 200)]
    health.record([None], 2.5)
    assert [record.getMessage() for record in caplog.records][3:] == [
        "98 more changes are not stored",
        "the store can be written again",
    ]


def test_a_write_is_tried_when_nobody_has_written_for_a_while(health: Health) -> None:
    assert not health.should_try(100)
    health.record([FULL], 100)
    assert not health.should_try(104)
    assert health.should_try(105)
    health.postpone(105)
    assert not health.should_try(109)
    health.record_success()
    assert not health.should_try(200)
    assert health.trouble is None
