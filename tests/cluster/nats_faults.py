"""Faults of the NATS servers below a cluster under load."""

import asyncio
import signal
from typing import Final

from tests.cluster.faults import FAULTS, Fault, Hurt
from tests.nats import Nats, NatsCluster

from plait.store.nats.url import NatsUrl

__all__ = ["find_faults"]

# What else is played with NATS.
_ALSO: Final = ("crash_engine", "kill", "cut_engine_one_way", "pause", "cut_engine")


def find_faults(servers: NatsCluster) -> dict[str, Fault]:
    """Return the faults of a cluster on these servers, by name."""

    async def find_leader(hurt: Hurt) -> Nats:
        stream = NatsUrl.parse(hurt.cluster.store).stream
        return await asyncio.to_thread(servers.find_leader, hurt.chance.choice((stream, f"{stream}-directory")))

    async def kill_leader(hurt: Hurt) -> None:
        """Kill the server that leads a stream, and start it again when another one does."""
        leader = await find_leader(hurt)
        await asyncio.to_thread(leader.stop, signal.SIGKILL)
        await hurt.until_acknowledged(100)
        await asyncio.to_thread(servers.start)

    async def stop_leader(hurt: Hurt) -> None:
        """Stop the server that leads a stream in order, and start it again."""
        leader = await find_leader(hurt)
        await asyncio.to_thread(leader.stop)
        await hurt.until_acknowledged(100)
        await asyncio.to_thread(servers.start)

    async def pause_leader(hurt: Hurt) -> None:
        """Pause the server that leads a stream, until another one does."""
        leader = await find_leader(hurt)
        leader.pause()
        try:
            await hurt.until_acknowledged(100)
        finally:
            leader.resume()

    return {
        "kill_leader": kill_leader,
        **{name: FAULTS[name] for name in _ALSO},
        "pause_leader": pause_leader,
        "stop_leader": stop_leader,
        **{name: fault for name, fault in FAULTS.items() if name not in _ALSO},
    }
