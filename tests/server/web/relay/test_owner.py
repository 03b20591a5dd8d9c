"""Relayed requests when their gateway or their node shuts down, and relayed sockets that end at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message
from tests.cases import each_case
from tests.server.nodes import open_nodes

from plait import Plait, Thread, ThreadKey
from plait.actor.transport import Frame
from plait.cluster.owners import NotOwner
from plait.web.relay.messages import ENDED, GONE, OPEN, SentScope

PATIENCE = 20.0
PIECE = b"x" * 30_000
COUNT = 20


class Page(Thread[dict[str, Any]]):
    """Answers with more than a link carries ahead."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def on_request(self, request: Request) -> Response:
        if request.url.path.endswith("hold"):
            self.entered.set()
            await self.gate.wait()
        if request.method == "PUT":
            return Response(await request.body())
        if request.url.path.endswith("session"):
            with suppress(TypeError):
                request.session["user"] = "eve"
            return JSONResponse(dict(request.session))
        return StreamingResponse(self._pour())

    async def _pour(self) -> AsyncIterator[bytes]:
        for _ in range(COUNT):
            yield PIECE


class Reader:
    """A client that reads the answer when it may."""

    def __init__(self, *body: bytes, **scope: Any) -> None:
        self._scope = scope
        # The pieces of the body that are left.
        self._left = [*body] or [b""]
        self.status = 0
        self.body = b""
        self.has_begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def ask(self, app: Plait, path: str, method: str = "GET") -> None:
        """Send a request, and read the whole answer."""
        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "headers": [(b"host", b"localhost")],
            **self._scope,
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._left:
            return {"type": "http.request", "body": self._left.pop(0), "more_body": bool(self._left)}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.has_begun.set()
            await self.gate.wait()


async def test_a_relayed_answer_that_has_begun_is_sent_whole_when_its_node_shuts_down() -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        gateway, owner = nodes.apps
        await nodes.handle(Page, 1).set_state({"n": 1})
        reader = Reader()
        reading = asyncio.create_task(reader.ask(gateway, f"/threads/page/{nodes.name(Page, 1)}/pour"))
        await reader.has_begun.wait()
        await owner.drain()
        stopping = asyncio.create_task(owner.__aexit__(None, None, None))
        while owner._node._loop is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader.gate.set()
        await reading
        await stopping
        await owner.__aenter__()
        assert (reader.status, len(reader.body)) == (200, COUNT * len(PIECE))


@each_case(("method", "wanted"), [("GET", (503, "unavailable")), ("POST", (500, "indeterminate"))])
async def test_a_gateway_that_ends_before_the_answer_says_what_is_known(method: str, wanted: tuple[int, str]) -> None:
    def make() -> Plait:
        return Plait(Page, store="memory://", shutdown_timeout=0.2)

    async with asyncio.timeout(PATIENCE), open_nodes(make) as nodes:
        gateway, owner = nodes.apps
        name = nodes.name(Page, 1)
        await nodes.handle(Page, 1).set_state({"n": 1})
        page: Any = (await owner._node.actor(ThreadKey("page", name))).thread
        reader = Reader()
        reader.gate.set()
        asking = asyncio.create_task(reader.ask(gateway, f"/threads/page/{name}/hold", method))
        await page.entered.wait()
        await gateway.drain()
        page.gate.set()
        await asking
        assert (reader.status, json.loads(reader.body)["error"]["code"]) == wanted


async def test_a_request_that_a_node_has_refused_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        gateway, owner = nodes.apps
        await nodes.handle(Page, 1).set_state({"n": 1})
        check, refused = owner._owners.check, list[ThreadKey]()

        def refuse_once(key: ThreadKey) -> None:
            if not refused:
                refused.append(key)
                raise NotOwner("it has moved")
            check(key)

        monkeypatch.setattr(owner._owners, "check", refuse_once)
        body = [b"a" * 40_000, b"b" * 40_000, b"c"]
        reader = Reader(*body)
        reader.gate.set()
        await reader.ask(gateway, f"/threads/page/{nodes.name(Page, 1)}/echo", "PUT")
        assert (len(refused), reader.status, reader.body) == (1, 200, b"".join(body))


class Session(dict[str, Any]):
    """A session as Starlette's middleware makes it."""

    is_accessed = False

    def mark_accessed(self) -> None:
        self.is_accessed = True


async def test_the_session_of_a_middleware_travels_and_is_read_only() -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        await nodes.handle(Page, 1).set_state({"n": 1})
        session = Session(user="ada", roles=["author"])
        reader = Reader(session=session)
        reader.gate.set()
        await reader.ask(nodes.apps[0], f"/threads/page/{nodes.name(Page, 1)}/session")
        assert (reader.status, json.loads(reader.body)) == (200, {"user": "ada", "roles": ["author"]})
        # Its middleware says that the answer depends on it.
        assert session.is_accessed
        assert session["user"] == "ada"


@each_case("type", ["http", "websocket"])
def test_a_session_is_in_the_scope_of_the_owner_if_json_has_it(type: str) -> None:
    scope = {"type": type, "scheme": "http", "path": "/", "headers": []}

    def travel(**more: Any) -> Any:
        return SentScope.decode(SentScope.of({**scope, **more}).encode()).make().get("session")

    assert travel(session={"user": "ada"}) == {"user": "ada"}
    assert travel(session={}) == {}
    assert travel() is None
    assert travel(session={"lock": object()}) is None
    assert travel(session=object()) is None


class Gateway:
    """The stream of a gateway for one socket, which waits for its end."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()

    def take(self, kind: int, data: bytes) -> None:
        if kind == ENDED:
            self.has_ended.set()

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        raise AssertionError(frame.data)

    def set_full(self, *, is_full: bool) -> None: ...

    def lose(self) -> None: ...


@pytest.mark.parametrize("protocols", [["plait.v1"], []], ids=["native", "cloudflare"])
async def test_a_socket_whose_peer_goes_as_it_is_opened_is_not_joined(
    protocols: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        gateway, owner = nodes.apps
        name = nodes.name(Page, 1)
        scope = {"type": "websocket", "scheme": "ws", "path": f"/threads/page/{name}", "headers": [], "client": None}
        link = await gateway._context.links.find_link(ThreadKey("page", name))
        assert link is not None
        stream = Gateway()
        # Both messages arrive together.
        number = link.open(OPEN, SentScope.of({**scope, "subprotocols": protocols}).encode(), stream)
        link.put(GONE, number)
        await stream.has_ended.wait()
        assert owner._owner._tasks == set()
        assert [row async for row in owner.threads(kind=Page)] == []
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_socket_that_was_opened_again_is_read_though_its_former_link_was_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        gateway, owner = nodes.apps
        name = nodes.name(Page, 1)
        link = await gateway._context.links.find_link(ThreadKey("page", name))
        assert link is not None
        check, refused = owner._owners.check, asyncio.Event()

        def refuse_once(key: ThreadKey) -> None:
            if not refused.is_set():
                refused.set()
                raise NotOwner("it has moved")
            check(key)

        monkeypatch.setattr(owner._owners, "check", refuse_once)
        received = asyncio.Queue[Message]()
        received.put_nowait({"type": "websocket.connect"})
        received.put_nowait({"type": "websocket.receive", "text": '{"type":"cf_agent_state","state":{"n":5}}'})

        async def send(message: Message) -> None: ...

        scope = {"type": "websocket", "scheme": "ws", "path": f"/threads/page/{name}", "headers": []}
        link.pause_writing()
        serving = asyncio.create_task(gateway({**scope, "subprotocols": []}, received.get, send))
        await refused.wait()
        while link._streams:  # noqa: ASYNC110
            await asyncio.sleep(0)
        link.resume_writing()
        while await nodes.handle(Page, 1).state() != {"n": 5}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        received.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await serving
