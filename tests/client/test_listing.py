"""The listing of threads, asked for with asyncio and without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.running import running

from plait import MemoryStore, Plait, Principal, Thread
from plait_client import (
    ClientError,
    Disconnected,
    ListedThread,
    Refused,
    ThreadPage,
    connect,
    list_threads,
    list_threads_sync,
)


class Card(msgspec.Struct, frozen=True):
    """What a room shows in a listing."""

    title: str


class Room(Thread[dict[str, Any]]):
    listed = True
    initial_state: Any = {"title": "new"}  # noqa: RUF012

    def card(self, state: dict[str, Any]) -> Card:
        return Card(state["title"])


class Secret(Thread[dict[str, Any]]):
    initial_state: Any = {}  # noqa: RUF012


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    """Serve three rooms, and yield the address."""
    app = Plait(Room, Secret, store=MemoryStore(), **settings)
    async with running(app) as address:
        for name in ("a", "b", "c d/e?"):
            await app.thread(Room, name).set_state({"title": f"room {name}"})
        yield address


async def test_pages_of_threads_have_names_people_and_cards_of_a_type() -> None:
    async with serving() as address:
        url = f"ws://{address}/threads/room"
        async with connect(f"{url}/b"):
            page = await list_threads(url, card_type=Card, limit=2)
            assert page.threads == [
                ListedThread("c d/e?", 0, Card("room c d/e?")),
                ListedThread("b", 1, Card("room b")),
            ]
            assert page.silent == 0
            rest = await list_threads(url, limit=2, after=page.next)
            assert rest == ThreadPage([ListedThread("a", 0, {"title": "room a"})])


async def test_threads_are_listed_without_asyncio_even_below_a_running_loop() -> None:
    async with serving() as address:
        page = await asyncio.to_thread(list_threads_sync, f"http://{address}/threads/room", card_type=Card)
        assert [row.card for row in page.threads][-1] == Card("room a")
        with pytest.raises(Refused):
            await asyncio.to_thread(list_threads_sync, f"http://{address}/threads/secret")


async def test_the_token_is_shown_whether_it_is_text_or_a_function() -> None:
    def authenticate(request: Request) -> Principal | None:
        return Principal("ada") if request.headers.get("authorization") == "Bearer secret" else None

    async def fetch() -> str:
        return "secret"

    async with serving(authenticate=authenticate) as address:
        url = f"ws://{address}/threads/room"
        for token in ("secret", fetch):
            assert len((await list_threads(url, token=token)).threads) == 3
        assert len((await list_threads(url, headers={"Authorization": "Bearer secret"})).threads) == 3
        with pytest.raises(Refused, match=r"^authentication required \(unauthenticated\)$"):
            await list_threads(url)


async def test_what_the_server_does_not_list_is_refused() -> None:
    async with serving() as address:
        with pytest.raises(Refused, match="are not listed") as refused:
            await list_threads(f"ws://{address}/threads/secret")
        assert refused.value.code == "not_found"
        with pytest.raises(Refused, match="must be the `next` of the page before") as refused:
            await list_threads(f"ws://{address}/threads/room", after="x")
        assert refused.value.path == "/after"


async def test_answers_that_are_no_listing_and_servers_that_are_not_there_are_errors() -> None:
    async with serving() as address:
        with pytest.raises(ClientError, match="the answer is no listing of threads"):
            await list_threads(f"http://{address}/healthz")
        with pytest.raises(ClientError, match=r"the answer is no listing of threads: .*int"):
            await list_threads(f"http://{address}/threads/room", card_type=int)
    with pytest.raises(Disconnected, match=r"the threads cannot be listed: .*refused"):
        await list_threads(f"http://{address}/threads/room")


async def test_a_redirect_is_not_followed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            location = (b"location", b"http://other.example/threads/room")
            await send({"type": "http.response.start", "status": 302, "headers": [location]})
            await send({"type": "http.response.body"})

    async with running(app) as address:
        with pytest.raises(ClientError, match="the server answered with 302"):
            await list_threads(f"http://{address}/threads/room", token="secret")


@pytest.mark.parametrize("url", ["room", "ftp://a/threads/room", "http://a/threads/room?limit=5", "http://a/a b"])
async def test_a_url_that_is_none_is_a_mistake(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a kind"):
        await list_threads(url)
