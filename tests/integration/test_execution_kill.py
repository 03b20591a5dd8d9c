"""Agents that execute on servers that are killed: each question is answered once, and no tool is called twice."""

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
from tests.workers.group import Group

from plait_client import connect

THREADS = 3
PATIENCE = 60.0
# Unanswered questions of a thread, after which its client sends no more.
MOST_OPEN = 6
APP = "tests.integration.killed_desk:app"


class Client:
    """A client that asks questions in one thread, and approves what waits for that."""

    def __init__(self, number: int) -> None:
        self.name = f"{number}"
        self.sent = 0
        self.first = asyncio.Event()

    async def call(self, web: httpx.AsyncClient, method: str) -> Any:
        answer = await web.post(f"/threads/desk/{self.name}/rpc/{method}", json={})
        answer.raise_for_status()
        return answer.json()["result"]

    async def play(self, address: str) -> None:
        """Ask until the server is gone."""
        async with http(address) as web:
            while True:
                while await self.call(web, "approve") > MOST_OPEN:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                self.sent = await self.call(web, "send")
                self.first.set()

    async def find_owner(self, address: str) -> int:
        """Return the process in which its thread is awake."""
        async with http(address) as web:
            owner: int = await self.call(web, "find_process")
        return owner

    async def finish(self, address: str) -> dict[str, Any]:
        """Wait until all questions are answered, and return what is stored."""
        async with asyncio.timeout(PATIENCE), http(address) as web:
            while await self.call(web, "approve"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            found: dict[str, Any] = await self.call(web, "look")
        return found

    def check(self, found: dict[str, Any], log: list[list[str]]) -> None:
        """Compare what is stored with what was sent, and with what the tools have noted."""
        messages, values = found["messages"], found["values"]
        assert self.sent <= found["sent"] <= self.sent + 1
        questions = [f"q{number}" for number in range(1, found["sent"] + 1)]
        assert [text for role, text, _, _ in messages if role == "user"] == questions
        answers = [text.removeprefix("re ") for role, text, _, _ in messages if role == "assistant" and text]
        assert ",".join(answers).split(",") == questions
        calls = [id for _, _, ids, _ in messages for id in ids]
        results = {id: text for role, text, _, id in messages if role == "tool"}
        assert len(calls) == len(set(calls))
        assert sorted(results) == sorted(calls)
        assert sum(role == "tool" for role, *_ in messages) == len(results)
        wanted = {1: ["look", "pay"], 0: ["pay"], 2: ["refund"], 3: [], 4: ["hand", "pay"]}
        assert calls == [f"{name}-{each}" for each in questions for name in wanted[int(each[1:]) % 5]]
        for name, key, text in (("pay", "paid", "paid"), ("refund", "refunded", "refunded")):
            done = [id.removeprefix(f"{name}-") for id in calls if results[id] == text and id.startswith(name)]
            # The writes of a tool to parts are stored with its result, or not at all.
            assert values.get(key, []) == done
            for each in questions:
                times = log.count([name, self.name, each])
                assert times == 1 if each in done else times <= 1, (name, each, times)
        unknown = {text for text in results.values() if text.startswith("It is not known")}
        assert {*results.values()} - unknown <= {"paid", "looked", "refunded", "The conversation is handed over."}
        # Each handover holds until the next one.
        assert sum(a != b for a, b in zip(found["agents"], found["agents"][1:], strict=False)) == sum(
            id.startswith("hand-") for id in calls
        )
        assert {status for status, _ in found["runs"]} == {"done"}, found["runs"]
        assert found["journal"] == []


class Kills:
    """The clients, and the file in which tools note their calls."""

    def __init__(self, folder: Path) -> None:
        self.clients = [Client(number) for number in range(THREADS)]
        self.chance = random.Random(SEED)
        self.log = folder / "desk.log"
        self.environment = {"DESK_LOG": str(self.log), "PLAIT_SECRET": "test"}

    async def play(self, address: str) -> list[asyncio.Task[None]]:
        """Have all clients play, and wait until each has had an answer, and for a moment more."""
        for client in self.clients:
            client.first.clear()
        tasks = [asyncio.create_task(client.play(address)) for client in self.clients]
        await asyncio.gather(*(client.first.wait() for client in self.clients))
        await asyncio.sleep(0.2 + self.chance.random() * 0.8)  # The moment at which it is killed.
        return tasks

    async def check_end(self, address: str) -> None:
        """Wait until all questions are answered, and compare what is stored."""
        found = [await client.finish(address) for client in self.clients]
        lines = [line.split() for line in self.log.read_text().splitlines()]
        for client, each in zip(self.clients, found, strict=True):
            client.check(each, lines)


@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
async def test_each_question_is_answered_once_on_a_server_that_is_killed(tmp_path: Path) -> None:
    kills = Kills(tmp_path)
    for number in range(schedules(3)):
        names = {"DESK_NAMES": f"v{number // 2}-"}  # Every second server has other names of steps.
        with Process(APP, cwd=tmp_path, environment=kills.environment | names) as server:
            tasks = await kills.play(server.address)
            server.end(signal.SIGKILL)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    with Process(APP, cwd=tmp_path, environment=kills.environment) as server:
        await kills.check_end(server.address)


@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
async def test_each_question_is_answered_once_when_the_worker_that_owns_its_thread_is_killed(tmp_path: Path) -> None:
    kills = Kills(tmp_path)
    with Group(APP, cwd=tmp_path, environment=kills.environment) as group:
        for number in range(schedules(2)):
            tasks = await kills.play(group.address)
            owner = await kills.clients[number % THREADS].find_owner(group.address)
            (worker,) = (worker for worker, process in group.processes().items() if process.pid == owner)
            starts = group.starts(worker)
            assert group.hurt(worker) == owner
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(group.until, lambda: group.starts(worker) > starts)  # noqa: B023
        await kills.check_end(group.address)


async def test_a_question_on_a_socket_is_answered_after_a_kill_in_its_tool(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    environment = {"DESK_HANGS": str(hangs), "PLAIT_SECRET": "test"}
    with Process(APP, cwd=tmp_path, environment=environment) as server:
        async with asyncio.timeout(PATIENCE), connect(f"ws://{server.address}/threads/desk/one") as room:
            items = await room.messages.open()
            await room.messages.send("q1")
            while not hangs.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.end(signal.SIGKILL)
            server.start()
            async for items in room.messages:
                if items and items[-1].content == "re q1" and items[-1].status == "completed":
                    break
    assert [(each.role, each.content) for each in items] == [
        ("user", "q1"),
        ("assistant", ""),
        ("tool", "looked"),
        ("tool", "paid"),
        ("assistant", "re q1"),
    ]
