"""Clients of threads whose states, arguments and results are Pydantic models."""

import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field, field_validator, model_validator
from starlette.requests import Request
from tests.integration.native_client import joined, put
from tests.integration.socket_client import connected, http
from tests.running import begin, running

from plait import Context, MemoryStore, Plait, Principal, Reject, Text, Thread, current, rpc
from plait.adapters.ag_ui import AgUi
from plait_client import CallError, connect
from plait_schemas.patch import Op

pytestmark = pytest.mark.relayed(in_soak=True)

PATIENCE = 20.0


class Player(BaseModel):
    name: str = Field(min_length=1)
    born: datetime.date | None = None

    @field_validator("name")
    @classmethod
    def _strip(cls, name: str) -> str:
        return name.strip().title()


class Game(BaseModel):
    players: dict[str, Player] = {}
    note: Text = ""
    round: int = 0


class Room(Thread[Game]):
    initial_state = Game(players={"ada": Player(name="ada")})
    can_write = ("/players/{user}/**", "/note")
    events = {"joined": Player}  # noqa: RUF012

    def validate_state_change(self, next_state: Game, source: Any, ops: Sequence[Op] = ()) -> None:
        if any(op.value == "Eve" for op in ops):
            raise Reject(f"{next_state.players['ada'].name} may not join")

    @rpc
    def rename(self, player: Player) -> Player:
        self.update("/players/ada", player)
        self.emit("joined", player)
        self.broadcast({"joined": player})
        return player

    @rpc
    async def each(self) -> AsyncIterator[Player]:
        for player in self.state.players.values():
            yield player

    @rpc
    async def undo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.undo(connection)


def authenticate(request: Request) -> Principal:
    return Principal(request.query_params.get("user", "ada"))


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Any, str, httpx.AsyncClient]]:
    """Yield a handle to a room, the address, and a client of HTTP."""
    app = Plait(Room, store=MemoryStore(), secret="s", authenticate=authenticate, **settings)

    @app.agent("second", thread=Room)
    async def second(ctx: Context[Room], input: Player) -> Player:
        return Player(name=f"{input.name} b")

    @app.agent("first", thread=Room)
    async def first(ctx: Context[Room]) -> Player:
        return ctx.thread.state.players["ada"]

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        await begin(app, Room)
        yield app.thread(Room, "one"), address, web


async def test_a_push_is_validated_and_shown_as_the_validators_have_made_it() -> None:
    async with (
        serving() as (room, address, _),
        joined(address, "/threads/room/one", "a") as mine,
        joined(address, "/threads/room/one", "b") as other,
    ):
        await mine.push(put("/players/ada/name", "  bo "))
        for client in (mine, other):
            await client.until(lambda client: client.state["players"]["ada"]["name"] == "Bo")
        assert (await room.history())[-1].ops == [Op("replace", "/players/ada/name", "Bo")]
        for value, path in (("", "/players/ada/name"), (3, "/players/ada/name")):
            ref = await mine.push(put("/players/ada/name", value))
            await mine.until(lambda client, ref=ref: client.of("nack", ref=ref))
            assert mine.of("nack", ref=ref)[0]["path"] == path
        ref = await mine.push(put("/round", 1))
        await mine.until(lambda client: client.of("nack", ref=ref))
        assert mine.of("nack", ref=ref)[0]["code"] == "forbidden"
        ref = await mine.push(put("/players/ada/name", "eve"))
        await mine.until(lambda client: client.of("nack", ref=ref))
        assert mine.of("nack", ref=ref)[0]["message"] == "Eve may not join"
        await mine.call("undo_mine")
        assert (await room.state()).players["ada"].name == "Ada"


async def test_a_text_in_a_model_is_merged() -> None:
    async with (
        serving() as (room, address, _),
        connect(f"ws://{address}/threads/room/one") as one,
        connect(f"ws://{address}/threads/room/one") as two,
    ):
        await one.update("/note", "ab")
        await two.wait_for(lambda state: state["note"] == "ab", PATIENCE)
        await one.splice("/note", 0, 0, "x")
        await two.splice("/note", 2, 0, "y")
        await one.wait_for(lambda state: state["note"] == "xayb" or state["note"] == "xaby", PATIENCE)
        assert (await room.history())[0].ops[0].op == "splice"


async def test_a_python_client_has_the_model_as_its_type() -> None:
    async with (
        serving() as (room, address, _),
        connect(f"ws://{address}/threads/room/one", state_type=Game) as client,
    ):
        events: list[Any] = []
        client.on_event("joined", events.append)
        assert client.state == Game(players={"ada": Player(name="Ada")})
        assert await client.call(Room.rename, Player(name="bo", born=datetime.date(2000, 1, 2))) == Player(
            name="Bo", born=datetime.date(2000, 1, 2)
        )
        await client.wait_for(lambda state: state.players["ada"].name == "Bo", PATIENCE)
        assert events == [{"name": "Bo", "born": "2000-01-02"}]
        assert [player async for player in client.stream(Room.each)] == [
            Player(name="Bo", born=datetime.date(2000, 1, 2))
        ]
        await client.set(
            lambda state: state.model_copy(
                update={"players": {"ada": state.players["ada"].model_copy(update={"name": "cy"})}}
            )
        )
        await client.wait_for(lambda state: state.players["ada"].name == "Cy", PATIENCE)
        async with client.edit() as draft:
            draft.players["ada"].name = "di"
        await client.wait_for(lambda state: state.players["ada"].name == "Di", PATIENCE)
        await client.update("/players/ada", Player(name="ed"))
        await client.wait_for(lambda state: state.players["ada"] == Player(name="Ed"), PATIENCE)
        assert [op.path for op in (await room.history())[1].ops] == ["/players/ada/name"]
        assert await client.run("second", Player(name="fo")) == {"name": "Fo B", "born": None}
        with pytest.raises(CallError, match="at least 1 character"):
            await client.run("second", {"name": ""})


async def test_whole_states_are_validated_at_every_door() -> None:
    async with serving() as (room, address, web), connected(address, "/threads/room/one") as client:
        await client.until(lambda client: client.state is not None)
        await client.push(client.state | {"players": {"ada": {"name": " bo "}}})
        await client.until(lambda client: client.state["players"] == {"ada": {"name": "Bo", "born": None}})
        assert (await room.history())[-1].ops == [Op("replace", "/players/ada/name", "Bo")]
        state = (await web.get("/threads/room/one")).json()
        assert state == {"players": {"ada": {"name": "Bo", "born": None}}, "note": "", "round": 0}
        for name, status in (("cy", 200), ("", 422)):
            state["players"]["ada"]["name"] = name
            answer = await web.put("/threads/room/one", json=state)
            assert answer.status_code == status, answer.text
        assert answer.json()["error"]["path"] == "/players/ada/name"
        answer = await web.post("/threads/room/one/rpc/rename", json={"args": [{"name": ""}]})
        assert answer.json()["error"]["path"] == "/player/name"


async def test_a_client_of_ag_ui_writes_and_gets_models() -> None:
    async with serving() as (room, _, web):
        version = (await web.get("/threads/room/one")).headers["etag"].strip('"')
        state = (await web.get("/threads/room/one")).json()
        state["players"]["ada"]["name"] = "bo"
        body = {"threadId": "t", "runId": "r", "tools": [], "context": []}
        body |= {"messages": [{"id": "1", "role": "user", "content": "hi"}]}
        body |= {"state": state, "forwardedProps": {"stateVersion": version}}
        answer = await web.post("/ag-ui/first/one", json=body)
        assert '"result":{"name":"Bo","born":null}' in answer.text
        assert (await room.state()).players["ada"].name == "Bo", answer.text


class Sheet(BaseModel):
    rows: dict[str, int] = {}
    total: int = 0

    @model_validator(mode="after")
    def _add_up(self) -> "Sheet":
        self.total = sum(self.rows.values())
        return self


class SheetRoom(Thread[Sheet]):
    kind = "sheet"
    initial_state = Sheet(rows={"a": 1})


class GuardedRoom(SheetRoom):
    kind = "guarded"
    can_write = ("/rows/**",)


async def test_what_a_validator_changes_is_in_the_change_and_must_be_permitted_to_the_client() -> None:
    app = Plait(SheetRoom, GuardedRoom, store=MemoryStore(), secret="s")
    async with running(app) as address:
        for cls in (SheetRoom, GuardedRoom):
            await begin(app, cls)
        async with (
            joined(address, "/threads/sheet/one", "a") as mine,
            joined(address, "/threads/sheet/one", "b") as other,
        ):
            await mine.push(put("/rows/a", 5))
            for client in (mine, other):
                await client.until_state({"rows": {"a": 5}, "total": 5})
            assert [op.path for op in (await app.thread(SheetRoom, "one").history())[-1].ops] == ["/rows/a", "/total"]
        async with joined(address, "/threads/guarded/one", "a") as mine:
            ref = await mine.push(put("/rows/a", 5))
            await mine.until(lambda client: client.of("nack", ref=ref))
            assert (mine.of("nack", ref=ref)[0]["code"], mine.of("nack", ref=ref)[0]["path"]) == ("forbidden", "/total")


async def test_a_page_that_does_not_know_a_field_of_a_model_keeps_it() -> None:
    async with serving() as (room, address, _), connected(address, "/threads/room/one") as client:
        await room.update("/players/ada/born", "2000-01-02")
        await client.until(lambda client: client.state["players"]["ada"]["born"] == "2000-01-02")
        await client.push({"players": {"ada": {"name": "bo"}}, "note": "", "round": 0, "unknown": 1})
        await client.until(lambda client: client.state["players"]["ada"]["name"] == "Bo")
        assert await room.state() == Game(players={"ada": Player(name="Bo", born=datetime.date(2000, 1, 2))})
