"""What a client of a protocol without acknowledgements has seen of the state frames that it was sent.

Behind frames goes a WebSocket ping, which the peer answers by itself when it has got them.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from plait.actor.transport import Transport
from plait.errors import Conflict
from plait.session.cloudflare.screen import Screen
from plait.state.history import Link
from plait.state.revision import Revision

__all__ = ["SeenTracker"]

# A client that only reads is pinged once in so many seconds, for all frames that came meanwhile.
_PING_PAUSE: Final = 0.2
# Pings under way to a client that writes, each behind a frame of its own.
_MOST_PINGS: Final = 64
# A frame that has come may wait this many seconds until a busy page reads it.
_READ_AFTER: Final = 1.0
# A page sends what it had queued for its socket within so many seconds of its browser's first pong.
_OPENING: Final = 0.1
# Where no ping reaches the peer, a state frame counts as seen after this many seconds.
_SEEN_AFTER: Final = 10.0


class SeenTracker:
    """Counts the frames of one client. `is_page` says that it is a page in a browser."""

    __slots__ = (
        "_is_open",
        "_loop",
        "_pinged",
        "_pinged_at",
        "_reading",
        "_seen",
        "_sent_at",
        "_timer",
        "_told",
        "_transport",
        "_version",
        "_version_seen",
        "_writes",
        "is_page",
        "screen",
        "sent",
    )

    def __init__(self, transport: Transport, told: Callable[[], None]) -> None:
        self._transport = transport
        # Is told each time that the client is known to have seen something.
        self._told = told
        self._loop = asyncio.get_running_loop()
        # State frames sent, how many of them the peer has seen, and how many it will have seen when it answers all
        # pings that are under way.
        self.sent = 0
        self._seen = 0
        self._pinged = 0
        self._sent_at = 0.0
        self._pinged_at = 0.0
        # Whether the client has ever pushed a state; what such a one has seen is followed closely.
        self._writes = False
        # The next ping to a client that has not: those are not worth one a frame.
        self._timer: asyncio.TimerHandle | None = None
        # The version that the client shows, as far as is known, and the last one that it has got.
        self._version = -1
        self._version_seen = -1
        # The states that it may show, and what looks again when it has had time to read all of them.
        self.screen = Screen()
        self._reading: asyncio.TimerHandle | None = None
        self.is_page = False
        self._is_open = False

    @property
    def version(self) -> int:
        """The version that the client shows, as far as is known; -1 for none."""
        return self.screen.sent if not self._transport.can_ping and self.has_all else self._version

    @property
    def has_all(self) -> bool:
        """Whether the client has seen all frames."""
        if self._transport.can_ping:
            return self._seen == self.sent
        return self._loop.time() - self._sent_at > _SEEN_AFTER

    @property
    def has_read_all(self) -> bool:
        """Whether even a busy page has read all frames by now."""
        return self._loop.time() - self._sent_at > _READ_AFTER

    def follow(self) -> None:
        """Learn at once from here on what the client has seen, as it writes."""
        if not self._writes:
            self._writes = True
            if self._timer is not None and not self._is_asked:
                self._timer.cancel()
                self._ping()

    def states(self) -> list[Revision]:
        """Return the states that the client may have had before it when it wrote, the likeliest first.

        Raises Conflict where that is known to be one that is not remembered.
        """
        self.screen.note_read(self._read_version())
        is_in_step = self._transport.can_ping and not self.is_page
        if is_in_step and self.screen.has_forgotten(self._version_seen):
            raise Conflict("too many states were under way to know what it was made on")
        return self.screen.states(self._seen_version(), is_in_step=is_in_step)

    def note_sent(self, link: Link) -> None:
        """Take note that a state has been sent, as it became durable."""
        self.sent += 1
        self._sent_at = link.at
        self.screen.note_sent(link)
        if self._writes or (self._timer is None and self._pinged == self._seen):
            self._ask_about_last()

    def note_sent_again(self) -> None:
        """Take note that what has been sent just now was durable before."""
        self._sent_at = self._loop.time()

    def note_held_back(self) -> None:
        """Take note that a state is not sent, nor are those behind it until the peer has caught up."""
        self.screen.note_held_back(keeps_all=self._writes)

    def note_written(self, revision: Revision, last: Link) -> None:
        """Remember a state that has come from the client, which shows it at least until it reads another.

        `last` is the last one that is durable.
        """
        self.screen.note_written(revision, last, seen=self._seen_version())

    def note_shown(self, version: int) -> None:
        """Take note that the client shows what it wrote itself."""
        self._version = version

    def note_first(self) -> None:
        """Take note that what has been sent is the first that the client gets: it cannot have written over it."""
        if self._transport.can_ping and not self.is_page:
            self._sent_at = 0.0

    def pong(self, payload: bytes) -> None:
        """Take the answer to a ping."""
        sent, version = int.from_bytes(payload[:8]), int.from_bytes(payload[8:])
        if len(payload) != 16 or not self._seen < sent <= self._pinged or version > self.screen.sent:
            return
        self._version = version
        if not self.is_page or self._seen:
            self._note_seen(sent, version)
        elif not self._is_open:
            # A browser answers pings before its page has sent what was queued until the socket is open.
            self._is_open = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(_OPENING, self._open_page, sent, version)

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    # Inside

    def _seen_version(self) -> int:
        """Return the last version that the client has got."""
        return self._version_seen if self._transport.can_ping else self._read_version()

    def _read_version(self) -> int:
        """Return a version such that all states up to it have been read."""
        if self._transport.can_ping and not self.is_page:
            return self._version_seen
        if self._transport.can_ping:
            return self.screen.read_before(time.monotonic() - _READ_AFTER, self._version_seen)
        return self.screen.read_before(time.monotonic() - _SEEN_AFTER, self.screen.sent)

    def _read_later(self) -> None:
        """Forget in a while what the client does not show any more: states may be large."""
        if self._reading is None and not self.screen.is_certain and (self.is_page or not self._transport.can_ping):
            patience = _READ_AFTER if self._transport.can_ping else _SEEN_AFTER
            self._reading = self._loop.call_later(patience, self._read)

    def _read(self) -> None:
        self._reading = None
        self.screen.note_read(self._read_version())
        self._read_later()

    @property
    def _is_asked(self) -> bool:
        """Whether a ping is under way."""
        return self._pinged > self._seen

    def _note_seen(self, sent: int, version: int) -> None:
        self._seen, self._version_seen = sent, version
        self.screen.note_read(self._read_version())
        self._read_later()
        self._told()
        if self.sent > self._pinged and self._timer is None:
            self._ask()

    def _open_page(self, sent: int, version: int) -> None:
        self._timer = None
        # What was answered meanwhile is asked again.
        self._pinged = sent
        self._note_seen(sent, version)

    def _ask_about_last(self) -> None:
        """See to it that it is learnt when the client has seen the last frame."""
        if not self._transport.can_ping:
            self._read_later()
        elif self._writes and self._pinged - self._seen < _MOST_PINGS:
            # Behind each frame, so that it is known which one the client shows when it writes.
            self._ping()
        elif not self._is_asked and self._timer is None:
            self._ask()

    def _ask(self) -> None:
        """Ping the client, to learn when it has seen the frames so far; one that only reads not more than so often."""
        wait = 0.0 if self._writes else self._pinged_at + _PING_PAUSE - self._loop.time()
        if wait <= 0:
            self._ping()
        else:
            self._timer = self._loop.call_later(wait, self._ping)

    def _ping(self) -> None:
        self._timer = None
        self._pinged = self.sent
        self._pinged_at = self._loop.time()
        self._transport.ping(self.sent.to_bytes(8) + self.screen.sent.to_bytes(8))
