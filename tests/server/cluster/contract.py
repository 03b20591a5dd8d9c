"""What every directory of a cluster does."""

from plait.cluster.directory import Directory, NodeRecord
from plait.store.shards import SHARDS

__all__ = ["DirectoryContract", "make_node"]


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

    async def test_a_shard_keeps_the_highest_versions_of_its_owners(self, directory: Directory) -> None:
        await directory.join(make_node("a", versions={"note": 2, "room": 1}))
        await directory.join(make_node("b", versions={"note": 3}))
        taken = await directory.take("a-0", {1: 0})
        await directory.give("a-0", taken, "b-0")
        assert (await directory.read()).shards[1].versions == {"note": 3, "room": 1}
        await directory.join(make_node("c", versions={"note": 1, "hall": 1}))
        shard = (await directory.read()).shards[1]
        await directory.give("b-0", {1: shard.epoch}, "c-0")
        assert (await directory.read()).shards[1].versions == {"note": 3, "room": 1, "hall": 1}
