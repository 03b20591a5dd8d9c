"""Excessive and invalid requests are refused to their client; other clients do not notice."""

import asyncio
import json
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.cases import each_case
from tests.integration.native_client import NativeClient, add, joined
from tests.integration.socket_client import (
    TIMEOUT,
    CallError,
    Client,
    bare_socket,
    connected,
    http,
    open_socket,
    opened,
)
from tests.running import Process, running

from plait import Connection, Limits, MemoryStore, Plait, Principal, Stream, Thread, ThreadKey, TooLarge, rpc
from plait_client import connect

pytestmark = pytest.mark.relayed

REJECTED = "State update rejected"
MASK = b"\x01\x02\x03\x04"
# 1000, masked.
CLOSE = b"\x88\x82" + MASK + b"\x02\xea"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


class Room(Thread[Any]):
    """Has any state, and tells who is here."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self._codes: list[int] = []

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        connection.send(data)

    async def on_request(self, request: Request) -> Response:
        if "stream" in request.query_params:
            return PlainTextResponse(str(sum([len(chunk) async for chunk in request.stream()])))
        return PlainTextResponse(str(len(await request.body())))

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._codes.append(code)
        self.broadcast({"closed": code})

    @rpc
    def echo(self, value: Any) -> Any:
        return value

    @rpc
    def set(self, state: Any) -> None:
        self.set_state(state)

    @rpc
    def everybody(self) -> list[str]:
        return [connection.id for connection in self.connections()]

    @rpc
    def closed(self) -> list[int]:
        return self._codes

    @rpc
    def shout(self, text: str) -> None:
        self.broadcast(text)

    @rpc
    async def pour(self, chunk: str, times: int, stream: Stream) -> None:
        for _ in range(times):
            stream.send(chunk)


def serve(**settings: Any) -> Plait:
    """Return an app that keeps nothing."""
    return Plait(Room, **{"store": MemoryStore(), **settings})


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with running(serve()) as address:
        yield address


# Sizes


async def test_a_frame_over_the_limit_closes_its_socket_with_1009_and_no_other() -> None:
    async with running(serve(limits=Limits(frame=1000))) as address, connected(address, "/threads/room/one") as other:
        async with connected(address, "/threads/room/one") as client:
            await client.send("x" * 1000)
            await client.until(lambda client: client.messages == ["x" * 1000])
            await client.send("x" * 1001)
            assert await client.until_closed() == 1009
        await other.until(lambda other: json.dumps({"closed": 1009}) in _texts(other))
        assert await other.call("echo", 1) == 1


async def test_a_message_in_fragments_over_the_limit_closes_its_socket_with_1009() -> None:
    async with running(serve(limits=Limits(frame=1000))) as address:
        async with connected(address, "/threads/room/one") as client:
            await client.socket.send(["x" * 400] * 3)
            assert await client.until_closed() == 1009
        assert await _is_served(address)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        pytest.param(b"\x82\xff" + (2**40).to_bytes(8) + MASK, 1009, id="a frame over the limit"),
        pytest.param(b"\x81\x81" + MASK + b"\xfe", 1007, id="text that is not UTF-8"),
    ],
)
async def test_a_peer_that_goes_on_sending_is_told_why_its_socket_is_closed_and_not_reset(
    address: str, first: bytes, code: int
) -> None:
    with bare_socket(address) as bare:
        await open_socket(bare, "/threads/room/one")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(bare, first)
        more = _frame(0x82, bytes(10_000))
        for _ in range(800):
            await loop.sock_sendall(bare, more)
        await loop.sock_sendall(bare, _frame(0x88, b""))
        bare.shutdown(socket.SHUT_WR)
        assert _close_code(await _read_all(bare)) == code


@pytest.mark.local
async def test_a_message_in_many_fragments_costs_about_its_own_size() -> None:
    limits = Limits(messages_per_second=100_000, message_burst=100_000)
    async with running(serve(limits=limits, ping_interval=600)) as address:
        with bare_socket(address) as bare:
            await open_socket(bare, "/threads/room/one")
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, _frame(0x01, b"") + _frame(0x89, b"begun"))
            await _read_until(bare, b"\x8a\x05begun")
            tracemalloc.start()
            try:
                for _ in range(80):
                    await loop.sock_sendall(bare, (_frame(0x00, b"ab") + _frame(0x00, b"")) * 100)
                await loop.sock_sendall(bare, _frame(0x89, b"there"))
                await _read_until(bare, b"\x8a\x05there")
                assert tracemalloc.get_traced_memory()[0] < 300_000
            finally:
                tracemalloc.stop()
            await loop.sock_sendall(bare, _frame(0x80, b"!"))
            assert b"ab" * 8_000 + b"!" in await _read_until(bare, b"b!")


async def test_a_state_over_the_limit_is_rejected_and_its_sender_is_shown_the_true_one() -> None:
    async with running(serve(limits=Limits(state=200))) as address, connected(address, "/threads/room/one") as client:
        await client.push({"n": "x" * 300})
        await client.until(lambda client: len(client.states) == 2)
        assert client.refusals == [REJECTED]
        assert client.state == {"n": 0}
        with pytest.raises(CallError, match=r"the limit is 200"):
            await client.call("set", "x" * 300)
        async with http(address) as web:
            answer = await web.put("/threads/room/one", json="x" * 300)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
            assert (await web.get("/threads/room/one")).json() == {"n": 0}
        await client.push({"n": 1})
        assert await client.call("echo", 1) == 1
        assert len(client.refusals) == 1


HEAVY: list[Any] = [{}] * 200
HEAVY_TEXT = json.dumps(HEAVY)


async def test_what_is_too_heavy_is_refused_at_each_door_before_it_is_decoded() -> None:
    async with running(serve(limits=Limits(weight=1000))) as address:
        async with connected(address, "/threads/room/one") as client:
            await client.push({"n": HEAVY})
            await client.until(lambda client: len(client.states) == 2)
            assert client.refusals == [REJECTED]
            with pytest.raises(CallError, match="the limit is 1000"):
                await client.call("echo", HEAVY)
            await client.send(HEAVY_TEXT)  # A text for the author's code, which is not decoded.
            await client.until(lambda client: HEAVY_TEXT in _texts(client))
            assert await client.call("echo", HEAVY_TEXT) == HEAVY_TEXT
        async with http(address) as web:
            for answer in (
                await web.put("/threads/room/one", json=HEAVY),
                await web.post("/threads/room/one/rpc/echo", json={"args": [HEAVY]}),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
                assert "its commas, 2 for each list, 6 for each object" in answer.json()["error"]["message"]
            assert (await web.put("/threads/room/one", json=HEAVY_TEXT)).is_success


async def test_a_state_that_would_become_too_heavy_is_refused_whoever_changes_it() -> None:
    app = serve(limits=Limits(weight=1000))
    async with running(app) as address, connected(address, "/threads/room/one") as client:
        room = app.thread(Room, "one")
        with pytest.raises(TooLarge, match="the state has a weight of 1401"):
            await room.set_state(HEAVY)
        await room.set_state(HEAVY[:140])
        async with joined(address, "/threads/room/one", "native") as native:
            for ops in ([add("/-", {})] * 2, [add("/-", {})] * 2, [{"op": "remove", "path": "/0"}]):
                before = len(native.answers)
                await native.push(*ops)
                await native.until(lambda native, before=before: len(native.answers) > before)
            assert [answer.get("code") for _, answer in native.answers] == [None, "too_large", None]
        assert len(await room.state()) == 141
        assert await client.call("echo", 1) == 1


@pytest.mark.local
async def test_a_thread_whose_stored_state_is_too_heavy_wakes_and_may_become_lighter(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with running(serve(store=store)) as address, http(address) as web:
        assert (await web.put("/threads/room/one", json=HEAVY)).is_success
    async with running(serve(store=store, limits=Limits(weight=1000))) as address:
        async with http(address) as web:
            assert (await web.get("/threads/room/one")).json() == HEAVY
        async with joined(address, "/threads/room/one", "native") as native:
            for op in (add("/-", {}), {"op": "remove", "path": "/0"}, add("/-", {})):
                before = len(native.answers)
                await native.push(op)
                await native.until(lambda native, before=before: len(native.answers) > before)
            assert [answer.get("code") for _, answer in native.answers] == ["too_large", None, "too_large"]


async def test_a_body_over_the_limit_is_413() -> None:
    async with running(serve(limits=Limits(frame=1000))) as address, http(address) as web:
        for answer in (
            await web.put("/threads/room/one", json="x" * 1000),
            await web.post("/threads/room/one/rpc/echo", json={"args": ["x" * 1000]}),
            await web.post("/threads/room/one/own", json="x" * 1000),
            await web.post("/threads/room/one/own?stream=1", json="x" * 1000),
            await web.post("/threads/room/one/own", content=_chunks(100, 11)),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert (await web.put("/threads/room/one", json="x" * 900)).is_success
        assert (await web.post("/threads/room/one/own", content=_chunks(100, 10))).text == "1000"


async def test_what_nests_too_deep_is_refused(address: str) -> None:
    deep: Any = json.loads("[" * 65 + "]" * 65)
    deepest = "[" * 100_000 + "]" * 100_000
    async with connected(address, "/threads/room/one") as client:
        await client.send(f'{{"type":"cf_agent_state","state":{deepest}}}')
        assert await client.until_closed() == 4400
    async with connected(address, "/threads/room/one") as client, http(address) as web:
        await client.push(deep)
        await client.until(lambda client: len(client.states) == 2)
        assert client.refusals == [REJECTED]
        assert client.state == {"n": 0}
        with pytest.raises(CallError, match=r"nested more than 64 deep"):
            await client.call("echo", deep)
        answer = await web.put("/threads/room/one", content=deepest)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert (await web.get("/threads/room/one")).json() == {"n": 0}


async def test_a_call_over_http_that_nests_too_deep_is_422(address: str) -> None:
    async with http(address) as web:
        for depth in (65, 100_000):
            nested = "[" * depth + "]" * depth
            answer = await web.post("/threads/room/one/rpc/echo", content=f'{{"args":[{nested}]}}')
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_arguments")
            assert "nested" in answer.json()["error"]["message"]


# Rates and numbers


async def test_too_many_calls_and_states_are_refused_and_too_many_messages_close_with_1013() -> None:
    limits = Limits(messages_per_second=0.001, message_burst=2)
    async with running(serve(limits=limits)) as address, connected(address, "/threads/room/one") as client:
        assert await client.call("echo", 1) == 1
        await client.push({"n": 1})
        with pytest.raises(CallError, match=r"more than 0.001 messages a second"):
            await client.call("echo", 2)
        await client.push({"n": 2})
        await client.until(lambda client: client.refusals == [REJECTED])
        await client.until_state({"n": 1})
        await client.send("hello")
        assert await client.until_closed() == 1013
        assert client.messages == []
        async with connected(address, "/threads/room/one") as other:
            assert await other.call("echo", 3) == 3
            await other.until_state({"n": 1})


async def test_of_messages_that_come_too_fast_all_arrive_in_order_and_of_presences_the_last() -> None:
    async with (
        running(serve(limits=Limits(messages_per_second=400, message_burst=75))) as address,
        connect(f"ws://{address}/threads/room/one") as room,
    ):
        heard = asyncio.Queue[Any]()
        room.on_message(heard.put_nowait)
        for number in range(600):
            room.send(str(number) if number % 10 else b"%d" % number)
        async with asyncio.timeout(20):
            got = [await heard.get() for _ in range(600)]
        assert [int(data) for data in got] == list(range(600))
        seen = asyncio.Event()
        room.on_presence(lambda presence: seen.set() if {"n": 299} in presence.values() else None)
        for number in range(300):
            room.set_presence({"n": number})
        async with asyncio.timeout(20):
            await seen.wait()


async def test_changes_that_come_too_fast_are_all_made_and_nobody_is_closed_for_them() -> None:
    async with (
        running(serve(limits=Limits(messages_per_second=400, message_burst=70))) as address,
        connect(f"ws://{address}/threads/room/one") as room,
    ):
        async with asyncio.timeout(20):
            await asyncio.gather(*(room.update(f"/n{number}", number) for number in range(600)))
            assert await room.call("closed") == []
        assert room.state == {"n": 0, **{f"n{number}": number for number in range(600)}}


async def test_a_thread_takes_no_more_connections_than_its_limit() -> None:
    async with running(serve(limits=Limits(connections_per_thread=2))) as address, AsyncExitStack() as stack:
        first, _ = [await stack.enter_async_context(connected(address, "/threads/room/one")) for _ in range(2)]
        async with connected(address, "/threads/room/one") as third:
            assert await third.until_closed() == 1013
        assert await first.call("echo", 1) == 1
        async with connected(address, "/threads/room/two") as other:
            assert await other.call("echo", 2) == 2
        await first.close()
        await _let_in(address)


async def test_an_address_has_no_more_sockets_than_its_limit() -> None:
    async with running(serve(limits=Limits(connections_per_address=2))) as address, AsyncExitStack() as stack:
        first, _ = [await stack.enter_async_context(connected(address, f"/threads/room/{n}")) for n in range(2)]
        async with connected(address, "/threads/room/three") as third:
            assert await third.until_closed() == 1013
        assert await first.call("echo", 1) == 1
        await first.close()
        await _let_in(address)


async def test_a_socket_counts_for_its_address_until_what_was_sent_on_it_has_been_done() -> None:
    gate = asyncio.Event()

    class Blocked(Thread[Any]):
        initial_state = 0

        async def on_message(self, connection: Connection, data: str | bytes) -> None:
            await gate.wait()

    app = Plait(Room, Blocked, store=MemoryStore(), limits=Limits(connections_per_address=1))
    async with running(app) as address:
        async with connected(address, "/threads/blocked/one") as client:
            await client.until(lambda client: client.received)
            await client.send("hello")
        async with connected(address, "/threads/room/one") as client:
            assert await client.until_closed() == 1013
        gate.set()
        await _let_in(address)


async def test_without_limits_many_messages_and_large_ones_are_taken() -> None:
    async with running(serve(limits=None)) as address, connected(address, "/threads/room/one") as client:
        answers = [await client.begin("echo", n) for n in range(2000)]
        assert await asyncio.gather(*answers) == [*range(2000)]
        large = "x" * 3_000_000
        await client.push(large)
        assert await client.call("echo", large) == large


async def test_two_sockets_with_the_same_id_are_both_served(address: str) -> None:
    query = {"_pk": "same"}
    async with (
        connected(address, "/threads/room/one", query=query) as first,
        connected(address, "/threads/room/one", query=query) as second,
    ):
        id, other = await first.call("everybody")
        assert id == other
        await first.push({"n": 1})
        await second.until_state({"n": 1})
        await second.push({"n": 2})
        await first.until_state({"n": 2})
        await first.close()
        await second.until(_texts)
        assert await second.call("everybody") == [id]


# Peers that do not read


@pytest.mark.local
async def test_a_peer_that_does_not_read_costs_a_constant_and_delays_nobody(tmp_path: Path) -> None:
    environment = {"PLAIT_LIMITS_WRITE_BUFFER": "1000000", "PLAIT_LIMITS_MESSAGES_PER_SECOND": "100000"}
    with Process("tests.integration.apps:app", cwd=tmp_path, environment=environment) as server:
        async with AsyncExitStack() as stack:
            path = "/threads/gauge/one"
            writer = await stack.enter_async_context(connected(server.address, path))
            reader = await stack.enter_async_context(connected(server.address, path))
            await _push_large(writer, 20)
            before = await writer.call("memory")
            for _ in range(5):
                await open_socket(stack.enter_context(bare_socket(server.address, receive_buffer=4096)), path)
            peak = await _push_large(writer, 600)
            await reader.until(lambda reader: reader.state == writer_state(599))
            # 60 MB have been told to each of five sockets, which get the last state alone when they read.
            assert await writer.call("closed") == []
            assert peak - before < 10_000_000


async def test_a_peer_that_reads_again_gets_the_last_state_and_not_all_before_it() -> None:
    async with running(serve(limits=Limits(write_buffer=300_000, message_burst=10_000))) as address:
        with bare_socket(address, receive_buffer=4096) as bare:
            await open_socket(bare, "/threads/room/one")
            async with connected(address, "/threads/room/one") as client:
                for n in range(200):
                    await client.push(f"{n}" + "x" * 100_000)
                    assert len(await client.call("everybody")) == 2
                received = await _read_until(bare, b'"state":"199x', answers_pings=True)
            assert received.count(b'"cf_agent_state"') < 100


async def test_a_peer_that_reads_again_is_told_that_it_was_too_slow_for_messages() -> None:
    async with running(serve(limits=Limits(write_buffer=300_000))) as address:
        with bare_socket(address, receive_buffer=4096) as bare:
            await open_socket(bare, "/threads/room/one")
            async with connected(address, "/threads/room/one") as client:
                while await client.call("closed") != [1013]:
                    await client.call("shout", "x" * 100_000)
            assert await _answer_close(bare) == 1013


async def test_a_peer_that_calls_and_does_not_read_is_closed() -> None:
    limits = Limits(write_buffer=300_000)
    async with running(serve(limits=limits)) as address, connected(address, "/threads/room/one") as other:
        with bare_socket(address, receive_buffer=4096) as bare:
            await open_socket(bare, "/threads/room/one")
            call = {"type": "rpc", "id": "1", "method": "echo", "args": ["x" * 100_000]}
            calls = asyncio.create_task(_send_until_closed(bare, _frame(0x81, json.dumps(call).encode())))
            await other.until(lambda other: json.dumps({"closed": 1013}) in _texts(other))
            calls.cancel()
            await asyncio.wait([calls])
        assert await other.call("echo", 1) == 1


async def test_a_stream_by_hand_to_a_peer_that_does_not_read_is_ended_with_its_socket() -> None:
    async with (
        running(serve(limits=Limits(write_buffer=300_000))) as address,
        connected(address, "/threads/room/one") as other,
    ):
        with bare_socket(address, receive_buffer=4096) as bare:
            await open_socket(bare, "/threads/room/one")
            call = {"type": "rpc", "id": "1", "method": "pour", "args": ["x" * 10_000, 2000]}
            await asyncio.get_running_loop().sock_sendall(bare, _frame(0x81, json.dumps(call).encode()))
            await other.until(lambda other: json.dumps({"closed": 1013}) in _texts(other))
        assert await other.call("echo", 1) == 1


async def test_a_peer_that_answers_no_pings_is_dropped() -> None:
    async with (
        running(serve(ping_interval=0.2, ping_timeout=0.2)) as address,
        connected(address, "/threads/room/one") as other,
    ):
        with bare_socket(address) as bare:
            await open_socket(bare, "/threads/room/one")
            await other.until(_texts)
            received = await _read_all(bare)
            assert b"\x89" in received
        assert await other.call("everybody") == [(await other.call("everybody"))[0]]
        assert (await other.call("closed")) == [1006]


async def test_a_peer_whose_messages_are_not_read_for_long_is_not_taken_for_dead() -> None:
    gate = asyncio.Event()

    class Slow(Thread[Any]):
        initial_state = 0

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await gate.wait()

        def on_message(self, connection: Connection, data: str | bytes) -> None:
            connection.send(data)

    app = Plait(Room, Slow, store=MemoryStore(), ping_interval=0.2, ping_timeout=0.2)
    async with running(app) as address, connected(address, "/threads/slow/one") as held:
        for n in range(100):
            await held.send(str(n))
        await held.until(lambda held: held.states)
        with bare_socket(address) as bare:
            await open_socket(bare, "/threads/room/one")
            await _read_all(bare)  # Until it is dropped, as it answers no pings.
        gate.set()
        await held.until(lambda held: held.messages == [str(n) for n in range(100)])


# Who may come in


@each_case(
    "origin", [None, "http://{address}", "https://{address}", "https://friend.example", "https://FRIEND.example/"]
)
async def test_a_page_of_the_same_or_an_allowed_origin_may_connect(origin: str | None) -> None:
    async with running(serve(allowed_origins=["https://friend.example"])) as address:
        origin = origin and origin.format(address=address)
        async with connected(address, "/threads/room/one", origin=origin) as client:
            assert await client.call("echo", 1) == 1


@pytest.mark.local
@each_case(
    "origin",
    ["https://foe.example", "null", "http://127.0.0.1:1", "https://friend.example.foe.example", "file://", "nonsense"],
)
async def test_a_page_of_another_origin_is_closed_with_4403(origin: str) -> None:
    async with (
        running(serve(allowed_origins=["https://friend.example"])) as address,
        connected(address, "/threads/room/one", origin=origin) as client,
    ):
        assert await client.until_closed() == 4403
        assert client.received == []


@pytest.mark.local
@each_case(
    "path",
    [
        "/threads/nothing/one",
        "/agents/nothing/one",
        "/threads/room",
        "/threads/room/",
        "/threads/room/a%00b",
        "/threads/room/a%0ab",
        "/threads/room/%ff",
        f"/threads/room/{'x' * 257}",
    ],
)
async def test_a_socket_to_what_is_not_there_is_closed_with_4404(address: str, path: str) -> None:
    async with connected(address, path) as client:
        assert await client.until_closed() == 4404
        assert client.received == []


async def test_who_is_nobody_is_closed_with_4401_and_who_may_not_with_4403() -> None:
    def authenticate(request: Request) -> Principal | None:
        name = request.query_params.get("name")
        return Principal(name) if name else None

    async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return principal is not None and principal.id == thread.name

    async with running(serve(authenticate=authenticate, authorize=authorize)) as address:
        for query, code in (({}, 4401), ({"name": "foe"}, 4403)):
            async with connected(address, "/threads/room/ada", query=query) as client:
                assert await client.until_closed() == code
                assert client.received == []
        async with connected(address, "/threads/room/ada", query={"name": "ada"}) as client:
            assert await client.call("everybody")


async def test_an_authenticate_that_raises_closes_with_1011_and_says_nothing() -> None:
    def authenticate(request: Request) -> Principal | None:
        raise RuntimeError("the secret of the session table")

    async with (
        running(serve(authenticate=authenticate)) as address,
        connected(address, "/threads/room/one") as client,
    ):
        assert await client.until_closed() == 1011
        assert "secret" not in (client.socket.close_reason or "")


@pytest.mark.parametrize("protocol", ["native", "cloudflare"])
async def test_an_authenticate_that_returns_no_principal_lets_nobody_in(protocol: str) -> None:
    wrong: Any = lambda request: False  # noqa: E731
    async with running(serve(authenticate=wrong)) as address:
        if protocol == "native":
            client: Any = NativeClient(address, "/threads/room/one", "a")
            await client.open()
            assert await client.until_closed() == 1011
            assert client.frames == []
            await client.close()
        else:
            async with connected(address, "/threads/room/one") as client:
                assert await client.until_closed() == 1011
                assert client.received == []
        async with http(address) as web:
            assert (await web.put("/threads/room/one", json={"n": 1})).status_code == 500


# What is no WebSocket


@each_case(
    ("frame", "code"),
    [
        pytest.param(b"\x81\x02hi", 1002, id="not masked"),
        pytest.param(b"\x83\x80" + MASK, 1002, id="reserved opcode"),
        pytest.param(b"\xc1\x80" + MASK, 1002, id="reserved bit"),
        pytest.param(b"\x09\x80" + MASK, 1002, id="ping in fragments"),
        pytest.param(b"\x89\xfe\x00\x7e" + MASK + bytes(126), 1002, id="long ping"),
        pytest.param(b"\x80\x80" + MASK, 1002, id="fragment of nothing"),
        pytest.param(b"\x01\x80" + MASK + b"\x81\x80" + MASK, 1002, id="message in a message"),
        pytest.param(b"\x88\x81" + MASK + b"\x00", 1002, id="close with one byte"),
        pytest.param(b"\x01\x80" + MASK + CLOSE, 1000, id="close in a message"),
        pytest.param(b"\x01\x80" + MASK + CLOSE + b"\x80\x80" + MASK, 1000, id="close before a last fragment"),
        pytest.param(b"\x81\xff" + b"\xff" * 8 + MASK, None, id="length over 63 bits"),
        pytest.param(b"\x81\xff" + (2**40).to_bytes(8) + MASK, 1009, id="length of a terabyte"),
    ],
)
async def test_a_malformed_frame_closes_its_socket_and_no_other(address: str, frame: bytes, code: int | None) -> None:
    async with connected(address, "/threads/room/one") as other:
        with bare_socket(address) as bare:
            await open_socket(bare, "/threads/room/one")
            await asyncio.get_running_loop().sock_sendall(bare, frame)
            found = _close_code(await _read_all(bare))
            assert found == code if code is not None else found in (1002, 1009)
        await other.until(_texts)
        assert await other.call("echo", 1) == 1


@each_case("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b'{"type":"rpc"\xfe}'])
async def test_text_that_is_not_utf8_closes_with_1007(address: str, text: bytes) -> None:
    with bare_socket(address) as bare:
        await open_socket(bare, "/threads/room/one")
        await asyncio.get_running_loop().sock_sendall(bare, _frame(0x81, text))
        assert await _answer_close(bare) == 1007
    assert await _is_served(address)


@pytest.mark.local
async def test_a_peer_that_does_not_answer_a_close_is_dropped_and_counts_no_more() -> None:
    async with running(serve(limits=Limits(connections_per_address=1))) as address:
        with bare_socket(address) as bare:
            await open_socket(bare, "/threads/room/one")
            await asyncio.get_running_loop().sock_sendall(bare, _frame(0x81, b"\xff"))
            assert _close_code(await _read_all(bare)) == 1007
            assert await _is_served(address)


async def test_a_character_may_be_split_over_fragments(address: str) -> None:
    with bare_socket(address) as bare:
        await open_socket(bare, "/threads/room/one")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(bare, _frame(0x01, b"\xe4\xb8") + _frame(0x89, b"ping") + _frame(0x80, b"\x96"))
        received = b""
        async with asyncio.timeout(TIMEOUT):
            while "世".encode() not in received or b"\x8a\x04ping" not in received:
                received += await loop.sock_recv(bare, 65536)


@each_case(
    "opening",
    [
        pytest.param("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13", id="no key"),
        pytest.param(f"Connection: Upgrade\r\nUpgrade: websocket\r\n{KEY}", id="no version"),
        pytest.param(f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 1\r\n{KEY}", id="version 1"),
        pytest.param(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short",
            id="bad key",
        ),
    ],
)
@each_case("path", ["/threads/room/one", "/threads/nothing/one", "/", "/elsewhere"])
async def test_a_bad_handshake_is_an_http_error(address: str, opening: str, path: str) -> None:
    with bare_socket(address) as bare:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{opening}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(bare, request.encode())
        status = int((await _read_all(bare)).split(b" ", 2)[1])
        assert 400 <= status < 500
    assert await _is_served(address)


@each_case(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /threads/room/one HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nbad header\r\n\r\n",
        b"POST /threads/room/one HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\n" + KEY.encode() + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_what_is_not_http_never_crashes_the_server(address: str, data: bytes) -> None:
    with bare_socket(address) as bare:
        await asyncio.get_running_loop().sock_sendall(bare, data)
        bare.shutdown(socket.SHUT_WR)
        await _read_all(bare)
    assert await _is_served(address)


async def test_a_peer_that_goes_in_the_middle_of_its_opening_leaves_nothing(address: str) -> None:
    async with connected(address, "/threads/room/one") as other:
        for length in (10, 60, 150, 210):
            with bare_socket(address) as bare:
                opening = (
                    "GET /threads/room/one HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    f"Sec-WebSocket-Version: 13\r\n{KEY}\r\n\r\n"
                )
                await asyncio.get_running_loop().sock_sendall(bare, opening.encode()[:length])
                bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with asyncio.timeout(TIMEOUT):
            while len(await other.call("everybody")) > 1:
                pass


# Inside


def writer_state(n: int) -> str:
    """Return a state of 100 kB."""
    return f"{n} ".ljust(100_000, "x")


async def _push_large(client: Client, times: int) -> int:
    """Push states of 100 kB, and return the most memory that the server had on the way."""
    peak = 0
    for n in range(times):
        await client.push(writer_state(n))
        if n % 10 == 9:
            peak = max(peak, await client.call("memory"))
    return peak


async def _chunks(size: int, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


def _texts(client: Client) -> list[str | bytes]:
    return [json.dumps(json.loads(each)) if isinstance(each, str) else each for each in client.messages]


async def _let_in(address: str) -> None:
    """Connect, as soon as the server knows that another client has left."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            client = await opened(address, "/threads/room/one")
            await client.until(lambda client: client.received or client.socket.close_code)
            is_in = bool(client.received)
            await client.close()
            if is_in:
                return


async def _is_served(address: str) -> bool:
    async with connected(address, "/threads/room/one") as client:
        return bool(await client.call("echo", 1) == 1)


def _frame(first: int, data: bytes) -> bytes:
    """Return a client's frame."""
    size = len(data)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65536:
        length = b"\xfe" + size.to_bytes(2)
    else:
        length = b"\xff" + size.to_bytes(8)
    return bytes([first]) + length + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(data))


async def _send_until_closed(bare: socket.socket, data: bytes) -> None:
    while True:
        await asyncio.get_running_loop().sock_sendall(bare, data)


async def _read_until(bare: socket.socket, wanted: bytes, *, answers_pings: bool = False) -> bytes:
    """Return what comes until something has come; answer the last ping, as a WebSocket does by itself."""
    received = b""
    answered = -1
    async with asyncio.timeout(TIMEOUT):
        while wanted not in received:
            data = await asyncio.get_running_loop().sock_recv(bare, 65536)
            assert data, "the server has closed the connection"
            received += data
            last = received.rfind(b"\x89\x08", 0, -8)
            if answers_pings and last > answered:
                answered = last
                await asyncio.get_running_loop().sock_sendall(bare, _frame(0x8A, received[last + 2 : last + 10]))
    return received


async def _read_all(bare: socket.socket) -> bytes:
    """Return the data until the server closes."""
    received: list[bytes] = []
    async with asyncio.timeout(TIMEOUT):
        try:
            while data := await asyncio.get_running_loop().sock_recv(bare, 65536):
                received.append(data)
        except ConnectionResetError:
            pass
    return b"".join(received)


async def _answer_close(bare: socket.socket) -> int | None:
    """Answer the server's close frame, wait until it closes, and return the frame's code."""
    received, code = b"", None
    async with asyncio.timeout(TIMEOUT):
        while code is None and (data := await asyncio.get_running_loop().sock_recv(bare, 65536)):
            received += data
            code = _close_code(received)
    await asyncio.get_running_loop().sock_sendall(bare, _frame(0x88, b""))
    await _read_all(bare)
    return code


def _close_code(data: bytes) -> int | None:
    """Return the code of the close frame in what a server has sent; None where there is none, or not all of it."""
    while len(data) > 3:
        size, at = data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4]), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10]), 10
        if data[0] == 0x88:
            return int.from_bytes(data[at : at + 2])
        data = data[at + size :]
    return None


# Requests

FEW = Limits(messages_per_second=0.001, message_burst=5)


def who(request: Request) -> Principal | None:
    """Return whom the Authorization header names."""
    name = request.headers.get("authorization")
    return None if name is None else Principal(name)


async def test_requests_past_the_limit_are_answered_with_429_and_when_to_come_again() -> None:
    async with running(serve(limits=FEW)) as address, http(address) as web:
        for n in range(5):
            assert (await web.put("/threads/room/one", json={"n": n})).status_code == 200
        for response in (
            await web.put("/threads/room/one", json={}),
            await web.post("/threads/room/two/rpc/echo", json={"args": [1]}),
            await web.get("/threads/room/one"),
        ):
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) > 100
            assert response.json()["error"]["code"] == "rate_limited"
        assert (await web.get("/healthz")).status_code == 200
        # Sockets have a limit of their own.
        async with connected(address, "/threads/room/one") as client:
            assert await client.call("echo", 1) == 1


async def test_a_request_with_a_large_body_counts_as_several() -> None:
    async with running(serve(limits=FEW)) as address, http(address) as web:
        response = await web.post("/threads/room/one/rpc/echo", json={"args": ["x" * 200_000]})
        assert response.status_code == 200
        assert (await web.get("/threads/room/one")).status_code == 429


async def test_requests_count_for_their_principal_and_not_for_their_address() -> None:
    async with running(serve(limits=FEW, authenticate=who)) as address, http(address) as web:
        statuses = {
            name: [(await web.get("/threads/room/one", headers={"authorization": name})).status_code for _ in range(6)]
            for name in ("ada", "bob")
        }
    assert statuses == {name: [404] * 5 + [429] for name in ("ada", "bob")}


@pytest.mark.local
async def test_without_limits_requests_are_not_counted() -> None:
    async with running(serve(limits=None)) as address, http(address) as web:
        for _ in range(2_000):
            assert (await web.get("/threads/room/one")).status_code == 404


async def test_large_requests_are_handled_one_at_a_time_and_all_are_answered() -> None:
    async with running(serve()) as address, http(address) as web:
        states = [{"list": [n] * 100_000} for n in range(8)]
        answers = await asyncio.gather(*(web.put("/threads/room/one", json=state) for state in states))
        assert sorted(answer.json()["version"] for answer in answers) == list(range(1, 9))
        assert (await web.get("/threads/room/one")).json() in states


@pytest.mark.local
def test_large_requests_are_answered_when_an_app_runs_again_on_another_loop() -> None:
    app = serve()

    async def put() -> int:
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        async with asyncio.timeout(10), app, web:
            return (await web.put("/threads/room/one", json={f"k{n}": n for n in range(50_000)})).status_code

    # The first loop may be closed while others rest from what took long.
    assert [asyncio.run(put()) for _ in range(2)] == [200, 200]
