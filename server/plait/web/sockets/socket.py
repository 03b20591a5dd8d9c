"""An open WebSocket: the transport of a connection.

Frames to the peer are written directly to the asyncio transport, and encoded once for all sockets.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from websockets.frames import Opcode
from websockets.protocol import State

from plait.actor.logs import log_internal
from plait.actor.transport import Frame
from plait.cluster.gate import OPEN
from plait.limits import TokenBucket
from plait.web.fairness import FairScheduler
from plait.web.sockets.frame_reader import ABNORMAL, FrameReader, FrameTransport
from plait.web.sockets.framing import FrameParser, WriteBatcher, is_utf8, serialize, serialize_pinged, shorten
from plait_schemas.codes import INTERNAL_ERROR, TRY_AGAIN_LATER

__all__ = ["AT_ONCE", "Socket"]

_CLOSE_TIMEOUT: Final = 5.0
AT_ONCE: Final = 256 * 1024
"""If more bytes wait in one iteration of the loop, changes are held back and then sent as one change."""

_NO_CODE: Final = 1005
_PONG_BYTE: Final = 0x8A
_INVALID_DATA: Final = 1007
_TOO_BIG: Final = 1009
# The frequent opcodes, as looking up a member of an enumeration takes longer.
_TEXT: Final = Opcode.TEXT
_PONG: Final = Opcode.PONG
# Frames that no session counts: heartbeats, and all but the last fragment of a message.
_COUNTED: Final = frozenset({Opcode.PING, Opcode.PONG, Opcode.CONT})


class Socket(FrameTransport, asyncio.Protocol):
    """A WebSocket that is open or closing."""

    __slots__ = (
        "_bucket",
        "_ended",
        "_is_gated",
        "_is_paused",
        "_limit",
        "_loop",
        "_out",
        "_out_size",
        "_parser",
        "_shutdown",
        "_timer",
        "_transport",
        "_wants_to_read",
        "_write_batcher",
        "heard",
        "hit",
        "is_asked",
    )

    can_ping = True

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        max_size: int,
        write_batcher: WriteBatcher,
        write_buffer: int,
        bucket: TokenBucket | None,
        scheduler: FairScheduler,
        ended: Callable[["Socket"], None],
        shutdown: Callable[[], object],
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._write_batcher = write_batcher
        # Limits frames that no session counts: pings, unsolicited pongs, and fragments.
        self._bucket = bucket
        # Frames to write at the end of this iteration of the loop; None if there are none.
        self._out: list[bytes] | None = None
        self._out_size = 0
        # Maximum bytes that may wait for the peer.
        self._limit = write_buffer
        # Called when the socket is closed, and when the server shuts down.
        self._ended = ended
        self._shutdown = shutdown
        self._parser = FrameParser(max_size)
        self._reader = FrameReader(self, transport, self._parser, bucket=bucket, scheduler=scheduler)
        # Whether the receiver wants to read, and whether frames wait for the gate. Nothing is read while they wait, as
        # each message may have an answer.
        self._wants_to_read = self._is_gated = False
        self.code = ABNORMAL
        # The exceeded limit, if the socket is closed for that reason.
        self.hit: str | None = None
        # Whether the transport's buffer is full.
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        # When the peer last sent something, and whether the heartbeat has pinged it since.
        self.heard = self._loop.time()
        self.is_asked = False

    def greet(self, data: bytes) -> None:
        """Send bytes before the first frame: the answer to the opening request."""
        self._write(data)

    @property
    def is_backed_up(self) -> bool:
        """Whether too many bytes wait for the peer or for the end of this iteration of the loop."""
        return self._is_paused or self._out_size > AT_ONCE

    @property
    def is_held(self) -> bool:
        """Whether reading is paused."""
        return self._reader.is_held

    # The Transport of a connection

    def send(self, frame: Frame) -> None:
        if self._is_closing:
            return
        wire = frame.wire
        if wire is None:
            wire = frame.wire = serialize(frame.data, 0x81 if frame.is_text else 0x82)
        self._write(wire)

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        if self._is_closing:
            return
        if frame.pinged is None:
            frame.pinged = serialize_pinged(frame, payload)
        if self._bucket is not None:
            self._bucket.charge(-1)
        self._write(frame.pinged)

    def close(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        if self._parser.protocol.state is State.OPEN:
            self._parser.protocol.send_close(code, shorten(reason))
        self._take_output()
        self.flush()
        self._abort_later()
        self.end(code, reason)

    def ping(self) -> None:
        """Ping the peer, to find out whether it still answers."""
        if not self._is_closing:
            if self._bucket is not None:
                self._bucket.charge(-1)
            self._write(b"\x89\x00")

    def give_up(self) -> None:
        """Drop the socket, as its peer does not answer."""
        self.end(ABNORMAL, "no answer to a ping")
        self._transport.abort()

    def pause(self) -> None:
        self._wants_to_read = False
        self._reader.pause()

    def resume(self) -> None:
        self._wants_to_read = True
        if not self._is_gated:
            self._reader.resume()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self.is_asked = False
        self._parser.feed(data)
        self._reader.read()

    def eof_received(self) -> None:
        self._reader.end()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._wake()
        if self._receiver is not None and not self._is_closing:
            self._receiver.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reader.end()
        self._ended(self)

    def shutdown(self) -> None:
        """Called by uvicorn when the server shuts down."""
        self._shutdown()

    # Inside

    def handle(self, opcode: Opcode, data: bytes) -> None:
        if self._bucket is not None and opcode in _COUNTED:
            self._bucket.charge(1)
        if self._is_closing:
            return
        receiver = self._receiver
        assert receiver is not None
        try:
            if opcode is _TEXT:
                if data.isascii() or is_utf8(data):
                    receiver.receive(data, is_text=True)
                else:
                    self.close(_INVALID_DATA, "a text message is not UTF-8")
            elif opcode is _PONG:
                receiver.pong(data)
            elif opcode is Opcode.BINARY:
                receiver.receive(data, is_text=False)
            elif opcode is Opcode.CLOSE:
                close = self._parser.protocol.close_rcvd
                self.end(close.code if close else _NO_CODE, close.reason if close else "")
            elif opcode is Opcode.PING:
                self._write(serialize(data, _PONG_BYTE))
        except BaseException as error:
            self.close(INTERNAL_ERROR, log_internal(error))

    def send_replies(self) -> bool:
        if not self._parser.has_replies:
            return True
        self._take_output()
        if self._parser.protocol.parser_exc is not None:
            self._parser.drop()
            self._fail()
        elif self._parser.protocol.close_rcvd is not None:
            self._parser.drop()
            self.flush()
            self._transport.close()
        else:
            self._parser.has_replies = False
            return True
        return False

    def _fail(self) -> None:
        """Close the socket of a peer that violates the WebSocket protocol or sends too large a message."""
        # Keep reading until the peer disconnects: closing a socket with unread data resets it, which may drop the
        # close frame.
        close = self._parser.protocol.close_sent
        if close is not None and close.code == _TOO_BIG:
            self.hit = "frame"
        self.end(close.code if close else ABNORMAL, close.reason if close else "")
        self.flush()
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._abort_later()

    def _abort_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_CLOSE_TIMEOUT, self._transport.abort)

    def flush(self) -> None:
        """Write the waiting frames."""
        if (gate := self._write_batcher.gate) is not OPEN and not gate.is_open:
            self._is_gated = True
            self._reader.pause()
            self._write_batcher.hold(self)
            return
        if self._is_gated:
            self._is_gated = False
            if self._wants_to_read:
                self._reader.resume()
        out, self._out = self._out, None
        size, self._out_size = self._out_size, 0
        if not out or self._transport.is_closing():
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if not self._is_paused:
            if self._drained is not None:
                self._wake()
            if size > AT_ONCE and self._receiver is not None and not self._is_closing:
                self._receiver.drained()
        elif self._transport.get_write_buffer_size() > self._limit:
            self.hit = self.hit or "write_buffer"
            self.close(TRY_AGAIN_LATER, "the client reads too slowly")

    def drop_output(self) -> None:
        """Forget the waiting frames, but not a close frame, which is the last one."""
        if self._out is not None:
            self._out = self._out[-1:] if self._parser.protocol.close_sent is not None else []
            self._out_size = sum(map(len, self._out))

    def _write(self, data: bytes) -> None:
        self._out_size += len(data)
        if self._out is None:
            self._out = [data]
            self._write_batcher.add(self)
        else:
            self._out.append(data)

    def _take_output(self) -> None:
        """Send the protocol's close frame, but not its pongs: they are sent in the order of the frames."""
        for data in self._parser.protocol.data_to_send():
            if data and data[0] != _PONG_BYTE:
                self._write(data)
