"""Servers in processes of their own say what blocks them while it does, and nothing of what only takes long."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.socket_client import http
from tests.running import Process

PATIENCE = 60.0
APP = """
import asyncio
import time
from pathlib import Path

from fastapi import FastAPI

from plait import Plait, Schedule, Thread, effect, rpc


def hold(name):
    while not Path(name).exists(): time.sleep(0.01)  # The line that blocks.


class Room(Thread[dict]):
    initial_state = {}
    schedule = Schedule()

    @rpc
    def block(self) -> None:
        hold("block")

    @rpc
    async def block_later(self) -> None:
        await asyncio.sleep(0)
        hold("block_later")

    @rpc
    async def plan(self) -> None:
        await self.schedule.after(0, "strike")

    @effect
    def strike(self) -> None:
        hold("strike")

    def validate_state_change(self, next_state, source) -> None:
        hold("validate")

    @rpc
    async def fine(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(hold, "fine") for _ in range(2)), asyncio.sleep(0.5))


app = Plait(Room, store="memory://", metrics=True)
api = FastAPI(lifespan=app.lifespan)


@api.get("/endpoint")
async def endpoint() -> None:
    hold("endpoint")


api.mount("/", app)
"""
LINE = next(number for number, line in enumerate(APP.splitlines(), 1) if "The line that blocks" in line)
WHERE = f"room_app.py:{LINE}: use asyncio.to_thread"


def is_told(log: Path, text: str) -> bool:
    return text in log.read_text()


async def until_told(log: Path, text: str) -> None:
    """Wait until a line is logged."""
    async with asyncio.timeout(PATIENCE):
        while not is_told(log, text):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def block(address: str, log: Path, path: str, name: str, what: str) -> None:
    """Block a server by a request until it has said so."""
    async with http(address) as web:
        request = web.get(path) if path == "/endpoint" else web.post(path, json={})
        blocking = asyncio.create_task(request)
        await until_told(log, f"{what} blocks the server at {WHERE}")
        assert not blocking.done() or name == "strike"
        (log.parent / name).touch()
        await blocking


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "room_app.py").write_text(APP)
    return tmp_path


BLOCKS = [
    ("block", "block", "rpc block of room/a"),
    ("block_later", "block_later", "rpc block_later of room/a"),
    ("plan", "strike", "effect strike of room/a"),
]


async def test_each_turn_that_blocks_the_loop_is_told_while_it_does_and_is_measured(folder: Path) -> None:
    with Process("room_app:app", cwd=folder) as server:
        for method, name, what in BLOCKS:
            await block(server.address, server.log, f"/threads/room/a/rpc/{method}", name, what)
        async with http(server.address) as web:
            writing = asyncio.create_task(web.put("/threads/room/a", json={"n": 1}))
            await until_told(server.log, f"code outside of turns blocks the server at {WHERE}")
            (folder / "validate").touch()
            await writing
            metrics = (await web.get("/metrics")).text
        told = re.findall(r"(\S+ .* of room/a|code outside of turns) blocks the server", server.log.read_text())
    assert len(told) == len(BLOCKS) + 1, told  # Each once.
    for labels in ('kind="room",turn="rpc block"', 'kind="room",turn="effect strike"', 'kind="",turn=""'):
        assert f"plait_blocked_seconds_count{{{labels}}} 1.0" in metrics


async def test_nothing_is_told_of_what_takes_long_in_another_thread_or_waits(folder: Path) -> None:
    with Process("room_app:app", cwd=folder) as server:
        async with http(server.address) as web:
            running = [asyncio.create_task(web.post(f"/threads/room/{n}/rpc/fine", json={})) for n in range(3)]
            await block(server.address, server.log, "/threads/room/a/rpc/block", "block", "rpc block of room/a")
            (folder / "fine").touch()
            await asyncio.gather(*running)
        assert server.log.read_text().count("blocks the server") == 1


async def test_nothing_is_told_of_a_process_that_was_stopped(folder: Path) -> None:
    with Process("room_app:app", cwd=folder) as server:
        async with http(server.address) as web:
            for _ in range(3):
                server.signal(signal.SIGSTOP)
                asking = asyncio.create_task(web.get("/healthz"))
                await asyncio.sleep(0.6)  # For so long, it is stopped.
                server.signal(signal.SIGCONT)
                await asking
        await block(server.address, server.log, "/threads/room/a/rpc/block", "block", "rpc block of room/a")
        assert server.log.read_text().count("blocks the server") == 1


async def test_a_worker_tells_what_blocks_it(folder: Path) -> None:
    with Process("room_app:app", cwd=folder, options=["--workers", "2"]) as server:
        await block(server.address, server.log, "/threads/room/a/rpc/block", "block", "rpc block of room/a")


@contextmanager
def serving_by_uvicorn(folder: Path, loop: str) -> Iterator[Path]:
    """Run the app in which plait is mounted; yields its log."""
    log = folder / "uvicorn.log"
    command = [sys.executable, "-m", "uvicorn", "room_app:api", "--port", "0", "--loop", loop]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with log.open("w") as file, subprocess.Popen(command, cwd=folder, env=environment, stderr=file) as process:
        try:
            yield log
        finally:
            process.kill()  # A loop that is blocked does not end by itself.


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_what_blocks_an_app_in_which_plait_is_mounted_is_told(folder: Path, loop: str) -> None:
    with serving_by_uvicorn(folder, loop) as log:
        await until_told(log, "Uvicorn running on http://")
        found = re.search(r"running on http://(\S+)", log.read_text())
        assert found is not None
        await block(found[1], log, "/endpoint", "endpoint", "code outside of turns")
        await block(found[1], log, "/threads/room/a/rpc/block", "block", "rpc block of room/a")
