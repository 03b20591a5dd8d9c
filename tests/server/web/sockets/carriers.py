"""A carrier over a transport that a test feeds, and channels whose sessions keep what they are given."""

from starlette.types import Receive, Scope, Send
from tests.server.web.sockets.test_socket import Pipe, frame
from websockets.client import ClientProtocol
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from plait.limits import Limits
from plait.web.fairness import FairScheduler
from plait.web.sockets.channels import Carrier, Channel
from plait.web.sockets.entrance import CHANNEL, Entrance
from plait.web.sockets.framing import WriteBatcher
from plait.web.sockets.socket import Socket

__all__ = ["Line", "Reading"]

SCOPE: Scope = {"type": "websocket", "path": "/threads/note/a", "headers": []}
LIMITS = Limits(write_buffer=2**20)


class Reading:
    """The session of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.received: list[bytes] = []
        self.drains = 0
        self.closed: tuple[int, str] | None = None
        self.has_ended = False

    def receive(self, data: bytes, *, is_text: bool) -> None:
        self.received.append(data)

    def pong(self, payload: bytes) -> None:
        raise AssertionError("a channel has no pongs")

    def drained(self) -> None:
        self.drains += 1

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = (code, reason)

    def end(self, _: Channel) -> None:
        assert not self.has_ended
        self.has_ended = True


class Line:
    """A carrier, both ends of it. The app accepts each request, unless its path is `/refuse` or `/wait`."""

    def __init__(self, *, limits: Limits = LIMITS, patience: float = 10.0) -> None:
        self.pipe = Pipe()
        self.sessions: dict[str, Reading] = {}
        # The channels whose requests are not accepted yet, and the number of them that were closed before that.
        self.waiting: list[Channel] = []
        self.disconnects = 0
        self.has_ended = False
        wide = Carrier.widen(limits)
        scheduler = FairScheduler()
        self.batcher = WriteBatcher()
        self.socket = Socket(
            self.pipe,
            max_size=wide.frame,
            write_batcher=self.batcher,
            scheduler=scheduler,
            write_buffer=wide.write_buffer,
            bucket=None,
            ended=lambda _: None,
            shutdown=lambda: None,
        )
        self.carrier = Carrier(
            self.socket, Entrance(self._open, SCOPE), limits, scheduler, ended=self._end, patience=patience
        )
        self.socket.attach(self.carrier)
        self._parser = ClientProtocol(parse_uri("ws://x"), state=State.OPEN, max_size=None)
        self._read = 0
        self._found: list[tuple[int, bytes]] = []

    def say(self, *texts: str) -> None:
        """Send texts as the peer."""
        self.socket.data_received(b"".join(frame(Opcode.TEXT, text.encode()) for text in texts))

    def say_bytes(self, data: bytes) -> None:
        """Send a binary message as the peer."""
        self.socket.data_received(frame(Opcode.BINARY, data))

    @property
    def told(self) -> list[tuple[int, bytes]]:
        """What the peer was sent: the number of the channel, and the rest of the message."""
        data, self._read = bytes(self.pipe.written[self._read :]), len(self.pipe.written)
        self._parser.receive_data(data)
        for event in self._parser.events_received():
            assert isinstance(event, WireFrame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY):
                number, _, rest = bytes(event.data).partition(b" ")
                self._found.append((int(number), rest))
        return self._found

    def of(self, number: int) -> list[bytes]:
        """Return what the peer was sent on a channel."""
        return [rest for each, rest in self.told if each == number]

    @property
    def close_code(self) -> int | None:
        """The code with which the carrier was closed."""
        assert self.told is not None
        return None if (close := self._parser.close_rcvd) is None else close.code

    def fill(self) -> None:
        """Say that the buffer of the connection is full."""
        self.socket.pause_writing()

    def drain(self) -> None:
        """Say that the buffer of the connection is empty."""
        self.socket.resume_writing()

    # Inside

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        channel: Channel = scope["extensions"][CHANNEL]
        assert (await receive())["type"] == "websocket.connect"
        if scope["path"] == "/refuse":
            await send({"type": "websocket.close"})
        elif scope["path"] == "/wait":
            self.waiting.append(channel)
            assert (await receive())["type"] == "websocket.disconnect"
            self.disconnects += 1
        else:
            self.accept(scope["path"], channel)

    def accept(self, target: str, channel: Channel) -> Reading:
        """Accept the request of a channel."""
        session = self.sessions[target] = Reading(channel)
        assert channel.accept(session.end) is channel
        channel.attach(session)
        return session

    def _end(self, _: Carrier) -> None:
        assert not self.has_ended
        self.has_ended = True
