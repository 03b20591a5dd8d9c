"""The user who has caused the running turn."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait import MemoryStore, Plait, Principal, Thread, Unauthenticated, current, endpoint, rpc
from plait.testing import Served, serve
from plait_client import CallError


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


class Desk(Thread[dict[str, Any]]):
    initial_state = {"left": ""}  # noqa: RUF012

    @rpc
    def who(self) -> str:
        return current().principal.id

    @rpc
    def nothing(self) -> None: ...

    @rpc
    async def ask(self, name: str) -> str:
        return await self.thread(Desk, name).call(Desk.who)

    @endpoint("GET", "/who")
    def tell(self) -> dict[str, str]:
        return {"id": current().principal.id}

    async def on_request(self, request: Request) -> Response:
        return JSONResponse({"id": current().principal.id})

    def on_close(self, connection: object, code: int, reason: str) -> None:
        self.update("/left", current().principal.id)


def make_app(*, asks: bool = True) -> Plait:
    """Return an app in which a token is the id of its user."""

    def authenticate(request: Request) -> Principal:
        return Principal(request.headers["authorization"].removeprefix("Bearer "))

    return Plait(Desk, store=MemoryStore(), authenticate=authenticate if asks else None)


async def ask(served: Served, method: str, path: str, token: str = "") -> httpx.Response:
    """Send a request below the thread."""
    transport = httpx.ASGITransport(app=served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        return await web.request(method, f"/threads/desk/one/{path}", headers={"authorization": f"Bearer {token}"})


async def test_a_turn_knows_the_user_who_has_caused_it() -> None:
    async with serve(make_app()) as served, served.connect(Desk, "one", token="ada") as ada:
        async with served.connect(Desk, "one", token="bob") as bob:
            assert (await ada.call(Desk.who), await bob.call(Desk.who)) == ("ada", "bob")
        await ada.wait_for(lambda state: state["left"] == "bob")
        assert (await ask(served, "POST", "rpc/who", "cy")).json() == {"result": "cy"}
        assert (await ask(served, "GET", "who", "cy")).json() == {"id": "cy"}
        assert (await ask(served, "GET", "page", "cy")).json() == {"id": "cy"}


async def test_a_call_without_a_user_is_refused_where_one_is_asked_for() -> None:
    async with serve(make_app(asks=False)) as served:
        with pytest.raises(Unauthenticated, match="only a user"):
            await served.app.thread(Desk, "one").call(Desk.who)
        async with served.connect(Desk, "one") as client:
            with pytest.raises(CallError, match="only a user") as refused:
                await client.call(Desk.who)
            assert refused.value.code == "unauthenticated"
            assert await client.call(Desk.nothing) is None
        for method, path in (("POST", "rpc/who"), ("GET", "who"), ("GET", "page")):
            response = await ask(served, method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthenticated")


async def test_a_call_of_another_thread_is_that_of_server_code() -> None:
    async with serve(make_app()) as served, served.connect(Desk, "one", token="ada") as ada:
        with pytest.raises(CallError, match="only a user"):
            await ada.call(Desk.ask, "two")
