"""Clients of the native protocol over real sockets, under uvicorn as `plait serve` runs it and by ASGI's messages."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.native_client import NativeClient, add, joined, put
from tests.integration.socket_client import TIMEOUT, bare_socket, connected
from tests.running import Process, running
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from plait import Connection, Limits, MemoryStore, Plait, Principal, Thread, ThreadKey, current, rpc
from plait.web.sockets.handshake import Handshake

pytestmark = pytest.mark.relayed(tcp=True)

PATH = "/threads/page/one"
SERVERS = ("plait", "websockets-sansio")


class Page(Thread[dict[str, Any]]):
    """Has any object for its state."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self._gate = asyncio.Event()
        self._codes: list[int] = []

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        connection.send(data)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._codes.append(code)

    @rpc
    def set(self, n: Any) -> int:
        self.set_state(lambda state: {**state, "n": n})
        return self.version

    @rpc
    async def take_back(self) -> int | None:
        """Undo the caller's last change."""
        connection = current().connection
        return None if connection is None else await self.undo(connection)

    @rpc
    def closed(self) -> list[int]:
        return self._codes

    @rpc
    def fill(self, text: str, times: int) -> None:
        """Make a text the state's."""
        self.set_state(lambda state: {**state, "text": text * times})

    @rpc
    async def stream(self) -> AsyncIterator[int]:
        yield 1
        await self._gate.wait()


app = Plait(Page)


@asynccontextmanager
async def serving(server: str, **settings: Any) -> AsyncIterator[str]:
    """Serve an app that keeps nothing, under one of SERVERS."""
    app = Plait(Page, **{"store": MemoryStore(), **settings})
    async with running(app, ws=Handshake if server == "plait" else server) as address:
        yield address


@pytest.fixture(params=SERVERS)
async def address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with serving(request.param) as address:
        yield address


# Talking


async def test_the_subprotocol_is_chosen_where_it_is_offered(address: str) -> None:
    offered = [Subprotocol("other"), Subprotocol("plait.v1")]
    async with connect(f"ws://{address}{PATH}", subprotocols=offered, proxy=None) as socket:
        assert socket.subprotocol == "plait.v1"
    async with connected(address, PATH) as cloudflare:
        assert cloudflare.socket.subprotocol is None
        await cloudflare.until_state({"n": 0})


async def test_native_and_cloudflare_clients_see_each_others_changes(address: str) -> None:
    async with (
        joined(address, PATH, "a") as a,
        joined(address, PATH, "b") as b,
        connected(address, PATH, query={"_pk": "c"}) as c,
    ):
        await a.push(put("/n", 1))
        await b.until_state({"n": 1})
        await c.until_state({"n": 1})
        await c.push({"n": 2})
        await a.until_state({"n": 2})
        await b.until_state({"n": 2})
        source = a.frames[-1]["source"]
        assert a.frames[-1] == {"type": "change", "version": 2, "ops": [put("/n", 2)], "source": source}
        # The client's own id is not shown to others.
        assert source not in ("c", "server")
        assert [answer for _, answer in a.answers] == [{"type": "ack", "ref": 1, "version": 1}]


async def test_calls_streams_messages_and_presence_go_both_ways(address: str) -> None:
    async with joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
        assert await a.call("set", 5) == 1
        assert [frame["type"] for frame in a.frames] == ["joined", "change", "result"]
        await a.send("message", data="text")
        await a.socket.send(b"\x00\xff")
        await a.until(lambda a: b"\x00\xff" in a.frames)
        assert a.of("message") == [{"type": "message", "data": "text"}]
        await a.send("presence", data={"name": "Ada"})
        await b.until(lambda b: b.of("presence"))
        here = {a.frames[0]["connection"]: {"name": "Ada"}}
        assert b.of("presence") == [{"type": "presence", "joined": here}]
        async with joined(address, PATH, "c") as c:
            await c.until(lambda c: c.of("presence"))
            assert c.of("presence") == [{"type": "presence", "snapshot": here}]
        await a.send("call", ref=99, method="stream")
        await a.until(lambda a: a.of("result", ref=99))
        await a.close()
        await b.until(lambda b: b.of("presence", left=[*here]))


async def test_half_a_surrogate_pair_is_refused_where_it_is_and_closes_nothing(address: str) -> None:
    async with joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
        half = "\U0001f600".encode("utf-16-le")[:2].decode("utf-16-le", "surrogatepass")
        await a.push(put("/n", half))
        await a.send("call", ref=7, method="set", args=[half])
        await a.send("presence", data={"name": half})
        await a.send("message", data=half)
        await a.until(lambda a: a.answers)
        await a.push(put("/n", "\U0001f600"))
        await b.until_state({"n": "\U0001f600"})
        assert [(frame["ref"], frame["code"]) for frame in a.of("nack")] == [(1, "invalid_state")]
        found = [(frame.get("ref"), frame["code"]) for frame in a.of("error")]
        assert found == [(7, "invalid_arguments"), (None, "invalid_arguments"), (None, "invalid_arguments")]
        assert await a.call("closed") == []
        assert a.state == b.state


async def test_what_comes_right_after_the_join_is_not_lost(address: str) -> None:
    client = NativeClient(address, PATH, "a")
    await client.open()
    await client.send("call", ref=1, method="set", args=[1])
    await client.send("ping")
    await client.until(lambda client: client.of("pong") and client.of("result"))
    assert client.frames[0]["type"] == "joined"
    await client.close()


async def test_a_bad_frame_is_answered_with_an_error_and_closes_with_4400(address: str) -> None:
    for joins in (False, True):
        client = NativeClient(address, PATH, "a")
        await client.open(joins=joins)
        await client.send("nonsense")
        assert await client.until_closed() == 4400
        assert [frame["type"] for frame in client.frames] == ["joined"] * joins + ["error"]
        await client.close()


async def test_a_client_that_joins_on_a_second_socket_closes_the_first_with_4408(address: str) -> None:
    async with joined(address, PATH, "a") as first, joined(address, PATH, "a") as second:
        assert await first.until_closed() == 4408
        assert await second.call("set", 1) == 1


# Who may come in


@pytest.mark.local
@pytest.mark.parametrize(("path", "code"), [("/threads/nothing/one", 4404), ("/threads/page/", 4404)])
async def test_a_socket_to_what_is_not_there_is_closed_with_4404(address: str, path: str, code: int) -> None:
    client = NativeClient(address, path, "a")
    await client.open(joins=False)
    assert await client.until_closed() == code
    assert client.frames == []
    await client.close()


@pytest.mark.local
async def test_a_page_of_another_origin_is_closed_with_4403(address: str) -> None:
    client = NativeClient(address, PATH, "a", origin="https://foe.example")
    await client.open(joins=False)
    assert await client.until_closed() == 4403
    await client.close()


def authenticate(request: Request) -> Principal | None:
    """Return the principal of a token `name:seconds`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    name, _, seconds = token.partition(":")
    return Principal(name, {}, time.time() + float(seconds)) if scheme == "Bearer" and seconds else None


async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    """Allow all but Eve to connect, and only Ada to write and call."""
    assert principal is not None
    return principal.id == "ada" or (principal.id != "eve" and action in ("connect", "read"))


@pytest.mark.parametrize("server", SERVERS)
async def test_a_token_may_be_in_the_join_or_in_a_header(server: str) -> None:
    async with serving(server, authenticate=authenticate, authorize=authorize) as address:
        for options in ({"token": "ada:60"}, {"headers": {"Authorization": "Bearer ada:60"}}):
            async with joined(address, PATH, "a", **options) as client:
                assert await client.call("set", 1) == 1
        other: dict[str, Any] = {"token": "ada:60", "headers": {"Authorization": "Bearer eve:60"}}
        async with joined(address, PATH, "a", **other) as client:
            assert client.frames[0].get("readonly") is None
        async with joined(address, PATH, "b", token="bob:60") as client:
            assert client.frames[0]["readonly"] is True
            await client.push(put("/n", 2))
            await client.send("call", ref=1, method="closed")
            await client.until(lambda client: client.of("nack") and client.of("error"))
            assert (client.of("nack")[0]["code"], client.of("error")[0]["code"]) == ("readonly", "forbidden")


@each_case("server", SERVERS)
@each_case(("token", "code"), [(None, 4401), ("ada", 4401), ("eve:60", 4403)])
async def test_who_is_nobody_is_closed_with_4401_and_who_may_not_with_4403(
    server: str, token: str | None, code: int
) -> None:
    async with serving(server, authenticate=authenticate, authorize=authorize) as address:
        client = NativeClient(address, PATH, "a", token=token)
        await client.open()
        assert await client.until_closed() == code
        assert client.frames == []
        await client.close()


@pytest.mark.parametrize("server", SERVERS)
async def test_a_token_expires_unless_a_fresh_one_comes(server: str) -> None:
    async with (
        serving(server, authenticate=authenticate) as address,
        joined(address, PATH, "a", token="ada:3") as a,
        joined(address, PATH, "b", token="bob:3") as b,
    ):
        await a.until(lambda a: a.of("auth_expiring"))
        await a.send("auth", token="ada:600")
        assert await b.until_closed() == 4401
        await a.send("ping")
        await a.until(lambda a: a.of("pong"))
        await a.send("auth", token="bob:600")
        assert await a.until_closed() == 4403


async def test_sockets_that_have_not_joined_count_for_their_address() -> None:
    async with serving("plait", limits=Limits(connections_per_address=1)) as address:
        first, second = NativeClient(address, PATH, "a"), NativeClient(address, PATH, "b")
        await first.open(joins=False)
        await second.open(joins=False)
        assert await second.until_closed() == 1013
        await first.close()
        await second.close()


# Whose a client is


async def test_who_knows_the_client_id_of_somebody_else_is_another_client(tmp_path: Path) -> None:
    def serve() -> AbstractAsyncContextManager[str]:
        return running(Plait(Page, store=f"sqlite:///{tmp_path}/page.db", authenticate=authenticate), ws=Handshake)

    async with serve() as address, joined(address, PATH, "same", token="ada:60") as ada:
        await ada.push(add("/ada", 1))
        await ada.until(lambda ada: ada.answers)
        async with joined(address, PATH, "same", token="eve:60") as eve:
            assert eve.frames[0]["connection"] != ada.frames[0]["connection"]
            assert "last_ref" not in eve.frames[0]
            # So many that the server would take the next one of Ada for one that it has seen.
            for n in range(1, 6):
                await eve.push(add("/eve", n))
            await eve.until(lambda eve: len(eve.answers) == 5)
            await ada.push(put("/ada", 2))
            await ada.until(lambda ada: len(ada.answers) == 2)
            assert [answer["type"] for _, answer in ada.answers] == ["ack", "ack"]
            await eve.until_state({"n": 0, "ada": 2, "eve": 5})
    async with (
        serve() as address,
        joined(address, PATH, "same", token="ada:60") as again,
        joined(address, PATH, "same", token="eve:60") as eve,
    ):
        # A fresh server knows each of them again, and what each has changed.
        assert again.frames[0]["connection"] == ada.frames[0]["connection"]
        assert (again.frames[0]["last_ref"], eve.frames[0]["last_ref"]) == (2, 5)
        assert await again.call("take_back") is not None
        await eve.until_state({"n": 0, "ada": 1, "eve": 5})


async def test_the_id_of_a_connection_belongs_to_its_thread_and_protocol_and_confirms_no_guess(address: str) -> None:
    async with (
        joined(address, PATH, "a") as a,
        joined(address, "/threads/page/two", "a") as elsewhere,
        joined(address, PATH, "_pk a") as guessed,
        connected(address, PATH, query={"_pk": "a"}) as other,
    ):
        ids = {client.frames[0]["connection"] for client in (a, elsewhere, guessed)}
        await other.push({"n": 1})
        await a.until_state({"n": 1})
        ids.add(a.of("change")[0]["source"])
        assert len(ids) == 4


# Coming back


@pytest.mark.local
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_client_that_comes_back_after_the_server_was_started_anew_is_sent_only_what_it_missed(
    tmp_path: Path, by: signal.Signals
) -> None:
    with Process("tests.integration.test_native:app", cwd=tmp_path) as server:
        client, other = (NativeClient(server.address, PATH, name) for name in ("a", "b"))
        await client.join()
        await client.push(add("/text", "x" * 5000))
        await client.until(lambda client: not client.pending)
        await client.close()
        await other.join()
        for n in range(1, 6):
            await other.push(put("/n", n))
        await other.until(lambda other: not other.pending)
        await asyncio.to_thread(server.end, by)
        await other.until_closed()
        server.start()
        frame = await client.join()
        assert frame["ops"] == [put("/n", n) for n in range(1, 6)]
        assert (frame["version"], frame["last_ref"], "state" in frame) == (6, 1, False)
        assert client.state == {"n": 5, "text": "x" * 5000}
        frame = await other.join()
        assert (frame["version"], frame["last_ref"], "state" in frame, "ops" in frame) == (6, 5, False, False)
        for each in (client, other):
            await each.close()


@pytest.mark.local
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_ends_sends_away_who_has_joined_and_who_has_not(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.test_native:app", cwd=tmp_path) as server:
        async with joined(server.address, PATH, "a") as client:
            waiting = NativeClient(server.address, PATH, "b")
            await waiting.open(joins=False)
            await client.push(put("/n", 1))
            code = await asyncio.to_thread(server.end, by)
            assert (code, await client.until_closed(), await waiting.until_closed()) == (0, 1001, 1001)
            assert [answer for _, answer in client.answers] == [{"type": "ack", "ref": 1, "version": 1}]
            await waiting.close()
    assert "Traceback" not in server.log.read_text()


async def test_a_server_of_another_kind_that_ends_closes_all_sockets_too() -> None:
    async with AsyncExitStack() as stack:
        async with serving("websockets-sansio") as address:
            client = await stack.enter_async_context(joined(address, PATH, "a"))
            waiting = NativeClient(address, PATH, "b")
            await waiting.open(joins=False)
        assert (await client.until_closed(), await waiting.until_closed()) == (1012, 1012)
        await waiting.close()


# Peers that do not read


@pytest.mark.parametrize("server", SERVERS)
async def test_a_stalled_reader_delays_nobody_and_is_told_all_in_one_frame_when_it_reads_again(server: str) -> None:
    async with (
        serving(server, limits=Limits(write_buffer=16_000_000, messages_per_second=10_000)) as address,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(joined(address, PATH, f"client {n}")) for n in range(6)]
        writer = clients[0]
        bare = stack.enter_context(bare_socket(address, receive_buffer=4096))
        loop = asyncio.get_running_loop()
        await _open_native(bare, "stalled")
        await loop.sock_sendall(bare, _frame(b'{"type":"join","client":"stalled"}'))
        # More than the buffers of the two sockets take; then what is to be told in one frame.
        for n in range(60):
            await writer.call("fill", "ab"[n % 2], 100_000)
        for n in range(300):
            await writer.push(put("/n", n))
        await asyncio.gather(*(each.until(lambda each: each.version == 360) for each in clients))
        frames = await _frames_until(bare, 360)
        versions = [frame.get("version", frame.get("to")) for frame in frames]
        assert versions == sorted(versions)
        assert [frame["type"] for frame in frames[-1:]] in (["changes"], ["snapshot"])
        assert len(frames) < 60


async def _open_native(bare: Any, client: str) -> None:
    loop = asyncio.get_running_loop()
    opening = (
        f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Protocol: plait.v1\r\n\r\n"
    )
    await loop.sock_sendall(bare, opening.encode())
    answer = b""
    async with asyncio.timeout(TIMEOUT):
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(bare, 1)
    assert answer.startswith(b"HTTP/1.1 101 "), (client, answer)


def _frame(data: bytes) -> bytes:
    """Return a text message as a client sends it, masked with zeros."""
    assert len(data) < 126
    return bytes([0x81, 0x80 | len(data)]) + bytes(4) + data


async def _frames_until(bare: Any, version: int) -> list[Any]:
    """Read frames by hand until one tells of a version."""
    loop = asyncio.get_running_loop()
    buffer, frames = b"", list[Any]()
    async with asyncio.timeout(TIMEOUT):
        while not frames or frames[-1].get("version", frames[-1].get("to")) != version:
            received = await loop.sock_recv(bare, 1 << 20)
            assert received
            buffer += received
            while (message := _split(buffer)) is not None:
                data, buffer = message
                if data[:1] == b"{":
                    frames.append(json.loads(data))
    return frames


def _split(buffer: bytes) -> tuple[bytes, bytes] | None:
    """Return the first message that a server sent, and the bytes after it; None while it is incomplete."""
    if len(buffer) < 10:
        return None
    size, start = buffer[1], 2
    if size == 126:
        size, start = int.from_bytes(buffer[2:4]), 4
    elif size == 127:
        size, start = int.from_bytes(buffer[2:10]), 10
    if len(buffer) < start + size:
        return None
    return buffer[start : start + size], buffer[start + size :]
