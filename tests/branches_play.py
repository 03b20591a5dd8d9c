"""Clients that ask, ask again, edit and switch in the same conversations, and what must hold after that."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any

import httpx
from tests.integration.socket_client import http

from plait_client import connect

__all__ = ["Conversation", "play"]

_names = count()


class Conversation:
    """A conversation that several clients use, and the messages that they know to be stored."""

    def __init__(self, kind: str, name: str) -> None:
        self.path = f"/threads/{kind}/{name}"
        self._url = f"{self.path}/rpc/"
        # The ids of questions and answers that were told to a client.
        self.told: set[str] = set()

    async def call(self, client: httpx.AsyncClient, method: str, *args: Any) -> Any:
        """Call a method; None if its message is gone or cannot be used."""
        answer = await client.post(self._url + method, json={"args": args})
        found = answer.json()
        if "error" in found:
            assert found["error"]["code"] in ("not_found", "conflict"), answer.text
            return None
        return found["result"]

    async def act(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        """Do one thing to what is shown."""
        found = await self.call(client, "look")
        self.told.update(id for id, _, _, status in found["line"] if status != "streaming")
        questions = [id for id, role, _, status in found["line"] if role == "user" and status == "completed"]
        siblings = [id for each in found["forks"].values() for id, _ in each]
        match chance.choice(["ask", "ask", "regenerate", "edit", "switch"]):
            case "regenerate" if questions:
                await self.call(client, "messages:regenerate", chance.choice(found["line"])[0])
            case "edit" if questions:
                edited = await self.call(client, "messages:edit", chance.choice(questions), f"e{next(_names)}")
                self.told.update([] if edited is None else [edited])
            case "switch" if siblings:
                await self.call(client, "messages:switch", chance.choice(siblings))
            case _:
                text = f"q{next(_names)}"
                self.told.add(await self.call(client, "ask", text, text))

    async def check(self, address: str, chance: random.Random) -> None:
        """Wait until nothing is answered, and check what is shown, on several branches."""
        async with http(address) as client:
            found = await self._settle(client)
            there = await self.call(client, "find", [*self.told])
            assert {*there} == self.told, "an acknowledged message is lost"
            for id in chance.sample(sorted(self.told), min(5, len(self.told))):
                await self.call(client, "messages:switch", id)
                found = await self._settle(client)
                assert id in [line[0] for line in found["line"]]
            await self._compare_with_clients(address, found)

    # Inside

    async def _settle(self, client: httpx.AsyncClient) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while (found := await self.call(client, "look"))["status"] != "idle":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        _check_line(found)
        return dict(found)

    async def _compare_with_clients(self, address: str, found: dict[str, Any]) -> None:
        async with connect(f"ws://{address}{self.path}") as room:
            await room.messages.open(100_000)
            shown = [[each.id, each.role, each.content, each.status] for each in room.messages.items]
        assert shown == found["line"]


def _check_line(found: dict[str, Any]) -> None:
    """Check that each answer stands after its question, once, and that siblings share a role."""
    line = found["line"]
    assert found["total"] == len(line)
    assert len({id for id, *_ in line}) == len(line)
    asked: list[str] = []
    for _, role, content, status in line:
        assert status == "completed", line
        if role == "user":
            asked.append(content)
        else:  # Of a run that was stopped, an answer has only its beginning, or is not there.
            assert f"re {asked.pop()} ".startswith(content), line
    for id, siblings in found["forks"].items():
        assert id in [each for each, _ in siblings]
        assert len({role for _, role in siblings}) == 1


async def play(
    addresses: Sequence[str], conversations: Sequence[Conversation], chance: random.Random, *, until: asyncio.Event
) -> None:
    """Have three clients act in each conversation until an event, or until their server is gone."""

    async def act(conversation: Conversation, number: int, seed: int) -> None:
        own = random.Random(seed)
        async with http(addresses[number % len(addresses)]) as client:
            with suppress(httpx.HTTPError):
                while not until.is_set():
                    await conversation.act(client, own)

    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for conversation in conversations:
            for number in range(3):
                group.create_task(act(conversation, number, chance.getrandbits(32)))
