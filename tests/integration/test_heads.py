"""Heads: which answers proxies may keep, conditions of requests, and heads of authors that cannot be sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from tests.cases import each_case
from tests.integration.socket_client import bare_socket, http
from tests.running import begin, running
from tests.told import check_internal

from plait import Context, Files, MemoryStore, Plait, Principal, Stream, Tasks, Thread, endpoint, rpc
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed(in_soak=True)

ROOM = "/threads/room/one"
OPERATOR = "the token of operators"
NO_STORE, WITH_TAG = "no-store", "private, no-cache"
RUN = {"threadId": "t", "runId": "r", "state": {}, "messages": [], "tools": [], "context": [], "forwardedProps": {}}
HEADS: dict[str, Any] = {
    "line": {"headers": {"x-note": "one\r\nset-cookie: a=b"}},
    "newline": {"headers": {"x-note": "one\ntwo"}},
    "nul": {"headers": {"x-note": "\0"}},
    "name": {"headers": {"x note": "1"}},
    "injected": {"headers": {"x-a: 1\r\nx-b": "1"}},
    "large": {"status_code": 700},
    "interim": {"status_code": 103},
}


class Room(Thread[dict[str, Any]]):
    """Answers requests of each sort."""

    initial_state = {"n": 0}  # noqa: RUF012
    files = Files()
    tasks = Tasks(live=True)

    def on_request(self, request: Request) -> Response:
        what = request.url.path.rpartition("/")[2]
        if what == "missing":
            return FileResponse("/nowhere/at/all")
        if what == "public":
            return PlainTextResponse("own", headers={"Cache-Control": "public, max-age=60"})
        return PlainTextResponse("own", **HEADS.get(what, {}))

    @endpoint("GET", "/report")
    def report(self) -> dict[str, int]:
        return {"n": 1}

    @endpoint("GET", "/wrong/{what}")
    def wrong(self, what: str) -> Response:
        return PlainTextResponse("own", **HEADS[what])

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return 1

    @rpc
    def count(self, stream: Stream) -> None:
        stream.send(1)


@asynccontextmanager
async def serving(static: Path, **settings: Any) -> AsyncIterator[str]:
    app = Plait(Room, store=MemoryStore(), static=static, secret="s", operator_token=OPERATOR, **settings)

    @app.agent("show", thread=Room)
    async def show(ctx: Context[Room]) -> int:
        return 1

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address:
        await begin(app, Room)
        yield address


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "page.html").write_text("a page")
    async with serving(tmp_path, metrics=True) as address, http(address) as web:
        assert (await web.put(f"{ROOM}/files/a.txt", content=b"one")).status_code == 201
        await web.post(f"{ROOM}/rpc/add")
        yield web


@each_case(
    ("request_line", "status", "wanted"),
    [
        (f"GET {ROOM}", 200, WITH_TAG),
        (f"GET {ROOM}?at=1", 200, WITH_TAG),
        (f"GET {ROOM}?at=9", 404, NO_STORE),
        (f"GET {ROOM}/changes", 200, NO_STORE),
        (f"GET {ROOM}/changes?since=x", 422, NO_STORE),
        (f"GET {ROOM}/tasks", 200, NO_STORE),
        (f"GET {ROOM}/own", 200, NO_STORE),
        (f"GET {ROOM}/public", 200, "public, max-age=60"),
        (f"GET {ROOM}/report", 200, NO_STORE),
        (f"GET {ROOM}/files/a.txt", 200, WITH_TAG),
        (f"GET {ROOM}/files/b.txt", 404, NO_STORE),
        (f"PUT {ROOM}", 422, NO_STORE),
        (f"POST {ROOM}/rpc/add", 200, NO_STORE),
        (f"POST {ROOM}/rpc/count", 200, NO_STORE),
        (f"POST {ROOM}/run/show", 200, NO_STORE),
        ("POST /run/show", 200, NO_STORE),
        ("POST /ag-ui/show/one", 200, NO_STORE),
        ("GET /ag-ui/nothing", 404, NO_STORE),
        ("GET /threads/nothing/one", 404, NO_STORE),
        ("GET /threads/room", 404, NO_STORE),
        ("GET /healthz", 200, NO_STORE),
        ("GET /readyz", 200, NO_STORE),
        ("GET /operator/awake", 401, NO_STORE),
        ("GET /nothing.html", 404, NO_STORE),
        ("GET /page.html", 200, None),
        ("GET /plait/client.js", 200, "no-cache"),
    ],
)
async def test_only_static_files_may_be_kept_by_proxies(
    web: httpx.AsyncClient, request_line: str, status: int, wanted: str | None
) -> None:
    method, _, url = request_line.partition(" ")
    body = RUN if url.startswith("/ag-ui/show") else [] if method == "PUT" else None
    answer = await web.request(method, url, json=body)
    assert (answer.status_code, answer.headers.get("cache-control")) == (status, wanted)


async def test_an_answer_without_a_body_and_one_to_another_origin_have_it_too(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_origins=["https://a.example"]) as address, http(address) as web:
        tag = (await web.get(ROOM)).headers["etag"]
        answer = await web.get(ROOM, headers={"If-None-Match": tag, "Origin": "https://a.example"})
        assert (answer.status_code, answer.headers["cache-control"]) == (304, WITH_TAG)
        assert (await web.delete("/threads/nothing/one")).headers["cache-control"] == NO_STORE


async def test_what_a_login_answers_is_not_kept(tmp_path: Path) -> None:
    def authenticate(request: Request) -> Principal | Response | None:
        return Response("Log in", 403, {"etag": '"a"'}) if "page" in request.query_params else None

    async with serving(tmp_path, authenticate=authenticate) as address, http(address) as web:
        assert (await web.get(ROOM)).headers["cache-control"] == NO_STORE
        assert (await web.get(f"{ROOM}?page")).headers["cache-control"] == WITH_TAG


@pytest.mark.parametrize("head", [b"nothing", b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket"])
async def test_a_request_that_cannot_be_read_is_not_kept(web: httpx.AsyncClient, head: bytes) -> None:
    loop = asyncio.get_running_loop()
    with bare_socket(web.base_url.netloc.decode()) as bare:
        await loop.sock_sendall(bare, b"GET / HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert b"\r\ncache-control: no-store\r\n" in await loop.sock_recv(bare, 65536)


@pytest.mark.parametrize("path", ["missing", *HEADS, *(f"wrong/{each}" for each in HEADS)])
async def test_an_answer_of_an_author_that_cannot_be_sent_is_an_internal_error(
    web: httpx.AsyncClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await web.get(f"{ROOM}/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    check_internal(answer.json()["error"]["message"], caplog, "")
    assert (await web.get(f"{ROOM}/own")).text == "own"


@pytest.mark.parametrize("url", [ROOM, f"{ROOM}/files/a.txt"])
async def test_conditions_may_have_several_lines_and_weak_tags_match_only_what_is_read(
    web: httpx.AsyncClient, url: str
) -> None:
    tag = (await web.get(url)).headers["etag"]
    for lines, status in [((tag,), 304), (('"x"', f'"y", {tag}'), 304), (('"x"', f"W/{tag}"), 304), (('"x"',), 200)]:
        answer = await web.get(url, headers=[("If-None-Match", line) for line in lines])
        assert answer.status_code == status, lines
    for lines, status in [((f"W/{tag}",), 412), (('"x"', f"W/{tag}"), 412), (("W/*",), 412), (('"x"', tag), 200)]:
        answer = await web.put(url, content=b'{"n": 5}', headers=[("If-Match", line) for line in lines])
        assert answer.status_code == status, lines
