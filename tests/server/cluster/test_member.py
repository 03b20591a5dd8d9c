"""Nodes of a cluster under any interleaving of pauses, lost answers and engines that are away."""

from collections.abc import Callable, Collection, Coroutine, Set
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.schedules import schedules
from tests.server.cluster.stepped import Outcome, SteppedDirectory

from plait.cluster.directory import NodeRecord, ShardRecord
from plait.cluster.member import SINGLE, Member
from plait.cluster.owners import Moves

NAMES = ("a", "b", "c")
SHARDS = 64
OUTCOMES = st.sampled_from(["done", "done", "done", "refused", "unanswered"])


class Process(Moves):
    """A node, its two tasks, and the shards that it has vacated but still owns."""

    def __init__(self, name: str, directory: SteppedDirectory, clock: Any, number: int = 0) -> None:
        self.lost = 0
        self.member = Member(NodeRecord(f"{name}-{number}", name, f"{name}:1"), directory, self, clock=clock)
        self.busy: Callable[[], Set[int]] = frozenset
        self.on_vacate: Callable[[Collection[int]], None] = lambda shards: None
        self.number = number
        self.has_joined = False
        # The work under way of each task.
        self.tasks: dict[str, Coroutine[Any, Any, Any]] = {}

    async def vacate(self, shards: Collection[int]) -> None:
        self.on_vacate(shards)

    def find_busy(self) -> Set[int]:
        return self.busy()

    def lose(self) -> None:
        self.lost += 1

    def step(self, task: str, outcome: Outcome) -> None:
        """Begin a task, or make its next step."""
        work = self.tasks.get(task)
        try:
            if work is None:
                self.tasks[task] = work = self.member.beat() if task == "beat" else self.member.observe()
                work.send(None)
            else:
                work.send(outcome)
        except StopIteration:
            del self.tasks[task]

    def finish(self, task: str) -> None:
        """Run a task to its end, with an engine that answers."""
        self.step(task, "done")
        while task in self.tasks:
            self.step(task, "done")


class Cluster(RuleBasedStateMachine):
    """Three nodes with one directory."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.directory = SteppedDirectory(SHARDS)
        self.processes = {name: self._start(name, 0) for name in NAMES}

    def _start(self, name: str, number: int) -> Process:
        process = Process(name, self.directory, lambda: self.now, number)
        node = process.member.record
        others = [each for each in self.directory.nodes.values() if each.name == name and not each.is_dead]
        if not others:
            self.directory.nodes[node.id] = node
            process.member.lease.extend(self.now)
            process.has_joined = True
        return process

    @rule(seconds=st.sampled_from([0.01, 0.6, 1.0, 1.4, 2.8, 4.1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), task=st.sampled_from(["beat", "observe"]), outcome=OUTCOMES)
    def step(self, name: str, task: str, outcome: Outcome) -> None:
        self.processes[name].step(task, outcome)

    @rule(name=st.sampled_from(NAMES))
    def work(self, name: str) -> None:
        for task in ("beat", "observe"):
            self.processes[name].finish(task)

    @rule(writer=st.sampled_from(NAMES), reader=st.sampled_from(NAMES))
    def beat_and_observe(self, writer: str, reader: str) -> None:
        self.processes[writer].finish("beat")
        self.processes[reader].finish("observe")

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        """Kill the process and start another, if the node is dead for the others."""
        former = self.processes[name]
        node = self.directory.nodes.get(former.member.record.id)
        if node is None or node.is_dead:
            self.processes[name] = self._start(name, former.number + 1)

    @invariant()
    def one_owner(self) -> None:
        for shard in range(SHARDS):
            owners = [name for name, each in self.processes.items() if each.member.owns(shard)]
            assert len(owners) <= 1, f"{owners} serve shard {shard} at once"

    def teardown(self) -> None:
        """When the engine answers again, each shard has one owner, and all agree on it."""
        for _ in range(8):
            self.now += 1.0
            for name in NAMES:
                self.restart(name)
                self.work(name)
                self.one_owner()
        shares = [set(each.member.owned) for each in self.processes.values()]
        assert sum(map(len, shares)) == SHARDS
        assert set().union(*shares) == set(range(SHARDS))


Cluster.TestCase.settings = settings(max_examples=schedules(20) * 2, stateful_step_count=30, deadline=None)
TestCluster = Cluster.TestCase


class Clock:
    """The time that all nodes of a test have."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a call to its end, with an engine that answers."""
    with suppress(StopIteration):
        work.send(None)
        while True:
            work.send("done")


def make(*names: str) -> tuple[Clock, SteppedDirectory, list[Process]]:
    """Return a cluster whose first node owns all shards."""
    clock, directory = Clock(), SteppedDirectory(SHARDS)
    processes = [Process(name, directory, clock) for name in names]
    for each in processes:
        directory.nodes[each.member.record.id] = each.member.record
        each.finish("beat")
        each.finish("observe")
    return clock, directory, processes


def test_shares_with_a_node_that_joins() -> None:
    clock, _, (a, b) = make("a", "b")
    assert len(a.member.owned) == SHARDS
    sizes = []
    for _ in range(5):
        clock.now += 1.0
        for each in (a, b):
            each.finish("beat")
            each.finish("observe")
        sizes.append(len(b.member.owned))
    assert sizes[0] == 16
    assert SHARDS * 0.3 < sizes[-1] < SHARDS * 0.7
    assert len(a.member.owned) + sizes[-1] == SHARDS


def test_a_node_whose_app_starts_gets_no_shards_but_takes_those_of_nobody() -> None:
    clock, directory, (a,) = make("a")
    b = Process("b", directory, clock)
    directory.nodes["b-0"] = b.member.record
    b.member.is_open = False

    def wait(*processes: Process) -> None:
        for _ in range(6):
            clock.now += 1.0
            for each in processes:
                each.finish("beat")
                each.finish("observe")

    wait(b, a)
    assert not b.member.owned
    wait(b)  # `a` is killed.
    assert len(b.member.owned) == SHARDS
    again = Process("a", directory, clock, 1)
    directory.nodes["a-1"] = again.member.record
    again.member.is_open = False
    wait(again, b)
    assert len(b.member.owned) == SHARDS
    again.member.is_open = True
    wait(b, again)
    assert again.member.owned


def test_a_silent_node_is_dead_after_four_seconds_and_not_before() -> None:
    clock, _, (a, b) = make("a", "b")
    b.finish("observe")
    clock.now += 3.9
    b.finish("beat")
    b.finish("observe")
    assert not b.member.owned
    assert not a.member.lease.holds  # It serves nothing for 1.1 seconds before others do.
    clock.now += 0.2
    b.finish("observe")
    assert len(b.member.owned) == SHARDS
    a.finish("beat")
    assert a.lost == 1
    assert not a.member.owned


def test_of_a_late_beat_and_a_mark_only_one_succeeds() -> None:
    clock, _, (a, b) = make("a", "b")
    a.step("beat", "done")  # It has begun, and then the process is paused.
    clock.now += 4.1
    b.finish("beat")
    b.step("observe", "done")
    b.step("observe", "done")
    b.step("observe", "done")  # It has read that `a` is silent, and is about to mark it.
    a.step("beat", "done")
    a.step("beat", "done")
    while "observe" in b.tasks:
        b.step("observe", "done")
    assert not b.member.owned
    assert not a.member.lease.holds  # The beat began more than three seconds ago.
    a.finish("beat")
    assert a.member.owns(0)


def test_time_in_which_the_engine_is_away_is_no_silence() -> None:
    clock, _, (a, b) = make("a", "b")
    b.finish("observe")
    for _ in range(10):
        clock.now += 1.0
        for each in (a, b):
            for task in ("beat", "observe"):
                each.step(task, "done")
                each.step(task, "refused")
    assert not a.member.lease.holds
    b.finish("observe")  # The engine is back, and `b` is the first to read it.
    a.finish("beat")
    assert a.member.owns(0)
    assert a.lost == 0
    assert not b.member.owned


def test_shards_of_newer_code_go_to_no_older_node() -> None:
    clock, directory, (a, b) = make("a", "b")
    for each, version in ((a, 2), (b, 1)):
        id = each.member.record.id
        directory.nodes[id] = msgspec.structs.replace(directory.nodes[id], versions={"note": version})
    directory.shards = [each._replace(versions={"note": 2}) for each in directory.shards]
    for _ in range(3):
        clock.now += 1.0
        for each in (a, b):
            each.finish("beat")
            each.finish("observe")
    assert not b.member.owned
    other = b.member.record.id
    directory.nodes[other] = msgspec.structs.replace(directory.nodes[other], versions={"note": 3})
    clock.now += 1.0
    a.finish("observe")
    b.finish("observe")
    assert len(b.member.owned) == 16


def test_a_node_that_stops_gives_all_shards_away_that_another_one_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cluster.member._GIVEN_AT_ONCE", 8)
    _, directory, (a, b) = make("a", "b")
    for each, version in ((a, 2), (b, 1)):
        id = each.member.record.id
        directory.nodes[id] = msgspec.structs.replace(directory.nodes[id], versions={"note": version})
    newer = {shard for shard, each in enumerate(directory.shards) if each.node == "a-0"} & set(range(SHARDS // 2))
    for shard in newer:
        directory.shards[shard] = directory.shards[shard]._replace(versions={"note": 2})
    left: list[int] = []
    a.on_vacate = left.extend
    run(a.member.give_all())
    assert {shard for shard, each in enumerate(directory.shards) if each.node == "a-0"} == newer
    assert set(left[-len(newer) :]) == newer


def test_a_shard_whose_thread_is_migrated_before_it_is_given_stays() -> None:
    clock, directory, (a,) = make("a")
    a.finish("beat")
    a.finish("observe")
    assert len(a.member.owned) == SHARDS
    b = Process("b", directory, clock, 0)
    for each, version in ((a, 2), (b, 1)):
        id = each.member.record.id
        directory.nodes[id] = msgspec.structs.replace(each.member.record, versions={"note": version})

    def migrate(shards: Collection[int]) -> None:
        versions = {shard: {"note": 2} for shard in shards}
        a.member.view = a.member.view.recorded(versions)
        for shard in shards:
            directory.shards[shard] = directory.shards[shard]._replace(versions=versions[shard])

    a.on_vacate = migrate
    clock.now += 1.0
    b.finish("beat")
    a.finish("beat")
    a.finish("observe")
    assert {each.node for each in directory.shards} == {"a-0"}
    assert all(a.member.owns(shard) for shard in range(SHARDS))


def test_shards_of_newer_code_that_has_gone_wait_for_it(caplog: pytest.LogCaptureFixture) -> None:
    clock, directory, (old, new) = make("old", "new")
    for each, version in ((old, 1), (new, 2)):
        id = each.member.record.id
        directory.nodes[id] = msgspec.structs.replace(directory.nodes[id], versions={"note": version})
    newer = new.member.record.id
    directory.shards = [ShardRecord(newer, 9, {"note": 2}) for _ in directory.shards]

    def wait(*processes: Process) -> None:
        for _ in range(6):
            clock.now += 1.0
            for each in processes:
                each.finish("beat")
                each.finish("observe")

    wait(old)
    assert directory.nodes[newer].is_dead
    assert not old.member.owned
    assert caplog.text.count("64 shards wait for a node") == 1
    again = Process("new", directory, clock, 1)
    directory.nodes["new-1"] = msgspec.structs.replace(again.member.record, versions={"note": 2})
    wait(again, old)
    assert len(again.member.owned) == SHARDS
    assert "0 shards wait" in caplog.text


def test_a_gift_without_an_answer_is_taken_back_or_known_before_the_shards_are_served() -> None:
    for outcome in ("refused", "unanswered"):
        clock, _, (a, b) = make("a", "b")
        clock.now += 1.0
        for each in (a, b):
            each.finish("beat")
        a.step("observe", "done")  # It reads, and gives the first shards to `b`.
        a.step("observe", "done")
        a.step("observe", "done")
        a.step("observe", outcome)
        while "observe" in a.tasks:
            a.step("observe", "done")
        given = [shard for shard in range(SHARDS) if not a.member.owns(shard)]
        assert len(given) == 16
        a.finish("observe")
        b.finish("observe")
        for shard in range(SHARDS):
            assert a.member.owns(shard) != b.member.owns(shard), (outcome, shard)


def test_a_process_alone_and_a_node_that_begin_at_once_do_not_both_join() -> None:
    for first in (SINGLE, "a"):
        clock, directory = Clock(), SteppedDirectory(SHARDS)
        members = {name: Member(NodeRecord(f"{name}-0", name, name), directory, clock=clock) for name in (SINGLE, "a")}
        joins = {name: member.join(_pause) for name, member in members.items()}
        for work in joins.values():  # Each has read that no other is there.
            work.send(None)
            work.send("done")
            work.send("done")
        for name in (first, *(name for name in joins if name != first)):
            with suppress(StopIteration, Paused):
                while True:
                    joins[name].send("done")
        assert [each.name for each in directory.nodes.values()] == [first]
        assert [name for name, member in members.items() if member.lease.holds] == [first]


class Paused(Exception):
    """A node waits before it looks again."""


async def _pause(seconds: float) -> None:
    raise Paused


def test_shards_with_work_are_not_shared_until_it_has_ended_and_given_away_last() -> None:
    busy = set(range(SHARDS // 2))
    clock, _, (a, b) = make("a", "b")
    a.busy = lambda: frozenset(busy)

    def share() -> set[int]:
        for _ in range(10):
            clock.now += 1.0
            for each in (a, b):
                each.finish("beat")
                each.finish("observe")
        return set(b.member.owned)

    assert share()
    assert not share() & busy
    left: list[set[int]] = []
    a.on_vacate = lambda shards: left.append(set(shards))
    run(a.member.give_all())
    assert set().union(*left) >= busy
    assert all(not each & busy or not (set().union(*left[number + 1 :]) - busy) for number, each in enumerate(left))
