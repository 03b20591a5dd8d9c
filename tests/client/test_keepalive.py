"""Delays grow, up to a bound, and start over."""

import pytest

from plait_client.keepalive import Backoff


class Clock:
    """Seconds that go by when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def build_backoff(chance: float = 1.0, *, clock: Clock | None = None) -> Backoff:
    return Backoff(clock or Clock(), lambda: chance)


def take(backoff: Backoff, count: int) -> list[float]:
    return [round(backoff.delay(), 3) for _ in range(count)]


def test_delays_double_up_to_ten_seconds() -> None:
    assert take(build_backoff(), 9) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_each_is_at_least_half_of_what_it_might_be() -> None:
    assert take(build_backoff(0.0), 3) == [0.05, 0.1, 0.2]


def test_they_begin_anew_when_a_connection_was_of_use() -> None:
    backoff = build_backoff()
    take(backoff, 5)
    backoff.opened()
    backoff.reset()
    assert take(backoff, 1) == [0.1]


@pytest.mark.parametrize(("seconds", "delay"), [(9.9, 0.8), (10.0, 0.1)])
def test_they_begin_anew_when_a_connection_has_lasted(seconds: float, delay: float) -> None:
    clock = Clock()
    backoff = build_backoff(clock=clock)
    take(backoff, 3)
    backoff.opened()
    clock.now += seconds
    assert take(backoff, 1) == [delay]


def test_there_is_none_in_the_place_of_the_shortest_when_the_server_goes_away() -> None:
    backoff = build_backoff()
    delays = [backoff.delay(is_leaving=True) for _ in range(3)]
    backoff.reset()
    assert [*delays, backoff.delay(is_leaving=True)] == [0.0, 0.2, 0.4, 0.0]


def test_time_without_a_connection_does_not_count() -> None:
    clock = Clock()
    backoff = build_backoff(clock=clock)
    backoff.opened()
    take(backoff, 1)
    clock.now += 60
    assert take(backoff, 2) == [0.2, 0.4]
