"""Tracks which state frames a client of a protocol without acknowledgements has seen.

A WebSocket ping is sent after frames; the peer's WebSocket answers it when it has received them.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from plait.actor.transport import Transport
from plait.errors import Conflict
from plait.session.cloudflare.screen import Screen
from plait.state.history import Link
from plait.state.revision import Revision

__all__ = ["SeenTracker"]

# Minimum seconds between pings to a client that only reads.
_PING_PAUSE: Final = 0.2
# Unanswered pings to a client that writes, which is pinged after each frame.
_MOST_PINGS: Final = 64
# Seconds that a received frame may wait until a busy page reads it.
_READ_AFTER: Final = 1.0
# Seconds after a browser's first pong within which its page sends what it had queued.
_OPENING: Final = 0.1
# Seconds after which a state frame counts as seen if the transport cannot ping.
_SEEN_AFTER: Final = 10.0


class SeenTracker:
    """Counts the frames of one client. `is_page` means that it is a page in a browser."""

    __slots__ = (
        "_asked",
        "_is_open",
        "_loop",
        "_on_seen",
        "_pinged",
        "_pinged_at",
        "_reading",
        "_seen",
        "_sent_at",
        "_timer",
        "_transport",
        "_version",
        "_version_seen",
        "_writes",
        "is_page",
        "screen",
        "sent",
    )

    def __init__(self, transport: Transport, on_seen: Callable[[], None]) -> None:
        self._transport = transport
        # Called each time the client has seen something.
        self._on_seen = on_seen
        self._loop = asyncio.get_running_loop()
        # State frames sent, how many of them the peer has seen, and how many it will have seen when it has answered
        # all pings.
        self.sent = 0
        self._seen = 0
        self._pinged = 0
        self._sent_at = 0.0
        self._pinged_at = 0.0
        # The last versions that had been sent before each unanswered ping, the oldest first.
        self._asked: list[int] = []
        # Whether the client has ever written a state; if so, it is pinged after each frame.
        self._writes = False
        # The next ping to a client that has not.
        self._timer: asyncio.TimerHandle | None = None
        # The version that the client is known to show, and the last one that it has received.
        self._version = -1
        self._version_seen = -1
        # The states that it may show, and the timer that checks when it has had time to read them all.
        self.screen = Screen()
        self._reading: asyncio.TimerHandle | None = None
        self.is_page = False
        self._is_open = False

    @property
    def version(self) -> int:
        """The version that the client is known to show; -1 for none."""
        return self.screen.sent if not self._transport.can_ping and self.has_all else self._version

    @property
    def has_all(self) -> bool:
        """Whether the client has seen all frames."""
        if self._transport.can_ping:
            return self._seen == self.sent
        return self._loop.time() - self._sent_at > _SEEN_AFTER

    @property
    def has_read_all(self) -> bool:
        """Whether even a busy page has had time to read all frames."""
        return self._loop.time() - self._sent_at > _READ_AFTER

    def follow(self) -> None:
        """Ping after each frame from now on, as the client writes."""
        if not self._writes:
            self._writes = True
            if self._timer is not None and not self._is_asked:
                self._timer.cancel()
                self._ping()

    def states(self) -> tuple[list[Revision], int]:
        """Return the states that the client may have shown when it wrote, and how many of them must be compared.

        The likeliest is the first. Raises Conflict if the client may have shown one that is forgotten.
        """
        self.screen.note_read(self._read_version())
        if not self._transport.can_ping or self.is_page:
            return self.screen.states(self._seen_version()), 0
        # It reads in order, and has not read beyond a ping that it has not answered.
        seen, until = self._version_seen, self._asked[0] if self._asked else self.screen.sent
        if self.screen.has_forgotten(seen, until):
            raise Conflict("too many states were on their way to know which one it was made on")
        return self.screen.states_in_step(seen, until)

    def note_sent(self, link: Link) -> None:
        """Count a state that was sent when it became durable."""
        self.sent += 1
        self._sent_at = link.at
        self.screen.note_sent(link)
        if self._writes or (self._timer is None and self._pinged == self._seen):
            self._ask_about_last()

    def note_sent_again(self) -> None:
        """Count a state that was sent again."""
        self._sent_at = self._loop.time()

    def note_held_back(self) -> None:
        """Stop following new states, as they are held back until the peer has caught up."""
        self.screen.note_held_back(keeps_all=self._writes)

    def note_written(self, revision: Revision, last: Link) -> None:
        """Remember a state that the client wrote, and shows at least until it reads another.

        `last` is the last durable one.
        """
        self.screen.note_written(revision, last, seen=self._seen_version())

    def note_shown(self, version: int) -> None:
        """Set the version that the client shows to that of its own write."""
        self._version = version

    def note_first(self) -> None:
        """Mark the first state as seen: the client cannot have written over an earlier one."""
        if self._transport.can_ping and not self.is_page:
            self._sent_at = 0.0

    def pong(self, payload: bytes) -> None:
        """Mark the frames before a ping as seen, as the client has answered it."""
        sent, version = int.from_bytes(payload[:8]), int.from_bytes(payload[8:])
        if len(payload) != 16 or not self._seen < sent <= self._pinged or version > self.screen.sent:
            return
        self._version = version
        if not self.is_page or self._seen:
            self._note_seen(sent, version)
        elif not self._is_open:
            # A browser answers pings before its page sends what it had queued.
            self._is_open = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(_OPENING, self._open_page, sent, version)

    def close(self) -> None:
        """Stop the timers."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    # Inside

    def _seen_version(self) -> int:
        """Return the last version that the client has received."""
        return self._version_seen if self._transport.can_ping else self._read_version()

    def _read_version(self) -> int:
        """Return the last version that the client has certainly read."""
        if self._transport.can_ping and not self.is_page:
            return self._version_seen
        if self._transport.can_ping:
            return self.screen.read_before(time.monotonic() - _READ_AFTER, self._version_seen)
        return self.screen.read_before(time.monotonic() - _SEEN_AFTER, self.screen.sent)

    def _read_later(self) -> None:
        """Schedule forgetting the states that the client no longer shows, as they may be large."""
        if self._reading is None and not self.screen.is_certain and (self.is_page or not self._transport.can_ping):
            patience = _READ_AFTER if self._transport.can_ping else _SEEN_AFTER
            self._reading = self._loop.call_later(patience, self._read)

    def _read(self) -> None:
        self._reading = None
        self.screen.note_read(self._read_version())
        self._read_later()

    @property
    def _is_asked(self) -> bool:
        """Whether a ping is unanswered."""
        return self._pinged > self._seen

    def _note_seen(self, sent: int, version: int) -> None:
        self._seen, self._version_seen = sent, version
        del self._asked[: bisect_right(self._asked, version)]
        self.screen.note_read(self._read_version())
        self._read_later()
        self._on_seen()
        if self.sent > self._pinged and self._timer is None:
            self._ask()

    def _open_page(self, sent: int, version: int) -> None:
        self._timer = None
        # Ping again for what was answered in the meantime.
        self._pinged = sent
        self._note_seen(sent, version)

    def _ask_about_last(self) -> None:
        """Ping after the last frame, or schedule that."""
        if not self._transport.can_ping:
            self._read_later()
        elif self._writes and self._pinged - self._seen < _MOST_PINGS:
            # Ping after each frame, to know which one the client shows when it writes.
            self._ping()
        elif not self._is_asked and self._timer is None:
            self._ask()

    def _ask(self) -> None:
        """Ping the client now or, if it only reads, when the pause since the last ping is over."""
        wait = 0.0 if self._writes else self._pinged_at + _PING_PAUSE - self._loop.time()
        if wait <= 0:
            self._ping()
        else:
            self._timer = self._loop.call_later(wait, self._ping)

    def _ping(self) -> None:
        self._timer = None
        self._pinged = self.sent
        self._pinged_at = self._loop.time()
        self._asked.append(self.screen.sent)
        self._transport.ping(self.sent.to_bytes(8) + self.screen.sent.to_bytes(8))
