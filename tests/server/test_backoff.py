"""The pauses between attempts."""

import re
from pathlib import Path

import plait
from plait.backoff import Backoff


def test_pauses_are_doubled_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 5, 100_000)] == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_the_first_pause_is_not_longer_than_the_longest() -> None:
    assert Backoff(5.0, 3.0).delay(1) == 3.0


def test_pauses_are_doubled_at_one_place() -> None:
    root = Path(plait.__file__).parent
    doubles = re.compile(r"\b2(\.0)? \*\* min\(|min\(2(\.0)? \*\*|\b2 \* (self\._)?(pause|delay)\b")
    assert [path.name for path in root.rglob("*.py") if doubles.search(path.read_text())] == ["backoff.py"]
