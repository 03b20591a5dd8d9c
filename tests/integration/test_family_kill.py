"""Families on servers that are killed: each child is born once, and each notice comes once and in order."""

import asyncio
import os
import random
import signal
from pathlib import Path

import psutil
import pytest
from tests.families import ask, playing
from tests.integration.socket_client import http
from tests.postgres import new_schema
from tests.running import Process
from tests.schedules import SEED, TIMES, in_soak, schedules
from tests.workers.group import Group

ROUNDS = {"sqlite": schedules(8), "workers": schedules(2), "postgresql": schedules(3)}


async def hurt(server: Process, chance: random.Random) -> None:
    """Kill a server, or of workers the one that owns the parent, or all of them at once."""
    if not isinstance(server, Group):
        server.end(signal.SIGKILL)
        await asyncio.to_thread(server.start)
    elif chance.random() < 0.7:
        async with http(server.address) as client:
            os.kill(await ask(client, "boss/b", "where"), signal.SIGKILL)
    else:
        server.signal(signal.SIGSTOP)  # It starts no more workers.
        workers = psutil.Process(server.pid).children(recursive=True)
        server.end(signal.SIGKILL)
        for worker in workers:
            worker.kill()
        psutil.wait_procs(workers, timeout=30)
        await asyncio.to_thread(server.start)


@pytest.mark.soak
@pytest.mark.timeout(120 * TIMES)
@pytest.mark.parametrize("engine", ["workers", *in_soak(["sqlite"], ["postgresql"])])
async def test_a_killed_family_has_each_child_once_and_each_notice_once_and_in_order(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = new_schema(request.getfixturevalue("postgres").url) if engine == "postgresql" else "sqlite:///family.db"
    make, chance = Group if engine == "workers" else Process, random.Random(SEED)
    with make("tests.family_app:app", cwd=tmp_path, environment={"PLAIT_STORE": url}) as server:
        async with playing() as players:
            players.begin(server.address, *"abcd")
            for number in range(ROUNDS[engine]):
                await players.until_stepped()
                players.begin(server.address, *(f"{number}-{child}" for child in range(3)))
                await asyncio.sleep(chance.random() * 0.1)  # The moment at which it is killed: some are being born.
                await hurt(server, chance)
        assert await players.check(server.address) > 0
