"""Channels of one carrier to threads of several workers and nodes, and threads that move."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.integration.carrier_client import CarrierClient, carried
from tests.schedules import in_soak
from tests.workers.group import Group

from plait import ThreadKey
from plait.store.shards import find_file

PATH = "/threads/place/{}"


async def rejoin(carrier: CarrierClient, name: str) -> int:
    """Join a thread again, as a client does, until a node serves it."""
    while True:
        number = await carrier.open(PATH.format(name))
        await carrier.until_answered(number)
        if carrier.frames[number]:
            return number
        assert carrier.closed[number][0] in (1001, 1013), carrier.closed
        await asyncio.sleep(0.1)


async def add(carrier: CarrierClient, number: int, writer: str, n: int) -> None:
    """Write on a channel, and wait until the write is durable."""
    joined: dict[str, Any] = carrier.frames[number][0]
    ops = [{"op": "add", "path": f"/{writer}", "value": n}]
    await carrier.tell(number, "push", ref=1, base=[joined["epoch"], joined["version"]], ops=ops)
    await carrier.until(lambda: any(each["type"] == "ack" for each in carrier.frames[number]))


async def test_a_carrier_has_the_threads_of_all_workers(tmp_path: Path) -> None:
    names = [
        next(name for name in map(str, range(99)) if find_file(ThreadKey("place", name), 2) == n) for n in range(2)
    ]
    with Group("tests.cluster.apps:app", cwd=tmp_path, environment={"PLAIT_STORE": "sqlite:///ledger.db"}) as group:
        async with carried(group.address) as carrier, carried(group.address) as other:
            mine = [await carrier.join(PATH.format(name)) for name in names]
            theirs = [await other.join(PATH.format(name), "other") for name in names]
            pids = [await carrier.call(number, "where") for number in mine]
            assert len(set(pids)) == 2
            for number, name in zip(mine, names, strict=True):
                await add(carrier, number, f"w{name}", 1)
            for number, name in zip(theirs, names, strict=True):
                await other.until_shown(number, f"/w{name}")


@each_engine("postgres")
@pytest.mark.parametrize("by", [signal.SIGTERM, *in_soak([signal.SIGKILL])], ids=["stops", "is-killed"])
async def test_only_the_channels_of_threads_that_move_are_closed(
    engine: Engine, tmp_path: Path, by: signal.Signals
) -> None:
    async with open_cluster(engine, tmp_path) as cluster, carried(cluster.addresses[0]) as carrier:
        (stays,) = cluster.find_names("a", "stays", 1, kind="place")
        moving = cluster.find_names("b", "moves", 3, kind="place")
        kept = await carrier.join(PATH.format(stays))
        numbers = [await carrier.join(PATH.format(name)) for name in moving]
        a, b = (cluster.nodes[name].pid for name in "ab")
        assert await carrier.call(kept, "where") == a
        assert [await carrier.call(number, "where") for number in numbers] == [b] * 3
        for number in numbers:
            await add(carrier, number, "before", number)
        ending = asyncio.create_task(asyncio.to_thread(cluster.nodes["b"].end, by))
        assert {(await carrier.until_closed(number))[0] for number in numbers} == {1001}
        again = [await rejoin(carrier, name) for name in moving]
        assert [await carrier.call(number, "where") for number in again] == [a] * 3
        assert [carrier.frames[number][0]["state"]["before"] for number in again] == numbers
        await ending
        assert await carrier.call(kept, "where") == a
        assert kept not in carrier.closed
