"""The lobby, where a socket waits until its client has said who it is."""

import asyncio
from typing import Any

from tests.cases import each_case
from tests.server.fakes import FakeTransport

from plait.web.sockets.pending_join import PendingJoin
from plait_schemas.messages import Join

JOIN = b'{"type": "join", "client": "a", "have": ["e", 1]}'


class Received:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[tuple[bytes, bool]] = []

    def receive(self, data: bytes, *, is_text: bool) -> None:
        self.received.append((data, is_text))

    def pong(self, payload: bytes) -> None: ...
    def drained(self) -> None: ...
    def close(self, code: int, reason: str) -> None: ...


def enter(**options: Any) -> tuple[FakeTransport, PendingJoin]:
    transport = FakeTransport()
    pending = PendingJoin(transport, **options)
    transport.session = pending
    return transport, pending


async def test_a_join_is_returned_and_what_comes_after_it_is_kept_for_the_session() -> None:
    transport, pending = enter()
    pending.receive(JOIN, is_text=True)
    assert not transport.is_paused
    pending.receive(b"second", is_text=True)
    assert transport.is_paused
    pending.receive(b"\x00", is_text=False)
    assert await pending.join() == Join("a", ("e", 1))
    session = Received()
    pending.hand_over(session)
    assert session.received == [(b"second", True), (b"\x00", False)]
    assert not transport.is_paused
    assert transport.sent == []


async def test_a_join_that_comes_later_is_waited_for() -> None:
    _, pending = enter()
    waiting = asyncio.create_task(pending.join())
    await asyncio.sleep(0)
    pending.receive(JOIN, is_text=True)
    assert await waiting == Join("a", ("e", 1))


@each_case(
    ("data", "is_text"),
    [
        (b"nonsense", True),
        (b'{"type": "ping"}', True),
        (b'{"type": "push", "ref": 1, "base": ["e", 1], "ops": []}', True),
        (b'{"type": "join"}', True),
        (b'{"type": "join", "client": ""}', True),
        (b'{"type": "join", "client": "%s"}' % (b"x" * 129), True),
        (b'{"type": "join", "client": "a", "have": ["e"]}', True),
        (b'{"type": "joined"}', True),
        (JOIN, False),
    ],
)
async def test_whoever_says_something_else_first_is_told_so_and_closed_with_4400(data: bytes, is_text: bool) -> None:
    transport, pending = enter()
    pending.receive(data, is_text=is_text)
    (error,) = transport.sent
    assert (error["type"], error["code"]) == ("error", "bad_frame")
    assert error["message"]
    assert transport.closed is not None
    assert transport.closed[0] == 4400
    assert await pending.join() is None
    assert pending.is_closed


async def test_the_id_of_a_client_may_have_128_characters() -> None:
    _, pending = enter()
    pending.receive(b'{"type": "join", "client": "%s"}' % (b"x" * 128), is_text=True)
    assert await pending.join() is not None


async def test_whoever_does_not_join_in_time_is_closed_with_4400() -> None:
    transport, pending = enter(patience=0.02)
    assert await pending.join() is None
    assert transport.closed == (4400, "no join was received within 0.02 s")
    assert pending.is_closed


async def test_whoever_is_gone_before_it_has_joined_is_not_waited_for() -> None:
    transport, pending = enter()
    waiting = asyncio.create_task(pending.join())
    await asyncio.sleep(0)
    transport.close(1001, "")
    assert await waiting is None
    assert pending.is_closed


async def test_when_the_server_goes_away_whoever_waits_is_sent_away_with_1001() -> None:
    transport, pending = enter()
    pending.leave()
    assert transport.closed is not None
    assert transport.closed[0] == 1001
    assert await pending.join() is None
