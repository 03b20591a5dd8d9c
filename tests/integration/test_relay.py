"""Sockets and requests whose threads another node owns, when that is away, ends, or is slow."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount
from tests.fronts import Front, OneOwner, using_fronts
from tests.integration.native_client import NativeClient, add, joined, put
from tests.integration.socket_client import TIMEOUT, Closed, bare_socket, connected, http, websocket
from tests.running import running

from plait import MemoryStore, Plait, Principal, Thread, ThreadKey, rpc
from plait.cluster.owners import Workers
from plait_schemas.messages import SUBPROTOCOL

PATH = "/threads/page/one"
PIECE = b"x" * 10_000
MUCH = 2_000


class Page(Thread[dict[str, Any]]):
    """Waits, pours and swallows as it is told."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.poured = 0
        self.left = asyncio.Event()

    @rpc
    async def wait(self) -> str:
        self.entered.set()
        await self.gate.wait()
        return "done"

    async def on_request(self, request: Request) -> Response:
        match request.url.path.rpartition("/")[2]:
            case "pour":
                return StreamingResponse(self._pour())
            case "hold":
                self.entered.set()
                await self.gate.wait()
                return Response(b"%d" % len(await request.body()))
            case "break":
                return StreamingResponse(self._break())
            case _:
                return Response(b"%d" % len(await request.body()))

    async def _pour(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(MUCH):
                self.poured += 1
                yield PIECE
        finally:
            self.left.set()

    async def _break(self) -> AsyncIterator[bytes]:
        yield b"a"
        raise ValueError("the app is broken")


@pytest.fixture
def fronts() -> Iterator[list[Front]]:
    with using_fronts() as fronts:
        yield fronts


@asynccontextmanager
async def serving(fronts: list[Front], **settings: Any) -> AsyncIterator[tuple[str, Front, Page]]:
    """Serve an app by a gateway; yields its address, the gateway and the thread, which is awake."""
    app = Plait(Page, **{"store": MemoryStore(), **settings})
    async with running(app) as address:
        actor = await app._node.actor(ThreadKey("page", "one"))
        await actor.state.store_thread()
        assert isinstance(actor.thread, Page)
        yield address, fronts[-1], actor.thread


async def lose(front: Front) -> None:
    """End the links of the owner, as if it had been killed."""
    await front.app._context.links.stop()


def hold(front: Front, seconds: float) -> None:
    """Set how long the gateway waits for the owner."""
    front.context.links.hold = seconds


# Sockets


@pytest.mark.parametrize("protocol", ["plait", "cloudflare"])
async def test_sockets_are_closed_with_1001_when_their_owner_is_lost_and_are_served_when_it_is_back(
    fronts: list[Front], protocol: str
) -> None:
    async with serving(fronts) as (address, front, _):
        if protocol == "plait":
            async with joined(address, PATH, "a") as client:
                await lose(front)
                assert await client.until_closed() == 1001
        else:
            async with connected(address, PATH) as other:
                await lose(front)
                assert await other.until_closed() == 1001
        await front.app._context.links.start()
        async with joined(address, PATH, "a") as client:
            await client.push(put("/n", 1))
            await client.until_state({"n": 1})
        assert front.context.addresses._sockets == {}


async def test_a_socket_is_held_until_the_owner_is_there(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, _):
        await lose(front)
        client = NativeClient(address, PATH, "a")
        opening = asyncio.create_task(client.join())
        while not front.context.links._dials:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not opening.done()
        await front.app._context.links.start()
        assert (await opening)["state"] == {"n": 0}
        await client.close()


@pytest.mark.parametrize("subprotocol", [True, False])
async def test_a_socket_is_told_to_try_again_later_when_the_owner_stays_away(
    fronts: list[Front], subprotocol: bool
) -> None:
    async with serving(fronts) as (address, front, _):
        await lose(front)
        hold(front, 0.1)
        if subprotocol:
            client = NativeClient(address, PATH, "a")
            with pytest.raises(Closed):
                await client.join()
            assert client.socket.close_code == 1013
        else:
            async with connected(address, PATH) as other:
                assert await other.until_closed() == 1013
        assert front.context.addresses._sockets == {}


async def test_an_owner_that_goes_away_keeps_its_sockets_and_gets_no_other(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, _), joined(address, PATH, "a") as client:
        front.app._context.links.go_away()
        hold(front, 0.1)
        other = NativeClient(address, PATH, "b")
        with pytest.raises(Closed):
            await other.join()
        assert other.socket.close_code == 1013
        await client.push(put("/n", 1))
        await client.until_state({"n": 1})
        await front.app._context.links.start()
        await other.join()
        await client.push(put("/n", 2))
        await other.until_state({"n": 2})
        await other.close()


async def test_a_node_that_does_not_own_a_thread_refuses_its_sockets_and_requests(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, _), http(address) as web:
        front.app._context.owners = OneOwner(7)
        front.context.links.hold = 0.3
        client = NativeClient(address, PATH, "a")
        with pytest.raises(Closed):
            await client.join()
        assert client.socket.close_code == 1013
        assert (await web.get(PATH)).status_code == 503


async def test_a_gateway_that_ends_lets_calls_end_and_then_closes_its_sockets(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, page), http(address) as web, joined(address, PATH, "a") as client:
        calling = asyncio.create_task(client.call("wait"))
        await page.entered.wait()
        # The owner itself does not end.
        ending = asyncio.create_task(front.context.relays.end(TIMEOUT))
        await asyncio.sleep(0)
        assert (await web.get(PATH)).json() == {"n": 0}
        assert not calling.done()
        page.gate.set()
        assert await calling == "done"
        assert await client.until_closed() == 1001
        await ending


async def test_a_socket_counts_for_its_address_until_its_turns_have_ended(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, page):
        async with joined(address, PATH, "a") as client:
            await client.send("call", ref=1, method="wait", args=[])
            await page.entered.wait()
        async with joined(address, PATH, "b"):
            assert front.context.addresses._sockets == {"127.0.0.1": 2}
        page.gate.set()
        async with asyncio.timeout(TIMEOUT):
            while front.context.addresses._sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_the_request_travels(fronts: list[Front], is_mounted: bool) -> None:
    seen = []

    def authenticate(request: Request) -> Principal:
        host = request.client.host if request.client else None
        where = (request.scope["root_path"], request.url.path, request.url.query, request.headers["x-own"], host)
        seen.append((request.method, *where))
        return Principal("ada")

    front = Front(Plait(Page, store=MemoryStore(), authenticate=authenticate))
    root = "/app" if is_mounted else ""
    outer = Starlette(routes=[Mount(root, front)], lifespan=front.lifespan)
    headers, path = {"x-own": "1"}, f"{root}/threads/page/a%2Fb"
    wanted = (root, f"{root}/threads/page/a/b", "q=%20b", "1", "127.0.0.1")
    async with running(outer) as address, http(address) as web:
        for protocol in (None, [SUBPROTOCOL]):
            socket = await websocket(f"ws://{address}{path}?q=%20b", additional_headers=headers, subprotocols=protocol)
            if protocol is not None:
                await socket.send('{"type":"join","client":"a"}')
            await socket.recv()
            await socket.close()
            assert seen.pop() == ("GET", *wanted)
        assert (await web.put(f"{path}?q=%20b", headers=headers, json={"n": 1})).status_code == 200
        assert seen.pop() == ("PUT", *wanted)
        assert front.sent


@pytest.mark.parametrize("seed", range(3))
async def test_clients_end_with_the_state_of_the_server_whatever_links_are_lost(fronts: list[Front], seed: int) -> None:
    dice, joins = random.Random(seed), 0
    async with serving(fronts, limits=None) as (address, front, page), asyncio.timeout(TIMEOUT):
        clients = [NativeClient(address, PATH, f"client-{number}") for number in range(4)]

        async def rejoin(client: NativeClient) -> None:
            nonlocal joins
            while True:
                with suppress(Closed):
                    await client.close()
                    await client.join()
                    joins += 1
                    return

        async def play(number: int, client: NativeClient) -> None:
            await rejoin(client)
            for step in range(40):
                place = f"/list/{dice.randint(0, len(client.state.get('list', [])))}"
                try:
                    await client.push(add(place, f"{number}-{step}"))
                    if dice.random() < 0.3:
                        await client.until(lambda client: len(client.pending) < 4)
                except Closed:
                    await rejoin(client)
                if number == 0 and step % 8 == 7:
                    await lose(front)
                    await front.app._context.links.start()
            while client.pending:
                try:
                    await client.until(lambda client: not client.pending)
                except Closed:
                    await rejoin(client)

        await page.set_state({"list": []})
        await asyncio.gather(*(play(number, client) for number, client in enumerate(clients)))
        assert joins > 3 * len(clients)
        for client in clients:
            await rejoin(client)
            assert client.state == page.state
            assert {answer["type"] for _, answer in client.answers} == {"ack"}
            await client.close()
        tokens = sorted(f"{number}-{step}" for number in range(4) for step in range(40))
        assert sorted(page.state["list"]) == tokens


# Requests


async def test_a_request_is_held_until_the_owner_is_there_and_then_503(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, front, _), http(address) as web:
        await lose(front)
        getting = asyncio.create_task(web.get(PATH))
        while not front.context.links._dials:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await front.app._context.links.start()
        assert (await getting).status_code == 200
        await lose(front)
        hold(front, 0.1)
        answer = await web.post(f"{PATH}/rpc/wait")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "unavailable"


@pytest.mark.parametrize(("method", "wanted"), [("GET", (503, "unavailable")), ("POST", (500, "indeterminate"))])
async def test_a_request_whose_owner_is_lost_is_refused_or_not_known_to_have_ended(
    fronts: list[Front], method: str, wanted: tuple[int, str]
) -> None:
    async with serving(fronts) as (address, front, page), http(address) as web:
        hold(front, 0.1)
        asking = asyncio.create_task(web.request(method, f"{PATH}/hold"))
        await page.entered.wait()
        await lose(front)
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == wanted
        page.gate.set()


async def test_an_answer_that_has_begun_is_incomplete_when_the_owner_is_lost(
    fronts: list[Front], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(fronts) as (address, front, _),
        http(address) as web,
        web.stream("GET", f"{PATH}/pour") as answer,
    ):
        lines = answer.aiter_bytes()
        await anext(lines)
        await lose(front)
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass
    # It is no fault of the app.
    assert "without completing" not in caplog.text


async def test_an_answer_that_breaks_off_is_incomplete(fronts: list[Front], caplog: pytest.LogCaptureFixture) -> None:
    async with serving(fronts) as (address, _, _), http(address) as web:
        with caplog.at_level(logging.CRITICAL, "uvicorn.error"), pytest.raises(httpx.RemoteProtocolError):
            await web.get(f"{PATH}/break")


async def test_a_large_body_and_a_large_answer_travel_whole(fronts: list[Front]) -> None:
    async with serving(fronts, limits=None) as (address, _, _), http(address) as web:
        body = b"y" * 5_000_000
        assert (await web.post(f"{PATH}/count", content=body)).text == "5000000"

        async def parts() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 70_000):
                yield body[at : at + 70_000]

        assert (await web.post(f"{PATH}/count", content=parts())).text == "5000000"
        assert len((await web.get(f"{PATH}/pour")).content) == MUCH * len(PIECE)


async def test_an_answer_is_made_no_faster_than_it_is_read_and_ends_with_its_reader(fronts: list[Front]) -> None:
    async with serving(fronts) as (address, _, page), asyncio.timeout(TIMEOUT):
        loop = asyncio.get_running_loop()
        with bare_socket(address, receive_buffer=4096) as slow:
            await loop.sock_sendall(slow, f"GET {PATH}/pour HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            await loop.sock_recv(slow, 1)
            poured = -1
            while poured < page.poured:  # Until no more is made.
                poured = page.poured
                await asyncio.sleep(0.2)
            assert poured < MUCH
        await page.left.wait()


async def test_a_body_is_sent_no_faster_than_it_is_read(fronts: list[Front]) -> None:
    async with serving(fronts, limits=None) as (address, front, page), http(address) as web:
        sent = front.sent
        asking = asyncio.create_task(web.post(f"{PATH}/hold", content=b"y" * 20_000_000))
        await page.entered.wait()
        async with joined(address, "/threads/page/two", "a"):
            pass  # The link is free.
        assert front.sent - sent < 40
        page.gate.set()
        assert (await asking).text == "20000000"


async def test_a_new_run_is_in_a_thread_of_its_gateway_and_others_travel(fronts: list[Front]) -> None:
    app = Plait(Page, store=MemoryStore(), secret="s" * 32)

    @app.agent("name", thread=Page)
    async def name(ctx: Any) -> str:
        return str(ctx.thread.name)

    async with running(app) as address:
        (front,) = fronts
        ours, theirs = Workers(0, 2, 2), Workers(1, 2, 2)
        front.context.owners = front.context.links._owners = ours
        app._context.owners = theirs
        sent = front.sent
        for _ in range(8):
            async with http(address) as web:
                found = (await web.post("/run/name")).json()
                assert ours.find(ThreadKey("page", found)) == 0
                assert front.sent == sent
        front.context.owners = app._context.owners = OneOwner(1)
        front.context.owners = front.context.links._owners = OneOwner(0)
        async with http(address) as web:
            answers = [await web.post("/run/name") for _ in range(2)]
            assert answers[0].json() == answers[1].json()
            assert answers[0].headers["x-thread-id"].startswith(answers[0].json())
            assert front.sent > sent


async def test_a_request_is_limited_once_where_its_thread_is(fronts: list[Front]) -> None:
    asked = []

    def authenticate(request: Request) -> Principal:
        asked.append(request.url.path)
        return Principal("ada")

    async with serving(fronts, authenticate=authenticate) as (address, front, _), http(address) as web:
        assert (await web.get(PATH)).status_code == 200
        assert asked == [PATH]
        assert front.context.requests._buckets is not None
        assert len(front.context.requests._buckets) == 0
