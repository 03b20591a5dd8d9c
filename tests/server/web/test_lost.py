"""Answers for a process that is lost say only what is known: a request that has begun may have been carried out."""

import ast
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.types import Message
from tests.cases import each_case

import plait
from plait.cluster.gate import LeaseGate
from plait.cluster.lease import LEASE, NodeLease
from plait.errors import Unavailable
from plait.web.gated import GatedSend, wait_until_open
from plait.web.lost import ABORT

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
WEB: Final = Path(plait.__file__).parent / "web"

# Every place of `web/` that makes one of the two errors, with what it knows of the request.
PLACES: Final = {
    "lost.py:make_lost": "it has begun",
    "gated.py:wait_until_open": "it has not begun",
    "server_context.py:as_refusal": "an error of `authenticate`, before a socket has begun",
    "links/links.py:_make_away": "it has not begun, as there is no link",
    "links/calls.py:_CallAttempts.handle": "a call between threads: `may_repeat` knows",
    "links/calls.py:_finish": "a call that its caller has cancelled",
    "links/pipe.py:Incoming.body": "the request that it belongs to has ended, and tells its caller",
}
# Every stream of a link, and what its end tells when the link is lost.
STREAMS: Final = {
    "links/pipe.py:Pipe": "waits for room no more",
    "links/pipe.py:Outgoing": "raises Lost: _RelayedRequest.run and _CallAttempts.handle",
    "links/pipe.py:Incoming": "ends the body, and calls `on_cancel`",
    "links/calls.py:_Call": "a change that may be stored, and _CallAttempts.handle",
    "relay/requests.py:_RelayedRequest": "make_lost",
    "relay/gateway.py:RelayedSocket": "closes the socket",
    "relay/owner.py:RemoteRequest": "a disconnect",
    "relay/remote_socket.py:RemoteSocket": "a disconnect",
}


class Sent(list[Message]):
    """What was sent to the client."""

    async def send(self, message: Message) -> None:
        self.append(message)


def find_defined(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Yield the classes, or the functions with their classes, of `web/`."""
    for file in sorted(WEB.rglob("*.py")):
        place = file.relative_to(WEB).as_posix()
        left: list[tuple[str, ast.AST]] = [("", ast.parse(file.read_text()))]
        while left:
            prefix, node = left.pop()
            for child in ast.iter_child_nodes(node):
                name = getattr(child, "name", None)
                here = f"{prefix}.{name}" if prefix and name else name or prefix
                if isinstance(child, kinds):
                    yield f"{place}:{here}", child
                left.append((here, child))


def names(node: ast.AST) -> set[str]:
    """Return the names of what a piece of code calls."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return {getattr(each.func, "id", None) or getattr(each.func, "attr", "") for each in calls}


@each_case(
    ("method", "wanted"),
    [
        *((method, (503, "unavailable", b"1")) for method in ("GET", "HEAD", "OPTIONS")),
        *((method, (500, "indeterminate", None)) for method in ("POST", "PUT", "PATCH", "DELETE", "BREW")),
    ],
)
async def test_a_node_that_was_dead_says_what_is_known_of_a_request(
    method: str, wanted: tuple[int, str, bytes | None]
) -> None:
    gate, sent = LeaseGate(), Sent()
    send = GatedSend(gate, {"type": "http", "method": method}, sent.send, hold=8.0)
    lease = NodeLease(lambda: 0.0)
    lease.extend(0.0)
    gate.follow(lease)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"old"})
    start, body = sent
    code = json.loads(body["body"])["error"]["code"]
    assert (start["status"], code, dict(start["headers"]).get(b"retry-after")) == wanted


async def test_a_request_that_comes_while_the_gate_is_closed_is_held_and_then_refused_before_it_begins() -> None:
    gate, now = LeaseGate(), [0.0]
    with pytest.raises(Unavailable, match="cut off from its store"):  # It was never open.
        await wait_until_open(gate, 8.0)
    lease = NodeLease(lambda: now[0])
    lease.extend(0.0)
    gate.follow(lease)
    await wait_until_open(gate, 8.0)
    now[0] = LEASE + 7.9
    held = asyncio.create_task(wait_until_open(gate, 8.0))
    await asyncio.sleep(0)
    assert not held.done()
    lease.extend(now[0])
    gate.tell()
    await held
    now[0] = 100.0
    with pytest.raises(Unavailable, match="cut off from its store"):
        await wait_until_open(gate, 8.0)


@each_case(("method", "wanted"), [("GET", (503, "unavailable")), ("PUT", (500, "indeterminate"))])
async def test_an_answer_that_could_not_leave_for_too_long_is_replaced_by_a_refusal(
    method: str, wanted: tuple[int, str]
) -> None:
    gate, sent, now = LeaseGate(), Sent(), [0.0]
    lease = NodeLease(lambda: now[0])
    lease.extend(0.0)
    gate.follow(lease)
    begun, late = (GatedSend(gate, {"type": "http", "method": method}, sent.send, hold=8.0) for _ in range(2))
    await begun({"type": "http.response.start", "status": 200, "headers": []})
    now[0] = LEASE + 8.0
    await late({"type": "http.response.start", "status": 200, "headers": []})
    # What comes after it is not sent, and the rest of an answer that has begun waits.
    await late({"type": "http.response.body", "body": b"old"})
    rest = asyncio.create_task(begun({"type": "http.response.body", "body": b"rest"}))
    await asyncio.sleep(0)
    assert [each["type"] for each in sent] == [*["http.response.start"] * 2, "http.response.body"]
    assert (sent[1]["status"], json.loads(sent[2]["body"])["error"]["code"]) == wanted
    lease.extend(now[0])
    gate.tell()
    await rest
    assert sent[3:] == [{"type": "http.response.body", "body": b"rest"}]


async def test_an_answer_that_has_begun_when_its_node_was_dead_does_not_look_complete() -> None:
    gate, sent, closed = LeaseGate(), Sent(), []
    lease = NodeLease(lambda: 0.0)
    lease.extend(0.0)
    gate.follow(lease)
    scope = {"type": "http", "method": "GET", ABORT: lambda: closed.append(True)}
    send = GatedSend(gate, scope, sent.send, hold=8.0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gate.follow(lease)
    await send({"type": "http.response.body", "body": b"old"})
    assert ([each["type"] for each in sent], closed) == (["http.response.start"], [True])


def test_each_place_that_answers_for_another_process_is_known() -> None:
    makes = {"Unavailable", "Indeterminate"}
    found = {place for place, node in find_defined(*FUNCTIONS) if names(node) & makes}
    assert found == PLACES.keys()


def test_each_stream_that_can_be_lost_is_known() -> None:
    found = {
        place
        for place, node in find_defined(ast.ClassDef)
        if any(getattr(base, "id", "") in {"Pipe", "Incoming", "Outgoing"} for base in node.bases)
        or (
            {"take", "deliver", "lose"} <= {getattr(each, "name", "") for each in node.body}
            and not any(getattr(base, "id", "") == "Protocol" for base in node.bases)
        )
    }
    assert found == STREAMS.keys()


def test_http_answers_for_a_lost_owner_come_from_one_function() -> None:
    found = {place for place, node in find_defined(*FUNCTIONS) if "make_lost" in names(node)}
    assert found == {
        "gated.py:GatedSend.__call__",
        "http/endpoint.py:_stream",
        "relay/requests.py:_RelayedRequest._fail",
    }
    # Nothing else looks at whether this node was dead.
    readers = {file.relative_to(WEB).as_posix() for file in WEB.rglob("*.py") if ".generation" in file.read_text()}
    assert readers == {"gated.py"}
