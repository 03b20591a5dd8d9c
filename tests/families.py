"""Clients that have children made and step them while servers are killed, and what must be there then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.integration.socket_client import TIMEOUT, http

__all__ = ["Players", "ask", "playing"]


async def call(client: httpx.AsyncClient, thread: str, method: str, *args: object) -> Any:
    """Return the result of an rpc. Raises httpx.HTTPError."""
    answer = await client.post(f"/threads/{thread}/rpc/{method}", json={"args": args})
    answer.raise_for_status()
    return answer.json()["result"]


async def ask(client: httpx.AsyncClient, thread: str, method: str) -> Any:
    """Return the result of an rpc that only reads, as soon as the server that was killed is there again."""
    while True:
        try:
            return await call(client, thread, method)
        except httpx.HTTPError:
            await asyncio.sleep(0.05)


class Player:
    """A client that has a child made, and then steps that child again and again, whatever happens to the server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_made = False
        self.answered = 0
        self.news = asyncio.Event()

    async def play(self, address: str) -> None:
        while True:
            try:
                async with http(address) as client:
                    await call(client, "boss/b", "make", self.name)
                    self.is_made = True
                    while True:
                        self.answered = await call(client, f"kid/{self.name}", "step")
                        self.news.set()
            except httpx.HTTPError:
                await asyncio.sleep(0.05)  # The server is away.


class Players:
    """The clients of one family."""

    def __init__(self) -> None:
        self.all: list[Player] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, address: str, *names: str) -> None:
        """Begin to play with further children."""
        for name in names:
            self.all.append(Player(name))
            self._tasks.append(asyncio.create_task(self.all[-1].play(address)))

    async def until_stepped(self) -> None:
        """Wait until the newest four have made another step."""
        for player in self.all:
            player.news.clear()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(player.news.wait() for player in self.all[-4:]))

    async def stop(self) -> None:
        """End the clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, address: str) -> int:
        """Wait until everything is delivered, compare it with the answers, and return the number of notices."""
        async with http(address) as client, asyncio.timeout(TIMEOUT):
            found = await ask(client, "boss/b", "look")
            # The state and the row of a child are one write.
            assert [name for name, _ in found["children"]] == found["made"]
            assert len(set(found["made"])) == len(found["made"])
            assert {each.name for each in self.all if each.is_made} <= {*found["made"]}
            stepped = {each: await ask(client, f"kid/{each}", "look") for each in found["made"]}
            while any(len(found["notices"].get(f"kid/{each}", [])) < n for each, (_, _, n) in stepped.items()) or any(
                status == "starting" for _, status in found["children"]
            ):
                await asyncio.sleep(0.05)
                found = await ask(client, "boss/b", "look")
                stepped = {each: await ask(client, f"kid/{each}", "look") for each in found["made"]}
        for player in self.all:
            if player.name in stepped:
                parent, began, steps = stepped[player.name]
                assert (parent, began) == ("b", [["begin", player.name]])
                assert steps >= player.answered
                assert found["notices"].get(f"kid/{player.name}", []) == [
                    [str(number)] * (2 if number % 5 == 0 else 1) for number in range(1, steps + 1)
                ]
        # A child that is destroyed tells its parent, wherever that is.
        name = found["made"][0]
        async with http(address) as client, asyncio.timeout(TIMEOUT):
            await call(client, f"kid/{name}", "leave")
            while [name, "destroyed"] not in (await ask(client, "boss/b", "look"))["children"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return sum(map(len, found["notices"].values()))


@asynccontextmanager
async def playing() -> AsyncIterator[Players]:
    """Yield clients, which are stopped at the end."""
    players = Players()
    try:
        yield players
    finally:
        await players.stop()
