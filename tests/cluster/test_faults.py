"""Faults by seed, under load: nodes are killed and paused, links and engines are cut. Nothing acknowledged is lost."""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.nodes import Cluster, open_cluster
from tests.postgres import Postgres
from tests.schedules import SEED, TIMES, schedules
from tests.workers.load import Load, Told

log = logging.getLogger(__name__)

# Acknowledged changes and reads in each fault.
LEAST: Final = 1000
# Seconds for which a node is paused, or cut off: longer than its lease, and than it takes the others to see it.
LONG: Final = 6.0


async def kill(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Kill a node, and start it again when the others own its threads."""
    await asyncio.to_thread(cluster.nodes[node].end, signal.SIGKILL)
    await cluster.until(lambda: node not in cluster.owners() and "" not in cluster.owners())
    await cluster.start(node)


async def pause(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Pause a node beyond its lease."""
    cluster.nodes[node].signal(signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(2.5, LONG))
    cluster.nodes[node].signal(signal.SIGCONT)


async def stop(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Stop a node in order, and start it again."""
    assert await asyncio.to_thread(cluster.nodes[node].end) == 0
    await cluster.start(node)


async def cut_link(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Silence the links to a node, in one direction or both."""
    cluster.nodes[node].links.silence(chance.choice(["in", "out", "both"]))  # type: ignore[arg-type]
    await asyncio.sleep(chance.uniform(0.5, LONG))
    cluster.nodes[node].links.heal()


async def cut_engine(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Cut one node off from the engine, in one direction or both."""
    cluster.nodes[node].engine.silence(chance.choice(["in", "out", "both"]))  # type: ignore[arg-type]
    await asyncio.sleep(chance.uniform(0.5, LONG))
    cluster.nodes[node].engine.heal()


async def crash_engine(cluster: Cluster, node: str, chance: random.Random) -> None:
    """Kill the engine, and start it again."""
    await asyncio.to_thread(cluster.engine.crash)
    await asyncio.sleep(chance.uniform(0.2, LONG))
    await asyncio.to_thread(cluster.engine.start)


FAULTS: Final[Mapping[str, Callable[[Cluster, str, random.Random], Awaitable[None]]]] = {
    each.__name__: each for each in (kill, pause, cut_link, cut_engine, crash_engine, stop)
}


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_faults_lose_nothing_acknowledged_and_show_nothing_old(postgres: Postgres, tmp_path: Path) -> None:
    chance, rounds = random.Random(SEED), schedules(12)
    log.warning("PLAIT_SEED=%d, %d schedules", SEED, rounds)
    async with open_cluster(postgres, tmp_path) as cluster:
        for schedule in range(rounds):
            name = list(FAULTS)[schedule % len(FAULTS)]
            node, told = chance.choice(list(cluster.nodes)), Told()
            threads = [*cluster.find_names("a", f"{schedule}a", 2), *cluster.find_names("b", f"{schedule}b", 1)]
            async with Load(cluster.addresses, threads, told) as load:
                await load.until(lambda told=told: told.acknowledged > LEAST / 4)  # type: ignore[misc]
                await asyncio.sleep(chance.uniform(0, 0.3))
                told.begin_outage()
                await FAULTS[name](cluster, node, chance)
                acknowledged = told.acknowledged
                await load.until(
                    lambda told=told, before=acknowledged: (  # type: ignore[misc]
                        told.acknowledged > max(LEAST, before + 50) and told.reads > LEAST
                    )
                )
                shown = await load.converge()
            for thread in threads:
                await cluster.check(thread, told, shown[thread])
            log.warning(
                "%d: %s of %s: %d acks, %d reads, %.1f s without an answer",
                *(schedule, name, node, told.acknowledged, told.reads, told.outage),
            )
            await cluster.until_shared()
        for each in cluster.nodes.values():
            assert "Traceback" not in each.log.read_text(), each.log.read_text()
