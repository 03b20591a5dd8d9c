"""Which version clients showed when they left."""

from plait.session.cloudflare.departures import Departures
from plait.store.thread_rows import ThreadKey

ONE, TWO = ThreadKey("room", "one"), ThreadKey("room", "two")


def test_a_client_that_left_is_remembered_once_and_for_its_thread() -> None:
    departures = Departures()
    departures.add(ONE, "a", 3)
    departures.add(TWO, "a", 5)
    assert departures.find(ONE, "b") is None
    assert departures.find(ONE, "a") == 3
    departures.forget(ONE, "a")
    departures.forget(ONE, "a")
    assert departures.find(ONE, "a") is None
    assert departures.find(TWO, "a") == 5


def test_the_last_departure_counts() -> None:
    departures = Departures()
    departures.add(ONE, "a", 3)
    departures.add(ONE, "a", 4)
    assert departures.find(ONE, "a") == 4


def test_the_oldest_departures_are_forgotten_first() -> None:
    departures = Departures()
    for number in range(100_000):
        departures.add(ONE, str(number), number)
    assert departures.find(ONE, "0") is None
    assert departures.find(ONE, "99999") == 99_999
    assert departures.find(ONE, "95000") == 95_000
