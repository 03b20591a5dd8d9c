"""Nodes on one engine that come, go, are killed, paused, and cut off from the engine."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import Cluster, open_cluster
from tests.cluster.proxy import Proxy
from tests.integration.socket_client import Client, http, opened
from tests.workers.load import Load, Told

from plait_client import connect

log = logging.getLogger(__name__)

# Most faults of clusters were found with NATS.
pytestmark = each_engine("nats")

# More than the time after which a node is dead for the others.
LONG = 6.0


async def clients_at_each(cluster: Cluster, thread: str) -> list[Client]:
    """Return a client of a thread at each node, which has its state."""
    clients = [await opened(address, f"/threads/ledger/{thread}") for address in cluster.addresses]
    for each in clients:
        await each.until(lambda client: client.states)
    return clients


@asynccontextmanager
async def load(cluster: Cluster, threads: list[str], *, ports: Sequence[int] = ()) -> AsyncIterator[Told]:
    """Have clients at all nodes write and read threads, and check at the end that nothing acknowledged is lost.

    They reach the nodes through the ports, if these are given.
    """
    told = Told()
    async with Load([f"127.0.0.1:{port}" for port in ports] or cluster.addresses, threads, told) as clients:
        await clients.until(lambda: told.acknowledged > 200 and told.reads > 200)
        told.begin_outage()
        yield told
        acknowledged, reads = told.acknowledged, told.reads
        await clients.until(lambda: told.acknowledged > acknowledged + 200 and told.reads > reads + 200)
        shown = await clients.converge()
    for thread in threads:
        await cluster.check(thread, told, shown[thread])


def check_logs(cluster: Cluster) -> None:
    """Check that no node has raised an exception that is plait's."""
    for node in cluster.nodes.values():
        assert "Traceback" not in node.log.read_text(), node.log.read_text()


async def test_clients_of_one_thread_at_two_nodes_see_each_other(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        for owner in "ab":
            (name,) = cluster.find_names(owner, "note", 1, kind="place")
            urls = [f"ws://{address}/threads/place/{name}" for address in cluster.addresses]
            async with connect(urls[0]) as one, connect(urls[1]) as other:
                assert await one.call("where") == await other.call("where") == cluster.nodes[owner].pid
                await one.update("/one", 1)
                await other.update("/other", 2)
                await one.call("look")
                assert one.state == {"one": 1, "other": 2}
            for address in cluster.addresses:
                async with http(address) as web:
                    answer = await web.get(f"/threads/place/{name}")
                    assert answer.json() == {"one": 1, "other": 2}
                    called = await web.post(f"/threads/place/{name}/rpc/where")
                    assert called.json()["result"] == cluster.nodes[owner].pid, called.text
    check_logs(cluster)


async def test_a_paused_node_shows_nothing_after_its_lease(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        (name,) = cluster.find_names("a", "pause", 1)
        at_owner, at_gateway = await clients_at_each(cluster, name)
        (other,) = cluster.find_names("b", "pause", 1)
        relayed, _ = await clients_at_each(cluster, other)
        node = cluster.nodes["a"]
        async with http(node.address) as web:
            # What the node has read before it stops, and would answer when it continues.
            seen = len(at_owner.states), len(relayed.states)
            node.signal(signal.SIGSTOP)
            try:
                await at_owner.push({"late": 1})
                asked = asyncio.create_task(web.get(f"/threads/ledger/{name}"))
                assert await at_gateway.until_closed() == 1001
                async with connect(f"ws://{cluster.nodes['b'].address}/threads/ledger/{name}") as room:
                    await room.update("/new", 7)
                    await cluster.until(lambda: set(cluster.owners()) == {"b"})
            finally:
                node.signal(signal.SIGCONT)
            answer = await asked
            assert answer.status_code == 503 or answer.json() == {"new": 7}
            assert await at_owner.until_closed() == 1001
            assert await relayed.until_closed() == 1001
            assert (len(at_owner.states), len(relayed.states)) == seen
            await cluster.until_shared()
            stored = await web.get(f"/threads/ledger/{name}")
            assert stored.json() == {"new": 7}
    check_logs(cluster)


async def test_an_engine_that_is_away_for_less_than_the_lease_closes_no_socket(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        (name,) = cluster.find_names("a", "short", 1)
        clients = await clients_at_each(cluster, name)
        for node in cluster.nodes.values():
            node.engine.silence()
        await asyncio.sleep(1.0)
        async with http(cluster.nodes["b"].address) as web:
            assert (await web.get(f"/threads/ledger/{name}")).status_code == 200
        for node in cluster.nodes.values():
            node.engine.heal()
        async with connect(f"ws://{cluster.nodes['a'].address}/threads/ledger/{name}") as room:
            await room.update("/new", 7)
        for each in clients:
            await each.until_state({"new": 7})
            await each.close()
        assert set(cluster.owners()) == {"a", "b"}
    check_logs(cluster)


async def test_an_engine_that_is_away_for_longer_silences_all_nodes_and_keeps_their_sockets(
    engine: Engine, tmp_path: Path
) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        (name,) = cluster.find_names("a", "long", 1)
        clients = await clients_at_each(cluster, name)
        for node in cluster.nodes.values():
            node.engine.silence()
        await asyncio.sleep(LONG)
        async with http(cluster.nodes["b"].address) as web:
            asked = asyncio.create_task(web.get(f"/threads/ledger/{name}"))
            done, _ = await asyncio.wait([asked], timeout=1)
            assert not done
            for node in cluster.nodes.values():
                node.engine.heal()
            assert (await asked).status_code == 200
        async with connect(f"ws://{cluster.nodes['a'].address}/threads/ledger/{name}") as room:
            await room.update("/new", 7)
        for each in clients:
            await each.until_state({"new": 7})
            await each.close()
        assert set(cluster.owners()) == {"a", "b"}
    check_logs(cluster)


async def test_a_node_that_stops_gives_its_threads_away_before(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        names = cluster.find_names("b", "stop", 2)
        async with load(cluster, names) as told:
            assert await asyncio.to_thread(cluster.nodes["b"].end) == 0
            assert set(cluster.owners()) == {"a"}
            await cluster.start("b")
            await cluster.until_shared()
        log.warning("%.2f s without an answer", told.outage)
    check_logs(cluster)


@pytest.mark.release
async def test_a_rolling_restart_of_three_nodes_is_no_error_and_a_short_wait(engine: Engine, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(engine, tmp_path, names=("a", "b", "c")))
        fronts = {name: await stack.enter_async_context(Proxy(node.port)) for name, node in cluster.nodes.items()}
        threads = [cluster.find_names(name, "roll", 1)[0] for name in "abc"]
        async with load(cluster, threads, ports=[each.port for each in fronts.values()]) as told:
            for name, other in zip("abc", "bca", strict=True):
                # A proxy leaves out a node that restarts.
                fronts[name].target = cluster.nodes[other].port
                assert await asyncio.to_thread(cluster.nodes[name].end) == 0
                await cluster.start(name)
                await cluster.until_shared()
                fronts[name].target = cluster.nodes[name].port
        log.warning("%.2f s without an answer, %s", told.outage, dict(told.errors))
        # Calls that are under way when a socket closes, and requests on connections that the stopping node has kept.
        assert set(told.errors) <= {"disconnected", "unavailable"}
        assert not any(told.refused.values())
    check_logs(cluster)


async def test_a_lost_link_closes_the_sockets_that_it_carries(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        (name,) = cluster.find_names("a", "link", 1)
        at_owner, at_gateway = await clients_at_each(cluster, name)
        cluster.nodes["a"].links.close()
        assert await at_gateway.until_closed() == 1001
        again = await opened(cluster.nodes["b"].address, f"/threads/ledger/{name}")
        await again.push({"n": 1})
        await at_owner.until_state({"n": 1})
        for each in (at_owner, again):
            await each.close()
    check_logs(cluster)
