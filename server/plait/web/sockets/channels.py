"""Many sockets in one: a carrier is a WebSocket whose messages begin with the number of a channel.

Each channel is a request of its own through the app, and then the transport of a connection. The peer cannot be told to
stop sending on one channel, so messages that a channel does not read are held, up to a limit for each channel and for
the carrier. Above it, nothing is read from the carrier.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from websockets.frames import Opcode

from plait.actor.transport import Frame, Transport
from plait.limits import Limits
from plait.web.fairness import FairScheduler
from plait.web.sockets.entrance import ChannelRequest, Entrance
from plait.web.sockets.frame_reader import ABNORMAL
from plait.web.sockets.framing import shorten
from plait.web.sockets.marked import MARKED, MarkedTransport
from plait_schemas.codes import BAD_FRAME, GOING_AWAY, TRY_AGAIN_LATER

__all__ = ["Carrier", "Channel"]

# What may be held for one channel, and for a carrier. A message counts as its bytes and 4 KiB, so that the first limit
# is 1 MiB or 256 messages; a request that is not accepted yet counts as 16 KiB.
_MOST_HELD: Final = 1024 * 1024
_MOST_HELD_IN_ALL: Final = 4 * _MOST_HELD
_MESSAGE: Final = 4 * 1024
_REQUEST: Final = 16 * 1024
# Seconds for which a carrier stays open without channels, and which a closing channel gets to send what waits.
_PATIENCE: Final = 10.0
_CLOSE_TIMEOUT: Final = 5.0
_NO_CODE: Final = 1005
_TOO_BIG: Final = 1009
# The number of a channel, and a space.
_LONGEST_HEAD: Final = 10
_TARGET: Final = re.compile(rb"/[!-~]{0,8191}")
_CODE: Final = re.compile(rb"[1-4][0-9]{3}")
_LEAVING: Final = "the server is shutting down"


class Carrier:
    """The receiver of a carrier: passes messages to its channels."""

    def __init__(
        self,
        socket: Transport,
        entrance: Entrance,
        limits: Limits,
        scheduler: FairScheduler,
        *,
        ended: Callable[["Carrier"], None],
        patience: float = _PATIENCE,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._entrance = entrance
        self.limits = limits
        self.scheduler = scheduler
        self._ended = ended
        self._patience = patience
        # Limits the requests.
        self._bucket = limits.make_bucket(self._loop.time())
        # The open channels by number: first the one whose last turn to send is the longest ago.
        self.channels: dict[int, Channel] = {}
        self._openings: set[asyncio.Task[None]] = set()
        # What is held, and the channels for which too much is held.
        self._held = 0
        self._full: set[Channel] = set()
        self.is_paused = False
        self._is_leaving = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait_for_channels()

    @staticmethod
    def widen(limits: Limits) -> Limits:
        """Return the limits of a carrier's socket: a channel is closed alone before they are reached."""
        frame, write_buffer = limits.frame + _LONGEST_HEAD, limits.write_buffer + 8 * MARKED
        return msgspec.structs.replace(limits, frame=frame, write_buffer=write_buffer)

    def leave(self) -> None:
        """Close the carrier with its last channel, as the server is shutting down."""
        self._is_leaving = True
        if not self.channels:
            self.cut_off()

    def cut_off(self) -> None:
        """Close the carrier at once."""
        self._socket.close(GOING_AWAY, _LEAVING)

    # For its channels

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly."""
        return self._socket.is_backed_up

    def put(self, number: int, frame: Frame) -> None:
        """Send a frame of a channel."""
        self._socket.send(Frame(b"%d %b" % (number, frame.data), frame.is_text))

    def hold(self, channel: "Channel", size: int) -> None:
        """Add to what is held for a channel; pause reading, or resume it."""
        channel.held += size
        self._held += size
        if channel.held > _MOST_HELD:
            self._full.add(channel)
        else:
            self._full.discard(channel)
        is_paused = bool(self._full) or self._held > _MOST_HELD_IN_ALL
        if is_paused and not self.is_paused:
            self.is_paused = True
            self._socket.pause()
            # The answers to marks are not read either, so no channel waits for them.
            self._loop.call_soon(self.drained)
        elif self.is_paused and not is_paused:
            self.is_paused = False
            self._socket.resume()

    def forget(self, number: int) -> None:
        """Remove a channel that is closed."""
        if self.channels.pop(number, None) is None or self.channels:
            return
        if self._is_leaving:
            self.cut_off()
        else:
            self._wait_for_channels()

    # The Receiver of its socket

    def receive(self, data: bytes, *, is_text: bool) -> None:
        head, space, rest = data.partition(b" ")
        if not space or not head.isdigit() or len(head) >= _LONGEST_HEAD:
            self._socket.close(BAD_FRAME, "a message on a carrier begins with the number of a channel and a space")
            return
        number, kind = int(head), rest[:1] if is_text else b""
        channel = self.channels.get(number)
        if kind == b"/":
            self._open(number, rest)
        elif channel is None:
            pass  # It was closed while the message was on its way.
        elif kind == b"?":
            channel.answer_mark()
        else:
            channel.take(rest, Opcode.CLOSE if kind == b"!" else Opcode.TEXT if is_text else Opcode.BINARY)

    def pong(self, payload: bytes) -> None:
        pass

    def drained(self) -> None:
        """Send what waits on the channels, in turns."""
        has_more = False
        for number, channel in tuple(self.channels.items()):
            if self.is_backed_up:
                return
            if self.channels.pop(number, None) is not None:  # Otherwise a turn of another channel has closed it.
                self.channels[number] = channel
                has_more |= channel.take_turn()
        if has_more:
            self._loop.call_soon(self.drained)

    def close(self, code: int, reason: str) -> None:
        self._ended(self)
        self._stop_waiting()
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.disconnect()

    # Inside

    def _open(self, number: int, target: bytes) -> None:
        if number in self.channels or _TARGET.fullmatch(target) is None:
            self._socket.close(BAD_FRAME, f"the channel {number} is open already, or its path is not valid")
            return
        self._stop_waiting()
        channel = self.channels[number] = Channel(self, number)
        if self._is_leaving:
            channel.close(GOING_AWAY, _LEAVING)
            return
        if self._bucket is not None and (wait := self._bucket.take(self._loop.time())):
            channel.close(TRY_AGAIN_LATER, f"too many requests; try again in {wait:.2f} s")
            return
        assert channel.request is not None
        self.hold(channel, _REQUEST)
        work = channel.request.run(self._entrance, target.decode(), channel)
        task = self._loop.create_task(work, name="plait channel")
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)

    def _wait_for_channels(self) -> None:
        close = self._socket.close
        self._timer = self._loop.call_later(self._patience, close, GOING_AWAY, "the carrier has no channels")

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Channel(MarkedTransport):
    """A request on a carrier, and after it is accepted the transport of a connection."""

    __slots__ = (
        "_carrier",
        "_ended",
        "_is_stopped",
        "_number",
        "_queue",
        "_queued",
        "_timer",
        "held",
        "hit",
        "request",
    )

    can_ping = False

    def __init__(self, carrier: Carrier, number: int) -> None:
        super().__init__(carrier.scheduler)
        self._carrier = carrier
        self._number = number
        # Called when the channel is closed, after it was accepted.
        self._ended: Callable[[Channel], None] | None = None
        # The request, until it is accepted or the channel is closed.
        self.request: ChannelRequest | None = ChannelRequest(self.refuse)
        # Whether further messages are dropped.
        self._is_stopped = False
        # What the carrier holds for it.
        self.held = 0
        # Frames that wait for the peer, and their bytes; None if there are none.
        self._queue: deque[Frame] | None = None
        self._queued = 0
        # Ends the wait of a closing channel for its last frames.
        self._timer: asyncio.TimerHandle | None = None
        # The close code, and the exceeded limit if that is the reason.
        self.code = ABNORMAL
        self.hit: str | None = None

    def accept(self, ended: Callable[["Channel"], None]) -> "Channel | None":
        """Accept the request; return None if the peer has closed the channel."""
        if self._is_closing:
            return None
        self.request = None
        self._ended = ended
        self._carrier.hold(self, -_REQUEST)
        return self

    def refuse(self, code: int, reason: str) -> None:
        """Close the channel, unless it was accepted."""
        if self.request is not None:
            self.close(code, reason)

    # The Transport of a connection

    @property
    def is_backed_up(self) -> bool:
        """Whether frames wait, or would wait."""
        return self._queue is not None or self._must_wait

    def send(self, frame: Frame) -> None:
        if self._is_closing:
            return
        if not self.is_backed_up:
            self._send(frame)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(frame)
        self._queued += len(frame.data)
        if self._queued > self._carrier.limits.write_buffer:
            # The other channels continue.
            self.hit = "write_buffer"
            self._queue = None
            self.close(TRY_AGAIN_LATER, "the client reads too slowly")

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        raise AssertionError("a channel has no pings")

    def close(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        last = Frame(b"!%d %b" % (code, shorten(reason).encode()))
        if self._queue is None:
            self._carrier.put(self._number, last)
        else:
            self._queue.append(last)
            self._timer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self._close_now, last)
        self.end(code, reason)

    def stop_reading(self) -> None:
        super().stop_reading()
        self._is_stopped = True  # What is never read must not pause the carrier.

    def mark(self) -> None:
        self._carrier.put(self._number, Frame(b"?"))

    # Called by the carrier

    def take(self, data: bytes, opcode: Opcode) -> None:
        """Take a message of the peer, and hold it until the reader handles it."""
        if self._is_closing or self._is_stopped:
            return
        if len(data) > (size := self._carrier.limits.frame):
            self.hit = "frame"
            self.close(_TOO_BIG, f"a message may have at most {size} bytes")
            return
        self._carrier.hold(self, len(data) + _MESSAGE)
        self.add(opcode, data)

    def take_turn(self) -> bool:
        """Send some of what waits; return whether more could be sent at once."""
        left = MARKED
        while self._queue and left > 0 and not self._must_wait:
            frame = self._queue.popleft()
            self._queued -= len(frame.data)
            left -= len(frame.data)
            self._send(frame)
        if self._queue:
            return not self._must_wait
        self._queue = None
        if self._timer is not None:
            self._leave()
        else:
            super().go_on()
        return False

    def go_on(self) -> None:
        if self.take_turn():
            asyncio.get_running_loop().call_soon(self._carrier.drained)

    def disconnect(self) -> None:
        """End the channel with its carrier, after everything that was received is handled."""
        self._reader.end()
        self._leave()

    # Called by the reader

    def handle(self, opcode: Opcode, data: bytes) -> None:
        if not self._is_closing:
            self._carrier.hold(self, -len(data) - _MESSAGE)
        super().handle(opcode, data)

    def read_close(self, data: bytes) -> tuple[int, str]:
        code, _, reason = data[1:].partition(b" ")
        return int(code) if _CODE.fullmatch(code) else _NO_CODE, reason.decode()

    def end(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        super().end(code, reason)
        self._carrier.hold(self, -self.held)
        request, self.request = self.request, None
        if request is not None:
            request.lose()
        if self._timer is None:
            self._leave()

    # Inside

    @property
    def _must_wait(self) -> bool:
        """Whether nothing may be sent."""
        return (self.has_all_marks and not self._carrier.is_paused) or self._carrier.is_backed_up

    def _send(self, frame: Frame) -> None:
        self._carrier.put(self._number, frame)
        self.count_sent(len(frame.data))

    def _close_now(self, last: Frame) -> None:
        self._carrier.put(self._number, last)
        self._leave()

    def _leave(self) -> None:
        """Give up the number of the channel, and its resources."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue = None
        self._carrier.forget(self._number)
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self)
