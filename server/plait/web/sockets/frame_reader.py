"""Handles the frames of a WebSocket a few at a time, so that one peer cannot keep the server busy. No I/O."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from websockets.frames import Opcode

from plait.actor.transport import Receiver
from plait.limits import TokenBucket
from plait.web.fairness import AT_ONCE, LARGE, FairScheduler, Ticket

__all__ = ["ABNORMAL", "FrameReader", "FrameTransport", "Parser", "Peer"]

ABNORMAL: Final = 1006
"""The code of a socket that is closed without a close frame."""

# Maximum number of frames of one peer that are handled in one iteration of the loop.
_FRAMES: Final = 96
# Seconds after slow frames during which the peer's next frames are measured, or count as costly.
_REMEMBERED: Final = 10.0
# Maximum seconds for which a peer that sends too much is not read, so that a disconnect is noticed.
_LONGEST_PAUSE: Final = 1.0


class Peer(Protocol):
    """The connection of a peer, with the methods that a reader needs."""

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more; does nothing if reading is paused."""
        ...

    def resume_reading(self) -> None:
        """Resume reading; does nothing if it is not paused."""
        ...


class Parser(Protocol):
    """The frames of a peer."""

    # Parsed frames, the last first, until they are taken.
    frames: list[tuple[Opcode, bytes]]

    @property
    def is_waiting(self) -> bool:
        """Whether there are frames that have not been taken, or data that can be parsed."""
        ...

    def parse(self) -> bool:
        """Parse more frames; return whether there was something to parse."""
        ...


class FrameReader:
    """Hands over the messages and control frames of one peer, and reads no more until they are handled.

    The `owner` gives the received data to the parser, and then calls `read`, or `read_soon`.
    """

    __slots__ = (
        "_bucket",
        "_costly_until",
        "_is_closed",
        "_is_disconnected",
        "_is_held",
        "_is_stopped",
        "_loop",
        "_next",
        "_owner",
        "_parser",
        "_transport",
        "_watched_until",
        "scheduler",
    )

    def __init__(
        self,
        owner: "FrameTransport",
        transport: Peer,
        parser: Parser,
        *,
        bucket: TokenBucket | None,
        scheduler: FairScheduler,
    ) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._parser = parser
        # While it has no tokens, the peer is not read.
        self._bucket = bucket
        # The queue for costly work; the time until which all frames of the peer count as costly; and the time until
        # which their processor time is measured. This is slow, so it is done only after frames that took long by the
        # clock.
        self.scheduler = scheduler
        self._costly_until = -math.inf
        self._watched_until = -math.inf
        # Continues with the received data, after other work.
        self._next: asyncio.Handle | Ticket | None = None
        # Whether reading is paused, as it is at first, or stopped for good.
        self._is_held = True
        self._is_stopped = False
        # Whether the peer has disconnected, and whether the rest of its data is ignored.
        self._is_disconnected = False
        self._is_closed = False

    @property
    def is_held(self) -> bool:
        """Whether reading is paused."""
        return self._is_held or self._next is not None

    def read(self) -> None:
        """Handle received data."""
        if self._is_held or self._next is not None:
            self._pause_transport()
        else:
            self._read()

    def read_soon(self) -> None:
        """Handle received data in the next iteration of the loop, together with what is received until then."""
        if self._is_held:
            self._pause_transport()
        elif self._next is None:
            self._next = self._loop.call_soon(self._read)

    def pause(self) -> None:
        """Hand over nothing until `resume`."""
        if not self._is_closed:
            self._is_held = True
            self._pause_transport()

    def resume(self) -> None:
        """Continue, unless `stop` was called."""
        if not self._is_stopped and not self._is_closed:
            self._is_held = False
            self._go_on()

    def stop(self) -> None:
        """Stop handing over frames for good."""
        self._is_stopped = True
        self.pause()

    def close(self) -> None:
        """Read and drop data, since closing a socket with unread data resets it."""
        self._is_closed = True
        self._is_held = False
        if not self._is_disconnected:
            self._go_on()

    def end(self) -> None:
        """End the owner when everything received is handled, as the peer has disconnected."""
        self._is_disconnected = True
        if self._is_closed and self._next is not None:
            self._next.cancel()
        else:
            self._go_on()

    # Inside

    def _read(self, *, is_scheduled: bool = False) -> None:
        """Handle some of the received frames; costly ones only if `is_scheduled`."""
        self._next = None
        parser, scheduler = self._parser, self.scheduler
        frames, handle, clock = parser.frames, self._owner.handle, scheduler.clock
        start = now = clock()
        if start < self._costly_until and not is_scheduled and not scheduler.is_free:
            self._go_on(is_costly=True)
            return
        end = start + AT_ONCE
        is_watched = start < self._watched_until
        worked = scheduler.work_clock() if is_watched else 0.0
        left, is_costly = _FRAMES, False
        while left > 0 and now <= end and not self._is_held:
            if not frames and not parser.parse():
                break
            while frames and now <= end and not self._is_held:
                opcode, data = frames[-1]
                if len(data) >= LARGE:
                    is_costly = True
                    if not is_scheduled and not scheduler.is_free:
                        left = 0
                        break
                frames.pop()
                handle(opcode, data)
                left -= 1
                now = clock()
        if (now > end or is_costly) and not is_scheduled:
            scheduler.spend(now - start)
        if now > end:
            self._watched_until = now + _REMEMBERED
            if is_watched and scheduler.work_clock() - worked > AT_ONCE:
                self._costly_until = now + _REMEMBERED
                is_costly = True
        if frames or self._owner.send_replies():
            self._go_on(is_costly=is_costly)

    def _go_on(self, *, is_costly: bool = False) -> None:
        """Continue with the received data, after a pause if the peer has sent too much."""
        if self._next is not None:
            return
        wait = 0.0 if self._bucket is None else min(self._bucket.seconds_until(0, self._loop.time()), _LONGEST_PAUSE)
        if self._is_disconnected and (self._is_held or not self._parser.is_waiting):
            self._owner.end(ABNORMAL, "")
        elif self._is_held:
            pass
        elif self._parser.is_waiting or wait:
            self._pause_transport()
            if wait:
                self._next = self._loop.call_later(wait, self._read)
            elif is_costly:
                self._next = self.scheduler.wait(partial(self._read, is_scheduled=True))
            else:
                self._next = self._loop.call_soon(self._read)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _pause_transport(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()


class FrameTransport:
    """A base of the transports of connections whose frames a `FrameReader` hands over."""

    __slots__ = ("_drained", "_is_closing", "_reader", "_receiver", "code")

    _reader: FrameReader
    # The close code.
    code: int

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self._is_closing = False
        # Done when the peer has caught up, or the socket is closed; None if that is not waited for.
        self._drained: asyncio.Future[None] | None = None

    def attach(self, receiver: Receiver) -> None:
        """Pass the peer's messages to `receiver` from now on; nothing is handled before the first call."""
        is_first = self._receiver is None
        self._receiver = receiver
        if is_first:
            self.resume()

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly."""
        raise NotImplementedError

    def pause(self) -> None:
        self._reader.pause()

    def resume(self) -> None:
        self._reader.resume()

    def stop_reading(self) -> None:
        self._reader.stop()

    def schedule(self, work: Callable[[], None]) -> Ticket | None:
        return self._reader.scheduler.run(work)

    async def drain(self) -> None:
        while self.is_backed_up and not self._is_closing:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    # Called by the reader

    def handle(self, opcode: Opcode, data: bytes) -> None:
        """Handle a frame of the peer."""
        raise NotImplementedError

    def send_replies(self) -> bool:
        """Send the protocol's own answers; return whether the peer may send more."""
        return True

    def end(self, code: int, reason: str) -> None:
        """Close the receiver."""
        if self._is_closing:
            return
        self._is_closing = True
        self.code = code
        self._wake()
        self._reader.close()
        if self._receiver is not None:
            self._receiver.close(code, reason)

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
