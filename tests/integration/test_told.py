"""Clients get only an id for exceptions that are not plait's, on every way."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.integration.native_client import NativeClient, put
from tests.integration.socket_client import CallError, connected, http
from tests.running import Process, begin, running
from tests.told import INTERNAL, check_internal

from plait import Connection, Context, MemoryStore, Plait, Principal, Reject, Thread, rpc

SECRET: Final = "https://models.example?key=sk-123"
EVENTS: Final = {"accept": "text/event-stream"}


class Room(Thread[dict[str, Any]]):
    initial_state: Any = {"n": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        if next_state["n"] == 13:
            raise RuntimeError(SECRET)
        if next_state["n"] < 0:
            raise Reject("n must not be negative", path="/n")

    @rpc
    def fail(self) -> None:
        raise RuntimeError(SECRET)

    @rpc
    def refuse(self) -> None:
        raise Reject("no, as the author says")

    @rpc
    async def count(self) -> AsyncIterator[int]:
        yield 1
        raise RuntimeError(SECRET)

    async def on_request(self, request: Request) -> Response:
        raise RuntimeError(SECRET)


class Guarded(Thread[dict[str, Any]]):
    initial_state: Any = {"n": 0}  # noqa: RUF012

    def on_connect(self, connection: Connection, request: Request) -> None:
        raise RuntimeError(SECRET)


class Asleep(Thread[dict[str, Any]]):
    initial_state: Any = {"n": 0}  # noqa: RUF012

    def on_start(self) -> None:
        raise RuntimeError(SECRET)


def authenticate(request: Request) -> Principal:
    if request.headers.get("authorization") == "Bearer broken":
        raise RuntimeError(SECRET)
    return Principal("a")


def make_app(*, asks: bool = False, store: Any = None) -> Plait:
    app = Plait(
        Room,
        Guarded,
        Asleep,
        store=store or MemoryStore(),
        secret="s",
        authenticate=authenticate if asks else None,
    )

    @app.agent("broken", thread=Room)
    async def broken(ctx: Context[Any]) -> str:
        raise RuntimeError(SECRET)

    @app.agent("telling", thread=Room)
    async def telling(ctx: Context[Any]) -> AsyncIterator[dict[str, int]]:
        yield {"n": 1}
        raise RuntimeError(SECRET)

    return app


def message_of(answer: httpx.Response) -> str:
    """Return the message of the error that an answer, or the last line or event of one, has."""
    data = answer.text.strip().splitlines()[-1].removeprefix("data: ")
    found = json.loads(data)
    error = found.get("error", found)
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/threads/room/one/rpc/fail", {}, 500),
        ("/threads/room/one/rpc/count", {}, 200),
        ("/threads/room/one/other", {}, 500),
        ("/threads/asleep/one/rpc/x", {}, 500),
        ("/threads/room/one/run/broken", {}, 500),
        ("/threads/room/one/run/telling", {}, 200),
        ("/threads/room/one/run/telling", EVENTS, 200),
        ("/run/broken", {}, 500),
    ],
)
async def test_an_answer_over_http_has_an_id(
    path: str, headers: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_app()) as address, http(address) as web:
        answer = await web.post(path, headers=headers)
        assert answer.status_code == status
        check_internal(message_of(answer), caplog, SECRET)


async def test_a_refused_put_has_an_id_and_a_reject_speaks(caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_app()) as address, http(address) as web:
        answer = await web.put("/threads/room/one", json={"n": 13})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "rejected")
        check_internal(message_of(answer), caplog, SECRET)
        answer = await web.put("/threads/room/one", json={"n": -1})
        assert answer.json()["error"] == {"code": "rejected", "message": "n must not be negative", "path": "/n"}
        answer = await web.post("/threads/room/one/rpc/refuse")
        assert answer.json()["error"] == {"code": "rejected", "message": "no, as the author says"}


async def test_an_event_stream_that_cannot_be_opened_has_an_id(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()
    async with running(app) as address, http(address) as web:
        await begin(app, Guarded)
        answer = await web.get("/threads/guarded/one/changes", headers=EVENTS)
        assert answer.status_code == 500
        check_internal(message_of(answer), caplog, SECRET)


async def test_a_native_socket_has_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_app(asks=True)) as address:
        client = NativeClient(address, "/threads/room/one", "a")
        await client.open()
        for ref, method in enumerate(("fail", "count", "run:broken", "run:telling")):
            await client.send("call", ref=ref, method=method, args=[None] if ":" in method else [])
            await client.until(lambda client, ref=ref: client.of("error", ref=ref))
            (error,) = client.of("error", ref=ref)
            assert error["code"] == "call_failed", method
            check_internal(error["message"], caplog, SECRET)
        await client.push(put("/n", 13))
        await client.until(lambda client: client.answers)
        _, nack = client.answers[-1]
        assert nack["code"] == "rejected"
        check_internal(nack["message"], caplog, SECRET)
        await client.close()


@pytest.mark.parametrize(
    ("path", "token", "prefix"),
    [
        ("/threads/guarded/one", None, "on_connect failed: "),
        ("/threads/asleep/one", None, ""),
        ("/threads/room/one", "broken", ""),
    ],
)
async def test_a_native_socket_that_cannot_join_is_closed_with_an_id(
    path: str, token: str | None, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_app(asks=True)) as address:
        client = NativeClient(address, path, "a", token=token)
        await client.open()
        await client.until_closed()
        assert client.socket.close_code == 1011
        assert (client.socket.close_reason or "").startswith(prefix)
        check_internal((client.socket.close_reason or "").removeprefix(prefix), caplog, SECRET)
        await client.close()


async def test_a_new_token_that_cannot_be_checked_closes_with_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_app(asks=True)) as address:
        client = NativeClient(address, "/threads/room/one", "a")
        await client.open()
        await client.send("auth", token="broken")
        await client.until_closed()
        assert client.socket.close_code == 1011
        check_internal(client.socket.close_reason or "", caplog, SECRET)
        await client.close()


async def test_a_socket_of_the_cloudflare_protocol_has_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_app()) as address:
        async with connected(address, "/agents/room/one") as client:
            for method in ("fail", "count", "run:broken", "run:telling"):
                with pytest.raises(CallError) as raised:
                    await client.call(method)
                check_internal(str(raised.value), caplog, SECRET)
            with pytest.raises(CallError, match="no, as the author says"):
                await client.call("refuse")
        for kind, prefix in (("guarded", "on_connect failed: "), ("asleep", "")):
            assert (await close_of(address, f"/agents/{kind}/one"))[0] == 1011
            reason = (await close_of(address, f"/agents/{kind}/two"))[1]
            assert reason.startswith(prefix)
            check_internal(reason.removeprefix(prefix), caplog, SECRET)


async def close_of(address: str, path: str) -> tuple[int | None, str]:
    """Open a socket that the server closes; return the code and the reason."""
    async with connected(address, path) as client:
        await client.until_closed()
        return client.socket.close_code, client.socket.close_reason or ""


APP: Final = """
from plait import Plait, Thread, rpc

class Room(Thread[dict]):
    initial_state = {"n": 0}

    @rpc
    def fail(self) -> None:
        raise RuntimeError("the text of it")

    async def on_request(self, request):
        raise RuntimeError("the text of it")

app = Plait(Room, store="memory://")
"""


@pytest.mark.parametrize("shows", [False, True])
async def test_the_text_is_shown_in_development_only(shows: bool, tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(APP)
    options = ["--development"] if shows else []
    with Process("game:app", cwd=tmp_path, options=options) as process:
        async with http(process.address) as web, connected(process.address, "/agents/room/one") as client:
            told = [message_of(await web.post(f"/threads/room/one/{path}")) for path in ("rpc/fail", "other")]
            with pytest.raises(CallError) as raised:
                await client.call("fail")
            for message in (*told, str(raised.value)):
                found = INTERNAL.match(message)
                assert found is not None
                assert found[1] in process.log.read_text()
                assert message.removeprefix(found[0]) == (": RuntimeError: the text of it" if shows else "")
        await asyncio.to_thread(process.end)
