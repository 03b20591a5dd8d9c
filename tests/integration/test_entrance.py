"""The checks of a request before its user is known: its host, its path, and the kinds in the answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.integration.native_client import joined
from tests.integration.socket_client import TIMEOUT, connected, http, websocket
from tests.running import Process, begin, running
from websockets.exceptions import ConnectionClosed

from plait import MemoryStore, Plait, Principal, Thread, ThreadKey, rpc

FOE = "https://foe.example"


class SecretRoom(Thread[Any]):
    """Has a state and an rpc."""

    initial_state = {"n": 0}  # noqa: RUF012

    def on_request(self, request: Request) -> Response:
        return JSONResponse({"path": request.url.path})

    @rpc
    def echo(self, value: int) -> int:
        return value


def serve(**settings: Any) -> Plait:
    return Plait(SecretRoom, **{"store": MemoryStore(), **settings})


def who(request: Request) -> Principal | None:
    """Know who brings a token."""
    token = request.headers.get("authorization") or request.query_params.get("token")
    return Principal("ada") if token else None


# Hosts


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_page_whose_name_leads_to_an_open_server_is_not_answered(method: str) -> None:
    headers = {"Host": "rebound.example", "Origin": "http://rebound.example"}
    async with running(serve()) as address, http(address) as web:
        for path in ("", "/rpc/echo", "/changes", "/own"):
            answer = await web.request(method, f"/threads/secret-room/one{path}", headers=headers)
            assert answer.status_code == 421
            assert answer.json()["error"]["code"] == "misdirected_request"
            assert "allowed_hosts" in answer.json()["error"]["message"]
        assert (await web.get("/healthz", headers=headers)).status_code == 200


@pytest.mark.parametrize("subprotocols", [["plait.v1"], None])
async def test_a_socket_of_such_a_page_is_closed_for_good(subprotocols: Any) -> None:
    async with running(serve()) as address:
        host, port = address.split(":")
        socket = await websocket(
            "ws://rebound.example/threads/secret-room/one",
            host=host,
            port=int(port),
            origin="http://rebound.example",
            subprotocols=subprotocols,
        )
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), TIMEOUT)
        assert socket.close_code == 4403


async def test_the_hosts_that_are_allowed_are_answered() -> None:
    async with running(serve(allowed_hosts="game.example")) as address, http(address) as web:
        path = "/threads/secret-room/one"
        assert (await web.get(path, headers={"Host": "game.example:8000"})).status_code == 404
        assert (await web.get(path)).status_code == 421
    async with running(serve(authenticate=who)) as address, http(address) as web:
        answer = await web.get(f"{path}?token=1", headers={"Host": "any.example"})
        assert answer.status_code == 404


def test_hosts_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_ALLOWED_HOSTS", "game.example, *.example.org")
    assert serve().settings.allowed_hosts == ("game.example", "*.example.org")
    monkeypatch.setenv("PLAIT_ALLOWED_HOSTS", "https://game.example")
    with pytest.raises(ValueError, match=r"PLAIT_ALLOWED_HOSTS: 'https://game.example' is not a host"):
        serve()


# Paths


async def test_empty_segments_of_a_path_are_ignored() -> None:
    seen: list[tuple[ThreadKey, str]] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        seen.append((thread, action))
        return action not in ("write", "request")

    app = serve(authorize=authorize)
    async with running(app) as address, http(address) as web:
        await begin(app, SecretRoom)
        for path in ("//agents/secret-room/one", "///threads//secret-room///one//", "/agents/secret-room/one/"):
            assert (await web.get(f"http://{address}{path}")).json() == {"n": 0}
            assert (await web.post(f"http://{address}{path}//rpc//echo/", json={"args": [7]})).json() == {"result": 7}
            assert (await web.put(f"http://{address}{path}", json={"n": 1})).status_code == 403
            assert (await web.get(f"http://{address}{path}/own")).status_code == 403
            async with connected(address, path) as client:
                assert await client.call("echo", 8) == 8
                await client.push({"n": 1})
                await client.until(lambda client: client.refusals)
    assert {thread for thread, _ in seen} == {ThreadKey("secret-room", "one")}


async def test_a_native_client_may_have_empty_segments_in_its_url() -> None:
    async with running(serve()) as address, joined(address, "//agents//secret-room/one", "a") as client:
        assert client.state == {"n": 0}


async def test_on_request_sees_the_path_as_it_was_sent() -> None:
    async with running(serve()) as address, http(address) as web:
        answer = await web.get(f"http://{address}//agents/secret-room//one/own//page")
        assert answer.json() == {"path": "//agents/secret-room//one/own//page"}


async def test_no_page_is_found_at_another_host_by_empty_segments(tmp_path: Path) -> None:
    (tmp_path / "foe.example").mkdir()
    (tmp_path / "foe.example" / "index.html").write_text("here")
    (tmp_path / "secret").write_text("text")
    async with running(serve(static=tmp_path)) as address, http(address) as web:
        answer = await web.get(f"http://{address}//foe.example")
        assert answer.next_request is not None
        assert answer.next_request.url.netloc.decode() == address
        for path in ("//..//secret", "//%2e%2e/secret", "//threads/../secret"):
            answer = await web.get(f"http://{address}{path}")
            assert answer.status_code in (200, 404)
            assert answer.url.host == "127.0.0.1"


async def test_pages_have_no_dot_files_but_those_that_are_well_known(tmp_path: Path) -> None:
    names = (
        "index.html",
        ".well-known/security.txt",
        ".env",
        ".git/config",
        "sub/.htpasswd",
        ".well-known/.env",
        "..b",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    async with running(serve(static=tmp_path)) as address, http(address) as web:
        found = {name: (await web.get(f"/{name}")).status_code for name in names}
        assert [name for name, status in found.items() if status == 200] == ["index.html", ".well-known/security.txt"]
        assert set(found.values()) == {200, 404}
        for path in ("/%2eenv", "/sub/..%2f.env", "//.env", "/./.env", "/.git/", "/.git"):
            assert (await web.get(f"http://{address}{path}")).status_code == 404
        assert (await web.get("/")).text == "text"


# Kinds


async def test_kinds_are_told_only_to_those_who_are_known() -> None:
    async with running(serve(authenticate=who)) as address, http(address) as web:
        path = "/threads/nothing/one"
        answer = await web.get(path)
        assert answer.status_code == 401
        assert "secret-room" not in answer.text
        answer = await web.get(path, params={"token": "1"})
        assert answer.status_code == 404
        assert "there are: secret-room" in answer.text
        for query, code in ({}, 4401), ({"token": "1"}, 4404):
            async with connected(address, path, query=query) as client:
                assert await client.until_closed() == code
                assert ("secret-room" in (client.socket.close_reason or "")) == (code == 4404)


@pytest.mark.parametrize("authenticate", [None, who])
async def test_pages_of_other_origins_are_not_told_the_kinds(authenticate: Any) -> None:
    async with running(serve(authenticate=authenticate)) as address, http(address) as web:
        path = "/threads/nothing/one?token=1"
        for method in ("GET", "PUT"):
            answer = await web.request(method, path, headers={"Origin": FOE})
            assert answer.status_code == 403
            assert "secret-room" not in answer.text
        async with connected(address, path, origin=FOE) as client:
            assert await client.until_closed() == 4403
            assert "secret-room" not in (client.socket.close_reason or "")


async def test_in_development_everybody_is_told_the_kinds() -> None:
    app = serve(authenticate=who)
    app.prepare_serving("127.0.0.1", in_development=True)
    async with running(app) as address, http(address) as web:
        answer = await web.get("/threads/nothing/one")
        assert answer.status_code == 404
        assert "there are: secret-room" in answer.text
        assert (await web.get("/threads/secret-room/one")).status_code == 401


# Logs


async def test_queries_with_their_tokens_are_not_logged(tmp_path: Path) -> None:
    environment = {"PLAIT_LOG_LEVEL": "debug"}
    with Process("tests.integration.apps:app", cwd=tmp_path, environment=environment) as server:
        async with http(server.address) as web:
            await web.post("/threads/tally/one/rpc/add", json={"args": ["x"]})
            assert (await web.get("/threads/tally/one?token=hidden")).status_code == 200
            assert (await web.get("/threads/tally/one?at=x&token=hidden")).status_code == 422
            assert (await web.get("/nothing?token=hidden")).status_code == 404
        for path in ("/threads/tally/one?token=hidden", "/threads/nothing/one?token=hidden"):
            async with connected(server.address, path) as client:
                await client.until(lambda client: client.received) if "tally" in path else await client.until_closed()
        server.end()
        log = server.log.read_text()
    assert '"GET /threads/tally/one?… HTTP/1.1" 200' in log
    assert "hidden" not in log
