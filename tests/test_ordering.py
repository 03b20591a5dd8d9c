"""Most workers begin with tests that wait, and every test runs once."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.ordering import WAITING, deal

ROOT = Path(__file__).parents[1]


class Item(NamedTuple):
    """A test as its order sees it."""

    nodeid: str


def make_items(files: int, each: int) -> list[Any]:
    """Return tests of files, every third of them waiting."""
    names = [WAITING[number // 3] if number % 3 == 2 else f"tests/test_{number}.py" for number in range(files)]
    return [Item(f"{name}::test_{number}") for name in names for number in range(each)]


def split(items: list[Any], workers: int) -> list[list[str]]:
    """Return the pieces of files that xdist gives to workers at first."""
    files, pieces = [each.nodeid.partition("::")[0] for each in items], []
    for number in range(workers):
        size = len(files) // (workers - number)
        pieces.append(files[:size])
        del files[:size]
    return pieces


def test_every_file_that_waits_is_there_once() -> None:
    assert [file for file in WAITING if not (ROOT / file).is_file()] == []
    assert len(set(WAITING)) == len(WAITING)


def test_most_workers_begin_with_whole_files_that_wait() -> None:
    for workers in (1, 2, 4, 7, 8):
        items = make_items(files=50, each=11)
        dealt = deal(items, workers)
        assert sorted(each.nodeid for each in dealt) == sorted(each.nodeid for each in items)
        counts = []
        for files in split(dealt, workers):
            waits = [file in WAITING for file in files]
            assert waits == sorted(waits, reverse=True)
            assert {files.count(file) for file in files if file in WAITING} <= {11}
            counts.append(sum(waits) // 11)
        waiting = counts[: workers - workers // 3]
        assert sum(waiting) == 16
        assert max(waiting) - min(waiting) <= 1


def test_fewer_tests_than_workers_are_all_run() -> None:
    items = make_items(files=3, each=1)
    assert {each.nodeid for each in deal(items, 8)} == {each.nodeid for each in items}
    assert deal([], 8) == []
