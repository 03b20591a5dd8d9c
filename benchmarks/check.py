"""Checks, before anything is measured, that a server does what the loads expect."""

import json
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from benchmarks.documents import call, push
from benchmarks.plain_http import HttpClient
from benchmarks.servers import Server, ServerError

__all__ = ["check"]

PATH = "/agents/bench-agent/check"


def check(server: Server) -> None:
    """Raise ServerError unless calls, streams, states and HTTP work as they should."""
    url = f"ws://127.0.0.1:{server.port}{PATH}"
    try:
        with connect(url, compression=None) as one, connect(url, compression=None) as two:
            expect("first states", [state(one), state(two)], [{"n": 0}] * 2)
            expect("echo", answers(one, "echo", 7), [{"result": 7}])
            expect("add", answers(one, "add", 1), [{"state": {"n": 1}}, {"result": 1}])
            expect("what the other sees", state(two), {"n": 1})
            for method in ("count", "generate"):
                chunks = [{"result": 0}, {"result": 1}, {}]
                expect(method, answers(one, method, 2), chunks)
            two.send(push(b'{"n":5}').decode())
            expect("a pushed state", state(one), {"n": 5})
        http = HttpClient(server.port)
        expect("GET", json.loads(http.get(PATH)), {"n": 5})
        http.put(PATH, b'{"n":6}')
        expect("GET after PUT", json.loads(http.get(PATH)), {"n": 6})
        http.close()
    except (WebSocketException, OSError, AssertionError) as error:
        raise ServerError(f"{server.name} is not fit for the loads: {error!r}") from error


def expect(what: str, got: object, wanted: object) -> None:
    """Raise AssertionError with the difference unless both are equal."""
    assert got == wanted, f"{what}: {got!r} instead of {wanted!r}"


def state(socket: ClientConnection) -> Any:
    """The next state that the socket receives."""
    while True:
        message = json.loads(socket.recv(timeout=5))
        if message["type"] == "cf_agent_state":
            return message["state"]


def answers(socket: ClientConnection, method: str, argument: int) -> list[dict[str, Any]]:
    """Call a method; returns the states, chunks and results that come until it is done."""
    socket.send(call(1, method, argument).decode())
    received: list[dict[str, Any]] = []
    while True:
        message = json.loads(socket.recv(timeout=5))
        if message["type"] == "cf_agent_state":
            received.append({"state": message["state"]})
        elif message["type"] == "rpc":
            assert message["success"], message
            received.append({key: value for key, value in message.items() if key == "result"})
            if message["done"]:
                return received
