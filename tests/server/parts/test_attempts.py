"""The counts of attempts and the pauses between them, which the queue and the schedule share."""

from datetime import UTC, datetime, timedelta
from math import inf

from plait.parts.attempts import CRASHES, PAUSES, Attempts, RetryPolicy


def test_the_pause_doubles_up_to_the_longest() -> None:
    pauses = [PAUSES.pause(number) // 1_000_000 for number in (1, 2, 3, 4, 9, 10, 100, 10_000)]
    assert pauses == [1, 2, 4, 8, 256, 300, 300, 300]


def test_no_pause_ends_after_the_last_date() -> None:
    for policy in (RetryPolicy.of(100, 1e12, 1e13), RetryPolicy.of(100, 1.0, inf)):
        assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=36_500, microseconds=policy.pause(99))


def test_a_random_pause_has_at_least_a_half_of_its_length() -> None:
    pauses = {RetryPolicy(5, 2.0, 300.0).pause(2) for _ in range(50)}
    assert len(pauses) > 1
    assert all(2_000_000 <= pause <= 4_000_000 for pause in pauses)


def test_work_that_ends_its_process_is_a_suspect_and_then_given_up() -> None:
    attempts = Attempts(due=1)
    for number in range(CRASHES):
        assert not attempts.has_crashed_out
        assert attempts.is_suspect == (number == CRASHES - 1)
        attempts = attempts.begin(f"process {number}").recover("another")
    assert attempts.has_crashed_out
    assert attempts.attempt == CRASHES + 1
