"""Faults of a cluster under load, and the checks afterwards."""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from tests.cluster.nodes import Cluster, Node
from tests.cluster.proxy import Direction
from tests.schedules import SEED, TIMES
from tests.workers.load import Load, Told

__all__ = ["FAULTS", "Fault", "Hurt", "play"]

log = logging.getLogger(__name__)

# Acknowledged changes and reads in each fault.
LEAST: Final = 1000 if TIMES > 1 else 200
# Seconds: shorter than a lease, and longer than it takes the others to find a node dead and to take its threads.
SHORT: Final = (0.3, 2.0)
LONG: Final = (5.5, 7.0)
_ONE_WAY: Final[tuple[Direction, ...]] = ("in", "out")


class Hurt(NamedTuple):
    """A cluster under load, and the node that is hurt."""

    cluster: Cluster
    name: str
    chance: random.Random
    load: Load
    told: Told

    @property
    def node(self) -> Node:
        """The node that is hurt."""
        return self.cluster.nodes[self.name]

    async def wait(self) -> None:
        """Wait less than a lease, or so long that the node is dead for the others."""
        await asyncio.sleep(self.chance.uniform(*self.chance.choice((SHORT, LONG, LONG))))

    async def until_acknowledged(self, count: int) -> None:
        """Wait until this many more changes are acknowledged."""
        wanted = self.told.acknowledged + count
        await self.load.until(lambda: self.told.acknowledged >= wanted)

    async def until_each_acknowledges(self) -> None:
        """Wait until one more change of each thread is acknowledged."""
        before = {thread: len(acks) for thread, acks in self.told.acks.items()}
        await self.load.until(lambda: all(len(self.told.acks[each]) > count for each, count in before.items()))


Fault: TypeAlias = Callable[[Hurt], Awaitable[None]]
"""Causes faults in a cluster, and heals them."""


async def kill(hurt: Hurt) -> None:
    """Kill a node, and start it again when the others own its threads and answer for them."""
    await asyncio.to_thread(hurt.node.end, signal.SIGKILL)
    await hurt.cluster.until(lambda: not {hurt.name, ""} & set(hurt.cluster.owners()))
    await hurt.until_each_acknowledges()
    await hurt.cluster.start(hurt.name)


async def pause(hurt: Hurt) -> None:
    """Pause a node beyond its lease."""
    hurt.node.signal(signal.SIGSTOP)
    await asyncio.sleep(hurt.chance.uniform(3.5, LONG[1]))
    hurt.node.signal(signal.SIGCONT)


async def pause_and_cut_off(hurt: Hurt) -> None:
    """Pause a node until the others own its threads; it continues without the engine, so it cannot learn that."""
    hurt.node.signal(signal.SIGSTOP)
    try:
        await hurt.cluster.until(lambda: not {hurt.name, ""} & set(hurt.cluster.owners()))
        await hurt.until_acknowledged(50)
        await asyncio.sleep(1.0)
        hurt.node.engine.silence()
    finally:
        hurt.node.signal(signal.SIGCONT)
    await asyncio.sleep(1.0)
    hurt.node.engine.heal()


async def cut_link_one_way(hurt: Hurt) -> None:
    """Silence the links to a node in one direction."""
    hurt.node.links.silence(hurt.chance.choice(_ONE_WAY))
    await hurt.wait()
    hurt.node.links.heal()


async def cut_link(hurt: Hurt) -> None:
    """Silence the links to a node in both directions."""
    hurt.node.links.silence()
    await hurt.wait()
    hurt.node.links.heal()


async def cut_engine_one_way(hurt: Hurt) -> None:
    """Silence the connections of a node to the engine in one direction."""
    hurt.node.engine.silence(hurt.chance.choice(_ONE_WAY))
    await hurt.wait()
    hurt.node.engine.heal()


async def cut_engine(hurt: Hurt) -> None:
    """Cut a node off from the engine until the others own its threads."""
    hurt.node.engine.silence()
    await asyncio.sleep(hurt.chance.uniform(*LONG))
    hurt.node.engine.heal()


async def delay_engine(hurt: Hurt) -> None:
    """Delay the data that a node sends to the engine."""
    hurt.node.engine.silence("in")
    await hurt.wait()
    hurt.node.engine.deliver()


async def crash_engine(hurt: Hurt) -> None:
    """Kill the engine, and start it again."""
    await asyncio.to_thread(hurt.cluster.engine.crash)
    await hurt.wait()
    await asyncio.to_thread(hurt.cluster.engine.start)


async def pause_engine(hurt: Hurt) -> None:
    """Pause the engine."""
    await asyncio.to_thread(hurt.cluster.engine.pause)
    await hurt.wait()
    await asyncio.to_thread(hurt.cluster.engine.resume)


FAULTS: Final[Mapping[str, Fault]] = {
    each.__name__: each
    for each in (
        kill,
        pause,
        cut_link,
        cut_engine_one_way,
        crash_engine,
        pause_and_cut_off,
        cut_link_one_way,
        cut_engine,
        pause_engine,
        delay_engine,
    )
}
"""The faults that every engine has, by name."""


async def play(cluster: Cluster, faults: Mapping[str, Fault], rounds: int) -> list[Told]:
    """Play faults in turn under load, by seed, and check the cluster after each; return what clients were told."""
    chance, played = random.Random(SEED), list[Told]()
    log.warning("PLAIT_SEED=%d, %d faults", SEED, rounds)
    for schedule in range(rounds):
        name = list(faults)[schedule % len(faults)]
        played.append(await _play_one(cluster, name, faults[name], f"{name}-{schedule}", chance))
        await cluster.until_shared()
    acks, reads = sum(told.acknowledged for told in played), sum(told.reads for told in played)
    log.warning("%d faults, %d acks, %d reads", rounds, acks, reads)
    for each in cluster.nodes.values():
        assert "Traceback" not in each.log.read_text(), each.log.read_text()
    return played


async def _play_one(cluster: Cluster, name: str, fault: Fault, prefix: str, chance: random.Random) -> Told:
    node, told = chance.choice(list(cluster.nodes)), Told()
    # Two threads of the node that is hurt, and one of another.
    other = next(each for each in cluster.nodes if each != node)
    threads = [*cluster.find_names(node, prefix, 2), *cluster.find_names(other, prefix, 1)]
    async with Load(cluster.addresses, threads, told) as load:
        hurt = Hurt(cluster, node, chance, load, told)
        await load.until(lambda: told.acknowledged > LEAST / 4)
        await asyncio.sleep(chance.uniform(0, 0.3))
        told.begin_outage()
        await fault(hurt)
        await hurt.until_acknowledged(100)
        await load.until(lambda: told.acknowledged > LEAST and told.reads > LEAST)
        shown = await load.converge()
    for thread in threads:
        await cluster.check(thread, told, shown[thread])
    assert min(told.acknowledged, told.reads) > LEAST
    log.warning(
        "%s of %s: %d acks, %d reads, %d refused, %.1f s without an answer",
        *(prefix, node, told.acknowledged, told.reads, sum(map(len, told.refused.values())), told.outage),
    )
    return told
