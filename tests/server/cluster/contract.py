"""What every directory of a cluster does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from plait.cluster.directory import Directory, NodeRecord
from plait.errors import StoreError
from plait.store.shards import SHARDS

__all__ = ["DirectoryContract", "SharedContract", "make_node"]


class Engine(Protocol):
    """The server of an engine."""

    def start(self) -> None:
        """Start it, and wait until it answers."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


def make_node(name: str, number: int = 0, **members: object) -> NodeRecord:
    """Return the record of a node."""
    return NodeRecord(f"{name}-{number}", name, f"{name}:{number}", **members)  # type: ignore[arg-type]


class DirectoryContract:
    """Tests of a fixture `directory`, which has no nodes, and `other`, which is the same one for another process."""

    async def test_a_new_directory_has_no_nodes_and_all_shards_are_free(self, directory: Directory) -> None:
        view = await directory.read()
        assert not view.nodes
        assert len(view.shards) == SHARDS
        assert {each.node for each in view.shards} == {""}

    async def test_a_node_joins_beats_and_is_removed(self, directory: Directory, other: Directory) -> None:
        node = make_node("a", versions={"note": 3})
        assert await directory.join(node) is None
        (joined,) = (await other.read()).nodes
        assert (joined.id, joined.name, joined.address, joined.beats) == ("a-0", "a", "a:0", 0)
        assert await directory.beat("a-0", is_leaving=True, links=["b", "c"])
        (found,) = (await other.read()).nodes
        assert (found.beats, found.is_leaving, list(found.links), found.versions) == (1, True, ["b", "c"], {"note": 3})
        await directory.remove("a-0")
        assert not (await other.read()).nodes
        assert not await directory.beat("a-0")

    async def test_of_two_nodes_of_one_name_only_the_first_joins(self, directory: Directory, other: Directory) -> None:
        assert await directory.join(make_node("a")) is None
        assert await directory.join(make_node("a")) is None
        rival = await other.join(make_node("a", 1))
        assert rival is not None
        assert (rival.id, rival.address) == ("a-0", "a:0")
        assert [each.id for each in (await other.read()).nodes] == ["a-0"]

    async def test_a_dead_node_leaves_its_name_to_another_one(self, directory: Directory, other: Directory) -> None:
        await directory.join(make_node("a"))
        assert await other.mark_dead("a-0", 0)
        assert await other.join(make_node("a", 1)) is None
        assert set((await directory.read()).alive()) == {"a-1"}

    async def test_of_a_late_beat_and_a_mark_only_one_succeeds(self, directory: Directory, other: Directory) -> None:
        await directory.join(make_node("a"))
        assert await directory.beat("a-0")
        assert not await other.mark_dead("a-0", 0)
        assert await other.mark_dead("a-0", 1)
        assert not await directory.beat("a-0")
        assert not await other.mark_dead("a-0", 1)

    async def test_shards_of_the_living_are_not_taken(self, directory: Directory, other: Directory) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        taken = await directory.take("a-0", {1: 0, 2: 0, 3: 9})
        assert taken.keys() == {1, 2}
        assert await other.take("b-0", taken) == {}
        await other.mark_dead("a-0", 0)
        again = await other.take("b-0", {1: taken[1], 2: taken[2] + 1})
        assert again.keys() == {1}
        assert again[1] > taken[1]
        view = await directory.read()
        assert [view.shards[shard].node for shard in (1, 2, 3)] == ["b-0", "a-0", ""]

    async def test_shards_of_a_removed_node_are_taken(self, directory: Directory, other: Directory) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        taken = await directory.take("a-0", {1: 0})
        await directory.remove("a-0")
        assert (await other.take("b-0", taken)).keys() == {1}

    async def test_a_dead_node_takes_gives_and_gets_nothing(self, directory: Directory) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        taken = await directory.take("a-0", {1: 0, 2: 0})
        await directory.mark_dead("b-0", 0)
        assert await directory.give("a-0", taken, "b-0") == {}
        assert await directory.take("b-0", {3: 0}) == {}
        await directory.mark_dead("a-0", 0)
        await directory.join(make_node("b", 1))
        assert await directory.give("a-0", taken, "b-1") == {}

    async def test_only_the_owner_gives_a_shard_and_only_at_its_epoch(self, directory: Directory) -> None:
        for name in "abc":
            await directory.join(make_node(name))
        taken = await directory.take("a-0", {1: 0, 2: 0})
        assert await directory.give("b-0", taken, "c-0") == {}
        assert await directory.give("a-0", {1: taken[1] + 1}, "c-0") == {}
        given = await directory.give("a-0", {1: taken[1]}, "c-0")
        assert given.keys() == {1}
        assert given[1] > taken[1]
        assert await directory.give("a-0", {1: taken[1]}, "b-0") == {}
        raised = await directory.give("a-0", {2: taken[2]}, "a-0")
        assert raised[2] > taken[2]
        view = await directory.read()
        assert [(each.node, each.epoch) for each in view.shards[1:3]] == [("c-0", given[1]), ("a-0", raised[2])]

    async def test_a_shard_keeps_the_highest_versions_that_its_owners_have_recorded(self, directory: Directory) -> None:
        await directory.join(make_node("a", versions={"note": 2, "room": 1}))
        await directory.join(make_node("b", versions={"note": 3}))
        taken = await directory.take("a-0", {1: 0, 2: 0})
        # To own a shard says nothing of what is stored.
        assert (await directory.read()).shards[1].versions == {}
        assert sorted(await directory.record("a-0", {1: {"note": 2, "room": 1}, 2: {"note": 2}})) == [1, 2]
        await directory.give("a-0", {1: taken[1]}, "b-0")
        assert list(await directory.record("a-0", {1: {"note": 9}, 2: {"hall": 4}})) == [2]
        assert list(await directory.record("b-0", {1: {"note": 3, "hall": 5}})) == [1]
        assert list(await directory.record("b-0", {1: {"note": 1}})) == [1]
        view = await directory.read()
        assert view.shards[1].versions == {"note": 3, "room": 1, "hall": 5}
        assert view.shards[2].versions == {"note": 2, "hall": 4}


class SharedContract(DirectoryContract):
    """Also tests of fixtures `open_directory`, which opens an empty one for another process, and `engine`."""

    @pytest.fixture
    async def directory(self, open_directory: Callable[[], Directory]) -> AsyncIterator[Directory]:
        async with open_directory() as directory:
            yield directory

    @pytest.fixture
    async def other(self, open_directory: Callable[[], Directory], directory: Directory) -> AsyncIterator[Directory]:
        async with open_directory() as other:
            yield other

    async def test_several_nodes_open_a_new_one_at_once(self, open_directory: Callable[[], Directory]) -> None:
        async with AsyncExitStack() as stack:
            directories = [open_directory() for _ in range(8)]
            await asyncio.gather(*map(stack.enter_async_context, directories))
            assert len((await directories[0].read()).shards) == SHARDS

    async def test_of_many_that_take_the_same_shards_one_gets_each(
        self, directory: Directory, other: Directory
    ) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        every = dict.fromkeys(range(SHARDS), 0)
        work: list[Awaitable[dict[int, int]]] = []
        for _ in range(4):
            work += [directory.take("a-0", every), other.take("b-0", every)]
        found = await asyncio.gather(*work)
        assert sum(map(len, found)) == SHARDS

    async def test_moves_at_once_are_all_done(self, directory: Directory, other: Directory) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        work = [
            node.take(id, dict.fromkeys(range(start, SHARDS, 16), 0))
            for start in range(0, 16, 2)
            for node, id, start in ((directory, "a-0", start), (other, "b-0", start + 1))
        ]
        found = await asyncio.gather(*work)
        assert [len(each) for each in found] == [SHARDS // 16] * 16
        view = await directory.read()
        assert [each.node for each in view.shards] == ["a-0", "b-0"] * (SHARDS // 2)

    async def test_of_beats_and_marks_at_once_no_beat_follows_a_mark(
        self, directory: Directory, other: Directory
    ) -> None:
        for number in range(20):
            id = f"a-{number}"
            await directory.join(make_node("a", number))
            await directory.beat(id)
            beat, mark = await asyncio.gather(directory.beat(id), other.mark_dead(id, 1))
            assert beat != mark
            assert await directory.beat(id) is not mark
            (node,) = [each for each in (await other.read()).nodes if each.id == id]
            assert (node.is_dead, node.beats) == ((True, 1) if mark else (False, 3))
            if not mark:
                assert await other.mark_dead(id, 3)

    async def test_a_server_that_is_away_is_a_store_error_and_then_all_goes_on(
        self, directory: Directory, engine: Engine
    ) -> None:
        await directory.join(make_node("a"))
        await asyncio.to_thread(engine.stop)
        with pytest.raises(StoreError):
            await directory.beat("a-0")
        with pytest.raises(StoreError):
            await directory.read()
        await asyncio.to_thread(engine.start)
        assert await directory.beat("a-0")
        assert len((await directory.read()).nodes) == 1
