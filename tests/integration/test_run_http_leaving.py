"""Agents over HTTP: streams, interrupts, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from tests.integration.agents_app import Chat, make_app, values_of
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, http
from tests.integration.test_http import error_of
from tests.running import running
from tests.told import check_internal

pytestmark = pytest.mark.relayed

ROOM = "/threads/room/one"
EVENTS = {"accept": "text/event-stream"}


async def read_values(chat: Chat, name: str = "one") -> dict[str, Any]:
    """Return what is stored of a thread's values, after the runs before."""
    await chat.app.run("describe", thread=name)
    actor = await chat.app._node.actor(chat.app.thread(chat.room, name)._key)
    return dict(await values_of(actor.thread).items())


def read_events(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream, each with its data."""
    found = []
    for block in text.split("\n\n")[:-1]:
        *head, data = block.split("\n")
        found.append((head[0].removeprefix("event: ") if head else "message", json.loads(data.removeprefix("data: "))))
    return found


def read_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def post(path: str, body: bytes) -> bytes:
    """Return a request as it is sent."""
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


# Streams


@pytest.mark.parametrize("prefix", ["/run", f"{ROOM}/run"])
async def test_an_agent_that_streams_answers_with_events_or_text_or_lines(prefix: str) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post(f"{prefix}/number", json=2, headers=EVENTS)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert read_events(answer.text) == [("message", 0), ("message", 1), ("end", None)]
        answer = await web.post(f"{prefix}/tell", json=2, headers=EVENTS)
        assert read_events(answer.text) == [("message", "é0 "), ("message", "é1 "), ("end", None)]
        answer = await web.post(f"{prefix}/number", json=2)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert read_lines(answer.text) == [{"chunk": 0}, {"chunk": 1}, {"end": None}]
        answer = await web.post(f"{prefix}/tell", json=2)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == "é0 é1 "
        assert answer.headers["cache-control"] == "no-store"


async def test_a_stream_that_fails_says_so_and_has_stored_what_it_wrote(caplog: pytest.LogCaptureFixture) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post(f"{ROOM}/run/number", json=7, headers=EVENTS)
        chunk, (event, error) = read_events(answer.text)[-2:]
        assert (chunk, event, error["code"]) == (("message", 6), "error", "call_failed")
        check_internal(error["message"], caplog, "too many")
        assert (await read_values(chat))["number"] == 6
        answer = await web.post(f"{ROOM}/run/number", json=6)
        line, last = read_lines(answer.text)[-2:]
        assert (line, last["error"]["code"]) == ({"chunk": 5}, "call_failed")
        check_internal(last["error"]["message"], caplog, "too many")
        # Plain text cannot say it, so it must not look complete.
        async with web.stream("POST", f"{ROOM}/run/tell", json=6) as stream:
            parts = stream.aiter_text()
            text = ""
            while not text.endswith("é5 "):
                text += await anext(parts)
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(parts)
        assert text == "é0 é1 é2 é3 é4 é5 "


@pytest.mark.parametrize("headers", [EVENTS, {}])
async def test_a_stream_that_fails_before_its_first_chunk_has_the_status_of_the_error(headers: dict[str, str]) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address, headers=headers) as web:
        assert error_of(await web.post("/run/tell", json=0)) == (500, "call_failed")
        assert error_of(await web.post("/run/tell", json="x")) == (422, "invalid_arguments")
        async with web.stream("POST", f"{ROOM}/run/drip"):
            assert await chat.gate.wait() == "drip"
            answer = await web.post(f"{ROOM}/run/drip")
            assert error_of(answer) == (429, "rate_limited")
            assert int(answer.headers["retry-after"]) >= 1
        chat.gate.is_open.set()


async def test_a_stream_waits_for_a_client_that_does_not_read() -> None:
    chat = make_app()
    async with running(chat.app) as address:
        with bare_socket(address, receive_buffer=4096) as slow:
            await asyncio.get_running_loop().sock_sendall(slow, post(f"{ROOM}/run/pour", b""))
            async with http(address) as web:
                # What the agent has yielded stops to grow while others are served.
                before = -1
                async with asyncio.timeout(TIMEOUT):
                    while before != len(chat.gate.ran) or not before:
                        before = len(chat.gate.ran)
                        for _ in range(20):
                            assert (await web.post("/run/count")).status_code == 200
            assert len(chat.gate.ran) < 3000
            received = 0
            async with asyncio.timeout(TIMEOUT):
                while received < 30_000_000:
                    received += len(await asyncio.get_running_loop().sock_recv(slow, 1 << 20))
        assert len(chat.gate.ran) == 3000


@pytest.mark.local
async def test_a_run_ends_with_its_last_chunk_and_does_not_wait_for_a_client_that_does_not_read() -> None:
    chat = make_app()

    @chat.app.agent("at-once", thread=chat.room)
    async def at_once(ctx: Any) -> AsyncIterator[str]:
        chat.gate.ran.append("begun")
        yield "x" * 20_000_000  # More than the socket takes.
        yield "x" * 1_000_000

    async with running(chat.app) as address:
        with bare_socket(address, receive_buffer=4096) as slow:
            await asyncio.get_running_loop().sock_sendall(slow, post(f"{ROOM}/run/at-once", b""))
            async with asyncio.timeout(TIMEOUT):
                while not chat.gate.ran:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                async with http(address) as web:
                    assert (await web.post(f"{ROOM}/run/count")).json() == 1
                received = 0
                while received < 21_000_000:
                    received += len(await asyncio.get_running_loop().sock_recv(slow, 1 << 20))


# Interrupts


@pytest.mark.parametrize("by", ["name", "signature", "server"])
async def test_an_interrupt_stops_the_run_of_exactly_that_thread(by: str) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web, http(address) as other:
        prefix, url = (f"{ROOM}/run", f"{ROOM}/interrupt") if by == "name" else ("/run", "/run/wait/interrupt")
        first = await web.post(f"{prefix}/describe")
        name = first.json()["thread"]
        waiting = [asyncio.create_task(each.post(f"{prefix}/wait", json="a")) for each in (web,)]
        elsewhere = asyncio.create_task(other.post("/threads/room/two/run/wait", json="b"))
        assert {await chat.gate.wait(), await chat.gate.wait()} == {"a", "b"}
        if by == "server":
            assert await chat.app.interrupt(chat.app.thread(chat.room, name), {"why": "stop"})
        else:
            assert (await web.post(url, json={"message": {"why": "stop"}})).json() == {"interrupted": True}
        chat.gate.is_open.set()
        answer = await waiting[0]
        assert answer.json() == {"message": {"why": "stop"}, "output": None, "interrupted": True}
        assert answer.status_code == 200
        assert (await elsewhere).json() == "b"
        assert (await web.post(f"{prefix}/wait", json="c")).json() == "c"
        assert chat.gate.ran == ["b", "c"]


@pytest.mark.parametrize("headers", [EVENTS, {}])
async def test_a_stream_that_is_interrupted_ends_with_that(headers: dict[str, str]) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address, headers=headers) as web:
        async with web.stream("POST", f"{ROOM}/run/drip") as stream:
            assert await chat.gate.wait() == "drip"
            assert (await web.post(f"{ROOM}/interrupt", json={"message": "stop"})).json() == {"interrupted": True}
            chat.gate.is_open.set()
            text = (await stream.aread()).decode()
        told = {"message": "stop", "output": None, "interrupted": True}
        if headers:
            assert read_events(text)[-1] == ("interrupted", told)
            assert [each for each, _ in read_events(text)].count("end") == 0
        else:
            assert read_lines(text)[-1] == {"interrupted": told}
        assert (await read_values(chat))["drip"] >= 2


async def test_a_stream_of_text_that_is_interrupted_does_not_look_complete(caplog: pytest.LogCaptureFixture) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        async with web.stream("POST", f"{ROOM}/run/spell") as stream:
            assert stream.headers["content-type"] == "text/plain; charset=utf-8"
            assert await chat.gate.wait() == "spell"
            assert (await web.post(f"{ROOM}/interrupt")).json() == {"interrupted": True}
            chat.gate.is_open.set()
            parts = stream.aiter_text()
            assert await anext(parts) == "a "
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(parts)
        assert "without completing" not in caplog.text
        answer = await web.post(f"{ROOM}/run/spell")
        assert answer.text == "a b "


async def test_an_interrupt_of_an_idle_thread_says_so_and_begins_none() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        for path in (f"{ROOM}/interrupt", "/run/wait/interrupt"):
            for body in (b"", b"{}", b'{"message": "stop"}'):
                assert (await web.post(path, content=body)).json() == {"interrupted": False}
            for body in (b"[]", b"{", b'{"text": 1}', b'{"message":' + b"[" * 90 + b"]" * 90 + b"}"):
                assert error_of(await web.post(path, content=body)) == (422, "invalid_arguments")
        assert await chat.threads() == []
        assert chat.app._node.actors == []
        assert (await web.post(f"{ROOM}/run/count")).json() == 1
        assert (await web.post(f"{ROOM}/interrupt")).json() == {"interrupted": False}
        assert (await web.post(f"{ROOM}/run/count")).json() == 2


async def test_a_socket_interrupts_by_a_method() -> None:
    chat = make_app()
    async with running(chat.app) as address, AsyncExitStack() as stack:
        cloudflare = await stack.enter_async_context(connected(address, ROOM))
        web = await stack.enter_async_context(http(address))
        assert await cloudflare.call("run:interrupt") is False
        running_one = asyncio.create_task(web.post(f"{ROOM}/run/wait", json="a"))
        assert await chat.gate.wait() == "a"
        assert await cloudflare.call("run:interrupt", "from a socket") is True
        chat.gate.is_open.set()
        assert (await running_one).json()["message"] == "from a socket"


# Clients that leave


@pytest.mark.parametrize("agent", ["wait", "pour"])
async def test_a_client_that_leaves_takes_only_its_waiting_run_along(agent: str) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        first = asyncio.create_task(web.post(f"{ROOM}/run/wait", json="first"))
        assert await chat.gate.wait() == "first"
        with bare_socket(address) as leaving:
            body = b'"leaves"' if agent == "wait" else b""
            await asyncio.get_running_loop().sock_sendall(leaving, post(f"{ROOM}/run/{agent}", body))
            await wait_until(web, one_waits=True)
        await wait_until(web, one_waits=False)
        third = asyncio.create_task(web.post(f"{ROOM}/run/wait", json="third"))
        await wait_until(web, one_waits=True)
        # No run has begun.
        assert chat.gate.ran == []
        chat.gate.is_open.set()
        assert [(await each).json() for each in (first, third)] == ["first", "third"]
        assert chat.gate.ran == ["first", "third"]
        assert (await read_values(chat))["waited"] == ["first", "third"]


async def test_a_run_goes_on_when_its_client_leaves() -> None:
    chat = make_app()
    async with running(chat.app) as address:
        with bare_socket(address) as leaving:
            await asyncio.get_running_loop().sock_sendall(leaving, post(f"{ROOM}/run/wait", b'"alone"'))
            assert await chat.gate.wait() == "alone"
        async with http(address) as web:
            # The server has read the end of that connection before it answers another one.
            for _ in range(3):
                assert (await web.get("/healthz")).status_code == 200
        chat.gate.is_open.set()
        assert (await read_values(chat))["waited"] == ["alone"]


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
async def test_a_stream_is_interrupted_when_its_client_leaves_and_what_it_wrote_is_stored(accept: str) -> None:
    chat = make_app()
    async with running(chat.app) as address:
        async with http(address) as web, web.stream("POST", f"{ROOM}/run/drip", headers={"accept": accept}) as stream:
            assert stream.status_code == 200
            assert await chat.gate.wait() == "drip"
        chat.gate.is_open.set()
        assert 2 <= (await read_values(chat))["drip"] < 999_999
        assert chat.gate.ran == ["drip"]


async def wait_until(web: httpx.AsyncClient, *, one_waits: bool) -> None:
    """Wait until a run waits in the thread, or until none does, while one runs."""
    refusal = "no more may" if one_waits else "has waited"
    async with asyncio.timeout(TIMEOUT):
        while refusal not in (await web.post(f"{ROOM}/run/hurry")).text:
            pass
