"""Workers and their parent are killed at any moment: nothing acknowledged is lost, and all clients continue."""

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.integration.socket_client import TIMEOUT, Client, opened
from tests.schedules import SEED, TIMES, schedules
from tests.workers.group import Group
from tests.workers.load import Load, Told, check_stored

from plait import ThreadKey
from plait.store.shards import find_file

log = logging.getLogger(__name__)

FAULTS = ("owner", "gateway", "parent")
COUNT = 2
# Acknowledged changes and reads in each fault.
LEAST = 1000 if TIMES > 1 else 200
# A kernel gives all connections to one of two workers only by chance.
MOST_SOCKETS = 100
MOST_SCHEDULES = 100


def find_names(schedule: int, owner: int, count: int) -> list[str]:
    """Return names of threads that a worker owns."""
    names = (f"{schedule}-{number}" for number in range(1000))
    return [name for name in names if find_file(ThreadKey("ledger", name), COUNT) == owner][:count]


def find_ports(process: psutil.Process) -> set[int]:
    """Return the ports of the clients that are connected to a process."""
    found = process.net_connections("tcp")
    return {each.raddr.port for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr}


def port_of(client: Client) -> int:
    """Return the port of a client's socket."""
    port: int = client.socket.local_address[1]
    return port


@asynccontextmanager
async def opened_at_each(group: Group, thread: str) -> AsyncIterator[list[Client]]:
    """Open sockets of a thread until one is at each worker, and return those of the workers in order."""
    clients: list[Client] = []
    try:
        while True:
            clients.append(await opened(group.address, f"/threads/ledger/{thread}"))
            await clients[-1].until(lambda client: client.states)
            at = [find_ports(process) for _, process in sorted(group.processes().items())]
            found = [next((each for each in clients if port_of(each) in ports), None) for ports in at]
            if None not in found:
                break
            assert len(clients) < MOST_SOCKETS
        yield [each for each in found if each is not None]
    finally:
        for client in clients:
            await client.close()


async def check_sockets(fault: str, owner: int, clients: list[Client]) -> None:
    """Check what the sockets at the workers see of a fault."""
    at_owner, at_gateway = clients[owner], clients[1 - owner]
    if fault == "owner":
        assert await at_owner.until_closed() == 1006
        assert await at_gateway.until_closed() == 1001
    elif fault == "gateway":
        assert await at_gateway.until_closed() == 1006
        seen = len(at_owner.states)
        await at_owner.until(lambda client: len(client.states) > seen)
    else:
        assert [await each.until_closed() for each in clients] == [1001, 1001]


async def hurt(group: Group, fault: str, owner: int) -> None:
    """Kill a process, and wait until its successor has started."""
    if fault == "parent":
        workers = group.processes().values()
        group.end(signal.SIGKILL)
        for each in workers:
            await asyncio.to_thread(group.until_gone, each.pid)
        await asyncio.to_thread(group.start)
    else:
        worker = owner if fault == "owner" else 1 - owner
        starts = group.starts(worker)
        group.hurt(worker)
        await asyncio.to_thread(group.until, lambda: group.starts(worker) > starts)


async def test_a_reload_loses_nothing_and_has_the_clients_join_again(tmp_path: Path) -> None:
    with Group("tests.workers.apps:app", cwd=tmp_path, count=COUNT) as group:
        names = [*find_names(0, 0, 2), *find_names(0, 1, 2)]
        told = Told()
        async with Load([group.address], names, told) as load:
            async with opened_at_each(group, names[0]) as clients:
                group.signal(signal.SIGHUP)
                await asyncio.to_thread(group.until, lambda: group.count_lines("all workers are replaced"))
                assert [await each.until_closed() for each in clients] == [1001, 1001]
            before = told.acknowledged
            await load.until(lambda: told.acknowledged > before + 100 and told.reads > 100)
            shown = await load.converge()
        for number, name in enumerate(names):
            check_stored(tmp_path / f"ledger.{number // 2}.db", name, told, shown[name])
        assert group.end() == 0
    assert "Traceback" not in group.log.read_text()


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_killed_workers_and_parents_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance, rounds = random.Random(SEED), min(schedules(len(FAULTS)), MOST_SCHEDULES)
    log.warning("PLAIT_SEED=%d, %d schedules", SEED, rounds)
    with Group("tests.workers.apps:app", cwd=tmp_path, count=COUNT) as group:
        for schedule in range(rounds):
            fault, owner, told = FAULTS[schedule % len(FAULTS)], chance.randrange(COUNT), Told()
            threads = find_names(schedule, owner, 3)
            async with Load([group.address], threads, told) as load:
                async with opened_at_each(group, threads[0]) as clients:
                    await load.until(lambda told=told: told.acknowledged > LEAST / 4)  # type: ignore[misc]
                    await asyncio.sleep(chance.uniform(0, 0.3))
                    told.begin_outage()
                    seen = asyncio.create_task(check_sockets(fault, owner, clients))
                    await hurt(group, fault, owner)
                    await asyncio.wait_for(seen, TIMEOUT)
                await load.until(lambda told=told: told.acknowledged > LEAST and told.reads > LEAST)  # type: ignore[misc]
                shown = await load.converge()
            for thread in threads:
                check_stored(tmp_path / f"ledger.{owner}.db", thread, told, shown[thread])
            log.warning(
                "%d: %s of worker %d's threads killed: %d acks, %d reads, %.1f s without an answer",
                *(schedule, fault, owner, told.acknowledged, told.reads, told.outage),
            )
        assert group.end() == 0
    assert "Traceback" not in group.log.read_text()
