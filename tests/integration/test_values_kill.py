"""Values on a server that is killed: a transaction's state and values are there together, and a list has no gap."""

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
APP = """
from plait import Plait, Thread, Values, rpc


class Tally(Thread[dict]):
    initial_state = {"count": 0}
    values = Values()

    @rpc
    async def add(self, size: int) -> int:
        number = self.state["count"] + 1
        with self.transaction():
            self.update("/count", number)
            self.values.push("log", [number, "x" * size])
            self.values.push("last", number, 3)
            self.values.set("count", number)
            self.values.set(f"key {number % 300}", number)
            if number % 7 == 0:
                self.values.delete(f"key {(number - 3) % 300}")
        try:
            with self.transaction():
                self.update("/count", -1)
                self.values.clear()
                raise LookupError
        except LookupError:
            pass
        return number

    @rpc
    async def look(self) -> list:
        return [self.state["count"], await self.values.items()]


app = Plait(Tally, store="sqlite:///tally.db", limits=None)
"""


def expect(count: int) -> dict[str, Any]:
    """Return the values after so many calls, but for the log."""
    found: dict[str, Any] = {}
    for number in range(1, count + 1):
        found["count"] = number
        found[f"key {number % 300}"] = number
        if number % 7 == 0:
            found.pop(f"key {(number - 3) % 300}", None)
    if count:
        found["last"] = list(range(max(count - 2, 1), count + 1))
    return found


class Counter:
    """A client that counts in one thread until the server is gone."""

    def __init__(self, number: int) -> None:
        self._url = f"/threads/tally/{number}/rpc/"
        self._chance = random.Random(number)
        self.answered = 0
        self.first = asyncio.Event()

    async def play(self, address: str) -> None:
        async with http(address) as client:
            while True:
                size = self._chance.choice((1, 500, 5_000))
                answer = await client.post(f"{self._url}add", json={"args": [size]})
                assert answer.status_code == 200, answer.text
                self.answered = answer.json()["result"]
                self.first.set()

    async def check(self, address: str) -> None:
        """Compare what is stored with what was answered; the last one sent may have been stored unanswered."""
        async with http(address) as client:
            answer = await client.post(f"{self._url}look", json={})
            assert answer.status_code == 200, answer.text
        count, items = answer.json()["result"]
        found = dict(items)
        assert self.answered <= count <= self.answered + 1
        assert [number for number, _ in found.pop("log", [])] == list(range(1, count + 1))
        assert found == expect(count)
        self.answered = count


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_killed_server_has_the_state_and_the_values_of_each_transaction_or_neither(tmp_path: Path) -> None:
    (tmp_path / "tally_app.py").write_text(APP)
    counters, chance = [Counter(number) for number in range(THREADS)], random.Random(SEED)
    for last in [False] * ROUNDS + [True]:
        with Process("tally_app:app", cwd=tmp_path) as server:
            for counter in counters:
                await counter.check(server.address)
                counter.first.clear()
            if last:
                break
            tasks = [asyncio.create_task(counter.play(server.address)) for counter in counters]
            await asyncio.gather(*(counter.first.wait() for counter in counters))
            await asyncio.sleep(chance.random() * 0.1)  # The moment at which it is killed.
            server.end(signal.SIGKILL)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    assert min(counter.answered for counter in counters) >= ROUNDS
