"""Many threads over one socket: each channel is checked, served and closed as a socket of its own would be."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.integration.carrier_client import OFFERED, CarrierClient, carried
from tests.integration.native_client import joined, put
from tests.integration.socket_client import TIMEOUT, websocket
from tests.integration.test_mounted import under_hypercorn
from tests.running import running
from websockets.exceptions import InvalidStatus

from plait import Connection, Limits, Plait, Principal, Thread, ThreadKey, Unauthenticated, rpc
from plait.store.memory import MemoryStore
from plait.web.sockets.entrance import ChannelsMiddleware

SERVERS = ("plait", "websockets-sansio", "hypercorn")
PATH = "/threads/page/{}"
KIB = 1024


class Page(Thread[Any]):
    """Counts, and says how its clients came and went."""

    initial_state = {"n": 0}  # noqa: RUF012
    left: list[tuple[str, int]]

    def __init__(self) -> None:
        self.left = []

    def on_connect(self, connection: Connection, request: Request) -> None:
        connection.state = {"path": request.url.path, "query": str(request.query_params)}

    async def on_message(self, connection: Connection, data: Any) -> None:
        connection.send(connection.state if data == "come" else data)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.left.append((self.name, code))

    @rpc
    def add(self, n: int = 1) -> int:
        self.set_state(lambda state: {"n": state["n"] + n})
        after: int = self.state["n"]
        return after

    @rpc
    def leavers(self) -> list[tuple[str, int]]:
        """Return who has left."""
        return self.left

    @rpc
    def shout(self, size: int, count: int) -> None:
        """Send much to everybody."""
        for _ in range(count):
            self.broadcast("x" * size)


class Slow(Page):
    """Takes no message before it is told to."""

    gate = asyncio.Event()

    async def on_message(self, connection: Connection, data: Any) -> None:
        await Slow.gate.wait()


async def authenticate(request: Request) -> Principal | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get("user", "")
    if not token:
        raise Unauthenticated("who are you?")
    return Principal(token)


async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    return principal is not None and (not thread.name.startswith("of-") or thread.name == f"of-{principal.id}")


class Guard:
    """A middleware around the whole app that refuses some paths, and keeps all of them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            self.paths.append(scope["path"])
            if "secret" in scope["path"]:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            if "broken" in scope["path"]:
                raise LookupError("the guard is broken")
        await self._app(scope, receive, send)


def build(**settings: Any) -> Plait:
    return Plait(Page, Slow, **{"store": MemoryStore(), **settings})


@asynccontextmanager
async def serving(app: Callable[..., Any], server: str = "plait") -> AsyncIterator[str]:
    """Serve an app that may carry channels, under one of SERVERS."""
    if server == "plait":
        async with running(app) as address:
            yield address
    elif server == "hypercorn":
        async with under_hypercorn(ChannelsMiddleware(app)) as address:
            yield address
    else:
        async with running(ChannelsMiddleware(app), ws=server) as address:
            yield address


async def ask(carrier: CarrierClient, number: int) -> Any:
    """Return the path and the query by which a channel came."""
    before = len(carrier.frames[number])
    await carrier.tell(number, "message", data="come")
    await carrier.until(lambda: len(carrier.frames[number]) > before)
    return carrier.frames[number][-1]["data"]


@pytest.fixture(params=SERVERS)
async def address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with serving(build(), request.param) as address:
        yield address


async def test_threads_on_one_socket_have_their_own_states_and_messages(address: str) -> None:
    async with carried(address) as carrier, joined(address, PATH.format("a"), "other") as other:
        a, b = await carrier.join(PATH.format("a")), await carrier.join(PATH.format("b"))
        assert await carrier.call(a, "add", 5) == 5
        assert await carrier.call(b, "add") == 1
        await other.until_state({"n": 5})
        await other.push(put("/n", 7))
        await carrier.until(lambda: any(each.get("ops") == [put("/n", 7)] for each in carrier.frames[a]))
        await carrier.send(b, b"\x00\xff")
        await carrier.until(lambda: b"\x00\xff" in carrier.frames[b])
        assert all(each != b"\x00\xff" for each in carrier.frames[a])


async def test_a_channel_has_its_own_path_and_query(address: str) -> None:
    async with carried(address, PATH.format("a") + "?of=carrier") as carrier:
        a, b = await carrier.join("/threads/page/%C3%A4%20b?x=1"), await carrier.join("/agents/page/b")
        assert await ask(carrier, a) == {"path": "/threads/page/ä b", "query": "x=1"}
        assert await ask(carrier, b) == {"path": "/agents/page/b", "query": ""}


async def test_a_closed_channel_closes_no_other(address: str) -> None:
    async with carried(address) as carrier, joined(address, PATH.format("a"), "other") as other:
        a, b = await carrier.join(PATH.format("a")), await carrier.join(PATH.format("b"))
        await carrier.send(a, "!4000 enough")
        while await other.call("leavers") != [["a", 4000]]:
            pass
        assert await carrier.call(b, "add") == 1
        again = await carrier.join(PATH.format("a"))
        assert await carrier.call(again, "add") == 1


async def test_bad_frames_and_unknown_threads_close_their_channel_alone(address: str) -> None:
    async with carried(address) as carrier:
        good = await carrier.join(PATH.format("a"))
        bad = await carrier.join(PATH.format("b"))
        await carrier.send(bad, "{}")
        assert (await carrier.until_closed(bad))[0] == 4400
        unknown = await carrier.open("/threads/nothing/a")
        assert (await carrier.until_closed(unknown))[0] == 4404
        nowhere = await carrier.open("/elsewhere")
        assert (await carrier.until_closed(nowhere))[0] == 4404
        assert await carrier.call(good, "add") == 1


async def test_a_carrier_is_not_refused_for_its_first_thread(address: str) -> None:
    async with carried(address, "/threads/nothing/a") as carrier:
        assert await carrier.call(await carrier.join(PATH.format("a")), "add") == 1


async def test_a_lost_carrier_ends_its_channels(address: str) -> None:
    async with joined(address, PATH.format("a"), "other") as other:
        async with carried(address) as carrier:
            await carrier.join(PATH.format("a"))
            await carrier.join(PATH.format("b"))
        while len(await other.call("leavers")) < 1:
            pass
        assert (await other.call("leavers"))[0][0] == "a"


async def test_a_new_join_of_the_same_client_replaces_the_channel(address: str) -> None:
    async with carried(address) as carrier, carried(address) as later:
        a = await carrier.join(PATH.format("a"), "me")
        await later.join(PATH.format("a"), "me")
        assert (await carrier.until_closed(a))[0] == 4408


async def test_without_the_middleware_another_server_has_sockets_alone() -> None:
    async with running(build(), ws="websockets-sansio") as address:
        socket = await websocket(f"ws://{address}{PATH.format('a')}", subprotocols=OFFERED)
        assert socket.subprotocol == "plait.v1"
        await socket.close()


# What guards a socket guards a channel


@pytest.mark.parametrize("server", SERVERS)
async def test_middleware_sees_each_channel_with_its_own_path(server: str) -> None:
    guard = Guard(build())
    async with serving(guard, server) as address, carried(address) as carrier:
        await carrier.join(PATH.format("open"))
        secret = await carrier.open(PATH.format("secret-1"))
        assert await carrier.until_closed(secret) == (1006, "the request was refused (403)")
        broken = await carrier.open(PATH.format("broken"))
        assert await carrier.until_closed(broken) == (1011, "the app did not answer")
        await carrier.join(PATH.format("last"))
        assert guard.paths == [PATH.format(name) for name in ("first", "open", "secret-1", "broken", "last")]


@pytest.mark.parametrize("server", SERVERS)
async def test_a_mounted_app_has_channels_below_its_path(server: str) -> None:
    plait = build()
    app = FastAPI(lifespan=plait.lifespan)
    app.mount("/live", plait)
    async with serving(app, server) as address, carried(address, "/live/threads/page/a") as carrier:
        a = await carrier.join("/threads/page/a?x=1")
        assert await ask(carrier, a) == {"path": "/live/threads/page/a", "query": "x=1"}


@pytest.mark.parametrize("server", SERVERS)
async def test_each_channel_is_authenticated_and_authorized(server: str) -> None:
    app = build(authenticate=authenticate, authorize=authorize)
    async with serving(app, server) as address, carried(address) as carrier:
        nobody = await carrier.open(PATH.format("a"))
        assert (await carrier.until_closed(nobody))[0] == 4401
        await carrier.join(PATH.format("of-ada"), token="ada")
        foreign = await carrier.open(PATH.format("of-ada"), token="bob")
        assert (await carrier.until_closed(foreign))[0] == 4403
        await carrier.join(PATH.format("of-bob"), token="bob")


@pytest.mark.parametrize("server", SERVERS)
async def test_channels_have_the_headers_of_their_carrier(server: str) -> None:
    app = build(authenticate=authenticate, authorize=authorize)
    async with serving(app, server) as address, carried(address, headers={"Cookie": "user=ada"}) as carrier:
        await carrier.join(PATH.format("of-ada"))
        foreign = await carrier.open(PATH.format("of-bob"))
        assert (await carrier.until_closed(foreign))[0] == 4403


async def test_disconnecting_a_user_closes_the_channels_of_that_user() -> None:
    app = build(authenticate=authenticate, authorize=authorize)
    async with running(app) as address, carried(address) as carrier:
        ada = [await carrier.join(PATH.format(name), token="ada") for name in ("a", "b")]
        bob = await carrier.join(PATH.format("a"), token="bob")
        assert await app.disconnect("ada") == 2
        assert [(await carrier.until_closed(each))[0] for each in ada] == [4401, 4401]
        assert await carrier.call(bob, "add") == 1


@pytest.mark.parametrize("server", SERVERS)
async def test_channels_and_their_carrier_count_for_the_limit_of_an_address(server: str) -> None:
    async with serving(build(limits=Limits(connections_per_address=4)), server) as address, carried(address) as carrier:
        inside = [await carrier.join(PATH.format(n)) for n in range(3)]
        outside = await carrier.open(PATH.format(3))
        assert (await carrier.until_closed(outside))[0] == 1013
        await carrier.send(inside[0], "!1000")
        numbers = []
        while True:
            numbers.append(await carrier.open(PATH.format(4)))
            await carrier.until_answered(numbers[-1])
            if carrier.frames[numbers[-1]]:
                break


async def test_pages_of_other_origins_have_no_carrier() -> None:
    async with running(build()) as address:
        socket = await websocket(f"ws://{address}{PATH.format('a')}", subprotocols=OFFERED, origin="https://evil.test")
        await asyncio.wait_for(socket.wait_closed(), TIMEOUT)
        assert socket.close_code == 4403


async def test_a_refused_carrier_is_a_refused_request() -> None:
    async with running(Guard(build())) as address:
        with pytest.raises(InvalidStatus):
            await websocket(f"ws://{address}{PATH.format('secret')}", subprotocols=OFFERED)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_thread_that_reads_nothing_delays_no_other(server: str) -> None:
    Slow.gate = asyncio.Event()
    async with serving(build(), server) as address, carried(address) as carrier:
        slow, other = await carrier.join("/threads/slow/a"), await carrier.join(PATH.format("a"))
        for _ in range(200):
            await carrier.tell(slow, "message", data="x" * KIB)
        for n in range(20):
            assert await carrier.call(other, "add") == n + 1
        Slow.gate.set()
        assert await carrier.call(slow, "add") == 1


@pytest.mark.parametrize("server", SERVERS)
async def test_a_hot_thread_is_marked_and_arrives_as_a_whole(server: str) -> None:
    async with serving(build(), server) as address, carried(address) as carrier:
        hot, cold = await carrier.join(PATH.format("hot")), await carrier.join(PATH.format("cold"))
        await carrier.call(hot, "shout", 100 * KIB, 30)
        assert await carrier.call(cold, "add") == 1
        await carrier.until(lambda: sum(each["type"] == "message" for each in carrier.frames[hot]) == 30)
        assert carrier.marks >= 30


async def test_a_server_that_stops_closes_the_channels_and_then_the_carrier() -> None:
    async with running(build()) as address:
        socket = await websocket(f"ws://{address}{PATH.format('a')}", subprotocols=OFFERED)
        carrier = CarrierClient(socket)
        idle = CarrierClient(await websocket(f"ws://{address}{PATH.format('a')}", subprotocols=OFFERED))
        a = await carrier.join(PATH.format("a"))
        await carrier.send(2, PATH.format("b"))  # It has not joined.
        assert await carrier.call(a, "add") == 1
    for each in (carrier, idle):
        assert await each.until_lost() == 1001
        assert each.socket.close_reason == "the server is shutting down"
    assert {number: code for number, (code, _) in carrier.closed.items()} == {1: 1001, 2: 1001}
