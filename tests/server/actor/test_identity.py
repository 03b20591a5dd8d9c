"""For whom a thread was created, when, and when it was terminated."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.cases import each_case
from tests.postgres import new_schema
from tests.server.nodes import open_nodes

from plait import Context, Files, MemoryStore, Plait, Principal, Thread, Values, rpc
from plait.actor.connection import Party
from plait.adapters.ag_ui import AgUi
from plait.testing import Served
from plait.testing.asgi import HOST

# The clock runs by itself.
_NO_CLOCK: Any = None


class Hall(Thread[dict[str, Any]]):
    """A thread that makes others."""

    initial_state = {"n": 0}  # noqa: RUF012

    @rpc
    async def open(self, name: str) -> None:
        await self.thread(Room, name).call(Room.add)

    @rpc
    async def prepare(self, name: str) -> None:
        await self.thread(Prepared, name).call(Prepared.look)


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012

    @rpc
    def add(self) -> str | None:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return self.user_id


class Prepared(Thread[None]):
    """Stores something when it wakes."""

    values = Values()

    def on_start(self) -> None:
        self.values.set("woken", True)

    @rpc
    def look(self) -> None: ...


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plait.db'}"
    return new_schema(request.getfixturevalue("postgres").url)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Served]:
    """Run an app whose clients need no port."""
    app = Plait(Hall, Room, Prepared, store=url)

    @app.agent("work", thread=Room)
    async def work(ctx: Context[Room]) -> str | None:
        ctx.thread.set_state(lambda state: state | {"worked": True})
        return ctx.thread.user_id

    app.prepare_serving(HOST, in_development=True)
    async with app:
        yield Served(app, _NO_CLOCK, app, "")


async def test_the_user_is_the_creator_and_stays_the_same_after_a_restart(url: str) -> None:
    ada, bob = Principal("ada"), Principal("bob")
    async with serving(url) as t:
        app = t.app
        async with t.connect(Room, "joined", principal=ada), t.connect(Room, "joined", principal=bob):
            pass
        async with t.connect(Hall, "hall", principal=bob) as hall:
            await hall.call("open", "opened")
            await hall.call("prepare", "made")
        async with t.connect(Prepared, "woken", principal=ada):
            pass
        assert await app.thread(Room, "server").call(Room.add) is None
        async with t.connect(Room, "server", principal=ada) as room:
            assert await room.call("add") is None
        assert await app.run("work", user_id="eve", session_id="s1") == "eve"
    async with serving(url) as t:
        for cls, name, user in (
            (Room, "joined", "ada"),
            (Hall, "hall", "bob"),
            (Room, "opened", "bob"),
            (Prepared, "woken", "ada"),
            (Prepared, "made", "bob"),
            (Room, "server", None),
            (Room, "eve:s1", "eve"),
        ):
            assert await t.app.thread(cls, name).user_id() == user, name
        assert [row.key.name async for row in t.app.threads(user_id="ada")] == ["woken", "joined"]


async def test_the_user_of_a_name_counts_before_the_creator_and_an_id_that_cannot_be_stored_not_at_all() -> None:
    async with Plait(Room, store=MemoryStore()) as app:
        for name, creator, user in (
            ("eve:s1", "ada", "eve"),
            ("one", "ada", "ada"),
            ("two", "\ud83d", None),
            ("three", "", None),
        ):
            actor = await app._node.actor(app.thread(Room, name)._key)
            await actor.state.store_thread(Party(creator))
            assert actor.thread.user_id == user


async def test_a_creator_whose_write_was_lost_is_forgotten() -> None:
    async with Plait(Room, store=MemoryStore()) as app:
        actor = await app._node.actor(app.thread(Room, "one")._key)
        history, thread = actor.state.history, actor.thread
        history.put((), by=Party("ada"))
        assert thread.user_id == "ada"
        history.rollback()
        assert (thread.user_id, thread.created_at) == (None, None)


async def test_the_times_are_in_hooks_runs_and_handles_and_none_before_they_come(url: str) -> None:
    async with serving(url) as t:
        room = t.app.thread(Room, "one")
        assert (await room.created_at(), await room.terminated_at()) == (None, None)
        assert [row async for row in t.app.threads()] == [], "reading creates no thread"
        await room.call(Room.add)
        (row,) = [row async for row in t.app.threads()]
        assert await room.created_at() == row.created_at
        assert await room.terminated_at() is None
        await room.terminate()
        at = await room.terminated_at()
        assert at is not None
        assert row.created_at <= at
    async with serving(url) as t:
        room = t.app.thread(Room, "one")
        assert (await room.created_at(), await room.terminated_at()) == (row.created_at, at)


async def test_the_identity_cannot_be_set() -> None:
    async with serving("memory://") as t:
        thread = (await t.app._node.actor(t.app.thread(Room, "one")._key)).thread
        for name in ("user_id", "created_at", "terminated_at", "name"):
            with pytest.raises(AttributeError):
                setattr(thread, name, "x")


async def test_handles_to_threads_of_other_nodes_have_the_identity_too() -> None:
    async with open_nodes(lambda: Plait(Hall, Room, Prepared, store="memory://")) as nodes:
        room = nodes.handle(Room, 1)
        assert await room.created_at() is None
        await room.call(Room.add)
        assert await room.user_id() is None
        assert isinstance(await room.created_at(), int)
        await room.terminate()
        assert isinstance(await room.terminated_at(), int)


async def test_a_thread_that_a_client_of_another_node_creates_has_its_user() -> None:
    async with open_nodes(lambda: Plait(Hall, Room, Prepared, store="memory://")) as nodes:
        here = nodes.apps[0]
        here.prepare_serving(HOST)
        hall, room = nodes.name(Hall, 0), nodes.name(Room, 1)
        async with Served(here, _NO_CLOCK, here, "").connect(Hall, hall, principal=Principal("ada")) as client:
            await client.call("open", room)
        assert await here.thread(Room, room).user_id() == "ada"
        assert [row.key.name async for row in here.threads(user_id="ada")] == [hall, room]


# Doors

_RUN: Any = {"threadId": "t", "runId": "r", "messages": []}
_DOORS: dict[str, tuple[str, str, Any]] = {
    "a state": ("PUT", "/threads/desk/one", {"n": 1}),
    "the initial state": ("PUT", "/threads/desk/one", {"n": 0}),
    "an rpc that writes": ("POST", "/threads/desk/one/rpc/note", {}),
    "on_request": ("POST", "/threads/desk/one/other", {}),
    "a file": ("PUT", "/threads/desk/one/files/a.txt", {}),
    "a run that writes nothing": ("POST", "/threads/desk/one/run/think", None),
    "AG-UI": ("POST", "/ag-ui/think/one", _RUN),
}


class Desk(Thread[dict[str, Any]]):
    """Stores something by each door."""

    initial_state = {"n": 0}  # noqa: RUF012
    files = Files()
    values = Values()

    @rpc
    def note(self) -> None:
        self.values.set("noted", True)

    def on_request(self, request: Request) -> Response:
        self.note()
        return Response()


@each_case("door", _DOORS)
async def test_the_user_of_a_request_that_creates_a_thread_is_the_user_of_the_thread(door: str) -> None:
    app = Plait(Desk, store=MemoryStore(), secret="x" * 32, authenticate=lambda _: Principal("ada"))

    @app.agent("think", thread=Desk)
    async def think(ctx: Context[Desk]) -> str:
        return "thought"

    app.mount("/ag-ui", AgUi(app))
    method, path, body = _DOORS[door]
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web:
        answer = await web.request(method, path, json=body)
        assert answer.is_success, answer.text
        assert await app.thread(Desk, "one").user_id() == "ada"
        assert [row.key.name async for row in app.threads(user_id="ada")] == ["one"]
