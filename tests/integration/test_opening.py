"""Sockets that are opening: what they count for, and that nothing is left of them if their peers disconnect."""

import asyncio
import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Message
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, websocket
from tests.running import running
from websockets.asyncio.client import ClientConnection

from plait import Connection, Limits, MemoryStore, Plait, Principal, Thread

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
OPENING = f"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n{KEY}\r\n"


class Room(Thread[Any]):
    """Answers each message with itself."""

    initial_state = {"n": 0}  # noqa: RUF012

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        connection.send(data)


class Guard:
    """An `authenticate` that never returns, except for requests with `known`."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.given_up = asyncio.Semaphore(0)

    async def __call__(self, request: Request) -> Principal:
        if "known" in request.query_params:
            return Principal("ada")
        self.asked.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.release()
            raise
        raise AssertionError("for ever is over")


def serve(**settings: Any) -> Plait:
    """Return an app that has room for one socket of an address."""
    return Plait(Room, **{"store": MemoryStore(), "limits": Limits(connections_per_address=1), **settings})


@pytest.mark.parametrize("server", ["plait", "websockets-sansio"])
@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_native_socket_that_goes_while_it_is_checked_is_checked_no_longer(server: str, end: str) -> None:
    guard = Guard()
    async with _running(serve(authenticate=guard), server) as address:
        for _ in range(3):
            client = await _native(address)
            await client.send(json.dumps({"type": "join", "client": "a"}))
            await _soon(guard.asked)
            if end == "close":
                await client.close()
            else:
                client.transport.abort()
            await _soon(guard.given_up)
        await _is_let_in(address)


@pytest.mark.parametrize("server", ["plait", "websockets-sansio"])
async def test_a_cloudflare_socket_counts_while_it_is_checked_and_not_when_its_peer_has_gone(server: str) -> None:
    guard = Guard()
    async with _running(serve(authenticate=guard), server) as address:
        for _ in range(3):
            with bare_socket(address) as bare:
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(bare, f"GET /threads/room/one HTTP/1.1\r\n{OPENING}\r\n".encode())
                await _soon(guard.asked)
                async with connected(address, "/threads/room/one", query={"known": ""}) as client:
                    assert await client.until_closed() == 1013
            await _soon(guard.given_up)
        await _is_let_in(address)


async def test_what_a_peer_sends_before_it_is_answered_is_read_when_it_is_in() -> None:
    asked, checked = asyncio.Event(), asyncio.Event()

    async def authenticate(request: Request) -> Principal:
        asked.set()
        await checked.wait()
        return Principal("ada")

    async with running(serve(authenticate=authenticate)) as address:
        with bare_socket(address) as bare:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(bare, f"GET /threads/room/one HTTP/1.1\r\n{OPENING}\r\n".encode())
            received = b""
            async with asyncio.timeout(TIMEOUT):
                await asked.wait()
                await loop.sock_sendall(bare, b"\x81\x85\x00\x00\x00\x00early")
                checked.set()
                while b"\x81\x05early" not in received:
                    received += await loop.sock_recv(bare, 65536)


async def test_a_socket_that_is_checked_when_the_server_has_no_time_left_is_closed_without_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = Guard()
    async with running(serve(authenticate=guard)) as address:
        client = await _native(address)
        await client.send(json.dumps({"type": "join", "client": "a"}))
        await _soon(guard.asked)
        (opening,) = (each for each in asyncio.all_tasks() if each.get_name() == "plait handshake")
        opening.cancel()  # As uvicorn does.
        await client.wait_closed()
        assert (client.close_code, client.close_reason) == (1001, "the server is shutting down")
        await _is_let_in(address)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


# What authenticate answers by itself


@pytest.mark.parametrize("protocol", ["native", "cloudflare"])
@pytest.mark.parametrize(
    ("status", "code"), [(401, 4401), (403, 4403), (402, 4403), (404, 4404), (429, 1013), (500, 1013), (503, 1013)]
)
async def test_an_http_exception_of_authenticate_is_told_by_its_close_code(
    protocol: str, status: int, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def authenticate(request: Request) -> Principal:
        raise HTTPException(status, "not you")

    async with running(serve(authenticate=authenticate)) as address:
        if protocol == "native":
            client = await _native(address)
            await client.send(json.dumps({"type": "join", "client": "a"}))
        else:
            client = await websocket(f"ws://{address}/threads/room/one")
        await asyncio.wait_for(client.wait_closed(), TIMEOUT)
        assert (client.close_code, client.close_reason) == (code, "not you")
    assert not [record for record in caplog.records if record.exc_info]


@each_case("server", ["plait", "websockets-sansio"])
@each_case("protocol", ["native", "cloudflare"])
@each_case(
    ("response", "code", "reason"),
    [
        (Response("who?", 401, headers={"WWW-Authenticate": "Bearer"}), 4401, "401 Unauthorized"),
        (Response("no", 403), 4403, "403 Forbidden"),
        (Response("nothing", 404), 4404, "404 Not Found"),
        (RedirectResponse("/login", 303), 4401, "303 See Other"),
        (Response("later", 503), 4403, "503 Service Unavailable"),
        (Response("no", 999), 4403, "999"),
        (StreamingResponse(iter(["first ", "second"]), 402), 4403, "402 Payment Required"),
    ],
)
async def test_a_response_of_authenticate_closes_a_socket_for_good(
    server: str, protocol: str, response: Response, code: int, reason: str
) -> None:
    app = serve(authenticate=lambda request: response)
    async with _running(app, server) as address:
        for _ in range(2):  # Neither is counted after its end: there is room for one.
            if protocol == "native":
                client = await _native(address)
                await client.send(json.dumps({"type": "join", "client": "a"}))
            else:
                client = await websocket(f"ws://{address}/threads/room/one")
            await asyncio.wait_for(client.wait_closed(), TIMEOUT)
            assert (client.close_code, client.close_reason) == (code, reason)


# By ASGI's messages


@pytest.mark.parametrize("subprotocols", [["plait.v1"], []])
@pytest.mark.parametrize("error", [None, OSError("the client is gone"), RuntimeError("the server is broken")])
async def test_a_socket_that_cannot_be_accepted_counts_for_nobody(
    subprotocols: list[str], error: Exception | None
) -> None:
    sent: list[Message] = []
    incoming: asyncio.Queue[Message] = asyncio.Queue()

    async def send(message: Message) -> None:
        sent.append(message)
        if error is not None:
            raise error

    path = "/threads/room/one"
    scope = {
        "type": "websocket",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": b"",
        "subprotocols": subprotocols,
        "client": ("1.2.3.4", 5),
    }
    async with serve() as app:
        for _ in range(3):
            sent.clear()
            incoming.put_nowait({"type": "websocket.connect"})
            incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
            try:
                await asyncio.wait_for(app(scope, incoming.get, send), TIMEOUT)
            except RuntimeError:
                assert isinstance(error, RuntimeError)
            assert not any(message["type"] == "websocket.close" and message["code"] == 1013 for message in sent)
            while not incoming.empty():
                incoming.get_nowait()
        sent.clear()
        incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await app(scope, incoming.get, send)
        assert sent == []


# Inside


def _running(app: Plait, server: str) -> Any:
    return running(app) if server == "plait" else running(app, ws=server)


async def _native(address: str) -> ClientConnection:
    return await websocket(f"ws://{address}/threads/room/one", subprotocols=["plait.v1"])


async def _soon(semaphore: asyncio.Semaphore) -> None:
    await asyncio.wait_for(semaphore.acquire(), TIMEOUT)


async def _is_let_in(address: str) -> None:
    """Connect, as soon as the server knows that the others have left."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            async with connected(address, "/threads/room/one", query={"known": ""}) as client:
                await client.until(lambda client: client.received or client.socket.close_code)
                if client.received:
                    return
