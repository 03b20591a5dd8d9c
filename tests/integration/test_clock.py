"""A server in a process of its own, whose clock is set while it runs."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
from tests.integration.socket_client import http
from tests.running import Process

from plait_client import connect

HOUR = 3600
PATIENCE = 60.0
APP = """
import time

from plait import Plait, Principal, Schedule, Thread, effect, rpc
from plait.clock import CLOCK

offset = 0
CLOCK.use(wall=lambda: time.time_ns() + offset)


class Bell(Thread[dict]):
    initial_state = {}
    schedule = Schedule()

    @rpc
    def set_clock(self, seconds: int) -> None:
        global offset
        offset = seconds * 10**9

    @rpc
    async def begin(self) -> None:
        await self.set_state({"rung": 0})
        await self.schedule.every(1, "ring")

    @effect
    def ring(self) -> None:
        self.set_state(lambda state: {"rung": state["rung"] + 1})


def authenticate(request):
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal("ada", expires_at=float(token) if token else None)


app = Plait(Bell, store="sqlite:///bell.db", authenticate=authenticate)
"""


async def call(web: httpx.AsyncClient, method: str, *args: Any) -> None:
    answer = await web.post(f"/threads/bell/one/rpc/{method}", json={"args": args})
    assert answer.status_code == 200, answer.text


async def count_rings(web: httpx.AsyncClient) -> int:
    return int((await web.get("/threads/bell/one")).json()["rung"])


async def rings_again(web: httpx.AsyncClient) -> None:
    """Wait until `every` has run twice more."""
    before = await count_rings(web)
    while await count_rings(web) < before + 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def find_stamp(web: httpx.AsyncClient) -> float:
    """Return the time of the last change, in seconds from now."""
    changes = (await web.get("/threads/bell/one/changes")).json()["changes"]
    return float(changes[-1]["at"] - time.time())


async def test_a_clock_that_is_an_hour_ahead_and_then_right_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "bell_app.py").write_text(APP)
    with Process("bell_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web, asyncio.timeout(PATIENCE):
            await call(web, "begin")
            await rings_again(web)
            await call(web, "set_clock", HOUR)
            await rings_again(web)
            assert await find_stamp(web) > HOUR / 2
            await call(web, "set_clock", 0)
            await rings_again(web)
            assert abs(await find_stamp(web)) < HOUR / 2
            token = str(time.time() + 900)
            async with connect(f"ws://{server.address}/threads/bell/one", token=token) as bell:
                rung = bell.state["rung"]
                async for _ in bell.changes():
                    if bell.state["rung"] >= rung + 2:
                        break
        text = server.log.read_text()
    assert "the clock was set forward by 3600.0" in text
    assert "the clock was set back by 3600.0" in text
    assert "cron and at run 3600 s early until the server is restarted" in text


async def test_a_clock_that_is_set_back_an_hour_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "bell_app.py").write_text(APP)
    with Process("bell_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web, asyncio.timeout(PATIENCE):
            await call(web, "begin")
            await call(web, "set_clock", -HOUR)
            await rings_again(web)
