"""Faults of a Redis server below a cluster."""

from collections.abc import Mapping

from tests.cluster.faults import FAULTS, Fault, Hurt

__all__ = ["REDIS_FAULTS"]


async def crash_engine(hurt: Hurt) -> None:
    """Kill the server, and start it again: it loses nothing, but each start gives new epochs."""
    hurt.told.begin_loss()
    await FAULTS["crash_engine"](hurt)


REDIS_FAULTS: Mapping[str, Fault] = {**FAULTS, "crash_engine": crash_engine}
"""All faults of a cluster on Redis, by name."""
