"""Runs of agents on a server that is told to stop: they may finish, or are cut off, saved and marked."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from tests.integration.socket_client import http
from tests.running import Process

APP = """
import asyncio

from plait import Context, Plait, Thread, Values


class Chat(Thread[dict]):
    values = Values()


app = Plait(Chat, store="sqlite:///chat.db", secret="test", shutdown_timeout=1.0)


@app.agent("finish", thread=Chat)
async def finish(ctx: Context[Chat]) -> str:
    await ctx.thread.values.set("began", 1)
    await ctx.flush()
    await asyncio.sleep(0.5)
    await ctx.thread.values.set("ended", 1)

    async def later() -> None:
        await asyncio.sleep(0.1)
        await ctx.thread.values.set("later", 1)

    ctx.wait_until(later)
    return "finished"


@app.agent("go-on", thread=Chat)
async def go_on(ctx: Context[Chat]) -> None:
    await ctx.thread.values.set("began", 1)
    await ctx.flush()
    while True:
        await asyncio.sleep(0.01)
        await ctx.checkpoint()


@app.agent("hang", thread=Chat)
async def hang(ctx: Context[Chat]) -> None:
    await ctx.thread.values.set("began", 1)
    await ctx.flush()
    await ctx.thread.values.set("kept", 1)
    await asyncio.Event().wait()


@app.agent("look", thread=Chat)
async def look(ctx: Context[Chat]) -> list:
    return [dict(await ctx.thread.values.items()), ctx.shutdown_interrupted]
"""


async def look(web: httpx.AsyncClient, name: str) -> list[object]:
    found: list[object] = (await web.post(f"/threads/chat/{name}/run/look")).json()
    return found


@pytest.mark.timeout(120)
async def test_on_sigterm_runs_finish_or_are_cut_off_saved_and_marked(tmp_path: Path) -> None:
    (tmp_path / "chat_app.py").write_text(APP)
    with Process("chat_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web:
            names = ("finish", "go-on", "hang")
            runs = {name: asyncio.create_task(web.post(f"/threads/chat/{name}/run/{name}")) for name in names}
            for name in names:
                while await _is_fresh(web, name):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /threads/chat/hang/run/look HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            for _ in range(5):  # The server has read it when it has answered what came later.
                await web.get("/healthz")
            assert await asyncio.to_thread(server.end, signal.SIGTERM) == 0
            assert (await runs["finish"]).json() == "finished"
            for name in ("go-on", "hang"):
                assert (await runs[name]).json() == {"interrupted": True, "message": None, "output": None}
            refused = await reader.read()
            writer.close()
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"unavailable"' in refused
            assert b"\r\nretry-after: " in refused
        server.start()
        async with http(server.address) as web:
            assert await look(web, "finish") == [{"began": 1, "ended": 1, "later": 1}, False]
            assert await look(web, "go-on") == [{"began": 1}, True]
            assert await look(web, "hang") == [{"began": 1, "kept": 1}, True]
            assert await look(web, "hang") == [{"began": 1, "kept": 1}, False]


async def _is_fresh(web: httpx.AsyncClient, name: str) -> bool:
    """Whether nothing of a thread is stored yet."""
    return (await web.get(f"/threads/chat/{name}/changes")).status_code == 404
