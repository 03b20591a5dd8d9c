"""Requests of operators to a running server: a list of awake threads, and closing sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.integration.socket_client import TIMEOUT, connected, http
from tests.running import running

from plait import MemoryStore, Plait, Principal, Thread, rpc
from plait.settings import Settings

TOKEN = "the token of operators"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Room(Thread[dict[str, Any]]):
    initial_state: Any = dict
    gate: asyncio.Event

    @rpc
    async def wait(self) -> None:
        await self.gate.wait()

    @rpc
    def quick(self) -> None:
        pass


def authenticate(request: Request) -> Principal | None:
    user = request.query_params.get("user")
    return None if user is None else Principal(user)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Serve rooms; yield the address and a client that is an operator."""
    Room.gate = asyncio.Event()
    options: dict[str, Any] = {"operator_token": TOKEN} | settings
    app = Plait(Room, store=MemoryStore(), authenticate=authenticate, **options)
    async with running(app) as address, http(address, headers=BEARER) as operator:
        try:
            yield address, operator
        finally:
            Room.gate.set()


async def test_the_awake_threads_are_told_with_their_sockets_turn_and_queue() -> None:
    async with serving() as (address, operator):
        async with (
            connected(address, "/threads/room/busy", query={"user": "ada"}) as ada,
            connected(address, "/threads/room/busy", query={"user": "bob"}) as bob,
            connected(address, "/threads/room/idle", query={"user": "ada"}),
        ):
            calls = [asyncio.ensure_future(each.call(name)) for each, name in ((ada, "wait"), (bob, "quick"))]

            async def is_told() -> bool:
                return (await operator.get("/operator/awake")).json()["busiest"][0]["queue"] == 1

            async with asyncio.timeout(TIMEOUT):
                while not await is_told():
                    pass
            answer = await operator.get("/operator/awake")
            Room.gate.set()
            await asyncio.gather(*calls)
        assert answer.headers["cache-control"] == "no-store"
        found = answer.json()
        busy, idle = found.pop("busiest")
        assert busy.pop("seconds") > 0
        assert found == {"threads": 2, "sockets": 3, "silent": 0}
        assert busy == {"thread": "room/busy", "sockets": 2, "turn": "rpc wait", "queue": 1}
        assert idle == {"thread": "room/idle", "sockets": 1, "turn": None, "seconds": 0.0, "queue": 0}


@pytest.mark.parametrize(
    ("kick", "closed"),
    [({"user": "ada"}, ["ada a", "ada b"]), ({"thread": "room/a"}, ["ada a", "bob a"]), ({"thread": "room/c"}, [])],
)
async def test_a_kick_closes_the_sockets_of_one_user_or_one_thread(kick: Any, closed: list[str]) -> None:
    async with serving() as (address, operator):
        places = ["ada a", "ada b", "bob a", "bob b"]
        sockets = {}
        async with AsyncSockets(address) as group:
            for place in places:
                user, name = place.split()
                sockets[place] = await group.open(f"/threads/room/{name}", user)
            assert (await operator.post("/operator/kick", json=kick)).json() == {"closed": len(closed)}
            for place in places:
                if place in closed:
                    assert await sockets[place].until_closed() == 4401
                else:
                    await sockets[place].call("quick")


class AsyncSockets:
    """Sockets that are closed together."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: list[Any] = []

    async def __aenter__(self) -> "AsyncSockets":
        return self

    async def open(self, path: str, user: str) -> Any:
        """Join a thread."""
        entered = connected(self._address, path, query={"user": user})
        self._open.append(entered)
        return await entered.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        for each in reversed(self._open):
            await each.__aexit__(None, None, None)


async def test_only_who_has_the_token_is_answered() -> None:
    async with serving() as (address, operator), http(address) as web:
        for headers in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer another token"}):
            for answer in (
                await web.get("/operator/awake", headers=headers),
                await web.post("/operator/kick", json={"user": "ada"}, headers=headers),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
        assert (await operator.get("/operator/awake")).status_code == 200


async def test_without_a_token_there_is_nothing() -> None:
    async with serving(operator_token="") as (_, operator):
        assert (await operator.get("/operator/awake")).status_code == 404
        assert (await operator.post("/operator/kick", json={"user": "ada"})).status_code == 404


@pytest.mark.parametrize("body", [b"", b"{}", b'{"user":"a","thread":"b/c"}', b'{"thread":"b"}', b'{"usr":"a"}'])
async def test_a_kick_of_nothing_is_refused(body: bytes) -> None:
    async with serving() as (_, operator):
        answer = await operator.post("/operator/kick", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_state")


def test_a_token_that_could_be_guessed_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ValueError, match="operator_token: must have at least 16 characters"):
        Plait(Room, store=MemoryStore(), operator_token="x" * 15)
    assert TOKEN not in repr(Settings(operator_token=TOKEN))
