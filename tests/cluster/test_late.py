"""Late writes and answers of a node that the others have replaced do not count."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import Cluster, Node, open_cluster
from tests.integration.socket_client import Client, http, opened
from tests.workers.load import Told

from plait_client import Unanswered, connect


async def until_replaced(cluster: Cluster, node: str) -> None:
    """Wait until the other nodes own everything."""
    await cluster.until(lambda: not {node, ""} & set(cluster.owners()))


async def begin(node: Node, thread: str) -> Client:
    """Begin a thread at its owner, and return a client there."""
    async with http(node.address) as web:
        assert (await web.put(f"/threads/ledger/{thread}", json={"w": 1})).status_code == 200
    client = await opened(node.address, f"/threads/ledger/{thread}")
    await client.until_state({"w": 1})
    return client


# In NATS, a late write could replace what the next owner has written. MariaDB is sent a write statement by statement,
# so that none is held whole.
@each_engine("nats", but="mariadb")
async def test_a_write_that_arrives_after_the_takeover_is_not_stored(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        a, b = (cluster.nodes[name] for name in "ab")
        (name,) = cluster.find_names("a", "late", 1)
        async with connect(f"ws://{a.address}/threads/ledger/{name}") as room:
            await room.update("/w", 1)
            await room.update("/w", 2)
            a.engine.silence("in")
            late = room.update("/late", 1)
            # The write has left the node, but not reached the engine.
            await cluster.until(lambda: b"/late" in a.engine.held)
            # It is not sent again.
        with pytest.raises(Unanswered):
            await late
        await until_replaced(cluster, "a")
        async with connect(f"ws://{b.address}/threads/ledger/{name}") as room:
            # The thread has its new owner, which has written nothing yet.
            version, state, epoch, _ = await room.call("look")
            assert (version, state) == (2, {"w": 2})
            a.engine.deliver()
            await cluster.until_shared()
            told = Told()
            for number in (1, 2):
                told.ack(name, "w", number, epoch, number)
            # In NATS, the next write of the owner would replace it.
            await cluster.check(name, told, {"w": 2})
            told.ack(name, "w", 3, epoch, await room.update("/w", 3))
            await room.call("look")
            assert (room.version, room.state) == (3, {"w": 3})
            await cluster.check(name, told, room.state)


@each_engine("nats")
async def test_a_node_that_continues_without_the_engine_answers_nothing_until_it_has_joined_again(
    engine: Engine, tmp_path: Path
) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        a, b = (cluster.nodes[name] for name in "ab")
        (name,) = cluster.find_names("a", "paused", 1)
        client = await begin(a, name)
        async with http(a.address) as web:
            assert (await web.get(f"/threads/ledger/{name}")).json() == {"w": 1}
            a.signal(signal.SIGSTOP)
            try:
                await until_replaced(cluster, "a")
                async with connect(f"ws://{b.address}/threads/ledger/{name}") as room:
                    await room.update("/w", 2)
                a.engine.silence()
                # What the node gets now it could only answer with what is old.
                look = asyncio.ensure_future(await client.begin("look"))
                read = asyncio.create_task(web.get(f"/threads/ledger/{name}"))
                await client.push({"w": 3})
                seen = len(client.received)
            finally:
                a.signal(signal.SIGCONT)
            done, _ = await asyncio.wait({look, read}, timeout=2)
            assert not done
            assert len(client.received) == seen
            a.engine.heal()
            answer = await read
            assert answer.status_code == 503 or answer.json() == {"w": 2}
            assert await client.until_closed() == 1001
            assert len(client.received) == seen
            await cluster.until_shared()
            assert (await web.get(f"/threads/ledger/{name}")).json() == {"w": 2}
