"""Runs of agents on a server that is killed: what was answered is there, and nothing is there by half."""

import asyncio
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import http
from tests.running import Process
from tests.schedules import SEED, TIMES, schedules

ROUNDS = schedules()
THREADS = 4
APP = """
import asyncio

from plait import Context, Plait, Thread, Values


class Tally(Thread[dict]):
    values = Values()


app = Plait(Tally, store="sqlite:///tally.db", limits=None)


@app.agent("count", thread=Tally)
async def count(ctx: Context[Tally], stamp: str) -> int:
    values = ctx.thread.values
    found = await values.get("count", 0)
    await values.push("log", stamp)
    await asyncio.sleep(0)
    await values.set("count", found + 1)
    await values.set_metadata({"last": stamp})

    async def later() -> None:
        await values.push("later", stamp)

    ctx.wait_until(later)
    return found + 1


@app.agent("look", thread=Tally)
async def look(ctx: Context[Tally]) -> dict:
    return {**dict(await ctx.thread.values.items()), "metadata": await ctx.thread.values.metadata()}
"""


class Counter:
    """A client that counts in one thread until the server is gone."""

    def __init__(self, number: int) -> None:
        self._url = f"/threads/tally/{number}/rpc/run:"
        # What was sent, in order, and how many of these were answered.
        self.sent: list[str] = []
        self.answered = 0
        self.first = asyncio.Event()

    async def play(self, address: str) -> None:
        async with http(address) as client:
            while True:
                self.sent.append(f"{len(self.sent)}")
                answer = await client.post(f"{self._url}count", json={"args": [self.sent[-1]]})
                assert answer.status_code == 200, answer.text
                self.answered = answer.json()["result"]
                self.first.set()

    async def check(self, address: str) -> None:
        """Compare what is stored with what was answered; the last one sent may have been stored unanswered."""
        async with http(address) as client:
            found: dict[str, Any] = (await client.post(f"{self._url}look", json={})).json()["result"]
        count = found.get("count", 0)
        assert self.answered <= count <= self.answered + 1
        log = found.get("log", [])
        assert len(log) == count
        assert found["metadata"] == ({"last": log[-1]} if log else {})
        # Background work may have been lost, but never before the run that it belongs to, and not out of order.
        later = found.get("later", [])
        assert [each for each in log if each in later] == later
        self.sent, self.answered = log, count


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_killed_server_has_each_run_that_it_answered_and_no_run_by_half(tmp_path: Path) -> None:
    (tmp_path / "tally_app.py").write_text(APP)
    counters, chance = [Counter(number) for number in range(THREADS)], random.Random(SEED)
    for _ in range(ROUNDS):
        with Process("tally_app:app", cwd=tmp_path, environment={"PLAIT_SECRET": "test"}) as server:
            for counter in counters:
                await counter.check(server.address)
                counter.first.clear()
            tasks = [asyncio.create_task(counter.play(server.address)) for counter in counters]
            await asyncio.gather(*(counter.first.wait() for counter in counters))
            await asyncio.sleep(chance.random() * 0.1)  # The moment at which it is killed.
            server.end(signal.SIGKILL)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    assert min(counter.answered for counter in counters) >= ROUNDS


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
