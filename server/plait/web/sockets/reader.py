"""When what the peer of a WebSocket sends is handled: in turns, so that nobody has the server to themselves. No I/O."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from websockets.frames import Opcode
from websockets.server import ServerProtocol

from plait.limits import TokenBucket
from plait.web.sockets.framing import Incoming
from plait.web.turns import AT_ONCE, LARGE, Ticket, Turns

__all__ = ["Reader"]

# Frames of one peer after which the others have their turns.
_FRAMES: Final = 96
# Seconds after a turn that took too long, in which the peer's next ones are watched, or taken for as costly.
_REMEMBERED: Final = 10.0
# Seconds for which a peer that sends too much is not read, at most, so that its end is noticed.
_LONGEST_PAUSE: Final = 1.0


class Reader:
    """Hands over the messages and control frames of one peer, and reads no more before they are handled.

    `handle` takes each, `parsed` is called after some and tells whether there may be more, `cut` when the last has been
    handled that came before the peer was gone.
    """

    __slots__ = (
        "_bucket",
        "_costly_until",
        "_cut",
        "_handle",
        "_incoming",
        "_is_closed",
        "_is_cut",
        "_is_held",
        "_is_stopped",
        "_loop",
        "_parsed",
        "_transport",
        "_turn",
        "_turns",
        "_watched_until",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        protocol: ServerProtocol,
        *,
        bucket: TokenBucket | None,
        turns: Turns,
        handle: Callable[[Opcode, bytes], None],
        parsed: Callable[[], bool],
        cut: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._incoming = Incoming(protocol)
        # Counts the frames that reach no session's limits: pings, the pongs that nobody asked for, and fragments.
        self._bucket = bucket
        # Where what costs much waits for its turn, and until when all that the peer sends is taken for that. What looks
        # so is watched first: the time may have been that of other processes, and to ask for one's own takes long.
        self._turns = turns
        self._costly_until = -math.inf
        self._watched_until = -math.inf
        self._handle = handle
        self._parsed = parsed
        self._cut = cut
        # Goes on with what has come, when others have had their turns.
        self._turn: asyncio.Handle | Ticket | None = None
        # Whether what the peer sends is left unread: for a while, which begins with the reader, or for good.
        self._is_held = True
        self._is_stopped = False
        # Whether the peer says nothing more than what has come, and whether that is of no interest.
        self._is_cut = False
        self._is_closed = False

    @property
    def is_held(self) -> bool:
        """Whether what the peer sends is left unread for a while."""
        return self._is_held or self._turn is not None

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._incoming.feed(data)
        if self.is_held:
            self._pause_transport()
        else:
            self._read()

    def charge(self, count: int) -> None:
        """Count frames of the peer; those that it is asked for are counted before, the other way."""
        if self._bucket is not None:
            self._bucket.charge(count)

    def pause(self) -> None:
        """Hand over nothing more until `resume`."""
        if not self._is_closed:
            self._is_held = True
            self._pause_transport()

    def resume(self) -> None:
        """Go on, unless `stop` was called."""
        if not self._is_stopped and not self._is_closed:
            self._is_held = False
            self._go_on()

    def stop(self) -> None:
        """Hand over nothing more until the socket is closed."""
        self._is_stopped = True
        self.pause()

    def close(self) -> None:
        """Read on regardless, since to close a socket with unread data is to reset it."""
        self._is_closed = True
        self._is_held = False
        if not self._is_cut:
            self._go_on()

    def take_turn(self, work: Callable[[], None]) -> Ticket | None:
        """Do what has waited elsewhere, at once or when it is its turn."""
        return self._turns.run(work)

    def drop(self) -> None:
        """Forget what has come and has not been handled."""
        self._incoming.drop()

    def end(self) -> None:
        """Take note that the peer says nothing more; what it has said is handled first."""
        self._is_cut = True
        if self._is_closed and self._turn is not None:
            self._turn.cancel()
        else:
            self._go_on()

    # Inside

    def _read(self, *, has_turn: bool = False) -> None:
        """Handle some of what has come; what costs much only if that may be at once, or has waited for its turn."""
        self._turn = None
        incoming, turns = self._incoming, self._turns
        frames, handle, clock = incoming.frames, self._handle, turns.clock
        start = now = clock()
        if start < self._costly_until and not has_turn and not turns.is_free:
            self._go_on(is_costly=True)
            return
        end = start + AT_ONCE
        is_watched = start < self._watched_until
        worked = turns.work_clock() if is_watched else 0.0
        left, is_costly = _FRAMES, False
        while left > 0 and now <= end and not self._is_held:
            if not frames and not incoming.parse():
                break
            while frames and now <= end and not self._is_held:
                if len(frames[-1][1]) >= LARGE:
                    is_costly = True
                    if not has_turn and not turns.is_free:
                        left = 0
                        break
                handle(*frames.pop())
                left -= 1
                now = clock()
        if (now > end or is_costly) and not has_turn:
            turns.spend(now - start)
        if now > end:
            self._watched_until = now + _REMEMBERED
            if is_watched and turns.work_clock() - worked > AT_ONCE:
                self._costly_until = now + _REMEMBERED
                is_costly = True
        if frames or self._parsed():
            self._go_on(is_costly=is_costly)

    def _go_on(self, *, is_costly: bool = False) -> None:
        """Read on: first what has come already, in a turn that comes later if the peer has sent too much."""
        if self._turn is not None:
            return
        wait = 0.0 if self._bucket is None else min(self._bucket.seconds_until(0, self._loop.time()), _LONGEST_PAUSE)
        if self._is_cut and (self._is_held or not self._incoming.is_waiting):
            self._cut()
        elif self._is_held:
            pass
        elif self._incoming.is_waiting or wait:
            self._pause_transport()
            if wait:
                self._turn = self._loop.call_later(wait, self._read)
            elif is_costly:
                self._turn = self._turns.wait(partial(self._read, has_turn=True))
            else:
                self._turn = self._loop.call_soon(self._read)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _pause_transport(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()
