"""The directory in cells: what it writes and reads, and what a failover may lose."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest
from tests.cases import each_case
from tests.failover import failover
from tests.mariadb import Mariadb
from tests.nats import Nats
from tests.postgres import Postgres
from tests.redis import Redis
from tests.schedules import in_soak
from tests.server.cluster.contract import make_node

from plait.cluster.cell_content import CellContent
from plait.cluster.cell_directory import CellDirectory
from plait.errors import StoreError
from plait.store.engines import find_engine
from plait.store.postgres.url import PostgresUrl
from plait.store.shards import SHARDS

Open = Callable[[], CellDirectory]


@pytest.fixture(params=["postgres", "nats_server", *in_soak(["mariadb"], ["redis_server"])])
def open_directory(request: pytest.FixtureRequest) -> Open:
    server: Postgres | Mariadb | Nats | Redis = request.getfixturevalue(request.param)
    store = server.make_store()
    make_schema(server, store)
    return lambda: make_directory(store)


def make_schema(server: object, store: str) -> None:
    """Make the schema of a store, if its engine has schemas."""
    if isinstance(server, Postgres):
        server.execute(f"CREATE SCHEMA {PostgresUrl.parse(store).schema}")


def make_directory(store: str) -> CellDirectory:
    """Return the directory beside a store."""
    engine = find_engine(store)
    assert engine is not None
    return CellDirectory(engine.load(engine.cells), engine.url.parse(store))


@pytest.fixture
async def directory(open_directory: Open) -> AsyncIterator[CellDirectory]:
    async with open_directory() as directory:
        yield directory


@each_case("address", ["postgresql://u@127.0.0.1:1/d", "mysql://u@127.0.0.1:1/d", "nats://127.0.0.1:1/s"])
async def test_an_engine_that_cannot_be_reached_is_named(address: str) -> None:
    with pytest.raises(StoreError, match=f"^the directory of the nodes in {address} cannot be reached: .*[0-9]"):
        async with make_directory(address) as directory:
            await directory.read()


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
async def test_a_server_that_does_not_answer_is_no_obstacle_if_the_url_names_another(
    request: pytest.FixtureRequest, name: str
) -> None:
    server: Postgres | Mariadb = request.getfixturevalue(name)
    store = server.make_store()
    make_schema(server, store)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        async with make_directory(store.replace(f"127.0.0.1:{server.port}", hosts)) as directory:
            assert await directory.join(make_node("a")) is None
            assert await directory.beat("a-0")


async def test_nodes_that_join_a_new_directory_at_once_all_join(open_directory: Open) -> None:
    async with AsyncExitStack() as stack:
        directories = [await stack.enter_async_context(open_directory()) for _ in range(8)]
        joined = await asyncio.gather(*(each.join(make_node(f"n{at}")) for at, each in enumerate(directories)))
        assert joined == [None] * 8
        assert [each.name for each in (await directories[0].read()).nodes] == [f"n{at}" for at in range(8)]


async def test_of_nodes_of_one_name_that_join_at_once_one_joins(open_directory: Open) -> None:
    async with AsyncExitStack() as stack:
        directories = [await stack.enter_async_context(open_directory()) for _ in range(4)]
        found = await asyncio.gather(*(each.join(make_node("a", at)) for at, each in enumerate(directories)))
        (joined,) = (await directories[0].read()).nodes
        assert found.count(None) == 1
        assert {each.id for each in found if each is not None} == {joined.id}


async def test_a_node_that_joins_removes_dead_ones_that_own_no_shard(
    directory: CellDirectory, open_directory: Open
) -> None:
    async with open_directory() as other:
        for name in "abc":
            await directory.join(make_node(name))
        await directory.take("a-0", {1: 0})
        await other.read()
        for name in "ab":
            assert await directory.mark_dead(f"{name}-0", 0)
        for name in "de":
            assert await directory.join(make_node(name)) is None
            for each in (directory, other):
                assert [node.name for node in (await each.read()).nodes] == [*"acde"[: 3 + (name == "e")]]


async def test_a_node_that_was_removed_is_gone_for_one_that_has_not_read_since_others_have_joined(
    directory: CellDirectory, open_directory: Open
) -> None:
    async with open_directory() as other:
        for name in "ab":
            await directory.join(make_node(name))
        await other.read()
        await directory.remove("b-0")
        for name in "cd":
            await directory.join(make_node(name))
        assert set((await other.read()).alive()) == {"a-0", "c-0", "d-0"}


async def test_all_cells_are_read_after_a_reading_that_has_failed(nats_server: Nats) -> None:
    store = nats_server.make_store()
    async with make_directory(store) as directory, make_directory(store) as other:
        for name in "ab":
            await directory.join(make_node(name))
        await other.read()
        await directory.remove("b-0")
        # The server forgets a removed cell after a minute.
        cells: Any = directory._cells
        await cells._stream.purge(f"{cells._cells}*.node.b")
        other._timeout = 0.0
        with pytest.raises(StoreError, match="no answer in time"):
            await other.read()
        other._timeout = 10.0
        assert set((await other.read()).alive()) == {"a-0"}


async def test_versions_of_all_shards_are_recorded_and_read(directory: CellDirectory, open_directory: Open) -> None:
    for number in range(64):
        await directory.join(make_node(f"node-{number}"))
    await directory.take("node-0-0", dict.fromkeys(range(SHARDS), 0))
    versions = {shard: {"note": 1 + shard % 5, "room": 7} for shard in range(SHARDS)}
    assert sorted(await directory.record("node-0-0", versions)) == list(range(SHARDS))
    async with open_directory() as other:
        for each in (directory, other):
            view = await each.read()
            assert [shard.versions for shard in view.shards] == list(versions.values())
            assert len(view.nodes) == 64


async def test_a_node_does_not_read_again_what_it_has_written(open_directory: Open) -> None:
    async with open_directory() as directory:
        await directory.join(make_node("a"))
        known = directory._content
        for change in (directory.take("a-0", {1: 0}), directory.record("a-0", {1: {"note": 2}})):
            await change
            assert directory._content is not known
            known = directory._content
            assert known is not None
            cells = (await directory._cells.read()).cells
            assert known.reading.cells == cells
            assert known.view == CellContent(known.reading).view


async def test_versions_recorded_by_several_owners_at_once_are_all_kept(open_directory: Open) -> None:
    async with AsyncExitStack() as stack:
        directories = [await stack.enter_async_context(open_directory()) for _ in range(4)]
        await asyncio.gather(*(each.join(make_node(f"n{at}")) for at, each in enumerate(directories)))
        for at, each in enumerate(directories):
            await each.take(f"n{at}-0", dict.fromkeys(range(at, 64, 4), 0))

        async def record(at: int) -> None:
            for kind in ("note", "room"):
                for shard in range(at, 64, 4):
                    assert await directories[at].record(f"n{at}-0", {shard: {kind: shard + 2}}) == [shard]

        await asyncio.gather(*map(record, range(4)))
        view = await directories[0].read()
        assert [each.versions for each in view.shards[:64]] == [{"note": at + 2, "room": at + 2} for at in range(64)]


async def test_a_directory_in_redis_says_that_replicas_are_missing(redis_server: Redis) -> None:
    async with make_directory(f"{redis_server.make_store()}&replicas=1") as directory:
        with pytest.raises(StoreError, match="too few replicas have it"):
            await directory.read()


@pytest.mark.parametrize("engine", ["postgres", "redis", *in_soak(("mysql",))])
async def test_a_failover_that_loses_the_last_moves_gives_no_epoch_out_twice(engine: str) -> None:
    async with failover(engine) as servers:
        make_schema(servers.primary, servers.url)
        async with make_directory(servers.url) as first, make_directory(servers.url) as second:
            for each, name in ((first, "a"), (second, "b")):
                assert await each.join(make_node(name)) is None
            taken = await first.take("a-0", {1: 0, 2: 0})
            await second.read()
            servers.wait()
            servers.cut_off()
            lost = taken
            for _ in range(5):
                lost = await first.give("a-0", lost, "a-0")
            await asyncio.to_thread(servers.promote)
            # Neither what one has read before, nor what the other has written, is the base of a move.
            assert await second.give("b-0", taken, "b-0") == {}
            assert await first.give("a-0", lost, "b-0") == {}
            view = await first.read()
            assert {shard: view.shards[shard].epoch for shard in taken} == taken
            again = await first.give("a-0", taken, "b-0")
            assert all(again[shard] > lost[shard] for shard in taken)
            assert await first.beat("a-0")
            assert await second.beat("b-0")


@pytest.mark.parametrize("engine", ["postgres", "redis", *in_soak(("mysql",))])
async def test_a_node_and_versions_that_a_failover_has_lost_are_not_there_for_others_and_itself(engine: str) -> None:
    async with failover(engine) as servers:
        make_schema(servers.primary, servers.url)
        async with make_directory(servers.url) as directory:
            await directory.join(make_node("a"))
            await directory.take("a-0", {1: 0})
            servers.wait()
            servers.cut_off()
            await directory.join(make_node("b"))
            assert await directory.beat("b-0")
            assert await directory.record("a-0", {1: {"note": 2}}) == [1]
            assert len((await directory.read()).nodes) == 2
            await asyncio.to_thread(servers.promote)
            assert await directory.beat("a-0")
            assert not await directory.beat("b-0")
            view = await directory.read()
            assert [each.name for each in view.nodes] == ["a"]
            assert (view.shards[1].node, view.shards[1].versions) == ("a-0", {})
            assert await directory.record("a-0", {1: {"note": 2}}) == [1]
            async with make_directory(servers.url) as other:
                assert (await other.read()).shards[1].versions == {"note": 2}
