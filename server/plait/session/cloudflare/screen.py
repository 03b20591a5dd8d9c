"""Which states a client of a protocol without acknowledgements may show. No I/O."""

from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from typing import Final

from plait.state.history import Link
from plait.state.revision import Revision

__all__ = ["Screen"]

# Bytes of states that are kept as they may not have been read, mostly by all clients together.
_MOST: Final = 8 * 1024 * 1024


class Screen:
    """Remembers the states that a client may show: what it was sent, and what it wrote last itself.

    A client shows the last of what it has read and written; which of both came last is not known of a state that was
    under way when the write came.
    """

    __slots__ = ("_lost", "_own", "_own_read", "_own_seen", "_own_sent", "_read", "_tail", "_unread", "sent")

    def __init__(self) -> None:
        # The last state that the client has surely read, unless it has written since.
        self._read: Revision | None = None
        # The first state that it may not have read, from where on the others are found; and the version that was sent
        # last, -1 before any was.
        self._unread: Link | None = None
        self.sent = -1
        # The last version that was forgotten, as there were too many before it was known which had been read.
        self._lost = -1
        # The end of a line of its own, while states come that are not sent to the client; None while all are.
        self._tail: Link | None = None
        # What the client wrote last, and up to which version it had been sent states, had got and had read them then.
        self._own: Revision | None = None
        self._own_sent = self._own_seen = self._own_read = -1

    @property
    def is_certain(self) -> bool:
        """Whether everything that was sent has been read."""
        return self._unread is None

    def shows(self, revision: Revision) -> bool:
        """Tell whether the client surely shows one state."""
        return self._unread is None and (revision is self._own if self._own is not None else revision is self._read)

    def note_sent(self, link: Link) -> None:
        """Remember a state that is being sent."""
        before, self.sent = self.sent, link.revision.version
        if self._unread is None:
            self._unread = link
            return
        if self._tail is not None:
            self._join(self._tail, link)
        # Where there are too many, those before are forgotten: it shows what it had read, or has caught up.
        if link.total - self._unread.total > _MOST:
            self._unread, self._lost = link, before

    def note_held_back(self, *, keeps_all: bool) -> None:
        """Let go of the states that come, as none is sent for now; those that were sent may still be shown.

        Of a client that has never written it is enough to keep the last.
        """
        if self._tail is not None:
            return
        copies = [copy(link) for link in self._links()]
        if not keeps_all and len(copies) > 1:
            self._lost = copies[-2].revision.version
            del copies[:-1]
        for before, after in pairwise(copies):
            before.next = after
        if copies:
            self._unread, self._tail = copies[0], copies[-1]
            self._tail.next = None

    def read_before(self, at: float, seen: int) -> int:
        """Return the last version, up to `seen`, that was there before a time; -1 for none that is not read."""
        found = -1
        for link in self._links():
            if link.revision.version > seen or link.at > at:
                break
            found = link.revision.version
        return found

    def note_read(self, version: int) -> None:
        """Forget what cannot be shown any more, as the states up to a version have been read."""
        last: Link | None = None
        for link in self._links():
            if link.revision.version > version:
                break
            last = link
        if last is None:
            return
        self._unread = last.next if version < self.sent else None
        if self._unread is None:
            self._tail = None
        if last.revision.version > self._own_sent:
            self._own = None
        if self._own is None or last.revision.version > self._own_read:
            self._read = last.revision

    def note_written(self, revision: Revision, last: Link, *, seen: int) -> None:
        """Remember what the client wrote when `last` was durable, and it had got the states up to `seen`."""
        self._own = revision
        self._own_sent, self._own_seen = self.sent, seen
        self._own_read = self.sent if self._unread is None else self._unread.revision.version - 1
        self._read = None
        if self._unread is not None and (self._tail or last).total - self._unread.total > _MOST:
            self._unread, self._tail, self._lost = None, None, self.sent

    def note_lost(self, revision: Revision) -> None:
        """Take note that what the client wrote is not there, and that it is being sent what is."""
        self._own, self._read = None, revision

    def has_forgotten(self, seen: int) -> bool:
        """Tell whether a client that is in step, and has read the state `seen`, shows one that is not remembered."""
        read = -1 if self._read is None else self._read.version
        return max(read, self._own_seen) < seen <= self._lost

    def states(self, seen: int, *, is_in_step: bool = False) -> list[Revision]:
        """Return the states that may be shown when those up to `seen` were got: the likeliest, then the newest.

        A client that is in step tells at once of each state that it has read, and may show the next one at most.
        """
        unread = [link.revision for link in self._links()]
        following = [each for each in unread if each.version > seen][:1] if is_in_step else []
        unread.reverse()
        got = next((each for each in unread if each.version <= seen and each.version > self._own_seen), self._read)
        found = [each for each in (got, self._own, self._read, *following, *unread) if each is not None]
        return list(dict.fromkeys(found))

    def _join(self, tail: Link, link: Link) -> None:
        """Let a state follow a line of its own; those between the two, which are not kept, do not count."""
        between = link.total - link.size - tail.total
        for each in self._links():
            each.total += between
        tail.next = link
        self._tail = None

    def _links(self) -> Iterator[Link]:
        link = self._unread
        while link is not None and link.revision.version <= self.sent:
            yield link
            link = link.next
