"""The threads of a family are on two nodes, and one node is killed."""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.families import ask, playing
from tests.integration.socket_client import http
from tests.schedules import SEED, TIMES, schedules

# The others wait for the lease of the killed node.
ROUNDS = 1 if TIMES == 1 else schedules(3)


@pytest.mark.soak
@pytest.mark.timeout(120 * TIMES)
@each_engine("postgres")
async def test_a_family_on_two_nodes_has_each_child_once_and_each_notice_once_and_in_order(
    engine: Engine, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    async with open_cluster(engine, tmp_path, target="tests.family_app:app") as cluster:
        async with playing() as players:
            for number in range(ROUNDS):
                # More children than these would only be slower.
                for node, address in zip("ba", cluster.addresses, strict=True) if number < 3 else ():
                    players.begin(address, *cluster.find_names(node, f"{number}-{node}", 2, kind="kid"))
                await players.until_stepped()
                async with http(cluster.addresses[number % 2]) as client:
                    pid = await ask(client, "boss/b", "where")
                (owner,) = (name for name, node in cluster.nodes.items() if node.pid == pid)
                await asyncio.sleep(chance.random() * 0.3)  # The moment at which it is killed.
                await asyncio.to_thread(cluster.nodes[owner].end, signal.SIGKILL)
                await cluster.start(owner)
                await cluster.until_shared()
            await players.until_stepped()
        assert await players.check(cluster.addresses[0]) > 0
