"""The listings of kinds over HTTP: which threads they show, to whom, and how they follow what happens."""

import asyncio
import gc
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, connected, http
from tests.integration.test_http import error_of
from tests.running import running

from plait import Limits, MemoryStore, Plait, Principal, SqliteStore, StoreError, Thread, ThreadKey
from plait.store.protocol import ALL_THREADS, ThreadQuery, ThreadRow
from plait.web import listing, live_listings

EVENTS = {"accept": "text/event-stream"}


class Room(Thread[dict[str, Any]]):
    """A listed thread with a card."""

    listed = True
    initial_state: Any = {"title": "new", "private": False}  # noqa: RUF012

    def card(self, state: dict[str, Any]) -> object:
        return {"title": state["title"]}


class Bare(Thread[dict[str, Any]]):
    """A listed thread without a card."""

    listed = True
    initial_state: Any = {}  # noqa: RUF012


class Diary(Thread[dict[str, Any]]):
    """A thread that is not listed."""

    initial_state: Any = {}  # noqa: RUF012


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes of live listings more often than once a second."""
    monkeypatch.setattr(live_listings, "_PAUSE", 0.02)


def authenticate(request: Request) -> Principal | None:
    user = request.query_params.get("user") or request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal(user) if user else None


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Plait, httpx.AsyncClient]]:
    """Serve rooms; yield the app and a client."""
    options: dict[str, Any] = {"store": MemoryStore()} | settings
    app = Plait(Room, Bare, Diary, **options)
    async with running(app) as address, http(address) as client:
        yield app, client


async def fill(app: Plait, *names: str, cls: type[Thread[Any]] = Room) -> None:
    """Change threads, one after the other: the last one has changed last."""
    for name in names:
        await app.thread(cls, name).set_state(partial(_change, name))


def _change(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "title": f"room {name}", "changes": state.get("changes", 0) + 1}


def names_in(answer: httpx.Response) -> list[str]:
    """Return the names of a page."""
    assert answer.status_code == 200, answer.text
    return [row["name"] for row in answer.json()["threads"]]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so in the server."""
    async with asyncio.timeout(TIMEOUT):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Stream:
    """An event stream, read an event at a time."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def read(self) -> Any:
        """Return the next page."""
        async with asyncio.timeout(TIMEOUT):
            async for line in self._lines:
                if line.startswith("data: "):
                    return json.loads(line.removeprefix("data: "))
        return None

    async def until(self, people: Mapping[str, int]) -> Any:
        """Return the first page that has these people in these threads, in this order."""
        while (page := await self.read()) is not None:
            if [(row["name"], row["people"]) for row in page["threads"]] == [*people.items()]:
                return page
        return None


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, path: str, **headers: str) -> AsyncIterator[Stream]:
    """Open an event stream."""
    async with client.stream("GET", path, headers=EVENTS | headers, timeout=TIMEOUT) as answer:
        yield Stream(answer)


# Rows


async def test_a_listing_has_the_names_people_and_cards_of_threads_those_changed_last_first() -> None:
    async with serving() as (app, client):
        await fill(app, "a", "b", "c")
        await fill(app, "a")
        address = client.base_url.netloc.decode()
        async with connected(address, "/threads/room/b"), connected(address, "/threads/room/b"):
            answer = await client.get("/threads/room")
            assert answer.json() == {
                "threads": [
                    {"name": "a", "people": 0, "card": {"title": "room a"}},
                    {"name": "c", "people": 0, "card": {"title": "room c"}},
                    {"name": "b", "people": 2, "card": {"title": "room b"}},
                ],
                "next": None,
                "silent": 0,
                "more": False,
            }
            assert answer.headers["cache-control"] == "no-store"
        empty: dict[str, Any] = {"threads": [], "next": None, "silent": 0, "more": False}
        assert (await client.get("/threads/bare")).json() == empty
        await fill(app, "x", cls=Bare)
        assert (await client.get("/agents/bare/")).json()["threads"] == [{"name": "x", "people": 0, "card": None}]


async def test_a_thread_is_listed_when_its_first_socket_has_joined_and_listing_wakes_none() -> None:
    async with serving() as (app, client):
        async with connected(client.base_url.netloc.decode(), "/threads/room/one"):
            (row,) = (await client.get("/threads/room")).json()["threads"]
            assert row == {"name": "one", "people": 1, "card": {"title": "new"}}
        app._node._lifecycle.stop(await app._node.actor(ThreadKey("room", "one")))
        await until(lambda: not app._node.actors)
        assert names_in(await client.get("/threads/room")) == ["one"]
        assert app._node.actors == []


async def test_sessions_and_signed_ids_are_never_listed() -> None:
    async with serving() as (app, client):
        await fill(app, "ada:trip", ":anonymous", "thrd_" + "0" * 32, "open", "thread")
        assert names_in(await client.get("/threads/room")) == ["thread", "open"]
        assert names_in(await client.get("/threads/room?limit=1")) == ["thread"]


async def test_the_sockets_of_one_principal_are_one_person() -> None:
    async with serving(authenticate=authenticate) as (app, client):
        await fill(app, "one")
        address = client.base_url.netloc.decode()
        async with (
            connected(address, "/threads/room/one", query={"user": "ada"}),
            connected(address, "/threads/room/one", query={"user": "ada"}),
            connected(address, "/threads/room/one", query={"user": "bob"}),
        ):
            (row,) = (await client.get("/threads/room?user=eve")).json()["threads"]
            assert row["people"] == 2


# Pages


async def test_pages_follow_each_other_and_the_last_one_says_so() -> None:
    async with serving() as (app, client):
        names = [f"n{number:03}" for number in range(70)]
        await fill(app, *names)
        assert names_in(await client.get("/threads/room")) == names[:19:-1]
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            answer = await client.get("/threads/room", params={"limit": 7, **after})
            found += names_in(answer)
            if (cursor := answer.json()["next"]) is None:
                break
            after = {"after": cursor}
        assert found == names[::-1]
        assert len(names_in(await client.get("/threads/room?limit=100000"))) == 70


@each_case(
    ("query", "path"),
    [("limit=0", "/limit"), ("limit=-1", "/limit"), ("limit=x", "/limit"), ("limit=" + "9" * 30, "/limit")]
    + [(f"after={each}", "/after") for each in ("", "x", "5", ":a", "x:a", "9" * 30 + ":a")],
)
async def test_parameters_that_make_no_sense_are_refused(query: str, path: str) -> None:
    async with serving() as (_, client):
        answer = await client.get(f"/threads/room?{query}")
        assert error_of(answer) == (422, "invalid_arguments")
        assert answer.json()["error"]["path"] == path


async def test_a_cursor_of_any_name_is_taken(tmp_path: Path) -> None:
    async with serving(store=SqliteStore(tmp_path / "a.db")) as (app, client):
        await fill(app, "b 😀", "é&=%")
        page = (await client.get("/threads/room", params={"limit": 1})).json()
        assert [row["name"] for row in page["threads"]] == ["é&=%"]
        assert names_in(await client.get("/threads/room", params={"after": page["next"]})) == ["b 😀"]
        assert names_in(await client.get("/threads/room", params={"after": "1:"})) == []


# Rights


async def test_authorize_is_asked_for_each_thread_and_a_page_is_filled_up() -> None:
    asked: list[tuple[str, str]] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        assert principal is not None
        asked.append((action, thread.name))
        return action != "list" or thread.name.startswith((principal.id, "open"))

    async with serving(authenticate=authenticate, authorize=authorize) as (app, client):
        names = [f"{who}-{number:02}" for number in range(40) for who in ("ada", "bob", "open")]
        await fill(app, *names)
        for user in ("ada", "bob"):
            mine = [name for name in reversed(names) if name.startswith((user, "open"))]
            answer = await client.get(f"/threads/room?limit=75&user={user}")
            assert names_in(answer) == mine[:75]
            rest = await client.get("/threads/room", params={"user": user, "after": answer.json()["next"]})
            assert names_in(rest) == mine[75:]
            assert rest.json()["next"] is None
        assert {action for action, _ in asked} == {"list"}


async def test_a_page_is_charged_for_the_threads_that_were_read_for_it() -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return action != "list"

    limits = Limits(messages_per_second=0.001, message_burst=4)
    async with serving(authorize=authorize, limits=limits) as (app, client):
        await asyncio.gather(*(fill(app, str(number)) for number in range(350)))
        assert names_in(await client.get("/threads/room")) == []
        assert error_of(await client.get("/threads/room")) == (429, "rate_limited")


async def test_pages_that_are_asked_for_at_once_are_charged_before_their_threads_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return action != "list"

    store, rows = MemoryStore(), 0
    read = store.threads

    async def threads(query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        nonlocal rows
        found = await read(query)
        rows += len(found)
        return found

    limits = Limits(messages_per_second=0.001, message_burst=20)
    async with serving(store=store, authorize=authorize, limits=limits) as (app, client):
        await asyncio.gather(*(fill(app, str(number)) for number in range(350)))
        monkeypatch.setattr(store, "threads", threads)
        answers = await asyncio.gather(*(client.get("/threads/room") for _ in range(10)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert {error_of(answer) for answer in refused} == {(429, "rate_limited")}
        assert rows < 10 * 350


async def test_a_page_keeps_no_threads_that_it_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 0

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        nonlocal kept
        if thread.name.endswith("0"):
            kept = max(kept, sum(type(each) is listing.Entry for each in gc.get_objects()))
        return action != "list"

    monkeypatch.setattr(listing, "_MOST_READ", 50)
    async with serving(authorize=authorize) as (app, client):
        await fill(app, *(str(number) for number in range(250)))
        assert names_in(await client.get("/threads/room")) == []
    assert 0 < kept <= 52


async def test_other_tasks_run_while_threads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(listing, "_AT_ONCE", 5)
    async with serving() as (app, _):
        await fill(app, *(str(number) for number in range(100)))
        ticking = asyncio.create_task(tick())
        assert len(await listing.Listing(app._node, "room", listing.PageQuery(100, None)).read()) == 100
        ticking.cancel()
    assert ticks >= 20


async def test_a_client_that_is_nobody_gets_401_and_another_kind_is_404() -> None:
    async with serving(authenticate=authenticate) as (_, client):
        assert error_of(await client.get("/threads/room")) == (401, "unauthenticated")
        for kind in ("diary", "nothing"):
            answer = await client.get(f"/threads/{kind}?user=ada")
            assert error_of(answer) == (404, "not_found")
        assert "there is no kind of thread called 'nothing'" in answer.json()["error"]["message"]
        message = (await client.get("/threads/diary?user=ada")).json()["error"]["message"]
        assert message == "the threads of the kind 'diary' are not listed: its class does not have `listed = True`"


async def test_other_methods_are_refused_and_a_head_has_no_body() -> None:
    async with serving() as (app, client):
        await fill(app, "one")
        for method in ("POST", "PUT", "DELETE"):
            answer = await client.request(method, "/threads/room")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        head, got = await client.head("/threads/room"), await client.get("/threads/room")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        assert error_of(await client.get("/threads")) == (404, "not_found")


async def test_a_host_that_is_not_allowed_is_refused_as_for_a_thread() -> None:
    async with serving(allowed_hosts=["good.example"]) as (app, client):
        await fill(app, "one")
        for host, status in (("good.example", 200), ("evil.example", 421)):
            answers = [
                await client.get(path, headers={"host": host}) for path in ("/threads/room/one", "/threads/room")
            ]
            assert [answer.status_code for answer in answers] == [status, status]


async def test_pages_of_allowed_origins_may_list() -> None:
    async with serving(allowed_origins=["https://good.example"]) as (app, client):
        await fill(app, "one")
        answer = await client.get("/threads/room", headers={"origin": "https://good.example"})
        assert names_in(answer) == ["one"]
        assert answer.headers["access-control-allow-origin"] == "https://good.example"


# Streams


async def test_a_stream_shows_each_change_of_rows_and_people() -> None:
    async with serving() as (app, client):
        await fill(app, "a")
        address = client.base_url.netloc.decode()
        async with streaming(client, "/threads/room") as stream:
            assert stream.answer.headers["content-type"].startswith("text/event-stream")
            assert [row["card"] for row in (await stream.read())["threads"]] == [{"title": "room a"}]
            async with connected(address, "/threads/room/a"):
                await stream.until({"a": 1})
                await fill(app, "b")
                await stream.until({"b": 0, "a": 1})
            await stream.until({"b": 0, "a": 0})
            await app.destroy(Room, "b")
            await stream.until({"a": 0})


async def test_a_stream_without_threads_shows_the_first_one_and_the_last_one_that_goes() -> None:
    async with serving() as (app, client), streaming(client, "/threads/room") as stream:
        await stream.until({})
        await fill(app, "a")
        await stream.until({"a": 0})
        await app.destroy(Room, "a")
        await stream.until({})


async def test_one_listing_serves_all_readers_and_each_sees_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return principal is not None and (action != "list" or thread.name.startswith(principal.id))

    store = MemoryStore()
    queries: list[Any] = []
    read = store.threads
    async with serving(store=store, authenticate=authenticate, authorize=authorize) as (app, client):
        await fill(app, "ada-1", "bob-1")
        monkeypatch.setattr(store, "threads", lambda query: queries.append(query) or read(query))
        async with (
            streaming(client, "/threads/room?user=ada") as ada,
            streaming(client, "/threads/room?user=bob") as bob,
            streaming(client, "/threads/room?user=bob&limit=1") as one,
        ):
            for stream, name in ((ada, "ada-1"), (bob, "bob-1"), (one, "bob-1")):
                assert [row["name"] for row in (await stream.read())["threads"]] == [name]
            assert len(queries) < 3
            await fill(app, "bob-2")
            await bob.until({"bob-2": 0, "bob-1": 0})
            assert (await one.until({"bob-2": 0}))["next"] is not None
            await fill(app, "ada-2")
            await ada.until({"ada-2": 0, "ada-1": 0})
            # A reader is not told of what it does not see.
            await fill(app, "bob-3")
            assert [row["name"] for row in (await bob.read())["threads"]] == ["bob-3", "bob-2", "bob-1"]


async def test_nothing_is_read_without_a_reader_and_a_stream_that_changes_nothing_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_listings, "_SILENCE", 0.2)
    store = MemoryStore()
    async with serving(store=store) as (app, client):
        await fill(app, "a")
        async with client.stream("GET", "/threads/room", headers=EVENTS) as answer:
            lines = answer.aiter_lines()
            seen = [await anext(lines) for _ in range(4)]
            requests: Any = app._site._threads._answer
            live = requests.__self__._listings._live._live
            task = live["room", None]._task
        assert seen[0].startswith("data: ")
        assert seen[1:] == ["", ": ", ""]
        await until(task.done)
        assert task.cancelled()
        assert not live


async def test_a_stream_ends_when_the_server_shuts_down() -> None:
    app = Plait(Room, store=MemoryStore())
    async with running(app) as address, http(address) as client:
        async with streaming(client, "/threads/room") as stream:
            await stream.read()
            app.drain()
            assert await stream.read() is None
        assert error_of(await client.get("/threads/room")) == (503, "unavailable")


async def test_a_stream_ends_when_its_user_is_disconnected() -> None:
    async with (
        serving(authenticate=authenticate) as (app, client),
        streaming(client, "/threads/room?user=ada") as stream,
    ):
        await stream.read()
        assert await app.disconnect("ada") == 1
        assert await stream.read() is None


async def test_a_stream_counts_for_its_address_until_it_ends() -> None:
    async with serving() as (app, client):
        async with streaming(client, "/threads/room") as stream:
            await stream.read()
            assert app.addresses._sockets == {"127.0.0.1": 1}
        await until(lambda: not app.addresses._sockets)


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "2.5"])
async def test_a_stream_ends_when_its_client_disconnects_before_anything_changes(version: str) -> None:
    shown, gone = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            shown.set()

    app = Plait(Room, store=MemoryStore())
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "method": "GET",
        "path": "/threads/room",
        "raw_path": b"/threads/room",
        "headers": [(b"accept", b"text/event-stream")],
        "query_string": b"",
    }
    async with app, asyncio.timeout(TIMEOUT):
        answering = asyncio.create_task(app(scope, receive, send))
        await shown.wait()
        gone.set()
        await answering


async def test_a_stream_has_only_the_first_page() -> None:
    async with serving() as (_, client):
        answer = await client.get("/threads/room?after=5:a", headers=EVENTS)
        assert error_of(answer) == (422, "invalid_arguments")


class Broken(MemoryStore):
    """A store that cannot list its threads while it is broken."""

    is_broken = False

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        if self.is_broken:
            raise StoreError("the disk is gone")
        return await super().threads(query)


async def test_a_store_that_cannot_be_read_is_an_error_and_a_stream_goes_on_when_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken()
    async with serving(store=store) as (app, client):
        await fill(app, "a")
        store.is_broken = True
        for headers in ({}, EVENTS):
            assert error_of(await client.get("/threads/room", headers=headers)) == (503, "store_error")
        store.is_broken = False
        async with streaming(client, "/threads/room") as stream:
            await stream.until({"a": 0})
            store.is_broken = True
            await until(lambda: "cannot be listed" in caplog.text)
            await fill(app, "b")
            store.is_broken = False
            await stream.until({"b": 0, "a": 0})


async def test_an_authorize_that_raises_cuts_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        raise LookupError("no such rule")

    async with serving(authenticate=authenticate, authorize=authorize) as (app, client):
        await fill(app, "a")
        assert error_of(await client.get("/threads/room?user=ada")) == (500, "internal")
        with pytest.raises(httpx.RemoteProtocolError):
            async with streaming(client, "/threads/room?user=ada") as stream:
                await stream.read()
        assert "no such rule" in caplog.text
        assert "During handling of" not in caplog.text


async def test_a_damaged_card_leaves_the_row(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with serving(store=SqliteStore(path)) as (app, _):
        await fill(app, "a", "b")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE rows SET checksum = checksum + 1 WHERE thread = 1 AND part < '~'")
    db.close()
    async with serving(store=SqliteStore(path)) as (_, client):
        rows = (await client.get("/threads/room")).json()["threads"]
        assert [(row["name"], row["card"]) for row in rows] == [("b", {"title": "room b"}), ("a", None)]


async def test_a_stream_that_is_being_opened_when_the_server_shuts_down_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, asked, held = MemoryStore(), asyncio.Event(), asyncio.Event()
    read = store.threads

    async def threads(query: Any) -> Any:
        asked.set()
        await held.wait()
        return await read(query)

    app = Plait(Room, store=store)
    async with running(app) as address, http(address) as client:
        monkeypatch.setattr(store, "threads", threads)
        opening = asyncio.create_task(client.get("/threads/room", headers=EVENTS))
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
            app.drain()
            assert (await opening).text == ""
