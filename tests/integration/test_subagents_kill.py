"""Subagents on servers that are killed: each question is answered by one child, and its answer is found once."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.families import ask, call
from tests.integration.socket_client import http
from tests.running import Process
from tests.schedules import SEED, TIMES, in_soak, schedules
from tests.workers.group import Group

# Kills before the servers are started again: a worker that is killed often is started again later and later.
ROUNDS = {"sqlite": 3, "workers": 2}
PATIENCE = 60.0
# Unanswered questions of a thread, after which its client sends no more.
MOST_OPEN = 3
BOSSES = ["boss/a", "boss/b"]


def find_answered(messages: list[list[Any]]) -> list[str]:
    """Return the questions that were answered."""
    answers = (text for role, text, *_ in messages if role == "assistant" and text.startswith("re q"))
    return [question for text in answers for question in text[3:].split(",")]


class Client:
    """A client that asks questions in one thread."""

    def __init__(self, boss: str) -> None:
        self.boss = boss
        self.sent = 0
        self.news = asyncio.Event()

    async def play(self, address: str) -> None:
        """Ask one question after the other, whatever happens to the server."""
        while True:
            with suppress(httpx.HTTPError):
                async with http(address) as web:
                    while True:
                        answered = find_answered((await call(web, self.boss, "look"))["messages"])
                        if self.sent - len(answered) > MOST_OPEN:
                            await asyncio.sleep(0.02)
                            continue
                        self.sent = await call(web, self.boss, "send")
                        self.news.set()
            await asyncio.sleep(0.05)

    async def finish(self, web: httpx.AsyncClient) -> dict[str, Any]:
        """Wait until all is answered and told, and return what is stored."""
        while True:
            found: dict[str, Any] = await ask(web, self.boss, "look")
            told = sum("did q" in (text or "") for role, text, *_ in found["messages"] if role in ("tool", "user"))
            ended = sum(status == "terminated" for status in found["children"].values())
            if (
                told >= found["sent"]
                and ended >= len(found["children"]) - 1
                and {"done"} == {r[0] for r in found["runs"]}
            ):
                return found
            await asyncio.sleep(0.05)

    async def check(self, web: httpx.AsyncClient) -> list[str]:
        """Compare what is stored with what was sent, and return the questions."""
        found = await self.finish(web)
        messages, children = found["messages"], found["children"]
        assert self.sent <= found["sent"]
        questions = [f"q{number}" for number in range(1, found["sent"] + 1)]
        asked = [text for role, text, *_ in messages if role == "user" and text.startswith("q")]
        assert asked == questions
        assert find_answered(messages) == questions
        calls = [(each, id) for _, _, made, _ in messages for id, each in made]
        assert [each for each, _ in calls] == questions
        results = {id: text for role, text, _, id in messages if role == "tool"}
        assert sum(role == "tool" for role, *_ in messages) == len(results) == len(questions)
        answered = {each: results[id] for each, id in calls}
        notices = [text for role, text, *_ in messages if role == "user" and text.startswith("The subagent")]
        for number, each in enumerate(questions, 1):
            told = [text for text in notices if text.endswith(f":\ndid {each}")]
            if number % 3 == 2:
                assert len(told) == 1, each
            else:
                assert told == [], each
                assert answered[each].partition("\n")[0] == f"did {each}"
        assert len(notices) == sum(number % 3 == 2 for number in range(1, len(questions) + 1))
        # Each child has got its questions once, in order.
        got = [await ask(web, f"helper/{name}", "look") for name in children]
        assert sorted(each for all in got for each in all) == sorted(questions)
        assert [all for all in got if len(all) > 1] in ([], [[each for each in questions if int(each[1:]) % 3 == 1]])
        assert sorted(children.values())[0] in ("idle", "terminated")
        return questions


async def hurt(server: Process, chance: random.Random) -> None:
    """Kill a server, or of workers the one that owns a parent."""
    if isinstance(server, Group):
        async with http(server.address) as web:
            os.kill(await ask(web, chance.choice(BOSSES), "where"), signal.SIGKILL)
    else:
        server.end(signal.SIGKILL)
        await asyncio.to_thread(server.start)


@pytest.mark.soak
@pytest.mark.timeout(240 * TIMES)
@pytest.mark.parametrize("engine", ["workers", *in_soak(["sqlite"])])
async def test_each_question_is_answered_once_by_a_child_on_a_server_that_is_killed(
    engine: str, tmp_path: Path
) -> None:
    make, chance, log = Group if engine == "workers" else Process, random.Random(SEED), tmp_path / "team.log"
    environment = {"TEAM_LOG": str(log), "PLAIT_SECRET": "test", "PLAIT_STORE": "sqlite:///team.db"}
    clients = [Client(boss) for boss in BOSSES]
    asked: list[list[str]] = []
    for _ in range(schedules(1)):
        with make("tests.integration.killed_team:app", cwd=tmp_path, environment=environment) as server:
            tasks = [asyncio.create_task(client.play(server.address)) for client in clients]
            for _ in range(ROUNDS[engine]):
                for client in clients:
                    client.news.clear()
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*(client.news.wait() for client in clients))
                await asyncio.sleep(chance.random() * 0.3)  # The moment at which it is killed.
                await hurt(server, chance)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with http(server.address) as web, asyncio.timeout(PATIENCE):
                asked = [await client.check(web) for client in clients]
    worked = log.read_text().split()
    for each in {*worked}:  # A tool is called at most once for a question of each thread.
        assert worked.count(each) <= sum(each in questions for questions in asked)
