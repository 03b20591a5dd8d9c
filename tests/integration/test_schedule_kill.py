"""Effects and runs on a server that is killed: each is there whole or not at all, and each effect's writes once."""

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

ROUNDS = schedules() if TIMES > 1 else 3
THREADS = 4
PATIENCE = 60.0
APP = """
import asyncio

from plait import Context, Plait, Schedule, Thread, Values, effect, rpc


class Tally(Thread[dict]):
    idle_timeout = 0.1
    initial_state = {"sent": 0}
    values = Values()
    schedule = Schedule()

    @rpc
    async def send(self) -> int:
        with self.transaction():
            sent = self.state["sent"] + 1
            self.set_state({"sent": sent})
            self.values.set("sent", sent)
            self.schedule.after(0.02, "count", sent)
            self.schedule.queue("step", sent)
        return sent

    @effect(attempts=100, base=0.001)
    async def count(self, number: int) -> None:
        await self.values.push("counted", number)
        await asyncio.sleep(0.005)
        await self.values.update("count", lambda count: count + 1, 0)
        if number % 5 == 0 and self.schedule.current.attempt == 1:
            raise RuntimeError("try again")

    @effect
    async def step(self, number: int) -> None:
        await self.values.push("steps", number)
        await asyncio.sleep(0.001)
        if number % 3 == 0:
            self.schedule.after(0.01, "third", number)

    @effect
    async def third(self, number: int) -> None:
        await self.values.push("thirds", number)

    @rpc
    async def look(self) -> dict:
        left = [each.name for each in await self.schedule.list()]
        return {**self.state, "left": left, "values": dict(await self.values.items())}


class Log(Thread[dict]):
    values = Values()


app = Plait(Tally, Log, store="sqlite:///tally.db", limits=None)


@app.agent("count", thread=Log)
async def count(ctx: Context[Log], stamp: str) -> int:
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


@app.agent("look", thread=Log)
async def look(ctx: Context[Log]) -> dict:
    return {**dict(await ctx.thread.values.items()), "metadata": await ctx.thread.values.metadata()}
"""


class Sender:
    """A client that sends to one thread until the server is gone."""

    def __init__(self, number: int) -> None:
        self._url = f"/threads/tally/{number}/rpc/"
        self.answered = 0
        self.first = asyncio.Event()

    async def play(self, address: str) -> None:
        async with http(address) as client:
            while True:
                answer = await client.post(f"{self._url}send", json={})
                assert answer.status_code == 200, answer.text
                self.answered = answer.json()["result"]
                self.first.set()

    async def look(self, address: str) -> dict[str, Any]:
        async with http(address) as client:
            answer = await client.post(f"{self._url}look", json={})
            found: dict[str, Any] = answer.json()["result"]
        return found

    async def check(self, address: str) -> None:
        """Compare what is stored with what was answered, while effects may still be waiting."""
        found = await self.look(address)
        sent, values = found["sent"], found["values"]
        assert self.answered <= sent <= self.answered + 1
        assert values.get("sent", 0) == sent
        counted = values.get("counted", [])
        assert len(counted) == len(set(counted)) == values.get("count", 0)
        assert len(counted) + found["left"].count("count") == sent
        steps = values.get("steps", [])
        assert steps == [*range(1, len(steps) + 1)]
        assert len(steps) + found["left"].count("step") == sent
        assert len(values.get("thirds", [])) + found["left"].count("third") == len(steps) // 3
        self.answered = sent

    async def check_end(self, address: str) -> None:
        """Wait until nothing is left to run, and compare what has run with what was sent."""
        async with asyncio.timeout(PATIENCE):
            while (found := await self.look(address))["left"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        sent, values = found["sent"], found["values"]
        assert sorted(values["counted"]) == values["steps"] == [*range(1, sent + 1)]
        assert sorted(values["thirds"]) == [*range(3, sent + 1, 3)]


class Counter:
    """A client that runs an agent in one thread until the server is gone."""

    def __init__(self, number: int) -> None:
        self._url = f"/threads/log/{number}/rpc/run:"
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

    async def check_end(self, address: str) -> None:
        """Compare once more: background work that was lost stays lost."""
        await self.check(address)


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_killed_server_has_each_run_whole_and_runs_each_effect_once_and_loses_none(tmp_path: Path) -> None:
    (tmp_path / "tally_app.py").write_text(APP)
    chance, clients = random.Random(SEED), [make(number) for make in (Sender, Counter) for number in range(THREADS)]
    for _ in range(ROUNDS):
        with Process("tally_app:app", cwd=tmp_path, environment={"PLAIT_SECRET": "test"}) as server:
            for client in clients:
                await client.check(server.address)
                client.first.clear()
            tasks = [asyncio.create_task(client.play(server.address)) for client in clients]
            await asyncio.gather(*(client.first.wait() for client in clients))
            await asyncio.sleep(chance.random() * 0.3)  # The moment at which it is killed.
            server.end(signal.SIGKILL)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    with Process("tally_app:app", cwd=tmp_path, environment={"PLAIT_SECRET": "test"}) as server:
        for client in clients:
            await client.check_end(server.address)
    assert min(client.answered for client in clients) >= ROUNDS


DEADLY_APP = """
import asyncio
import os

from plait import Plait, Schedule, Thread, Values, effect, rpc


class Risky(Thread[dict]):
    values = Values()
    schedule = Schedule()

    @rpc
    async def begin(self) -> None:
        with self.transaction():
            self.schedule.after(0.05, "die")
            for number in range(3):
                self.schedule.after(0.05, "live", number)

    @effect
    async def die(self) -> None:
        await asyncio.sleep(0.5)  # The server says that it listens first.
        os._exit(9)

    @effect
    async def live(self, number: int) -> None:
        await self.values.push("lived", number)

    def on_error(self, error: BaseException, connection: object) -> None:
        self.values.set("error", str(error))

    @rpc
    async def look(self) -> list:
        left = [each.name for each in await self.schedule.list()]
        return [left, await self.values.get("lived", []), await self.values.get("error")]


app = Plait(Risky, store="sqlite:///risky.db")
"""


@pytest.mark.timeout(120)
async def test_an_effect_that_ends_its_process_is_given_up_after_three_times(tmp_path: Path) -> None:
    (tmp_path / "risky_app.py").write_text(DEADLY_APP)
    with Process("risky_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web:
            with suppress(httpx.HTTPError):
                await web.post("/threads/risky/one/rpc/begin", json={})
        server.wait()
        for _ in range(2):
            server.start()
            server.wait()
        server.start()
        async with http(server.address) as web, asyncio.timeout(PATIENCE):
            left, lived, error = [0], [0], None
            while left or error is None:  # The error is told after the effect has ended in the store.
                left, lived, error = (await web.post("/threads/risky/one/rpc/look", json={})).json()["result"]
                await asyncio.sleep(0.01)
    assert sorted(lived) == [0, 1, 2]
    assert error == "the effect die has ended the process 3 times, and this run is not tried again"


RECURRING_APP = """
import os
import time
from pathlib import Path

from plait import Plait, Schedule, Thread, Values, effect, rpc
from plait.clock import CLOCK

hours, mood = Path("control").read_text().split()
CLOCK.use(wall=lambda: time.time_ns() + int(hours) * 3600 * 10**9)


class Risky(Thread[dict]):
    values = Values()
    schedule = Schedule()

    @rpc
    async def begin(self) -> None:
        with self.transaction():
            self.schedule.every(1, "die")
            self.schedule.every(1, "live")

    @effect
    def die(self) -> None:
        with Path("deaths").open("a") as file:
            file.write(f"{hours}\\n")
        if mood == "deadly":
            os._exit(9)

    @effect
    async def live(self) -> None:
        await self.values.update("lived", lambda lived: lived + 1, 0)

    async def on_error(self, error: BaseException, connection: object) -> None:
        await self.values.push("errors", str(error))

    @rpc
    async def look(self) -> list:
        (row,) = await self.schedule.list("die")
        due = (row.due - time.time_ns() / 1000) / 1e6 - int(hours) * 3600
        return [due, await self.values.get("lived", 0), await self.values.get("errors", [])]


app = Plait(Risky, store="sqlite:///risky.db")
"""


@pytest.mark.timeout(180)
async def test_what_recurs_and_ends_its_process_goes_on_later_until_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "risky_app.py").write_text(RECURRING_APP)
    control, deaths = tmp_path / "control", tmp_path / "deaths"

    async def look(server: Process) -> list[Any]:
        async with http(server.address) as web:
            found: list[Any] = (await web.post("/threads/risky/one/rpc/look", json={})).json()["result"]
        return found

    control.write_text("0 deadly")
    with Process("risky_app:app", cwd=tmp_path) as server:
        async with http(server.address) as web:
            with suppress(httpx.HTTPError):
                await web.post("/threads/risky/one/rpc/begin", json={})
        server.wait()
        for _ in range(2):
            run_until_death(server)
        assert len(deaths.read_text().split()) == 3
        server.start()
        async with asyncio.timeout(PATIENCE):
            while len((found := await look(server))[2]) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            due, lived, errors = found
            assert 200 < due < 400
            assert errors == ["the effect die has ended the process 3 times, and this run is not tried again"]
            while (await look(server))[1] < lived + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        server.end()

        control.write_text("1 deadly")
        run_until_death(server)  # It dies once.
        server.start()
        async with asyncio.timeout(PATIENCE):
            while len((found := await look(server))[2]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        due, _, errors = found
        assert 500 < due < 700
        assert errors[1] == "the effect die has ended the process once more, and this run is not tried again"
        server.end()
        assert len(deaths.read_text().split()) == 4

        control.write_text("2 mended")
        server.start()
        async with asyncio.timeout(PATIENCE):
            while len(deaths.read_text().split()) < 6:
                await look(server)
                await asyncio.sleep(0.05)
            assert (await look(server))[0] < 2


def run_until_death(server: Process) -> None:
    """Start a server that may end before it says that it listens."""
    with suppress(AssertionError):
        server.start()
    server.wait()
