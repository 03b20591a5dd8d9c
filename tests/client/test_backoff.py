"""Delays grow, up to a bound, and begin anew."""

from plait_client.backoff import Backoff


def take(backoff: Backoff, count: int) -> list[float]:
    return [round(backoff.delay(), 3) for _ in range(count)]


def test_delays_double_up_to_ten_seconds() -> None:
    assert take(Backoff(lambda: 1.0), 9) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_each_is_at_least_half_of_what_it_might_be() -> None:
    assert take(Backoff(lambda: 0.0), 3) == [0.05, 0.1, 0.2]


def test_they_begin_anew() -> None:
    backoff = Backoff(lambda: 1.0)
    take(backoff, 5)
    backoff.reset()
    assert take(backoff, 1) == [0.1]
