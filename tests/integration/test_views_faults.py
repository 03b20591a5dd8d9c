"""Ways on which `can_read` once told more than it should, each the shortest one."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import httpx
import msgspec
from pydantic import BaseModel, model_validator
from starlette.requests import Request
from tests.integration.native_client import NativeClient, joined
from tests.integration.socket_client import connected, http
from tests.running import begin, running

from plait import Context, MemoryStore, Plait, Principal, Thread, current, migrate, rpc
from plait.adapters.ag_ui import AgUi

SECRET = "hidden-4f1c"


def authenticate(request: Request) -> Principal | None:
    user = request.query_params.get("user")
    return None if user is None else Principal(user)


def make_app(*classes: type[Thread[Any]], store: Any = None) -> Plait:
    return Plait(*classes, secret="s", store=store or MemoryStore(), authenticate=authenticate)


async def push(client: NativeClient, *ops: dict[str, Any]) -> dict[str, Any]:
    """Push operations, and return the answer."""
    ref = await client.push(*ops)
    await client.until(lambda client: client.of(("ack", "nack"), ref=ref))
    answer: dict[str, Any] = client.of(("ack", "nack"), ref=ref)[0]
    return answer


class Game(Thread[dict[str, Any]]):
    initial_state: Any = {"turn": "ada", "hands": {"ada": [SECRET], "bob": [1]}}  # noqa: RUF012
    can_read: Any = ("/turn", "/hands/{user}/**")


async def test_the_answer_to_a_push_of_many_operations_tells_nothing_hidden() -> None:
    app = make_app(Game)
    async with running(app) as address, joined(address, "/threads/game/one?user=bob", "c") as bob:
        answer = await push(bob, *[{"op": "replace", "path": "/hands/bob", "value": [2]}] * 500)
        assert answer["type"] == "ack"
        assert SECRET not in str(answer)
        assert bob.state == {"turn": "ada", "hands": {"bob": [2]}}


class Ledger(BaseModel):
    title: str = ""
    sizes: dict[str, int] = {SECRET: 0}

    @model_validator(mode="after")
    def measure(self) -> "Ledger":
        self.sizes = dict.fromkeys(self.sizes, len(self.title))
        return self


class Book(Thread[Ledger]):
    initial_state: Any = Ledger()
    can_read = ("/title",)


async def test_a_refusal_names_no_hidden_place_that_the_type_changes() -> None:
    app = make_app(Book)
    async with running(app) as address, joined(address, "/threads/book/one?user=bob", "c") as bob, http(address) as web:
        answer = await push(bob, {"op": "replace", "path": "/title", "value": "abc"})
        assert SECRET not in str(answer)
        put = await web.put("/threads/book/one?user=bob", json={"title": "abcd"})
        assert SECRET not in put.text


class Open(Game):
    def can_read(self, state: Any, viewer: Principal | None) -> tuple[str, ...]:
        return ("/**",) if state["turn"] == "over" else Game.can_read

    @rpc
    def flicker(self) -> None:
        """Hide everything, and show it again; what is there in between is never shown."""
        self.update("/turn", "ada")
        self.update("/hands/ada/0", SECRET)
        self.update("/hands/ada/0", "another")
        self.update("/turn", "over")


async def test_a_viewer_of_a_run_gets_no_change_of_the_time_when_it_saw_less() -> None:
    app = make_app(Open)

    @app.agent("flick", thread=Open)
    async def flick(ctx: Context[Open]) -> str:
        ctx.thread.flicker()
        return "done"

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        await app.thread(Open, "one").set_state({"turn": "over", "hands": {"ada": ["old"], "bob": []}})
        answer = await run(web, "/ag-ui/flick/one?user=bob")
        assert '"another"' in answer.text
        assert SECRET not in answer.text


async def run(web: httpx.AsyncClient, path: str) -> httpx.Response:
    """Run an agent over AG-UI, until its end."""
    body = {"threadId": "one", "runId": "r1", "messages": [], "tools": [], "context": []}
    answer = await web.post(path, json=body | {"state": None, "forwardedProps": {}})
    assert "RUN_FINISHED" in answer.text, answer.text
    return answer


async def test_a_viewer_that_resumes_gets_no_change_of_the_time_when_it_saw_less() -> None:
    app, ended = make_app(Open), asyncio.Event()

    @app.agent("wait", thread=Open)
    async def wait(ctx: Context[Open]) -> str:
        await ended.wait()
        return "done"

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        thread = app.thread(Open, "one")
        await thread.set_state({"turn": "over", "hands": {"ada": ["old"], "bob": []}})
        first = asyncio.create_task(run(web, "/ag-ui/wait/one?user=ada"))
        path, headers = "/ag-ui/wait/one/events?user=bob", {}
        told = ""
        for _ in range(2):
            async with web.stream("GET", path, headers=headers) as answer:
                told = ""
                async for line in answer.aiter_lines():
                    told += line
                    if line.startswith("id: "):
                        headers = {"last-event-id": line.removeprefix("id: ")}
                    if "STATE_SNAPSHOT" in line or '"another"' in line:
                        break
            assert SECRET not in told
            await thread.call("flicker")
        assert '"another"' in told
        ended.set()
        await first


class Old(msgspec.Struct, frozen=True):
    turn: str = "ada"


class New(msgspec.Struct, frozen=True):
    turn: int = 0


class OldGame(Thread[Old]):
    kind = "typed"
    initial_state: Any = Old()

    def can_read(self, state: Old, viewer: Principal | None) -> tuple[str, ...]:
        return ("/turn",) if state.turn else ()


class NewGame(Thread[New]):
    kind = "typed"
    initial_state: Any = New()
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def count(state: Any) -> Any:
        return {"turn": 1}

    def can_read(self, state: New, viewer: Principal | None) -> tuple[str, ...]:
        return ("/turn",) if state.turn else ()


async def test_a_state_of_before_a_migration_shows_nothing_to_a_method(tmp_path: Path) -> None:
    for cls in (OldGame, NewGame):
        app = make_app(cls, store=f"sqlite:///{tmp_path / 'games.db'}")
        async with running(app) as address, http(address) as web:
            await begin(app, cls)
            answer = await web.get("/threads/typed/one?user=bob&at=0")
            assert answer.status_code < 500, answer.text


async def test_a_quiet_thread_keeps_no_principal_of_each_request() -> None:
    app = make_app(Open)
    async with running(app) as address, http(address) as web:
        await begin(app, Open)
        for _ in range(200):
            assert (await web.get("/threads/open/one?user=reader")).status_code == 200
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, Principal) and each.id == "reader"]
        assert len(kept) < 100


class UndoGame(Thread[dict[str, Any]]):
    initial_state: Any = {"turn": "over", "deck": ["a", "b"]}  # noqa: RUF012

    def can_read(self, state: Any, viewer: Principal | None) -> tuple[str, ...]:
        return ("/**",) if state["turn"] == "over" else ("/turn",)

    @rpc
    async def undo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.undo(connection)


async def test_an_undo_of_a_hidden_place_does_not_tell_what_has_happened_to_it() -> None:
    app = make_app(UndoGame)
    answers = []
    async with running(app) as address:
        for number, deck in enumerate((["mine", "b"], ["x", "mine", "b"], ["x", "b"], [], "no list", None)):
            async with joined(address, f"/threads/undo-game/{number}?user=bob", "c") as bob:
                assert (await push(bob, {"op": "replace", "path": "/deck/0", "value": "mine"}))["type"] == "ack"
                await app.thread(UndoGame, f"{number}").set_state({"turn": "on", "deck": deck})
                await bob.send("call", ref=7, method="undo_mine", args=[])
                await bob.until(lambda client: client.of(("result", "error"), ref=7))
                answers.append(bob.of(("result", "error"), ref=7)[0])
    assert answers[0]["code"] == "forbidden"
    assert [answer for answer in answers if answer != answers[0]] == []


class Sign(msgspec.Struct, frozen=True):
    title: str = ""
    color: str = "red"
    price: str = SECRET


class Shop(Thread[Sign]):
    initial_state: Any = Sign(color="blue")
    can_read = ("/title", "/color")

    @rpc
    def sync(self) -> int:
        return self.version


async def test_a_page_of_an_earlier_type_changes_only_what_it_knows() -> None:
    app = make_app(Shop)
    async with running(app) as address:
        await begin(app, Shop)
        async with connected(address, "/threads/shop/one", query={"user": "bob"}) as page:
            await page.until_state({"title": "", "color": "blue"})
            for number, write in enumerate(({"title": "0"}, {"title": "1", "color": "blue", "former": 1})):
                await page.push(write)
                await page.call("sync")
                assert page.refusals == []
                assert await app.thread(Shop, "one").state() == Sign(title=f"{number}", color="blue")
