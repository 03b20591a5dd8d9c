"""Runs of tasks on a server that is killed: each ends once, no finished step runs again, and each writes once."""

import asyncio
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import http
from tests.postgres import new_schema
from tests.running import Process
from tests.schedules import SEED, TIMES, in_soak, schedules
from tests.workers.group import Group

THREADS = 4
PATIENCE = 60.0
# Runs of a thread that are not over, after which its client starts no more.
MOST_RUNS = 6
STEPS = ("a", "b", "c", "d")


class Client:
    """A client that starts runs of one thread, and sends them the event for which they wait."""

    def __init__(self, number: int) -> None:
        self.name = f"{number}"
        # The last run that was stored for certain, the ones that were sent and not answered since, and the last one
        # that had been sent when the server was started last.
        self.answered = 0
        self.unanswered = 0
        self.first = asyncio.Event()

    async def call(self, web: httpx.AsyncClient, method: str) -> Any:
        answer = await web.post(f"/threads/job/{self.name}/rpc/{method}", json={})
        answer.raise_for_status()
        return answer.json()["result"]

    async def play(self, address: str) -> None:
        """Start runs until the server is gone."""
        async with http(address) as web:
            while True:
                while await self.call(web, "approve") > MOST_RUNS:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                self.unanswered += 1
                self.answered = await self.call(web, "start")
                self.unanswered = 0
                self.first.set()

    async def check(self, address: str) -> dict[str, Any]:
        """Compare what is stored with what was answered, while runs may still be waiting."""
        async with http(address) as web:
            found: dict[str, Any] = await self.call(web, "look")
        state, values, runs = found["state"], found["values"], found["runs"]
        sent = state["sent"]
        assert self.answered <= sent <= self.answered + self.unanswered
        self.answered, self.unanswered = sent, 0
        assert runs.keys() == {f"{number}" for number in range(1, sent + 1)}
        assert {status for status, _, _ in runs.values()} <= {"waiting", "running", "sleeping", "done"}, runs
        assert_once(values.get("done", []), state["shown"], state["kept"], values.get("ends", []))
        # A write to the state and one to a part are stored with the result of their step, as one.
        assert sorted(state["kept"]) == sorted(values.get("kept", []))
        # The end of a run is stored with what it has written outside of steps.
        assert {int(key) for key, run in runs.items() if run[0] == "done"} <= {*values.get("ends", [])}
        return found

    async def finish(self, address: str) -> None:
        """Wait until all runs are over."""
        async with asyncio.timeout(PATIENCE), http(address) as web:
            while await self.call(web, "approve"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def check_end(self, address: str, log: list[list[str]]) -> None:
        """Compare the ended runs with what was sent, and with what their steps have noted."""
        found = await self.check(address)
        state, values, runs = found["state"], found["values"], found["runs"]
        numbers = [*range(1, state["sent"] + 1)]
        assert sorted(values["done"]) == sorted(f"{number}.{name}" for number in numbers for name in STEPS)
        assert sorted(state["shown"]) == sorted(state["kept"]) == sorted(values["ends"]) == numbers
        assert found["journal"] == []
        for number in numbers:
            status, (answer, paid, *results), error = runs[f"{number}"]
            assert (status, results, error) == ("done", ["aa", "bb", "cc", "dd"], None)
            assert answer in (("early", "late") if number % 3 == 0 else ("late",))
            payments = log.count(["pay", self.name, f"{number}"])
            assert payments == 1 if paid == "paid" else payments <= 1


def assert_once(*lists: list[Any]) -> None:
    for each in lists:
        assert len(each) == len(set(each)), sorted(each)


def find_repeated(log: list[list[str]]) -> list[list[str]]:
    """Return the steps that have begun after they were finished."""
    ended, repeated = set[tuple[str, ...]](), list[list[str]]()
    for word, *step in log:
        if word == "end":
            ended.add(tuple(step))
        elif word == "begin" and tuple(step) in ended:
            repeated.append(step)
    return repeated


class Kills:
    """The clients, and the file in which the bodies of steps note what they do."""

    def __init__(self, folder: Path) -> None:
        self.clients = [Client(number) for number in range(THREADS)]
        self.chance = random.Random(SEED)
        self.path = folder / "tasks.log"

    async def play(self, address: str) -> list[asyncio.Task[None]]:
        """Have all clients play, and wait until each has had an answer, and for a moment more."""
        for client in self.clients:
            await client.check(address)
            client.first.clear()
        tasks = [asyncio.create_task(client.play(address)) for client in self.clients]
        await asyncio.gather(*(client.first.wait() for client in self.clients))
        await asyncio.sleep(self.chance.random() * 0.8)  # The moment at which it is killed.
        return tasks

    async def check_end(self, address: str, least: int) -> None:
        for client in self.clients:
            await client.finish(address)
        log = [line.split() for line in self.path.read_text().splitlines()]
        for client in self.clients:
            await client.check_end(address, log)
        assert find_repeated(log) == []
        assert min(client.answered for client in self.clients) >= least


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        with suppress(httpx.HTTPError):
            await task


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
@pytest.mark.parametrize(("engine", "rounds"), [("sqlite", schedules(6)), *in_soak(("postgresql", schedules(3)))])
async def test_each_run_of_a_killed_server_ends_once_and_repeats_no_finished_step(
    engine: str, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills, environment = Kills(tmp_path), {"TASKS_LOG": str(tmp_path / "tasks.log"), "PLAIT_SECRET": "test"}
    if engine == "postgresql":
        environment["PLAIT_STORE"] = new_schema(request.getfixturevalue("postgres").url)
    with Process("tests.integration.killed_tasks:app", cwd=tmp_path, environment=environment) as server:
        for _ in range(rounds):
            tasks = await kills.play(server.address)
            server.end(signal.SIGKILL)
            await end(tasks)
            server.start()
        await kills.check_end(server.address, rounds)


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_runs_of_a_killed_worker_are_continued_by_its_successor(tmp_path: Path) -> None:
    kills, environment = Kills(tmp_path), {"TASKS_LOG": str(tmp_path / "tasks.log"), "PLAIT_SECRET": "test"}
    rounds = schedules(4)
    with Group("tests.integration.killed_tasks:app", cwd=tmp_path, environment=environment) as group:
        for number in range(rounds):
            tasks = await kills.play(group.address)
            starts = group.starts(worker := number % 2)
            group.hurt(worker)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(group.until, lambda: group.starts(worker) > starts)  # noqa: B023
        await kills.check_end(group.address, rounds)
