"""Stopping an execution over real sockets, and on a server that is killed."""

import asyncio
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.killed_stop import make_app
from tests.integration.socket_client import http
from tests.running import Process, running
from tests.schedules import SEED, schedules

from plait import MemoryStore
from plait_client import connect

PATIENCE = 60.0
ROUNDS = schedules(2)
APP = "tests.integration.killed_stop:app"
STOPPED = {"runs": ["cancelled"], "messages": [["user", "one", "completed"], ["assistant", "Half", "failed"]]}
QUEUED = {**STOPPED, "messages": [*STOPPED["messages"], ["user", "two", "pending"]]}


async def call(web: httpx.AsyncClient, path: str, *args: Any) -> Any:
    """Call a method of a thread, or stop it, and return the result."""
    answer = await web.post(f"/threads/desk/{path}", json={"args": args})
    answer.raise_for_status()
    return answer.json()["result"]


async def wait_for(web: httpx.AsyncClient, name: str, *wanted: dict[str, Any]) -> None:
    """Wait until a thread looks in one of some ways."""
    async with asyncio.timeout(PATIENCE):
        while (found := await call(web, f"{name}/rpc/look")) not in wanted:
            assert found["runs"].count("running") < 2
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("door", ["http", "rpc", "socket"])
async def test_a_client_stops_an_execution_and_has_it_go_on(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOP_HANGS", "1")
    async with running(make_app(store=MemoryStore(), secret="of the test")) as address:
        url = f"ws://{address}/threads/desk/one"
        async with asyncio.timeout(PATIENCE), http(address) as web, connect(url) as room:

            async def do(what: str) -> Any:
                if door == "socket":
                    return await room.call(f"run:{what}")
                return await call(web, f"one/{what}" if door == "http" else f"one/rpc/run:{what}")

            await room.messages.open()
            await room.messages.send("one")
            async for items in room.messages:
                if items and items[-1].content == "Half":
                    break
            assert await do("stop") is True
            assert await do("stop") is False
            await wait_for(web, "one", STOPPED)
            async for items in room.messages:
                if items[-1].status == "failed":
                    break
            monkeypatch.delenv("STOP_HANGS")
            assert await do("continue") is True
            async for items in room.messages:
                if items[-1].content == "re one":
                    break
            assert await do("continue") is False


async def test_who_may_not_call_may_not_stop() -> None:
    async def authorize(principal: object, thread: object, action: str) -> bool:
        return action != "call"

    async with (
        running(make_app(store=MemoryStore(), secret="of the test", authorize=authorize)) as address,
        http(address) as web,
    ):
        for path in ("stop", "continue", "rpc/run:stop", "rpc/run:continue"):
            assert (await web.post(f"/threads/desk/one/{path}")).status_code == 403
        assert (await web.get("/threads/desk/one/stop")).status_code == 404


async def test_a_stop_holds_on_a_server_that_is_killed(tmp_path: Path) -> None:
    chance, environment = random.Random(SEED), {"PLAIT_SECRET": "test"}
    acknowledged = set[str]()

    async def stop(web: httpx.AsyncClient, name: str) -> None:
        with suppress(httpx.HTTPError):
            await call(web, f"{name}/stop")
            acknowledged.add(name)

    names = [f"{number}" for number in range(ROUNDS)]
    for name in names:
        with Process(APP, cwd=tmp_path, environment=environment | {"STOP_HANGS": "1"}) as server:
            async with http(server.address) as web:
                for before in acknowledged:
                    assert await call(web, f"{before}/rpc/look") == QUEUED
                await call(web, f"{name}/rpc/ask", "one")
                while ["assistant", "Half", "streaming"] not in (await call(web, f"{name}/rpc/look"))["messages"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                await call(web, f"{name}/rpc/ask", "two")
                stopping = asyncio.create_task(stop(web, name))
                await asyncio.sleep(chance.random() * 0.02)  # The moment at which it is killed.
                server.end(signal.SIGKILL)
                await stopping
    with Process(APP, cwd=tmp_path, environment=environment) as server:
        async with asyncio.timeout(PATIENCE), http(server.address) as web:
            for name in names:
                found = await call(web, f"{name}/rpc/look")
                assert found == QUEUED or name not in acknowledged
                await call(web, f"{name}/continue")
                while ["assistant", "re one,two", "completed"] not in found["messages"]:
                    found = await call(web, f"{name}/rpc/look")
                    await asyncio.sleep(0.002)
                assert [text for role, text, _ in found["messages"] if role == "user"] == ["one", "two"]
                answers = [
                    text for role, text, status in found["messages"] if (role, status) == ("assistant", "completed")
                ]
                assert answers == ["re one,two"] or name not in acknowledged
