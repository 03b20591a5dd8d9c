"""The calls of instruments by a server: requests, sockets, event streams. Clients never notice instruments."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from tests.integration.native_client import joined, put
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, http
from tests.integration.test_event_stream import STREAM, Reader
from tests.running import running
from tests.server.parts.tasks.desks import rest_at_once
from tests.server.recorder import Raising, Recorder

from plait import Connection, Instruments, Limits, MemoryStore, Plait, Step, Tasks, Thread, rpc, task
from plait.web.sockets.handshake import Handshake

PATH = "/threads/room/one"
KIND = "room"
ONE = (KIND, "one")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# More than any system keeps for a socket that is not read.
ENDLESS = 100_000_000


class Room(Thread[Any]):
    initial_state = {"n": 0}  # noqa: RUF012
    tasks = Tasks()

    def on_connect(self, connection: Connection, request: Request) -> None:
        pass

    def on_request(self, request: Request) -> Response:
        if request.url.path.endswith("missing"):
            return FileResponse("/nothing/here")
        return PlainTextResponse("hello")

    @rpc
    def set(self, n: Any) -> int:
        self.set_state({"n": n})
        return self.version

    @task
    async def wait(self, step: Step) -> None:
        await step.sleep("rest", 0.1)
        await step.do("nothing", lambda: None)

    @rpc
    async def work(self) -> str:
        return (await self.tasks.wait((await self.tasks.run("wait")).id)).status

    @rpc
    def pour(self) -> None:
        for _ in range(100):
            self.broadcast("x" * (ENDLESS // 100))


class Watched(Recorder):
    """Records events, so that tests can wait for them."""

    async def until(self, name: str, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait until a method has been called so often, and return the arguments of its calls."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.of(name)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return self.of(name)


@asynccontextmanager
async def watched(*, ws: Any = Handshake, **settings: Any) -> AsyncIterator[tuple[str, Watched]]:
    """Serve rooms; yields the address, and the instruments."""
    watched = Watched()
    app = Plait(Room, **{"store": MemoryStore(), "instruments": watched, **settings})
    async with running(app, ws=ws) as address:
        yield address, watched


# Requests


async def test_a_request_is_told_with_its_status_and_what_it_causes() -> None:
    async with watched() as (address, told), http(address) as web:
        await web.post(f"{PATH}/rpc/set", json={"args": [1]}, headers={"traceparent": TRACEPARENT})
        await told.until("request_ended")
        began = told.find("request_began")
        assert began.arguments == (*ONE, "POST", TRACEPARENT)
        assert told.ended("request_ended", began.trace) == (200,)
        made = told.find("change_made")
        assert [each.name for each in told.causes(made)] == ["turn_began", "request_began"]


async def test_a_state_that_is_put_is_a_change_of_its_request() -> None:
    async with watched() as (address, told), http(address) as web:
        await web.put(PATH, json={"n": 1})
        await told.until("request_ended")
        assert [each.name for each in told.causes(told.find("change_made"))] == ["request_began"]


async def test_on_request_is_caused_by_its_request() -> None:
    async with watched() as (address, told), http(address) as web:
        assert (await web.get(f"{PATH}/own")).text == "hello"
        turn = told.find("turn_began", *ONE, "on_request")
        assert [each.arguments for each in told.causes(turn)] == [(*ONE, "GET", None)]


@pytest.mark.parametrize(
    ("path", "status", "address"),
    [("/threads/room/one?at=7", 404, ONE), ("/threads/secret/one", 404, ("", "")), ("/threads/room", 404, ("", ""))],
)
async def test_a_request_names_only_threads_that_the_app_may_have(
    path: str, status: int, address: tuple[str, str]
) -> None:
    async with watched() as (server, told), http(server) as web:
        assert (await web.get(path)).status_code == status
        await told.until("request_ended")
        assert told.of("request_began") == [(*address, "GET", None)]
        assert told.of("request_ended") == [(status,)]


async def test_a_request_whose_client_disconnects_ends_with_499() -> None:
    async with watched() as (address, told):
        with bare_socket(address) as peer:
            peer.sendall(b"PUT %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx" % PATH.encode())
            await told.until("request_began")
        assert await told.until("request_ended") == [(499,)]


async def test_a_request_whose_answer_fails_ends_with_500() -> None:
    async with watched() as (address, told), http(address) as web:
        assert (await web.get(f"{PATH}/missing")).status_code == 500
        assert await told.until("request_ended") == [(500,)]


async def test_a_header_that_is_too_long_is_no_traceparent() -> None:
    headers = {"traceparent": TRACEPARENT + "-" + "a" * 500}
    async with watched() as (address, told), http(address) as web:
        await web.get(PATH, headers=headers)
        assert told.of("request_began") == [(*ONE, "GET", None)]
        async with joined(address, PATH, "one", headers=headers), connected(address, PATH, headers=headers):
            pass
        assert told.of("message_began") == [(*ONE, "join", None)] * 2


async def test_an_event_stream_is_a_request_that_joins() -> None:
    async with watched() as (address, told), http(address) as web:
        await web.put(PATH, json={"n": 1})
        await told.until("request_ended")
        told.events.clear()
        async with web.stream("GET", f"{PATH}/changes", headers=STREAM) as answer:
            assert (await Reader(answer).next())["type"] == "joined"
        assert await told.until("request_ended") == [(200,)]
        assert told.of("joined") == [(KIND, "events", "snapshot")]
        assert told.of("message_began") == []
        turn = told.find("turn_began", *ONE, "on_connect")
        assert [each.name for each in told.causes(turn)] == ["request_began"]


# Sockets


@pytest.mark.parametrize("ws", [Handshake, "websockets-sansio"])
async def test_sockets_are_told_with_the_codes_that_they_are_closed_with(ws: Any) -> None:
    async with watched(ws=ws) as (address, told):
        async with joined(address, PATH, "one"), connected(address, PATH):
            assert sorted(told.of("socket_opened")) == [("cloudflare",), ("plait.v1",)]
            assert told.of("socket_closed") == []
        assert sorted(await told.until("socket_closed", 2)) == [("cloudflare", 1000), ("plait.v1", 1000)]
        async with connected(address, "/threads/nothing/one") as refused:
            assert await refused.until_closed() == 4404
        assert (await told.until("socket_closed", 3))[-1] == ("cloudflare", 4404)
        assert len(told.of("socket_opened")) == 3


async def test_a_socket_that_is_cut_off_is_closed_with_1006() -> None:
    async with watched() as (address, told), joined(address, PATH, "one") as client:
        client.socket.transport.abort()
        assert await told.until("socket_closed") == [("plait.v1", 1006)]


@pytest.mark.parametrize("protocol", ["native", "cloudflare"])
async def test_the_traceparent_of_a_sockets_request_is_that_of_its_messages(protocol: str) -> None:
    headers = {"traceparent": TRACEPARENT}
    async with watched() as (address, told):
        if protocol == "native":
            async with joined(address, PATH, "one", headers=headers) as native:
                await native.call("set", 1)
        else:
            async with connected(address, PATH, headers=headers) as client:
                await client.call("set", 1)
        assert told.of("message_began") == [(*ONE, "join", TRACEPARENT), (*ONE, "call", TRACEPARENT)]
        turn = told.find("turn_began", *ONE, "on_connect")
        assert [each.arguments[2] for each in told.causes(turn)] == ["join"]


# Limits


@pytest.mark.parametrize("ws", [Handshake, "websockets-sansio"])
async def test_a_message_over_the_limit_is_told(ws: Any) -> None:
    async with watched(ws=ws, limits=Limits(frame=1000)) as (address, told), connected(address, PATH) as client:
        await client.send("x" * 1001)
        assert await client.until_closed() == 1009
        assert await told.until("limit_hit") == [("frame",)]


@pytest.mark.parametrize("ws", [Handshake, "websockets-sansio"])
async def test_a_peer_that_does_not_read_is_told(ws: Any) -> None:
    async with watched(ws=ws, limits=Limits(write_buffer=300_000)) as (address, told), connected(address, PATH) as peer:
        peer.socket.transport.pause_reading()
        async with joined(address, "/threads/room/one", "other") as other:
            await other.send("call", ref=1, method="pour")
            assert set(await told.until("limit_hit")) == {("write_buffer",)}
        peer.socket.transport.abort()


async def test_limits_of_requests_are_told() -> None:
    limits = Limits(frame=1000, state=64, messages_per_second=0.001, message_burst=3)
    async with watched(limits=limits) as (address, told), http(address) as web:
        assert (await web.put(PATH, content=b"x" * 1001)).status_code == 413
        assert (await web.put(PATH, json={"n": "x" * 100})).status_code == 413
        await web.get(PATH)
        assert (await web.get(PATH)).status_code == 429
        assert told.of("limit_hit") == [("frame",), ("state",), ("messages_per_second",)]


async def test_sockets_over_their_limits_are_told() -> None:
    limits = Limits(connections_per_thread=1, connections_per_address=2)
    async with watched(limits=limits) as (address, told), AsyncExitStack() as stack:
        await stack.enter_async_context(connected(address, PATH))
        over = await stack.enter_async_context(connected(address, PATH))
        assert await over.until_closed() == 1013
        assert told.of("limit_hit") == [("connections_per_thread",)]
        await told.until("socket_closed")
        await stack.enter_async_context(connected(address, "/threads/room/other"))
        more = await stack.enter_async_context(connected(address, "/threads/room/more"))
        assert await more.until_closed() == 1013
        assert told.of("limit_hit")[1:] == [("connections_per_address",)]


async def test_a_connection_over_the_limit_of_its_address_is_told_before_its_request() -> None:
    async with watched(limits=Limits(connections_per_address=1)) as (address, told):
        with bare_socket(address) as first:
            first.sendall(b"GET / HTTP/1.1\r\n")
            with bare_socket(address):
                assert await told.until("limit_hit") == [("connections_per_address",)]


# Instruments that raise


async def test_two_clients_work_while_every_method_of_the_instruments_raises(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    limits = Limits(presence=10)
    recorder = Recorder()
    async with watched(instruments=[Raising(), recorder], limits=limits) as (address, _), http(address) as web:
        async with joined(address, PATH, "one") as one, connected(address, PATH) as other:
            await one.push(put("/n", 1))
            await one.until_state({"n": 1})
            await other.until_state({"n": 1})
            assert await other.call("set", 2) == 2
            await one.until_state({"n": 2})
            await other.push({"n": 3})
            await one.until_state({"n": 3})
            await one.send("presence", data="x" * 20)
            await one.until(lambda client: client.of("error"))
            assert (await web.put(PATH, json={"n": 4})).status_code == 200
            await one.until_state({"n": 4})
            await other.until_state({"n": 4})
            assert await other.call("work") == "done"
        assert (await web.get(f"{PATH}/own")).text == "hello"
    told = {each.name for each in recorder.events}
    methods = {name for name in vars(Instruments) if not name.startswith("_")}
    # Nothing went wrong or blocked the loop, no reader was slow, and no code of the app called a thread.
    others = {"enter_trace", "find_parent", "make_traceparent"}
    assert told == methods - others - {"change_failed", "loop_blocked", "reader_lagged", "store_failed"}
    logged = [each for each in caplog.records if each.name == "plait.instruments"]
    assert sorted(each.getMessage().split()[0] for each in logged) == sorted(told)
    errors = [each for each in caplog.records if each.levelno > logging.WARNING and each not in logged]
    assert [each.getMessage() for each in errors] == []
