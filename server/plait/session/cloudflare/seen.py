"""Tracks the state that a client shows, in a protocol without versions, by WebSocket pings sent with state frames.

Messages of one socket keep their order. So a client that answers such a ping reads the frame next, and its messages
before the answer were written before it read the frame. Only a browser may answer earlier, while its page is busy.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from plait.actor.transport import Frame, Transport
from plait.state.revision import Revision

__all__ = ["SeenTracker"]

# A thread with more connections is crowded: frames to clients that only read are not always sent with a ping.
_FEW: Final = 32
# In a crowded thread: the seconds between pings to clients that only read, and the length of a burst in such seconds.
_PING_PAUSE: Final = 0.2
_PING_BURST: Final = 1.5
# Maximum bytes of the states that were sent with unanswered pings, and the bytes that each counts besides its JSON.
_MOST_WAITING: Final = 1024 * 1024
_OVERHEAD: Final = 1024
# Maximum number of unanswered pings: Node's `ws` drops a server that sends more than 60 at once.
_MOST_PINGS: Final = 50
# Seconds after which even a busy page has read a frame.
_READ_AFTER: Final = 1.0
# Seconds after which a state frame without a ping counts as seen.
_SEEN_AFTER: Final = 10.0


class SeenTracker:
    """Sends one client its state frames, and tracks the state that it shows."""

    __slots__ = (
        "_asked",
        "_count_connections",
        "_is_full",
        "_is_sure",
        "_loop",
        "_paced",
        "_sent_at",
        "_sent_version",
        "_transport",
        "_version",
        "_waiting",
        "_writes",
        "_written",
        "base",
        "is_page",
        "other_base",
        "sent",
    )

    def __init__(self, transport: Transport, count_connections: Callable[[], int]) -> None:
        self._transport = transport
        # Returns the number of the thread's connections.
        self._count_connections = count_connections
        self._loop = asyncio.get_running_loop()
        # Whether the client is a page in a browser, which may answer a ping before its script has read the state.
        self.is_page = False
        # The state that the client's next write is based on; None if it has none.
        self.base: Revision | None = None
        # For a page: another possible base of that write, as the order of the messages leaves it open.
        self.other_base: Revision | None = None
        # The version that the client's last write made; -1 for none.
        self._written = -1
        # The last version that the client is known to have shown; -1 for none.
        self._version = -1
        # State frames sent, and the time and the version of the last one.
        self.sent = 0
        self._sent_at = 0.0
        self._sent_version = -1
        # The version of each unanswered ping, and the state that becomes the base with its answer.
        self._asked: deque[tuple[int, Revision]] = deque()
        # The bytes of these states, and whether the bytes or the pings have reached their limit, so that the client
        # must answer first.
        self._waiting = 0
        self._is_full = False
        # Whether the last frame was sent with a ping.
        self._is_sure = True
        # Whether the client has ever written; if so, each frame is sent with a ping.
        self._writes = False
        # The time of the next ping in a crowded thread, if the pings were evenly spaced.
        self._paced = 0.0

    @property
    def version(self) -> int:
        """The last version that the client is known to have shown; -1 for none."""
        return max(self._version, self._sent_version) if self.has_all else self._version

    @property
    def has_all(self) -> bool:
        """Whether the client has received all frames."""
        return not self._asked and (self._is_sure or self._loop.time() - self._sent_at > _SEEN_AFTER)

    @property
    def has_read_all(self) -> bool:
        """Whether even a busy page has had time to read all frames."""
        return self._loop.time() - self._sent_at > _READ_AFTER

    def follow(self) -> None:
        """Send a ping with each later frame, as the client writes."""
        self._writes = True

    def send(self, frame: Frame, revision: Revision) -> bool:
        """Send a state frame, and return True; False if the client must answer earlier pings first.

        The frame has a ping if the client writes or the thread is not crowded; other frames have one from time to time.
        """
        if self._is_full:
            return False
        now = self._sent_at = self._loop.time()
        self.sent += 1
        version = self._sent_version = revision.version
        transport = self._transport
        self._is_sure = transport.can_ping and (
            self._writes or self._count_connections() <= _FEW or self._take_ping(now)
        )
        if self._is_sure:
            if self.base is None:
                self.base = revision
            asked = self._asked
            asked.append((version, revision))
            waiting = self._waiting = self._waiting + revision.size + _OVERHEAD
            self._is_full = waiting > _MOST_WAITING or len(asked) >= _MOST_PINGS
            transport.send_pinged(frame, version.to_bytes(8))
            return True
        # The frame counts as read together with the frame before it: an older base would repeat the changes of others.
        if self._asked:
            pinged, replaced = self._asked[-1]
            self._asked[-1] = pinged, revision
            self._waiting += revision.size - replaced.size
            self._is_full = self._waiting > _MOST_WAITING
        else:
            self.base = revision
        transport.send(frame)
        return True

    def note_written(self, revision: Revision, version: int, base: Revision | None) -> None:
        """Record a written state that made a version; the client shows it until it reads another."""
        self._written = version
        if base is not None and base is self.other_base:
            self.other_base = revision  # The page has not read `self.base` yet.
        else:
            self.base, self.other_base = revision, None

    def note_shown(self, version: int) -> None:
        """Set the version that the client shows to the version of its own write."""
        self._version = version

    def note_first(self) -> None:
        """Mark the first state as read: the client cannot have written over an earlier one."""
        if self._transport.can_ping:
            self._sent_at = 0.0

    def pong(self, payload: bytes) -> bool:
        """Record the answer to a ping, which answers the earlier pings too; return False if it answers none."""
        version, asked = int.from_bytes(payload), self._asked
        if len(payload) != 8 or not asked:
            return False
        if asked[0][0] != version and all(each != version for each, _ in asked):
            return False
        shown, waiting = self.other_base or self.base, self._waiting
        while True:
            answered, base = asked.popleft()
            waiting -= base.size + _OVERHEAD
            if answered == version:
                break
        self._version, self.base, self._waiting = version, base, waiting
        self._is_full = waiting > _MOST_WAITING
        # A busy page may still show its last write: it may not have read a state that was sent before this write
        # arrived.
        self.other_base = shown if self.is_page and version < self._written else None
        return True

    # Inside

    def _take_ping(self, now: float) -> bool:
        """Return whether a ping may be sent in a crowded thread, and count it."""
        if self._paced - now > _PING_BURST:
            return False
        self._paced = max(self._paced, now) + _PING_PAUSE
        return True
