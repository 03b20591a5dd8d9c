"""The conversations of a user: which threads `?mine` lists, with what, and how it follows what happens."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from tests.integration.test_http import error_of
from tests.integration.test_listings import authenticate, fill, names_in, serving, streaming

from plait import Principal, ThreadKey
from plait.web import live_listings

ADA = {"authorization": "Bearer ada"}
BOB = {"authorization": "Bearer bob"}


def names(page: Any) -> list[str]:
    return [row["name"] for row in page["threads"]]


async def create(client: Any, who: Mapping[str, str], *names: str) -> None:
    """Create rooms as a user, one after the other."""
    for name in names:
        answer = await client.put(f"/threads/room/{name}", json={"title": name, "private": False}, headers=who)
        assert answer.status_code == 200, answer.text


own_serving = partial(serving, authenticate=authenticate)


async def test_mine_lists_the_threads_that_the_user_has_created_those_changed_last_first() -> None:
    async with own_serving() as (app, client):
        await create(client, ADA, "a", "b")
        await create(client, BOB, "c")
        await fill(app, "a")
        page = await client.get("/threads/room?mine", headers=ADA)
        assert names_in(page) == ["a", "b"]
        assert page.json()["threads"][0]["card"] == {"title": "room a"}
        first = (await client.get("/threads/room?mine=true&limit=1", headers=ADA)).json()
        assert first["more"]
        rest = await client.get("/threads/room", params={"mine": "", "after": first["next"]}, headers=ADA)
        assert names_in(rest) == ["b"]
        assert not rest.json()["more"]
        assert names_in(await client.get("/threads/room?mine", headers=BOB)) == ["c"]


async def test_mine_is_refused_without_a_principal() -> None:
    async with serving() as (_, client):
        for accept in ("application/json", "text/event-stream"):
            answer = await client.get("/threads/room?mine", headers={"accept": accept})
            assert error_of(answer) == (403, "forbidden")


async def test_another_value_of_mine_is_refused() -> None:
    async with own_serving() as (_, client):
        answer = await client.get("/threads/room?mine=false", headers=ADA)
        assert (answer.status_code, answer.json()["error"]["path"]) == (422, "/mine")


async def test_mine_lists_names_that_are_secrets_of_others() -> None:
    async with own_serving() as (_, client):
        await create(client, ADA, "thrd_1", "ada:talk")
        assert names_in(await client.get("/threads/room?mine", headers=ADA)) == ["ada:talk", "thrd_1"]
        assert names_in(await client.get("/threads/room", headers=ADA)) == []


async def test_mine_needs_the_right_to_read_but_not_the_one_to_list() -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return action != "list" and not (thread.name == "b" and action == "read")

    async with own_serving(authorize=authorize) as (_, client):
        await create(client, ADA, "a", "b")
        assert names_in(await client.get("/threads/room?mine", headers=ADA)) == ["a"]
        assert names_in(await client.get("/threads/room", headers=ADA)) == []


async def test_a_user_without_threads_has_an_empty_list() -> None:
    async with own_serving() as (_, client):
        await create(client, ADA, "a")
        for user in ("bob", "x" * 300, "é😀"):
            answer = await client.get("/threads/room", params={"mine": "true", "user": user})
            assert names_in(answer) == []


async def test_a_live_list_has_own_threads_however_many_newer_ones_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_listings, "_MOST", 3)
    async with own_serving() as (app, client):
        await create(client, ADA, *"abcde")
        await fill(app, *"0123456789")
        async with streaming(client, "/threads/room?mine", **ADA) as stream:
            page = await stream.read()
            assert (names(page), page["more"]) == ([*"edcba"], False)


async def test_a_live_listing_says_that_it_leaves_threads_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_listings, "_MOST", 3)
    async with serving() as (app, client):
        await fill(app, "a", "b")
        async with streaming(client, "/threads/room") as stream:
            assert not (await stream.read())["more"]
            await fill(app, "c", "d")
            page = await stream.until({"d": 0, "c": 0, "b": 0})
            assert page["more"]
            assert page["next"] is None
