"""Agents that execute on servers that are killed: each question is answered once, no tool is called twice."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import http
from tests.postgres import new_schema
from tests.running import Process
from tests.schedules import SEED, TIMES, schedules
from tests.workers.group import Group

from plait_client import connect

THREADS = 3
PATIENCE = 60.0
# Unanswered questions of a thread, after which its client sends no more.
MOST_OPEN = 6
# Seconds between two questions of a client: long histories would make each step slow.
PAUSE = 0.03
APP = "tests.integration.killed_desk:app"
# The tools that the model calls for every fifth question.
CALLS = {1: ["look", "pay"], 0: ["pay"], 2: ["refund"], 3: [], 4: ["hand", "pay"]}
# What processes note before they are killed, in turn: a stop, a call to approve, a handover, a tool, an answer.
AIMS = (("stops",), ("asks", "refund"), ("asks", "hand"), ("pay",), ("answers",))
STOPPED = "Execution stopped by user"
RESULTS = {"pay": "paid", "look": "looked", "refund": "refunded", "hand": "The conversation is handed over."}


class Client:
    """A client that asks questions in one thread, approves what waits for that, and stops the agents now and then."""

    def __init__(self, number: int, log: "Log") -> None:
        self.name = f"{number}"
        self.log = log
        self.chance = random.Random(SEED * THREADS + number)
        # The last question that was stored for certain, how many were sent since, and the tries to stop the agents.
        self.sent = self.unanswered = self.stops = 0
        # What was seen after a stop, until the agents go on.
        self.stopped: dict[str, Any] | None = None
        self.first = asyncio.Event()

    async def call(self, web: httpx.AsyncClient, method: str) -> Any:
        answer = await web.post(f"/threads/desk/{self.name}/rpc/{method}", json={})
        answer.raise_for_status()
        return answer.json()["result"]

    async def play(self, address: str) -> None:
        """Ask one question after the other, whatever happens to the server."""
        while True:
            with suppress(httpx.HTTPError):
                async with http(address) as web:
                    await self.ask(web)
            await asyncio.sleep(0.05)

    async def ask(self, web: httpx.AsyncClient) -> None:
        """Ask, and stop the agents now and then, until the server is gone."""
        await self.go_on(web)
        while True:
            while await self.call(web, "approve") > MOST_OPEN:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await self.send(web)
            self.first.set()
            await asyncio.sleep(PAUSE)
            if self.chance.random() < 0.2:
                await asyncio.sleep(self.chance.random() * 0.05)  # The moment at which it is stopped.
                await self.stop(web)

    async def send(self, web: httpx.AsyncClient) -> None:
        self.unanswered += 1
        self.sent, self.unanswered = await self.call(web, "send"), 0

    async def stop(self, web: httpx.AsyncClient) -> None:
        """Stop the agents, and have them go on after a moment: by a word, or by the next question."""
        self.stops += 1
        await self.call(web, "stop")
        self.stopped = await self.look(web)
        calls, results = find_calls(self.stopped["messages"])
        assert results.keys() == {id for id, *_ in calls}
        await asyncio.sleep(self.chance.random() * 0.05)
        if self.chance.random() < 0.5:
            await self.go_on(web)
        else:
            await self.check_stop(web)
            await self.send(web)

    async def check_stop(self, web: httpx.AsyncClient) -> None:
        """Check that nothing was done since a stop, also if the server was killed."""
        if self.stopped is not None:
            assert await self.look(web) == self.stopped
            self.stopped = None

    async def go_on(self, web: httpx.AsyncClient) -> None:
        await self.check_stop(web)
        await self.call(web, "resume")

    async def look(self, web: httpx.AsyncClient) -> dict[str, Any]:
        """Return the stored messages, and the tools that were called in the thread."""
        found: dict[str, Any] = await self.call(web, "look")
        return {**found, "called": self.log.find_calls(self.name)}

    async def finish(self, address: str) -> dict[str, Any]:
        """Wait until all questions are answered, and return the stored messages."""
        async with asyncio.timeout(PATIENCE), http(address) as web:
            await self.go_on(web)
            while await self.call(web, "approve"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return await self.look(web)

    def check(self, found: dict[str, Any], *, kills: int) -> Counter[str]:
        """Compare the stored messages with the sent ones, and with the notes of the tools; count the results."""
        messages, values = found["messages"], found["values"]
        assert self.sent <= found["sent"] <= self.sent + self.unanswered
        self.sent, self.unanswered = found["sent"], 0
        questions = [f"q{number}" for number in range(1, found["sent"] + 1)]
        assert [text for role, text, _, _ in messages if role == "user"] == questions
        answers = [text.removeprefix("re ") for role, text, _, _ in messages if role == "assistant" and text]
        assert ",".join(answers).split(",") == questions
        calls, results = find_calls(messages)
        assert [call[1:] for call in calls] == [(name, each) for each in questions for name in CALLS[int(each[1:]) % 5]]
        assert sorted(results) == sorted(id for id, *_ in calls)
        assert sum(role == "tool" for role, *_ in messages) == len(results)
        for name, key in (("pay", "paid"), ("refund", "refunded")):
            done = [each for id, called, each in calls if called == name and results[id] == RESULTS[name]]
            # The writes of a tool to parts are stored with its result, or not at all.
            assert values.get(key, []) == done
            for each in questions:
                times = found["called"].count([name, each])
                assert times == 1 if each in done else times <= 1, (name, each, times)
        counts = Counter(f"{name}: {results[id]}" for id, name, _ in calls)
        unknown = {id for id, text in results.items() if text.startswith("It is not known")}
        assert len(unknown) <= kills
        for id, name, _ in calls:
            assert id in unknown or results[id] in (RESULTS[name], STOPPED)
        # Each handover holds until the next one.
        assert sum(a != b for a, b in pairwise(found["agents"])) == counts[f"hand: {RESULTS['hand']}"]
        assert {status for _, status, _ in found["runs"]} <= {"done", "cancelled"}, found["runs"]
        cancelled = {id for id, status, _ in found["runs"] if status == "cancelled"}
        assert len(cancelled) <= self.stops
        # Only a run that was cancelled may be tried again from its journal.
        assert {key.split("/")[1] for key in found["journals"]} <= cancelled
        return counts


def find_calls(messages: list[list[Any]]) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Return the calls of all answers, each with its id, its tool and its question, and the results by the ids."""
    results = {id: text for role, text, _, id in messages if role == "tool"}
    return [tuple(call) for _, _, made, _ in messages for call in made], results


class Log:
    """The file in which processes note what they do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> list[list[str]]:
        """Return the words of each line: the first one is the process."""
        return [line.split() for line in self.path.read_text().splitlines()]

    def find_calls(self, thread: str) -> list[list[str]]:
        """Return the calls in a thread that may not come again: their tools and questions."""
        return [[words[1], words[3]] for words in self.read() if words[1] in ("pay", "refund") and words[2] == thread]

    async def wait_for(self, aim: Sequence[str]) -> int:
        """Wait until a process notes something, and return its id."""
        start = len(self.read())
        while True:
            for process, *words in self.read()[start:]:
                if words[: len(aim)] == [*aim]:
                    return int(process)
            await asyncio.sleep(0.003)


class Kills:
    """The clients, and their received messages."""

    def __init__(self, folder: Path) -> None:
        self.log = Log(folder / "desk.log")
        self.clients = [Client(number, self.log) for number in range(THREADS)]
        self.chance = random.Random(SEED)
        # The kills so far.
        self.count = 0
        self.environment = {"DESK_LOG": str(self.log.path), "PLAIT_SECRET": "test"}

    async def play(self, server: Process, aim: Sequence[str]) -> None:
        """Have all clients play until each has had an answer; then kill the process that notes something."""
        for client in self.clients:
            client.first.clear()
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            playing = [group.create_task(client.play(server.address)) for client in self.clients]
            await asyncio.gather(*(client.first.wait() for client in self.clients))
            process = await self.log.wait_for(aim)
            await asyncio.sleep(self.chance.random() * 0.04)  # The moment at which it is killed.
            self.count += 1
            await asyncio.to_thread(hurt, server, process)
            for each in playing:
                each.cancel()

    async def check_end(self, address: str) -> None:
        """Wait until all questions are answered, and compare the stored messages."""
        found = [await client.finish(address) for client in self.clients]
        counts = [client.check(each, kills=self.count) for client, each in zip(self.clients, found, strict=True)]
        print(self.count, "kills", dict(sum(counts, Counter[str]())))  # noqa: T201


def hurt(server: Process, process: int) -> None:
    """Kill a server, or of workers one, and wait until it is there again."""
    if isinstance(server, Group):
        (worker,) = (worker for worker, each in server.processes().items() if each.pid == process)
        starts = server.starts(worker)
        server.hurt(worker)
        server.until(lambda: server.starts(worker) > starts)
    else:
        server.end(signal.SIGKILL)
        server.start()


@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
@pytest.mark.parametrize(
    ("engine", "make", "kills"),
    [
        pytest.param("sqlite", Process, 6, id="sqlite"),
        # After each kill of a worker, the next one is started again later.
        pytest.param("sqlite", Group, 3, id="workers", marks=pytest.mark.release),
        pytest.param("postgresql", Process, 1, id="postgresql", marks=pytest.mark.release),
    ],
)
async def test_each_question_is_answered_once_over_kills_and_stops(
    engine: str, make: type[Process], kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kill = Kills(tmp_path)
    environment = dict(kill.environment)
    if engine == "postgresql":
        environment["PLAIT_STORE"] = new_schema(request.getfixturevalue("postgres").url)
    aims = cycle(AIMS)
    for _ in range(schedules(1)):
        with make(APP, cwd=tmp_path, environment=environment) as server:
            for _ in range(kills):
                await kill.play(server, next(aims))
            await kill.check_end(server.address)


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
