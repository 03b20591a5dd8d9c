"""No client is shown that has left: counts and presence are right after a worker or the whole server was killed."""

import asyncio
import signal
from pathlib import Path

from tests.integration.socket_client import TIMEOUT, http
from tests.running import Process
from tests.workers.group import Group
from tests.workers.guests import Guest, check_people, read_page, sit_down
from tests.workers.test_kills import find_ports

from plait import ThreadKey
from plait.store.shards import find_file

APP = "tests.workers.lobby_apps:app"
# One table of each worker.
TABLES = [next(name for name in map(str, range(99)) if find_file(ThreadKey("table", name), 2) == n) for n in range(2)]


async def fill(address: str, count: int, *, first: int = 0) -> list[Guest]:
    """Have guests sit down at each table."""
    numbers = range(first, first + count)
    return [await sit_down(address, table, f"{table}-{number}") for number in numbers for table in TABLES]


async def test_no_ghosts_are_left_by_a_killed_worker(tmp_path: Path) -> None:
    with Group(APP, cwd=tmp_path) as group:
        guests = await fill(group.address, 12)
        await check_people(group.address, guests, TABLES)
        ports = find_ports(group.processes()[0])
        # Their sockets were at the worker, or it owned their table.
        lost = [guest for guest in guests if guest.port in ports or guest.table == TABLES[0]]
        group.until_gone(group.hurt(0))
        for guest in lost:
            await guest.until_closed()
        assert len(guests) > sum(guest.is_here for guest in guests) == len(guests) - len(lost)
        await check_people(group.address, guests, TABLES)
        guests += await fill(group.address, 2, first=12)
        await check_people(group.address, guests, TABLES)
        for guest in guests:
            await guest.socket.close()


async def test_a_listing_says_that_a_worker_is_silent_and_has_the_rest(tmp_path: Path) -> None:
    with Group(APP, cwd=tmp_path) as group:
        guests = await fill(group.address, 1)
        while True:  # A connection that stays, at worker 1.
            client = http(group.address)
            stream = (await client.get("/threads/table")).extensions["network_stream"]
            if stream.get_extra_info("client_addr")[1] in find_ports(group.processes()[1]):
                break
            await client.aclose()
        group.hurt(0, signal.SIGSTOP)
        try:
            page = (await client.get("/threads/table")).json()
        finally:
            group.hurt(0, signal.SIGCONT)
        await client.aclose()
        assert page["silent"] == 1
        assert [(row["name"], row["people"]) for row in page["threads"]] == [(TABLES[1], 1)]
        await check_people(group.address, guests, TABLES)
        for guest in guests:
            await guest.socket.close()


async def test_no_ghosts_are_left_by_a_killed_server(tmp_path: Path) -> None:
    with Process(APP, cwd=tmp_path) as server:
        guests = await fill(server.address, 4)
        await check_people(server.address, guests, TABLES)
        server.end(signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(guest.until_closed() for guest in guests))
        server.start()
        assert [row["people"] for row in (await read_page(server.address))["threads"]] == [0, 0]
        await check_people(server.address, guests, TABLES)
        guests += await fill(server.address, 1, first=4)
        await check_people(server.address, guests, TABLES)
        for guest in guests:
            await guest.socket.close()
