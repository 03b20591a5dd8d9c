"""A WebSocket over ASGI's messages, with a server that is played by the test."""

import asyncio

import pytest
from starlette.types import Message
from tests.server.session.guests import until
from tests.server.web.sockets.test_socket import Received
from tests.told import check_internal

from plait.web.fairness import FairScheduler
from plait.web.sockets.asgi import AsgiSocket


class Server:
    """The ASGI server of one socket: what it has received, and what it was given to send."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.has_ended = False

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def say(self, *texts: str) -> None:
        for text in texts:
            self.incoming.put_nowait({"type": "websocket.receive", "text": text})

    def open(self, session: Received) -> AsgiSocket:
        socket = AsgiSocket(
            self.incoming.get, self.send, max_size=2**20, write_buffer=2**20, scheduler=FairScheduler(), ended=self._end
        )
        socket.attach(session)
        return socket

    def _end(self) -> None:
        self.has_ended = True


async def test_a_session_that_fails_closes_its_socket_with_1011(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Received):
        def receive(self, data: bytes, *, is_text: bool) -> None:
            if data == b"wrong":
                raise LookupError("the secret of the session")
            super().receive(data, is_text=is_text)

    server, session = Server(), Failing()
    server.say("right", "wrong", "right")
    await asyncio.wait_for(server.open(session).run(), 20)
    assert session.received == ["right"]
    assert session.closed == 1011
    (sent,) = server.sent
    assert (sent["type"], sent["code"]) == ("websocket.close", 1011)
    check_internal(sent["reason"], caplog, "the secret of the session")
    assert server.has_ended
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


async def test_what_comes_when_the_socket_has_been_closed_is_not_handed_over() -> None:
    server, session = Server(), Received()
    socket = server.open(session)
    running = asyncio.create_task(socket.run())
    server.say("early")
    await until(lambda: session.received == ["early"])
    for _ in range(5):
        await asyncio.sleep(0)
    socket.close(4403, "go away")
    server.say("late")
    await asyncio.wait_for(running, 20)
    assert session.received == ["early"]
