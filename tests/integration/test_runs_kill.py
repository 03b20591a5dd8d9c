"""Runs of agents that a killed server has cut off: the next run is told."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import http
from tests.running import Process

CUT_OFF_APP = """
import asyncio

from plait import Context, Plait, Text, Thread, Values


class Chat(Thread[dict]):
    initial_state = {"status": "idle", "answer": ""}
    texts = ("/answer",)
    values = Values()

    def on_start(self) -> None:
        if self.state["status"] == "writing":
            self.update("/status", "interrupted")


app = Plait(Chat, store="sqlite:///chat.db", secret="test")


@app.agent("write", thread=Chat)
async def write(ctx: Context[Chat], words: int) -> bool:
    ctx.thread.update("/status", "writing")
    for number in range(words):
        ctx.thread.append("/answer", f"{number} ")
        await asyncio.sleep(0.001)
    await ctx.thread.values.set("words", words)
    ctx.thread.update("/status", "idle")
    return ctx.shutdown_interrupted


@app.agent("wait", thread=Chat)
async def wait(ctx: Context[Chat]) -> None:
    await ctx.kv.set("waiting", ctx.thread.name, True)
    await asyncio.Event().wait()


@app.agent("look", thread=Chat)
async def look(ctx: Context[Chat]) -> list:
    found = [ctx.shutdown_interrupted, ctx.thread.state["status"], await ctx.thread.values.get("words")]
    ctx.wait_until(lambda: asyncio.sleep(0))
    return found


@app.agent("waiting", thread=Chat)
async def waiting(ctx: Context[Chat]) -> list:
    return await ctx.kv.keys("waiting")
"""


@pytest.mark.timeout(120)
async def test_after_a_crash_the_next_run_is_told_and_on_start_has_mended_the_state(tmp_path: Path) -> None:
    (tmp_path / "chat_app.py").write_text(CUT_OFF_APP)

    async def run(web: httpx.AsyncClient, name: str, agent: str, given: Any = None) -> Any:
        answer = await web.post(f"/threads/chat/{name}/run/{agent}", json=given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with Process("chat_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web:
            # Short ones, long ones that are marked while they run, and one that is answered before the crash.
            assert await run(web, "answered", "write", 300) is False
            assert await run(web, "brief", "look", None) == [False, "idle", None]
            lost = [
                asyncio.create_task(run(web, "writing", "write", 1_000_000)),
                asyncio.create_task(run(web, "waiting", "wait")),
            ]
            async with asyncio.timeout(60):
                while " 500 " not in (await web.get("/threads/chat/writing")).text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while not await run(web, "other", "waiting"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while (await web.get("/threads/chat/waiting/changes")).status_code == 404:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # It is there when its mark is.
            server.end(signal.SIGKILL)
            for task in lost:
                with suppress(httpx.HTTPError):
                    await task
        server.start()
        async with http(server.address) as web:
            assert await run(web, "writing", "look") == [True, "interrupted", None]
            assert await run(web, "writing", "look") == [False, "interrupted", None]
            assert await run(web, "waiting", "look") == [True, "idle", None]
            assert await run(web, "answered", "look") == [False, "idle", 300]
            assert await run(web, "brief", "look") == [False, "idle", None]
            server.end(signal.SIGKILL)
        server.start()
        async with http(server.address) as web:
            # Once told, it is not told again.
            for name in ("writing", "waiting", "answered"):
                assert (await run(web, name, "look"))[0] is False
