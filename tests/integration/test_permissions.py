"""Clients change only the places that `can_write` names, through every door."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import connected, http
from tests.running import begin, running

from plait import Context, Forbidden, MemoryStore, Plait, Principal, Source, Thread, current, rpc
from plait.adapters.ag_ui import AgUi
from plait_schemas.patch import Op, apply

pytestmark = pytest.mark.relayed

_numbers = itertools.count()

START: Any = {"players": {"ada": {"x": 0, "hand": [1]}, "bob": {"x": 0}}, "note": "", "secret": 0}

Change = tuple[str, str, Any]
"""An operation: its name, place and value."""

ALLOWED: list[Change] = [
    ("replace", "/players/ada/x", 1),
    ("add", "/players/ada/hand/0", 7),
    ("replace", "/players/ada", {"x": 5}),
    ("remove", "/players/ada", None),
    ("replace", "/note", "hi"),
    ("add", "/marks/7/ada", True),
]
REFUSED: list[Change] = [
    ("replace", "/players/bob/x", 1),
    ("remove", "/players/bob", None),
    ("add", "/players/eve", {"x": 0}),
    ("replace", "/players", {}),
    ("replace", "/secret", 1),
    ("add", "/new", 1),
    ("add", "/marks/7/bob", True),
    ("add", "/marks/8", {}),
]


class Room(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: START | {"marks": {"7": {}}})
    can_write = ("/players/{user}/**", "/note", "/marks/*/{user}")

    @rpc
    def change(self, path: str, value: Any) -> None:
        self.update(path, value)

    @rpc
    async def change_in_an_edit(self, value: int) -> None:
        with self.edit() as draft:
            draft.secret = value

    @rpc
    async def undo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.undo(connection)

    @rpc
    async def undo_of(self, source: str) -> int | None:
        return await self.undo(source)


class Served:
    """A server of rooms."""

    def __init__(self, room: Any, address: str, web: httpx.AsyncClient) -> None:
        self.room = room
        self.address = address
        self.web = web


def authenticate(request: Request) -> Principal | None:
    user = request.query_params.get("user")
    return None if user is None else Principal(user)


@asynccontextmanager
async def serving(cls: type[Room] = Room, **settings: Any) -> AsyncIterator[Served]:
    options: dict[str, Any] = {"store": MemoryStore()} | settings
    app = Plait(cls, secret="s", **options)

    @app.agent("show", thread=cls)
    async def show(ctx: Context[Room]) -> None:
        pass

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        await begin(app, cls)
        yield Served(app.thread(cls, "one"), address, web)


# Doors: each sends a change as a user, and returns the place that was refused, None if it was made


async def push_natively(served: Served, change: Change, user: str) -> str | None:
    client = NativeClient(served.address, f"/threads/room/one?user={user}", f"c{next(_numbers)}")
    await client.join()
    try:
        ref = await client.push(to_json(change))
        await client.until(lambda client: client.of(("ack", "nack"), ref=ref))
        answer = client.of(("ack", "nack"), ref=ref)[0]
        assert answer["type"] == "ack" or answer["code"] == "forbidden", answer
        return None if answer["type"] == "ack" else answer["path"]
    finally:
        await client.close()


async def push_a_whole_state(served: Served, change: Change, user: str) -> str | None:
    async with connected(served.address, "/threads/room/one", query={"user": user}) as client:
        await client.until(lambda client: client.state is not None)
        next_state = apply(client.state, [to_op(change)])
        before = await version_of(served)
        await client.push(next_state)
        await client.call("change", "/done", True)  # Comes after the push.
        if client.refusals:
            assert client.refusals == ["State update rejected"]
            return change[1]
        assert await version_of(served) == before + 2
        return None


async def put_over_http(served: Served, change: Change, user: str) -> str | None:
    answer = await served.web.get("/threads/room/one", params={"user": user})
    assert answer.status_code == 200, answer.text
    state = answer.json()
    next_state = apply(state, [to_op(change)])
    answer = await served.web.put("/threads/room/one", params={"user": user}, json=next_state)
    assert answer.status_code in (200, 403), answer.text
    if answer.status_code == 403:
        assert answer.json()["error"]["code"] == "forbidden"
        return str(answer.json()["error"]["path"])
    return None


async def run_with_a_state(served: Served, change: Change, user: str) -> str | None:
    state = await served.room.state()
    answer = await served.web.get("/threads/room/one", params={"user": user})
    version = answer.headers["etag"].strip('"')
    body = {"threadId": "t", "runId": f"r{next(_numbers)}", "messages": [], "tools": [], "context": []}
    body |= {"state": apply(state, [to_op(change)]), "forwardedProps": {"stateVersion": version}}
    answer = await served.web.post("/ag-ui/show/one", params={"user": user}, json=body)
    if '"code":"forbidden"' in answer.text:
        return change[1]
    assert "RUN_FINISHED" in answer.text, answer.text
    return None


DOORS = [push_natively, push_a_whole_state, put_over_http, run_with_a_state]
Door = Callable[[Served, Change, str], Awaitable[str | None]]


@each_case("door", DOORS)
async def test_a_client_changes_the_places_that_are_its_own_and_no_other(door: Door) -> None:
    for change in ALLOWED:
        async with serving(authenticate=authenticate) as served:
            assert await door(served, change, "ada") is None, change
            state = {key: value for key, value in (await served.room.state()).items() if key != "done"}
            assert state == apply(START | {"marks": {"7": {}}}, [to_op(change)])
    async with serving(authenticate=authenticate) as served:
        for change in REFUSED:
            # A whole state is compared before, which may find a smaller place.
            assert (await door(served, change, "ada") or "").startswith(change[1]), change
        assert {**await served.room.state(), "done": 0} == START | {"marks": {"7": {}}, "done": 0}


@each_case("door", DOORS)
async def test_nobody_without_a_principal_is_the_user_of_a_pattern(door: Door) -> None:
    async with serving() as served:
        assert await door(served, ("add", "/players/None", {}), "ada") == "/players/None"
        assert await door(served, ("replace", "/players/ada/x", 1), "ada") == "/players/ada/x"
        assert await door(served, ("replace", "/note", "hi"), "ada") is None


@each_case("user", ["a/b", "a~b", "{user}", "*", "é"])
async def test_the_id_of_a_user_is_a_part_whatever_characters_it_has(user: str) -> None:
    own = "/players/" + user.replace("~", "~0").replace("/", "~1")
    async with serving(authenticate=lambda request: Principal(user)) as served:
        assert await push_natively(served, ("add", own, {"x": 1}), "-") is None
        for other in ("/players/ada/x", "/players/a", "/players/{user}~1"):
            assert await push_natively(served, ("add", other, 1), "-") == other
        assert (await served.room.state())["players"][user] == {"x": 1}


async def test_a_user_whose_id_is_a_number_has_no_element_of_an_array() -> None:
    async with serving(authenticate=lambda request: Principal("0")) as served:
        assert await push_natively(served, ("add", "/players/0", {}), "-") is None
        await served.room.change("/players", [{"x": 1}, {"x": 2}])
        for path in ("/players/0", "/players/0/x"):
            assert await push_natively(served, ("replace", path, 5), "-") == path


async def test_code_of_the_server_is_not_bound() -> None:
    async with (
        serving(authenticate=authenticate) as served,
        connected(served.address, "/threads/room/one", query={"user": "ada"}) as ada,
    ):
        await ada.call("change", "/secret", 1)
        await ada.call("change_in_an_edit", 2)
        assert (await served.room.state())["secret"] == 2


class OpenRoom(Room):
    """The class before a deployment that binds clients."""

    kind = "room"
    can_write = None


async def test_an_undo_by_a_client_is_bound_and_one_by_the_server_is_not() -> None:
    store = MemoryStore()
    async with serving(OpenRoom, store=store, authenticate=authenticate) as served:
        client = NativeClient(served.address, "/threads/room/one?user=ada", "mine")
        await client.join()
        ref = await client.push(to_json(("replace", "/secret", 7)))
        await client.until(lambda client: client.of("ack", ref=ref))
        await client.close()
    async with serving(store=store, authenticate=authenticate) as served:
        client = NativeClient(served.address, "/threads/room/one?user=ada", "mine")
        await client.join()
        with pytest.raises(AssertionError, match="forbidden"):
            await client.call("undo_mine")
        assert (await served.room.state())["secret"] == 7
        assert await client.call("undo_of", client.frames[0]["connection"]) is not None
        assert (await served.room.state())["secret"] == 0
        await client.close()
        other = NativeClient(served.address, "/threads/room/one?user=ada", "other")
        await other.join()
        last = await other.push(to_json(("replace", "/note", "hi")))
        await other.until(lambda client: client.of("ack", ref=last))
        assert await other.call("undo_mine") is not None
        assert (await served.room.state())["note"] == ""
        await other.close()


class Archive(OpenRoom):
    """Refuses to remove a player, however that is written."""

    kind = "room"

    def validate_state_change(self, next_state: Any, source: Source, before: Any = None) -> None:
        players = next_state.get("players", {}) if isinstance(next_state, dict) else {}
        if gone := before["players"].keys() - players.keys():
            raise Forbidden("players are archived, not removed", path=f"/players/{min(gone)}")


REMOVALS: list[Change] = [
    ("remove", "/players/ada", None),
    ("replace", "/players", {}),
    ("replace", "/players", {"bob": {"x": 0}, "eve": {}}),
    ("remove", "/players", None),
    ("replace", "", {"note": "all gone"}),
]


@each_case("door", DOORS)
async def test_a_hook_that_takes_the_state_before_sees_what_a_client_removes_however_it_is_written(door: Door) -> None:
    async with serving(Archive, authenticate=authenticate) as served:
        before = await served.room.state()
        for change in REMOVALS:
            assert await door(served, change, "ada") is not None, change
        assert {**await served.room.state(), "done": 0} == {**before, "done": 0}
        assert await door(served, ("add", "/players/eve", {}), "ada") is None


class Roles(Room):
    """Grants rights by the role of a user."""

    kind = "room"
    initial_state: Any = staticmethod(lambda: START | {"roles": {"ada": "player", "bob": "host", "cat": "watcher"}})
    patterns: Any = {"host": ("/**",), "player": ["/players/{user}/**", "/note"], "watcher": ()}  # noqa: RUF012

    def can_write(self, state: dict[str, Any], viewer: Principal | None) -> Sequence[str]:  # type: ignore[override]
        if viewer is None:
            return ()
        role = state["roles"].pop(viewer.id, None)  # It is a copy.
        patterns: Sequence[str] = self.patterns["host" if viewer.claims.get("staff") else role]
        return patterns


def authenticate_staff(request: Request) -> Principal | None:
    user = request.query_params.get("user")
    return None if user is None else Principal(user, claims={"staff": user == "root"})


@each_case("door", DOORS)
async def test_a_method_decides_by_the_state_and_the_user_at_each_write(door: Door) -> None:
    async with serving(Roles, authenticate=authenticate_staff) as served:
        own, other, secret = ("/players/ada/x", "/players/bob/x", "/secret")
        assert await door(served, ("replace", own, 1), "ada") is None
        assert await door(served, ("replace", other, 1), "ada") == other
        assert await door(served, ("replace", "/note", "hi"), "cat") == "/note"
        assert await door(served, ("replace", secret, 1), "bob") is None
        assert await door(served, ("replace", secret, 2), "root") is None
        await served.room.change("/roles/ada", "host")
        assert await door(served, ("replace", secret, 3), "ada") is None
        await served.room.change("/roles/ada", "watcher")
        assert await door(served, ("replace", own, 2), "ada") == own
        state = await served.room.state()
        assert (state["secret"], state["roles"]) == (3, {"ada": "watcher", "bob": "host", "cat": "watcher"})


async def test_a_method_decides_about_the_undo_of_a_client() -> None:
    async with serving(Roles, authenticate=authenticate_staff) as served:
        client = NativeClient(served.address, "/threads/room/one?user=ada", "mine")
        await client.join()
        ref = await client.push(to_json(("replace", "/note", "hi")))
        await client.until(lambda client: client.of("ack", ref=ref))
        await served.room.change("/roles/ada", "watcher")
        with pytest.raises(AssertionError, match="forbidden"):
            await client.call("undo_mine")
        await served.room.change("/roles/ada", "host")
        assert await client.call("undo_mine") is not None
        assert (await served.room.state())["note"] == ""
        await client.close()


async def patterns_later(*_: object) -> Any:
    return ("/**",)


@pytest.mark.parametrize(
    "found",
    [lambda *_: None, lambda *_: "/note", lambda *_: {"/note"}, lambda *_: ("note",), lambda *_: (7,), patterns_later],
    ids=["nothing", "text", "set", "no pointer", "number", "coroutine"],
)
@pytest.mark.filterwarnings("ignore:coroutine 'patterns_later' was never awaited")
async def test_a_method_that_returns_no_patterns_lets_nobody_write(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Room):
        kind = "room"

        def can_write(self, state: dict[str, Any], viewer: Principal | None) -> Sequence[str]:  # type: ignore[override]
            return found()  # type: ignore[no-any-return]

    async with serving(Wrong, authenticate=authenticate) as served:
        client = NativeClient(served.address, "/threads/room/one?user=ada", "mine")
        await client.join()
        ref = await client.push(to_json(("replace", "/note", "hi")))
        await client.until(lambda client: client.of("nack", ref=ref))
        assert (await served.room.state())["note"] == ""
        await served.room.change("/note", "by the server")
        await client.close()
    errors = [str(each.exc_info[1]) for each in caplog.records if each.exc_info]
    assert any("the result of Wrong.can_write" in each and "must be a" in each for each in errors), errors


def to_json(change: Change) -> dict[str, Any]:
    op, path, value = change
    return {"op": op, "path": path} | ({} if op == "remove" else {"value": value})


def to_op(change: Change) -> Op:
    op, path, value = change
    return Op(op, path) if op == "remove" else Op(op, path, value)  # type: ignore[arg-type]


async def version_of(served: Served) -> int:
    answer = await served.web.get("/threads/room/one", params={"user": "ada"})
    return int(answer.headers["etag"].strip('"').partition(":")[2])
