"""Which of the writes that wait share a transaction."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.store.protocol import ChangeRow, ThreadKey, Write
from plait.store.queue import Waiting, WriteQueue

MEGABYTE = 2**20


def write(name: str, version: int, size: int) -> Write:
    return Write(ThreadKey("room", name), "e", version - 1, version, ChangeRow(version, b"x" * size, "server", 0))


def read(batch: list[Waiting]) -> list[tuple[str, int]]:
    return [(write.key.name, write.version) for write, *_ in batch]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def fill(loop: asyncio.AbstractEventLoop, *writes: tuple[str, int, int]) -> WriteQueue:
    """Return a queue of writes that were submitted each by itself."""
    queue = WriteQueue()
    for each in writes:
        queue.add(write(*each), loop.create_future())
        queue.end_unit()
    return queue


def test_what_is_not_much_shares_one_transaction(loop: asyncio.AbstractEventLoop) -> None:
    queue = fill(loop, *((name, version, 10_000) for version in range(1, 10) for name in "abc"))
    assert len(queue.take()) == 27
    assert not queue


def test_small_writes_do_not_wait_for_large_ones_and_threads_with_large_ones_take_turns(
    loop: asyncio.AbstractEventLoop,
) -> None:
    large = [(name, version, MEGABYTE) for name in "ab" for version in (1, 2)]
    queue = fill(loop, *large, ("small", 1, 10), ("small", 2, 10))
    assert read(queue.take()) == [("a", 1), ("small", 1), ("small", 2)]
    assert read(queue.take()) == [("b", 1)]
    assert read(queue.take()) == [("a", 2)]
    assert read(queue.take()) == [("b", 2)]
    assert not queue


def test_a_small_write_stays_after_a_large_one_of_its_own_thread(loop: asyncio.AbstractEventLoop) -> None:
    queue = fill(loop, ("a", 1, MEGABYTE), ("b", 1, MEGABYTE), ("b", 2, 10), ("a", 2, 10))
    assert read(queue.take()) == [("a", 1), ("a", 2)]
    assert read(queue.take()) == [("b", 1), ("b", 2)]


def test_what_was_submitted_together_is_written_together(loop: asyncio.AbstractEventLoop) -> None:
    queue = fill(loop, ("a", 1, MEGABYTE))
    for version in (1, 2, 3):
        queue.add(write("b", version, MEGABYTE), loop.create_future())
    queue.end_unit()
    queue.add(write("b", 4, MEGABYTE), loop.create_future())
    assert read(queue.take()) == [("a", 1)]
    assert read(queue.take()) == [("b", 1), ("b", 2), ("b", 3)]
    assert read(queue.take()) == [("b", 4)]


SIZES = st.sampled_from([10, 20_000, 300_000, MEGABYTE])


@given(st.lists(st.tuples(st.sampled_from("abc"), SIZES, st.booleans()), max_size=40), st.integers(1, 5))
def test_each_write_is_taken_once_and_those_of_a_thread_in_order(
    submitted: list[tuple[str, int, bool]], between: int
) -> None:
    loop = asyncio.new_event_loop()
    queue, taken = WriteQueue(), list[tuple[str, int]]()
    versions: dict[str, int] = defaultdict(int)
    for number, (name, size, ends) in enumerate(submitted):
        versions[name] += 1
        queue.add(write(name, versions[name], size), loop.create_future())
        if ends:
            queue.end_unit()
        if number % between == 0:
            taken += read(queue.take())
    while queue:
        batch = read(queue.take())
        assert batch
        taken += batch
    loop.close()
    assert sorted(taken) == sorted((name, n) for name, last in versions.items() for n in range(1, last + 1))
    for name, last in versions.items():
        assert [n for each, n in taken if each == name] == list(range(1, last + 1))
