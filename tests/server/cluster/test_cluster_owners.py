"""What a node of a cluster answers from memory, while shards move."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from msgspec.structs import replace
from tests.server.cluster.stepped import SteppedDirectory

from plait.cluster.cluster_owners import ClusterOwners
from plait.cluster.directory import NodeRecord
from plait.cluster.lease import boot_time
from plait.cluster.owners import NO_THREADS, Moves
from plait.errors import StoreError
from plait.instruments.protocol import NO_INSTRUMENTS
from plait.node.remote_chain import Chains
from plait.node.remote_nodes import Ask, RemoteNodes
from plait.store.shards import SHARDS, find_shard
from plait.store.thread_rows import ThreadKey

# More than a test takes: nothing is read again without a cause.
NEVER = 60.0


class PromptDirectory(SteppedDirectory):
    """A directory in memory that answers at once."""

    def __init__(self) -> None:
        super().__init__(SHARDS)
        # Exceptions to raise that no directory should.
        self.surprises: list[Exception] = []

    async def _call(self, work: Callable[[], Any]) -> Any:
        if self.surprises:
            raise self.surprises.pop()
        return work()


class StoppingDirectory(PromptDirectory):
    """A directory that stops answering after some calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.is_open = self.has_stopped = False
        self._left = calls

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    async def _call(self, work: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left < 0:
            self.has_stopped = True
            await asyncio.Event().wait()
        return work()


def make_keys() -> dict[int, ThreadKey]:
    """Return a thread of each shard."""
    keys: dict[int, ThreadKey] = {}
    number = 0
    while len(keys) < SHARDS:
        key = ThreadKey("note", str(number))
        keys.setdefault(find_shard(key), key)
        number += 1
    return keys


KEYS = make_keys()


@asynccontextmanager
async def joined(
    directory: PromptDirectory,
    name: str,
    interval: float = NEVER,
    *,
    workers: int = 1,
    clock: Callable[[], float] = boot_time,
    moves: Moves = NO_THREADS,
) -> AsyncIterator[ClusterOwners]:
    """A node that has joined."""
    record = NodeRecord("", name, f"{name}:1")
    owners = ClusterOwners(record, directory, workers=workers, interval=interval, clock=clock)
    await owners.start(moves)
    await owners.open()
    try:
        yield owners
    finally:
        await owners.stop()


async def until(is_so: Callable[[], bool]) -> None:
    """Run the tasks of the nodes until something is so."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_who_gives_shards_away_knows_at_once_who_has_them() -> None:
    directory = PromptDirectory()
    async with joined(directory, "a") as a, joined(directory, "b") as b:
        assert all(a.find(key) == a.node for key in KEYS.values())
        a.correct(KEYS[0], None)  # It looks, and shares some shards with `b`.
        await until(lambda: any(each.node == b.node for each in directory.shards))
        given = [shard for shard, each in enumerate(directory.shards) if each.node == b.node]
        assert len(given) == 16
        assert {a.find(KEYS[shard]) for shard in given} == {b.node}
        # `b` has not looked since, and tells who asks it that `a` is the owner.
        a.correct(KEYS[given[0]], a.node)
        assert a.find(KEYS[given[0]]) == b.node
        await a.give_all()
        assert {a.find(key) for key in KEYS.values()} == {b.node}


async def test_a_node_whose_app_starts_gets_no_shards_from_the_moment_in_which_it_joins() -> None:
    directory = StoppingDirectory(3)
    owners = ClusterOwners(NodeRecord("", "a", "a:1"), directory)
    starting = asyncio.create_task(owners.start())
    await until(lambda: directory.has_stopped)
    (node,) = directory.nodes.values()
    assert node.is_leaving
    starting.cancel()
    await asyncio.wait([starting])


async def test_a_start_that_fails_or_is_cancelled_leaves_no_directory_open() -> None:
    for step in range(5):
        directory = StoppingDirectory(step)
        owners = ClusterOwners(NodeRecord("", "a", "a:1"), directory)
        starting = asyncio.create_task(owners.start())
        await until(lambda at=directory: at.has_stopped)
        assert directory.is_open
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert not directory.is_open


async def test_an_error_of_plait_ends_neither_the_beats_nor_the_looks(caplog: pytest.LogCaptureFixture) -> None:
    directory = PromptDirectory()
    async with joined(directory, "a", interval=0.001) as a:
        directory.surprises = [RuntimeError("one"), RuntimeError("two"), RuntimeError("three")]
        await until(lambda: not directory.surprises)
        beats = directory.nodes[str(a.node)].beats
        await until(lambda: directory.nodes[str(a.node)].beats > beats)
        directory.nodes["b"] = NodeRecord("b", "b", "b:1")
        await until(lambda: a.find_address("b") is not None)
    assert caplog.text.count("Traceback") == 3


async def test_the_workers_of_a_server_are_counted_when_they_are_dead() -> None:
    directory = PromptDirectory()
    async with joined(directory, "a.1", workers=3) as one:
        assert one.server == {0: None, 1: one.node, 2: None}
        async with joined(directory, "a.0", workers=3) as zero:
            one.correct(KEYS[0], None)
            await until(lambda: one.server[0] == zero.node)
            assert one.server == {0: zero.node, 1: one.node, 2: None}
    async with joined(directory, "b") as alone:
        assert alone.server == {0: alone.node}


class _Unasked:
    """Nodes that must not be asked."""

    async def call(self, ask: Ask) -> bytes:
        raise AssertionError("a dead worker was asked")

    def stream(self, ask: Ask) -> AsyncGenerator[bytes]:
        raise AssertionError("a dead worker was asked")


async def test_the_metrics_of_a_server_do_not_wait_for_dead_workers() -> None:
    async with joined(PromptDirectory(), "a.1", workers=3) as one:
        nodes = RemoteNodes(one, Chains(NO_INSTRUMENTS, "a"))
        nodes.peers = _Unasked()
        assert await nodes.read_metrics() == {0: None, 2: None}


async def test_a_node_measures_its_lease_its_beats_and_what_it_has_taken() -> None:
    directory = PromptDirectory()
    now = 100.0
    async with joined(directory, "a", interval=0.001, clock=lambda: now) as a:
        assert a.measure() == {
            "plait_shards": SHARDS,
            "plait_shards_taken_total": SHARDS,
            "plait_lease_age_seconds": 0.0,
            "plait_beats_failed_total": 0,
        }
        directory.surprises = [StoreError("the engine is away")] * 1000
        await until(lambda: a.measure()["plait_beats_failed_total"] == 2)
        now += 2.0
        assert a.measure()["plait_lease_age_seconds"] == 2.0
        directory.surprises.clear()
        # The others have marked it as dead, and it joins again.
        first = a.node
        directory.nodes[str(first)] = replace(directory.nodes[str(first)], is_dead=True)
        await until(lambda: a.node != first and a.find(KEYS[0]) == a.node)
        assert a.measure()["plait_shards_taken_total"] == 2 * SHARDS
        assert a.measure()["plait_beats_failed_total"] >= 2


async def test_beats_and_looks_that_fail_are_logged_once_and_then_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    directory = PromptDirectory()
    async with joined(directory, "a", clock=lambda: now) as a:
        for _ in range(500):
            directory.surprises = [StoreError("the engine is away")] * 2
            assert not await a._member.beat()
            await a._member.observe()
            now += 0.25
        assert [each for each in caplog.messages if "the engine is away" in each] == [
            "a beat of the node a failed: the engine is away"
        ] * 3


class Gains(Moves):
    """Counts how often there are threads to look after."""

    def __init__(self) -> None:
        self.gains = 0

    def gain(self) -> None:
        self.gains += 1

    async def vacate(self, shards: Collection[int]) -> None:
        raise AssertionError

    def lose(self) -> None:
        raise AssertionError


async def test_what_was_due_while_the_lease_had_ended_is_looked_for_again() -> None:
    directory, now = PromptDirectory(), 1000.0
    moves = Gains()
    async with joined(directory, "a", 0.001, clock=lambda: now, moves=moves) as a:
        await until(lambda: a.gate.is_open)
        moves.gains = 0
        directory.surprises = [StoreError("away")]
        await until(lambda: not directory.surprises)
        assert not moves.gains
        now += 10
        assert not a.gate.is_open
        await until(lambda: a.gate.is_open)
        assert moves.gains == 1


@pytest.mark.parametrize(("failures", "gives"), [(4, True), (6, False)])
async def test_a_node_that_stops_gives_its_shards_away_though_the_directory_is_away_for_a_moment(
    failures: int, gives: bool, caplog: pytest.LogCaptureFixture
) -> None:
    directory = PromptDirectory()
    async with joined(directory, "a") as a, joined(directory, "b") as b:
        # Two calls of each try: a beat, and a read.
        directory.surprises = [StoreError("no answer in 2 s") for _ in range(failures)]
        await a.give_all()
        assert ({each.node for each in directory.shards} == {b.node}) == gives
        assert ("cannot give its threads away" in caplog.text) != gives
