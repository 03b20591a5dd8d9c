"""What a request may have around its body, and how long its peer may take, by bare sockets."""

import asyncio
import gc
import json
import re
import signal
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, http, open_socket
from tests.running import Process, running
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from plait import Limits, MemoryStore, Plait, Thread
from plait.web.http.http_protocol import HttpProtocol

KIB = 1024
HOST = b"Host: localhost\r\n"
POST = b"POST /threads/room/one/own HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = (
    b"GET /threads/room/one HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + HOST
)
# More than any system keeps for a socket that is not read.
ENDLESS = 100 * KIB * KIB
LONG = 20 * KIB * KIB
BOOK = b"GET /threads/library/one/%b HTTP/1.1\r\n%b" + HOST + b"\r\n"


class Room(Thread[Any]):
    """Says how long a body was, and which headers came with it."""

    initial_state = {"n": 0}  # noqa: RUF012

    async def on_request(self, request: Request) -> Response:
        body = await request.body()
        return PlainTextResponse(f"{len(body)} {' '.join(sorted(request.headers))}")


class Library(Thread[Any]):
    """Has much to read, in one piece or in many."""

    async def on_request(self, request: Request) -> Response:
        if request.url.path.endswith("whole"):
            return PlainTextResponse(b"x" * LONG)
        return StreamingResponse(_pages())


def serve(**settings: Any) -> Plait:
    return Plait(Room, **{"store": MemoryStore(), **settings})


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with running(serve()) as address:
        yield address


# Sizes


@pytest.mark.parametrize(
    ("start", "more", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nX: ", b"x" * KIB, 431, id="one header"),
        pytest.param(b"GET / HTTP/1.1\r\nX", b"x" * KIB, 431, id="the name of a header"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"X: \r\n" * 200, 431, id="many headers"),
        pytest.param(b"GET /", b"x" * KIB, 414, id="the URL"),
        pytest.param(UPGRADE + b"X: ", b"x" * KIB, 431, id="a header of a WebSocket"),
        pytest.param(UPGRADE.split(b" ")[0] + b" /threads/room/", b"x" * KIB, 414, id="the URL of a WebSocket"),
        pytest.param(CHUNKED + b"0\r\nX: ", b"x" * KIB, 431, id="one trailer"),
        pytest.param(CHUNKED + b"0\r\n", b"X: \r\n" * 200, 431, id="many trailers"),
        pytest.param(CHUNKED + b"1;", b"x" * KIB, 431, id="an extension of a chunk"),
        pytest.param(b"", b"\r\n" * KIB, 431, id="empty lines before a request"),
    ],
)
async def test_what_surrounds_a_body_is_refused_past_64_kib(
    address: str, start: bytes, more: bytes, status: int
) -> None:
    pieces = chain([start], repeat(more, ENDLESS // len(more)))
    with bare_socket(address) as bare:
        sent, answer = await _send_until_answered(bare, pieces)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["error"]["code"] == "too_large"
    assert 64 * KIB <= sent < ENDLESS / 4


async def test_what_is_kept_of_endless_headers_is_bounded_before_they_have_ended(address: str) -> None:
    with bare_socket(address) as bare:
        loop = asyncio.get_running_loop()
        head = b"GET /healthz HTTP/1.1\r\n" + HOST
        padding = 64 * KIB - len(head) - len(b"X: \r\n\r\n")
        await loop.sock_sendall(bare, head + b"X: " + b"x" * padding + b"\r\n\r\n")
        assert (await _read_answer(bare)).startswith(b"HTTP/1.1 200 ")
        await loop.sock_sendall(bare, head + b"X: " + b"x" * (padding + 1) + b"\r\n\r\n")
        assert (await _read_to_end(bare)).startswith(b"HTTP/1.1 431 ")


async def test_the_headers_of_a_request_that_follows_another_are_bounded_too(address: str) -> None:
    first = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    with bare_socket(address) as bare:
        _, answer = await _send_until_answered(bare, chain([first + b"GET / HTTP/1.1\r\nX: "], repeat(b"x" * KIB, 300)))
    assert b"HTTP/1.1 431 " in answer


async def test_of_many_requests_that_follow_another_few_are_kept_and_all_are_answered_in_order() -> None:
    asked, ready = asyncio.Event(), asyncio.Event()

    class Echo(Thread[Any]):
        async def on_request(self, request: Request) -> Response:
            asked.set()
            await ready.wait()
            return PlainTextResponse(f"<{request.url.query}{(await request.body())[-3:].decode()}>")

    def request(n: int) -> bytes:
        body = b"x" * (n % 7 * 500) + b"%03d" % n
        start = b"POST /threads/echo/one/own?%d- HTTP/1.1\r\n" % n + HOST
        if n % 2:
            return start + b"Content-Length: %d\r\n\r\n" % len(body) + body
        return start + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    app = Plait(Echo, store=MemoryStore(), limits=None)
    async with running(app) as address:
        with bare_socket(address) as bare:
            count = 900
            before = count_cycles()
            data = b"".join(map(request, range(count)))
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(bare, data))
            async with asyncio.timeout(TIMEOUT):
                await asked.wait()
            await asyncio.sleep(0.2)
            assert count_cycles() - before <= 20
            ready.set()
            received = b""
            async with asyncio.timeout(TIMEOUT):
                while received.count(b">") < count:
                    data = await asyncio.get_running_loop().sock_recv(bare, 64 * KIB)
                    assert data, "the server has closed the connection"
                    received += data
            await sending
    assert re.findall(rb"<(.*?)>", received) == [b"%d-%03d" % (n, n) for n in range(count)]


def count_cycles() -> int:
    """Return how many requests uvicorn keeps."""
    # By `type`, as `isinstance` raises ReferenceError for a proxy of what is gone, such as websockets leaves behind.
    return sum(type(each) is RequestResponseCycle for each in gc.get_objects())


ROOM = b"GET /threads/room/one HTTP/1.1\r\n"
ABSOLUTE = b"GET http://%b/healthz HTTP/1.1\r\nHost: %b\r\n\r\n"


@each_case(
    ("sent", "status"),
    [
        (ROOM + HOST + HOST + b"\r\n", 400),
        (ROOM + HOST + b"Host: other.example\r\n\r\n", 400),
        (UPGRADE + HOST + b"\r\n", 400),
        (ABSOLUTE % (b"other.example", b"localhost"), 400),
        (ABSOLUTE % (b"localhost:81", b"localhost"), 400),
        (ABSOLUTE % (b"user@localhost", b"localhost"), 400),
        (ABSOLUTE % (b"localhost.", b"localhost"), 400),
        (b"GET http://localhost?a HTTP/1.1\r\nHost: other.example\r\n\r\n", 400),
        (ABSOLUTE % (b"LOCALHOST:80", b"localhost"), 200),
        (ABSOLUTE % (b"localhost", b"localhost:80"), 200),
        (b"GET /healthz?to=http://other.example HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    ],
)
async def test_a_request_that_names_two_hosts_is_refused(address: str, sent: bytes, status: int) -> None:
    with bare_socket(address) as bare:
        await asyncio.get_running_loop().sock_sendall(bare, sent)
        answer = await _read_answer(bare)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_bad_requests_are_logged_once_a_second(address: str, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: other\r\n" + HOST + b"\r\n"
    for sent in (b"no request\r\n\r\n", upgrade) * 50:
        with bare_socket(address) as bare:
            await asyncio.get_running_loop().sock_sendall(bare, sent)
            await _read_answer(bare)
    lines = [each for each in caplog.records if each.name == "uvicorn.error" and each.levelname == "WARNING"]
    assert 1 <= len(lines) < 20


async def test_a_large_body_in_small_chunks_is_taken_and_its_trailers_are_no_headers(address: str) -> None:
    with bare_socket(address) as bare:
        chunks = b"1;e=1\r\nx\r\n" * 50_000
        await asyncio.get_running_loop().sock_sendall(bare, CHUNKED + chunks + b"0\r\nX-Late: 1\r\n\r\n")
        assert (await _read_answer(bare)).endswith(b"\r\n\r\n50000 host transfer-encoding")


# Refused while the peer is sending


@pytest.mark.parametrize(
    ("start", "status"),
    [
        pytest.param(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % LONG, 413, id="a large body"),
        pytest.param(b"PUT /threads/none/one HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n", 400, id="no request"),
        pytest.param(b"GET / HTTP/1.1\r\nX: ", 431, id="large headers"),
    ],
)
async def test_a_peer_that_sends_all_before_it_reads_gets_its_refusal_and_no_reset(
    address: str, start: bytes, status: int
) -> None:
    assert (await _send_all_and_read(address, start)).startswith(b"HTTP/1.1 %d " % status)


async def test_a_connection_above_the_limit_that_sends_all_before_it_reads_gets_its_429() -> None:
    async with running(serve(limits=Limits(connections_per_address=1))) as address:
        with bare_socket(address):
            answer = await _send_all_and_read(address, POST + b"Content-Length: %d\r\n\r\n" % LONG)
    assert answer.startswith(b"HTTP/1.1 429 ")


async def test_a_refused_peer_that_never_stops_sending_is_reset(address: str) -> None:
    loop = asyncio.get_running_loop()
    sent = 0
    with bare_socket(address) as bare:
        await loop.sock_sendall(bare, b"GET / HTTP/1.1\r\nX: ")
        try:
            while sent < 10 * ENDLESS:
                await loop.sock_sendall(bare, b"x" * (KIB * KIB))
                sent += KIB * KIB
        except ConnectionError:
            pass
    assert LONG < sent < ENDLESS


async def test_a_refused_peer_that_is_slow_to_read_a_long_answer_gets_all_of_it() -> None:
    async with running(Plait(Library, store=MemoryStore())) as address:
        with bare_socket(address) as bare:
            headers = b"Connection: close\r\nContent-Length: 9\r\n"
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, BOOK % (b"whole", headers) + b"half")
            await asyncio.sleep(1.5)  # Longer than the server waits for more of a body that it does not need.
            assert len(await _read_to_end(bare)) > LONG


# Time


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param(b"", b"", id="no byte"),
        pytest.param(b"GET / HTTP/1.1\r\nHost", b"HTTP/1.1 408 ", id="half the headers"),
        pytest.param(UPGRADE, b"HTTP/1.1 408 ", id="half a handshake"),
        pytest.param(POST + b"Content-Length: 9\r\n\r\nhalf", b"HTTP/1.1 408 ", id="half a body"),
        pytest.param(CHUNKED + b"5\r\nab", b"HTTP/1.1 408 ", id="half a chunk"),
        pytest.param(CHUNKED + b"0\r\nX: 1\r\n", b"HTTP/1.1 408 ", id="half the trailers"),
    ],
)
async def test_a_peer_that_stops_in_a_request_is_given_up(sent: bytes, answer: bytes) -> None:
    async with running(serve(), request_timeout=0.3) as address:
        with bare_socket(address) as bare:
            await asyncio.get_running_loop().sock_sendall(bare, sent)
            received = await _read_to_end(bare)
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


async def test_a_request_that_was_answered_before_its_end_is_not_answered_twice() -> None:
    async with running(serve(), request_timeout=0.3) as address:
        with bare_socket(address) as bare:
            put = b"PUT /threads/none/one HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(bare, put)
            received = await _read_to_end(bare)
    assert received.startswith(b"HTTP/1.1 404 ")
    assert received.count(b"HTTP/1.1") == 1


async def test_a_body_that_comes_a_byte_at_a_time_is_given_up() -> None:
    async with running(serve(), request_timeout=0.3) as address:
        with bare_socket(address) as bare:
            await asyncio.get_running_loop().sock_sendall(bare, POST + b"Content-Length: 1000000\r\n\r\n")
            _, answer = await _send_until_answered(bare, repeat(b"x", 1_000_000), pause=0.02)
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_comes_slowly_but_steadily_is_taken() -> None:
    async with running(serve(), request_timeout=2.0) as address:
        with bare_socket(address) as bare:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, POST + b"Content-Length: 163840\r\n\r\n")
            began = loop.time()
            for _ in range(40):
                await loop.sock_sendall(bare, b"x" * 4096)
                await asyncio.sleep(0.06)
            assert loop.time() - began > 2.0
            assert b"\r\n\r\n163840 " in await _read_answer(bare)


async def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for() -> None:
    asked, ready = asyncio.Event(), asyncio.Event()

    class Late(Thread[Any]):
        async def on_request(self, request: Request) -> Response:
            asked.set()
            await ready.wait()
            return PlainTextResponse(str(len(await request.body())))

    async with running(Plait(Late, store=MemoryStore()), request_timeout=0.3) as address:
        with bare_socket(address) as bare, bare_socket(address) as silent:
            loop = asyncio.get_running_loop()
            start = POST.replace(b"room", b"late")
            # The body is sent when the server asks for it.
            await loop.sock_sendall(bare, start + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            async with asyncio.timeout(TIMEOUT):
                await asked.wait()
            assert await _read_to_end(silent) == b""
            ready.set()
            assert await _read_answer(bare) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await loop.sock_sendall(bare, b"body")
            assert (await _read_answer(bare)).endswith(b"\r\n\r\n4")


@each_case("header", [b"", b"Connection: close\r\n"])
async def test_an_answer_that_is_read_slowly_but_steadily_is_sent_to_its_end(header: bytes) -> None:
    async with running(Plait(Library, store=MemoryStore()), request_timeout=0.2) as address:
        with bare_socket(address) as bare:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, BOOK % (b"whole", header))
            began, received = loop.time(), 0
            while received < LONG and (data := await asyncio.wait_for(loop.sock_recv(bare, 256 * KIB), TIMEOUT)):
                received += len(data)
                await asyncio.sleep(0.02)
            assert loop.time() - began > 1.0
    assert received > LONG


@each_case("header", [b"", b"Connection: close\r\n"])
@each_case("book", [b"whole", b"pages"])
async def test_a_peer_that_does_not_read_its_answer_counts_and_is_given_up(book: bytes, header: bytes) -> None:
    app = Plait(Library, store=MemoryStore(), limits=Limits(connections_per_address=1))
    async with running(app, request_timeout=0.2) as address:
        with bare_socket(address) as bare:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, BOOK % (book, header))
            await asyncio.sleep(0.3)
            with bare_socket(address) as refused:
                assert (await _read_to_end(refused)).startswith(b"HTTP/1.1 429 ")
            async with asyncio.timeout(TIMEOUT):
                while not await _is_served(address):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            received = 0
            try:
                while data := await asyncio.wait_for(loop.sock_recv(bare, 1024 * KIB), TIMEOUT):
                    received += len(data)
            except ConnectionResetError:
                pass
        assert received < LONG
        async with http(address) as web:
            assert (await web.get("/healthz")).status_code == 200


async def _is_served(address: str) -> bool:
    """Return whether the address may have one connection more."""
    request = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    with bare_socket(address) as bare:
        await asyncio.get_running_loop().sock_sendall(bare, request)
        return (await _read_to_end(bare)).startswith(b"HTTP/1.1 200 ")


async def test_a_handshake_whose_authentication_is_cancelled_is_ended() -> None:
    def authenticate(request: Request) -> None:
        raise asyncio.CancelledError

    async with running(serve(authenticate=authenticate)) as address:
        with bare_socket(address) as bare:
            await asyncio.get_running_loop().sock_sendall(bare, UPGRADE + b"\r\n")
            answer = await _read_to_end(bare)
            assert answer.startswith(b"HTTP/1.1 101 ")
            assert b"\x03\xf3internal error" in answer  # The close code 1011.


async def test_blanks_after_the_headers_of_a_websocket_are_none_of_them(address: str) -> None:
    with bare_socket(address) as bare:
        await asyncio.get_running_loop().sock_sendall(bare, UPGRADE.replace(b"==", b"== \t") + b"\r\n")
        assert (await _read_answer(bare)).startswith(b"HTTP/1.1 101 ")


# Numbers


async def test_connections_without_a_request_count_for_their_address() -> None:
    async with running(serve(limits=Limits(connections_per_address=3))) as address:
        with ExitStack() as stack:
            waiting = [stack.enter_context(bare_socket(address)) for _ in range(2)]
            async with connected(address, "/threads/room/one") as client:
                async with connected(address, "/threads/room/two") as other:
                    assert await other.until_closed() == 1013
                await client.close()
            waiting.append(stack.enter_context(bare_socket(address)))
            refused = stack.enter_context(bare_socket(address))
            assert (await _read_to_end(refused)).startswith(b"HTTP/1.1 429 ")
            await open_socket(waiting[0], "/threads/room/one")
            waiting[1].close()
            for _ in range(100):  # The end of one that is gone may be noticed a little later.
                async with connected(address, "/threads/room/two") as other:
                    if await _is_let_in(other):
                        return
    raise AssertionError("nobody is let in")


async def begin(address: str) -> None:
    """Begin the thread that is read."""
    async with http(address) as web:
        assert (await web.put("/threads/room/one", json={"n": 1})).status_code == 200


async def test_a_connection_that_is_answered_does_not_count() -> None:
    app = serve(limits=Limits(connections_per_address=2))
    async with (
        running(app) as address,
        http(address, headers={"Accept": "text/event-stream"}) as web,
        connected(address, "/threads/room/one") as client,
        web.stream("GET", "/threads/room/one/changes") as stream,
    ):
        assert stream.status_code == 200
        assert await _is_let_in(client)
        assert (await web.get("/threads/room/one")).status_code == 200


@each_case("later", [b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", UPGRADE + b"\r\n"])
async def test_an_event_stream_with_another_request_after_it_ends_with_its_peer(later: bytes) -> None:
    app = serve(limits=Limits(connections_per_address=1))
    async with running(app) as address:
        await begin(address)
        with bare_socket(address) as bare:
            stream = b"GET /threads/room/one/changes HTTP/1.1\r\nAccept: text/event-stream\r\n" + HOST + b"\r\n"
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, stream)
            assert (await _read_answer(bare)).startswith(b"HTTP/1.1 200 ")
            async with connected(address, "/threads/room/one") as other:
                assert await other.until_closed() == 1013
            await loop.sock_sendall(bare, later)
            await asyncio.sleep(0.1)
        for n in range(100):
            # A change is written to the stream, whose end is noticed by that.
            async with http(address, headers={"Connection": "close"}) as web:
                assert (await web.put("/threads/room/one", json={"n": n})).status_code == 200
            async with connected(address, "/threads/room/two") as other:
                if await _is_let_in(other):
                    return
    raise AssertionError("nobody is let in")


async def test_a_connection_that_its_idle_peer_resets_is_not_kept(address: str) -> None:
    with bare_socket(address) as bare:
        await asyncio.get_running_loop().sock_sendall(bare, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await _read_answer(bare)).startswith(b"HTTP/1.1 200 ")
        kept = weakref.WeakSet(each for each in gc.get_objects() if type(each) is HttpProtocol)
        assert kept
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Less than the time for which uvicorn, by itself, keeps a connection that is idle.
    async with asyncio.timeout(3):
        while kept:
            await asyncio.sleep(0.01)
            gc.collect()


async def test_a_connection_is_kept_after_an_answer_for_longer_than_before_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, request = asyncio.get_running_loop(), b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    async with running(serve(), request_timeout=0.3) as address:
        with bare_socket(address) as kept:
            for _ in range(2):
                await loop.sock_sendall(kept, request)
                assert (await _read_answer(kept)).startswith(b"HTTP/1.1 200 ")
                with bare_socket(address) as silent:  # Its time ends after that of the other connection.
                    assert await _read_to_end(silent) == b""
            monkeypatch.setattr("plait.web.http.http_protocol.KEPT", 0.5)
            await loop.sock_sendall(kept, request)
            assert (await _read_to_end(kept)).startswith(b"HTTP/1.1 200 ")


# Inside


async def _pages() -> AsyncIterator[bytes]:
    for _ in range(LONG // (64 * KIB)):
        yield b"x" * (64 * KIB)


async def _is_let_in(client: Any) -> bool:
    try:
        await client.until(lambda client: client.received)
    except Exception:
        return False
    return True


async def _send_until_answered(
    bare: socket.socket, pieces: Iterable[bytes], *, pause: float = 0.0
) -> tuple[int, bytes]:
    """Send until the server answers and closes; return how many bytes it took, and the answer."""
    loop = asyncio.get_running_loop()
    answer = loop.create_task(_read_to_end(bare))
    sent = 0
    waiting: Iterator[bytes] = iter(pieces)
    rest = b""
    while not answer.done():
        rest = rest or next(waiting, b"")
        try:
            count = bare.send(rest) if rest else 0
        except BlockingIOError:
            count = 0
        except ConnectionError:
            break
        sent, rest = sent + count, rest[count:]
        await asyncio.sleep(pause if count else 0.01)
    return sent, await answer


async def _read_to_end(bare: socket.socket) -> bytes:
    """Return what comes until the connection is closed."""
    loop = asyncio.get_running_loop()
    received = b""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                data = await loop.sock_recv(bare, 65536)
            except ConnectionError:
                return received
            if not data:
                return received
            received += data


async def _send_all_and_read(address: str, start: bytes) -> bytes:
    """Send a long request whole, and return what comes until the connection is closed; a reset raises."""
    loop = asyncio.get_running_loop()
    received = b""
    with bare_socket(address) as bare:
        async with asyncio.timeout(TIMEOUT):
            await loop.sock_sendall(bare, start + b"x" * LONG)
            while data := await loop.sock_recv(bare, 65536):
                received += data
    return received


async def _read_answer(bare: socket.socket) -> bytes:
    """Return an answer, or the head of one that has no length."""
    loop = asyncio.get_running_loop()
    received = b""
    async with asyncio.timeout(TIMEOUT):
        while True:
            head, end, body = received.partition(b"\r\n\r\n")
            lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            if end and len(body) >= (int(lengths[0].partition(b":")[2]) if lengths else 0):
                return received
            data = await loop.sock_recv(bare, 65536)
            assert data, received
            received += data


async def test_requests_that_arrive_while_a_server_is_suspended_are_answered(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with http(server.address) as web:

            async def ask() -> list[int]:
                answers = await asyncio.gather(*(web.get("/healthz") for _ in range(20)))
                return [each.status_code for each in answers]

            assert await ask() == [200] * 20
            server.signal(signal.SIGSTOP)
            asked = asyncio.create_task(ask())
            # Longer than the time for which uvicorn, by itself, keeps a connection that is idle.
            await asyncio.sleep(6)
            server.signal(signal.SIGCONT)
            assert await asked == [200] * 20
