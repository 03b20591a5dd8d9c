"""The directory in NATS when answers are lost or late, and servers are killed or paused."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from copy import copy
from functools import partial
from typing import TypeVar

import pytest
from tests.cluster.proxy import Proxy
from tests.nats import Nats, NatsCluster
from tests.server.cluster.contract import make_node

from plait.cluster.cell_directory import CellDirectory
from plait.errors import StoreError
from plait.store.nats.cells import NatsCells
from plait.store.nats.jetstream import JetStream
from plait.store.nats.server_connection import ServerConnection
from plait.store.nats.url import NatsUrl
from plait.store.shards import SHARDS

T = TypeVar("T")

TIMEOUT = 30.0


@pytest.fixture
def nats(nats_cluster: NatsCluster) -> NatsCluster:
    """Three servers, which run."""
    nats_cluster.start()
    return nats_cluster


@pytest.fixture
def url(nats: NatsCluster) -> NatsUrl:
    return NatsUrl.parse(nats.make_store())


@pytest.fixture
async def directory(url: NatsUrl) -> AsyncIterator[CellDirectory]:
    async with CellDirectory(NatsCells, url) as directory:
        yield directory


@pytest.fixture
async def proxy(nats: NatsCluster) -> AsyncIterator[Proxy]:
    async with Proxy(nats.servers[0].port) as proxy:
        yield proxy


@pytest.fixture
async def behind(url: NatsUrl, directory: CellDirectory, proxy: Proxy) -> AsyncIterator[CellDirectory]:
    """The same directory, for a process that reaches it through a proxy."""
    async with CellDirectory(NatsCells, at(url, proxy), timeout=1.0) as behind:
        yield behind


def at(url: NatsUrl, server: Nats | Proxy) -> NatsUrl:
    """Return the URL of the same stream, at one server."""
    found = copy(url)
    found.servers = [f"nats://127.0.0.1:{server.port}"]
    return found


async def until_done(work: Callable[[], Awaitable[T]]) -> T:
    """Do something until it succeeds, as a node does with its beats."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return await work()
        except StoreError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def delete_stream(url: NatsUrl) -> None:
    """Delete the stream of a directory."""
    name = f"{url.stream}-directory"
    connection = ServerConnection(url)
    await connection.open()
    await JetStream(url, connection, name).api(f"STREAM.DELETE.{name}", {})
    await connection.close()


async def test_what_a_server_has_accepted_is_read_from_every_other_one(nats: NatsCluster, url: NatsUrl) -> None:
    async with AsyncExitStack() as stack:

        def open_at(server: Nats) -> Awaitable[CellDirectory]:
            return stack.enter_async_context(CellDirectory(NatsCells, at(url, server)))

        # On a busy machine the servers may elect another leader, also while the first one is asked.
        directories = [await until_done(partial(open_at, each)) for each in nats.servers]
        await directories[0].join(make_node("a"))
        beats = 0
        for turn in range(60):
            writer, *readers = directories[turn % 3 :] + directories[: turn % 3]
            # A beat whose answer is lost counts, too.
            assert await until_done(partial(writer.beat, "a-0"))
            views = await asyncio.gather(*(until_done(each.read) for each in readers))
            (read,) = {view.nodes[0].beats for view in views}
            assert read > beats
            beats = read


async def test_a_beat_whose_answer_is_lost_is_counted_once(
    directory: CellDirectory, behind: CellDirectory, proxy: Proxy
) -> None:
    await behind.join(make_node("a"))
    assert await behind.beat("a-0")
    proxy.silence_at(b".node.", "out")
    with pytest.raises(StoreError):
        await behind.beat("a-0")
    assert (await directory.read()).nodes[0].beats == 2
    proxy.heal()
    assert await until_done(lambda: behind.beat("a-0"))
    assert (await directory.read()).nodes[0].beats == 3


async def test_a_server_that_does_not_answer_is_not_asked_twice(nats: NatsCluster, url: NatsUrl) -> None:
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(each.port)) for each in nats.servers]
        found = copy(url)
        found.servers = [f"nats://127.0.0.1:{each.port}" for each in proxies]
        directory = await stack.enter_async_context(CellDirectory(NatsCells, found))
        await directory.join(make_node("a"))
        for proxy in proxies:
            proxy.silence()
            with suppress(StoreError):
                await directory.beat("a-0")
            assert await directory.beat("a-0")
            proxy.heal()


async def test_shards_are_taken_once_if_the_answer_is_lost(
    directory: CellDirectory, behind: CellDirectory, proxy: Proxy
) -> None:
    await behind.join(make_node("a"))
    proxy.silence_at(b".shards", "out")
    with pytest.raises(StoreError):
        await behind.take("a-0", {1: 0})
    assert (await directory.read()).shards[1].node == "a-0"
    proxy.heal()
    assert (await until_done(lambda: behind.take("a-0", {1: 0, 2: 0}))).keys() == {2}


async def test_shards_that_a_node_has_kept_are_not_given_away_later(
    directory: CellDirectory, behind: CellDirectory, proxy: Proxy
) -> None:
    for name in "ab":
        await behind.join(make_node(name))
    taken = await behind.take("a-0", {1: 0})
    proxy.silence_at(b".shards", "in")
    with pytest.raises(StoreError):
        await behind.give("a-0", taken, "b-0")
    assert b".shards" in b"".join(proxy.held)
    raised = await directory.give("a-0", taken, "a-0")
    assert raised.keys() == {1}
    proxy.deliver()
    for _ in range(20):
        shard = (await until_done(behind.read)).shards[1]
        assert (shard.node, shard.epoch) == ("a-0", raised[1])


async def test_a_beat_that_arrives_after_the_mark_is_refused(
    directory: CellDirectory, behind: CellDirectory, proxy: Proxy
) -> None:
    await behind.join(make_node("a"))
    assert await behind.beat("a-0")
    proxy.silence_at(b".node.", "in")
    with pytest.raises(StoreError):
        await behind.beat("a-0")
    assert b".node." in b"".join(proxy.held)
    assert await directory.mark_dead("a-0", 1)
    proxy.deliver()
    assert not await until_done(lambda: behind.beat("a-0"))
    (node,) = (await directory.read()).nodes
    assert (node.is_dead, node.beats) == (True, 1)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
async def test_all_goes_on_without_the_leader(nats: NatsCluster, url: NatsUrl, by: signal.Signals) -> None:
    async with CellDirectory(NatsCells, url) as directory, CellDirectory(NatsCells, url) as other:
        await directory.join(make_node("a"))
        taken = await directory.take("a-0", dict.fromkeys(range(SHARDS), 0))
        leader = await asyncio.to_thread(nats.find_leader, f"{url.stream}-directory")
        if by == signal.SIGKILL:
            leader.stop(by)
        else:
            leader.pause()
        before = (await until_done(other.read)).nodes[0].beats
        assert await until_done(lambda: directory.beat("a-0"))
        view = await until_done(other.read)
        assert view.nodes[0].beats > before
        assert {shard: each.epoch for shard, each in enumerate(view.shards)} == taken
        if by == signal.SIGSTOP:
            leader.resume()
            async with CellDirectory(NatsCells, at(url, leader)) as late:
                assert (await until_done(late.read)).nodes[0].beats == view.nodes[0].beats


async def test_nothing_is_read_or_changed_without_most_of_the_servers(nats: NatsCluster, url: NatsUrl) -> None:
    last = nats.servers[-1]
    async with CellDirectory(NatsCells, at(url, last)) as directory:
        await directory.join(make_node("a"))
        assert await directory.beat("a-0")
        for each in nats.servers[:-1]:
            each.stop(signal.SIGKILL)
        with pytest.raises(StoreError):
            await directory.read()
        with pytest.raises(StoreError):
            await directory.beat("a-0")
        await asyncio.to_thread(nats.start)
        assert await until_done(lambda: directory.beat("a-0"))
        (node,) = (await until_done(directory.read)).nodes
        assert node.beats in (2, 3)


async def test_a_stream_that_is_made_again_gives_no_epoch_out_twice(url: NatsUrl) -> None:
    epochs = []
    for _ in range(2):
        async with CellDirectory(NatsCells, url) as directory:
            await directory.join(make_node("a"))
            taken = await directory.take("a-0", {1: 0})
            epochs += [taken[1], (await directory.give("a-0", taken, "a-0"))[1]]
        await delete_stream(url)
    assert epochs == sorted(set(epochs))


async def test_nodes_join_again_after_the_stream_was_deleted(url: NatsUrl, directory: CellDirectory) -> None:
    await directory.join(make_node("a"))
    for _ in range(20):
        assert await directory.beat("a-0")
    await delete_stream(url)
    with pytest.raises(StoreError):
        await directory.beat("a-0")
    async with CellDirectory(NatsCells, url) as other:
        assert not await directory.beat("a-0")
        assert not (await directory.read()).nodes
        assert await directory.join(make_node("a", 1)) is None
        assert [each.id for each in (await other.read()).nodes] == ["a-1"]


@pytest.mark.parametrize("moves_first", [True, False])
async def test_another_stream_that_has_more_messages_is_not_taken_for_the_former_one(
    url: NatsUrl, directory: CellDirectory, *, moves_first: bool
) -> None:
    await directory.join(make_node("a"))
    taken = await directory.take("a-0", {1: 0, 2: 0})
    for _ in range(20):
        assert await directory.beat("a-0")
    await directory.read()
    await delete_stream(url)
    async with CellDirectory(NatsCells, url) as other:
        await other.join(make_node("b"))
        again = await other.take("b-0", {1: 0, 2: 0})
        for _ in range(60):
            assert await other.beat("b-0")
        if moves_first:
            assert await directory.give("a-0", taken, "a-0") == {}
        assert await directory.join(make_node("a", 1)) is None
        view = await directory.read()
        assert [each.name for each in view.nodes] == ["a", "b"]
        assert [view.shards[shard] for shard in again] == [("b-0", again[1], {}), ("b-0", again[2], {})]
        assert again[1] > taken[1]
