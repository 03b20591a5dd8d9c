"""What a client sends before it can be handled: kept in its order, and handed over a little at a time."""

import asyncio

import pytest
from tests.server.fakes import FakeTransport
from tests.server.session.guests import until

from plait.connection import Connection
from plait.session.inbox import Inbox


class Desk:
    """An inbox, and what it has handed over."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.transport = FakeTransport()
        self.connection = Connection("a", self.transport, lambda callback: callback(None))
        self.inbox = Inbox(self.connection, self.transport, self._take)

    def _take(self, data: bytes, is_text: bool) -> None:
        self.taken.append(data)
        if data == b"hold":
            self.inbox.hold()


@pytest.mark.parametrize("messages", [[b"%d" % n for n in range(60)], [b"%d" % n + b"x" * 20_000 for n in range(5)]])
async def test_between_messages_that_have_waited_others_have_their_turns(messages: list[bytes]) -> None:
    desk = Desk()
    for message in messages:
        desk.inbox.receive(message, True)
    desk.inbox.release()
    assert 0 < len(desk.taken) < len(messages)
    desk.inbox.receive(b"late", True)
    turns: list[int] = []

    def other() -> None:
        turns.append(len(desk.taken))
        if len(desk.taken) <= len(messages):
            asyncio.get_running_loop().call_soon(other)

    other()
    await until(lambda: len(desk.taken) > len(messages))
    assert desk.taken == [*messages, b"late"]
    assert len(set(turns)) > 2
    desk.inbox.receive(b"at once", True)
    assert desk.taken[-1] == b"at once"


async def test_what_is_held_while_it_is_handed_over_waits_until_it_is_released_again() -> None:
    desk = Desk()
    for message in (b"first", b"hold", b"second"):
        desk.inbox.receive(message, True)
    desk.inbox.release()
    assert desk.taken == [b"first", b"hold"]
    desk.inbox.receive(b"third", True)
    desk.inbox.release()
    assert desk.taken == [b"first", b"hold", b"second", b"third"]


async def test_what_has_waited_is_forgotten_when_the_connection_is_closed_meanwhile() -> None:
    desk = Desk()
    for n in range(60):
        desk.inbox.receive(b"%d" % n, True)
    desk.inbox.release()
    count = len(desk.taken)
    desk.inbox.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(desk.taken) == count
