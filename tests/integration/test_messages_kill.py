"""Messages on a server that is killed: each is there once, with its reply, its value and its state."""

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
from tests.schedules import SEED, TIMES, in_soak, schedules

ROUNDS = schedules() if TIMES > 1 else 3
THREADS = 4
APP = """
LIMIT = None
import asyncio
import os
import signal

from plait import Context, Messages, Plait, Tasks, Thread, Values, rpc


class Chat(Thread[dict]):
    initial_state = {"sent": 0}
    values = Values()
    messages = Messages(agent="bot", live=True)

    @rpc
    async def send(self) -> int:
        with self.transaction():
            number = self.state["sent"] + 1
            self.set_state({"sent": number})
            self.values.push("sent", number)
            self.messages.queue(f"q{number}", key=f"{number}")
        return number

    @rpc
    async def look(self) -> dict:
        answered = None
        while answered != (answered := await self.values.get("answered", [])):
            page = await self.messages.list(100_000)  # Read again if a run has ended since.
            sent = await self.values.get("sent", [])
        return {
            "state": self.state["sent"],
            "sent": sent,
            "answered": answered,
            "total": page.total,
            "messages": [(each.role, each.content, each.status) for each in page.messages],
        }

    @rpc
    async def poison(self) -> None:
        await self.messages.queue("poison")


app = Plait(Chat, store="sqlite:///chat.db", secret="test", limits=None)


@app.agent("bot", thread=Chat)
async def bot(ctx: Context[Chat]) -> None:
    messages = ctx.thread.messages
    while taken := await messages.take(limit=LIMIT):
        for message in taken:
            if message.content == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
            async with messages.stream() as m:
                m.append("re ")
                await asyncio.sleep(0.002)
                m.append(message.content)
            await ctx.thread.values.push("answered", message.content)
            if LIMIT is not None:
                await ctx.flush()
"""

# The agent is a durable one: it takes and answers in steps.
DURABLE = """

@app.agent("bot", thread=Chat, durable=True)
async def bot(ctx: Context[Chat]) -> None:
    messages = ctx.thread.messages

    async def take() -> str | None:
        taken = await messages.take(limit=1)
        return taken[0].content if taken else None

    async def answer() -> None:
        await asyncio.sleep(0.002)
        await messages.inject("assistant", f"re {content}")
        await ctx.thread.values.push("answered", content)

    while (content := await ctx.step.do("take", take)) is not None:
        await ctx.step.do("answer", answer)
        ctx.step.checkpoint(None)
"""
DURABLE = (
    APP[: APP.index("\n\n@app.agent")].replace("values = Values()", "values = Values()\n    tasks = Tasks()") + DURABLE
)


class Sender:
    """A client that sends messages to one thread until the server is gone."""

    def __init__(self, number: int, *, is_durable: bool = False) -> None:
        self.is_durable = is_durable
        self._url = f"/threads/chat/{number}/rpc/"
        # The last message that was stored for certain, and set when one was answered since the server began.
        self.stored = 0
        self.answered = 0
        self.first = asyncio.Event()

    async def play(self, address: str) -> None:
        async with http(address) as client:
            while True:
                answer = await client.post(f"{self._url}send", json={"args": []})
                assert answer.status_code == 200, answer.text
                self.stored = answer.json()["result"]
                found = await self.look(client)
                if len(found["answered"]) > self.answered:
                    self.first.set()

    async def look(self, client: httpx.AsyncClient) -> dict[str, Any]:
        answer = await client.post(f"{self._url}look", json={"args": []})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["result"]
        return found

    async def check(self, address: str, *, waits: bool) -> None:
        """Compare the stored messages with the answered ones; the last one sent may have been stored unanswered."""
        async with http(address) as client:
            async with asyncio.timeout(60):
                found = await self.look(client)
                while waits and len(found["answered"]) < found["state"]:
                    await asyncio.sleep(0.01)
                    found = await self.look(client)
        count, messages = found["state"], found["messages"]
        self.answered = len(found["answered"])
        assert self.stored <= count <= self.stored + 1
        self.stored = count
        assert found["sent"] == list(range(1, count + 1))
        # Each question is there once, in order, and each that is history has one answer, stored with its value.
        assert [content for role, content, _ in messages if role == "user"] == [f"q{n}" for n in range(1, count + 1)]
        history = [content for role, content, status in messages if role == "user" and status == "completed"]
        # A durable agent answers in the write after the one that takes.
        assert len(history) <= len(found["answered"]) + (self.is_durable and not waits)
        history = history[: len(found["answered"])]
        assert [content for role, content, status in messages if role == "assistant" and status == "completed"] == [
            f"re {content}" for content in history
        ]
        assert found["answered"] == history
        if waits:
            assert len(history) == count
            # Nothing is left of the attempts that were killed: each answer stands after its question, once.
            shown = [content for _, content, _ in messages]
            assert len(shown) == 2 * count
            assert all(shown.index(f"re q{n}") > shown.index(f"q{n}") for n in range(1, count + 1))
        assert found["total"] == len(messages)


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
@pytest.mark.parametrize(
    "app", [APP, DURABLE, *in_soak([APP.replace("LIMIT = None", "LIMIT = 1")])], ids=["all", "durable", "one"]
)
async def test_each_message_is_answered_once_on_a_server_that_is_killed(tmp_path: Path, app: str) -> None:
    (tmp_path / "chat_app.py").write_text(app)
    senders, chance = [Sender(number, is_durable=app == DURABLE) for number in range(THREADS)], random.Random(SEED)
    for _ in range(ROUNDS):
        with Process("chat_app:app", cwd=tmp_path) as server:
            for sender in senders:
                await sender.check(server.address, waits=False)
                sender.first.clear()
            tasks = [asyncio.create_task(sender.play(server.address)) for sender in senders]
            await asyncio.gather(*(sender.first.wait() for sender in senders))
            await asyncio.sleep(chance.random() * 0.1)  # The moment at which it is killed.
            server.end(signal.SIGKILL)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    with Process("chat_app:app", cwd=tmp_path) as server:
        for sender in senders:
            await sender.check(server.address, waits=True)
            assert sender.answered >= ROUNDS


@pytest.mark.timeout(120)
async def test_a_message_for_which_the_agent_ends_the_process_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "chat_app.py").write_text(APP)
    url = "/threads/chat/bad/rpc/"
    deaths = 0
    found: dict[str, Any] = {}
    for number in range(4):
        with Process("chat_app:app", cwd=tmp_path) as server:
            async with http(server.address) as client:
                try:
                    if number == 0:
                        await client.post(f"{url}poison", json={"args": []})
                    async with asyncio.timeout(30):
                        while True:
                            found = (await client.post(f"{url}look", json={"args": []})).json()["result"]
                            if found["messages"] and found["messages"][0][2] == "failed":
                                break
                            await asyncio.sleep(0.01)
                except httpx.HTTPError:
                    assert server.wait() == -signal.SIGKILL
                    deaths += 1
                    continue
                await client.post(f"{url}send", json={"args": []})
                async with asyncio.timeout(30):
                    while found["answered"] != ["q1"]:
                        found = (await client.post(f"{url}look", json={"args": []})).json()["result"]
                        await asyncio.sleep(0.01)
    assert deaths == 3
    assert [each[1:] for each in found["messages"]] == [
        ["poison", "failed"],
        ["q1", "completed"],
        ["re q1", "completed"],
    ]
