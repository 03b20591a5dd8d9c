"""Tracks which states a client of a protocol without acknowledgements may show. No I/O."""

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import pairwise
from typing import Final

from plait.state.history import Link
from plait.state.revision import Revision

__all__ = ["Screen"]

# Bytes of states that are kept because a client may not have read them; clients mostly share them.
_MOST: Final = 8 * 1024 * 1024


class Screen:
    """Remembers the states that a client may show: those that it was sent, and its own last write.

    A client shows what it read or wrote last. If a state was on its way when a write arrived, the order of the two is
    not known.
    """

    __slots__ = ("_lost", "_own", "_own_read", "_own_seen", "_own_sent", "_read", "_tail", "_unread", "sent")

    def __init__(self) -> None:
        # The last state that the client has certainly read, unless it has written since.
        self._read: Revision | None = None
        # The first state that it may not have read, which links to the later ones; and the last version that was sent,
        # or -1.
        self._unread: Link | None = None
        self.sent = -1
        # The last version that was forgotten because there were too many unread ones.
        self._lost = -1
        # The end of a separate list, while states are held back from the client; None while all are sent.
        self._tail: Link | None = None
        # The client's last write, and the last versions that it had been sent, had received and had read at that time.
        self._own: Revision | None = None
        self._own_sent = self._own_seen = self._own_read = -1

    @property
    def is_certain(self) -> bool:
        """Whether the client has read everything that was sent."""
        return self._unread is None

    def shows(self, revision: Revision) -> bool:
        """Return whether the client certainly shows a state."""
        return self._unread is None and (revision is self._own if self._own is not None else revision is self._read)

    def note_sent(self, link: Link) -> None:
        """Remember a state that is being sent."""
        before, self.sent = self.sent, link.revision.version
        if self._unread is None:
            self._unread = link
            return
        if self._tail is not None:
            self._join(self._tail, link)
        # If there are too many, forget the older ones: the client shows the last one it has read, or has caught up.
        if link.total - self._unread.total > _MOST:
            self._unread, self._lost = link, before

    def note_held_back(self, *, keeps_all: bool) -> None:
        """Stop following new states, as none is sent for now; those that were sent may still be shown.

        For a client that has never written, the last one is enough.
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
        """Return the last unread version, up to `seen`, that was durable before a time; -1 for none."""
        found = -1
        for link in self._links():
            if link.revision.version > seen or link.at > at:
                break
            found = link.revision.version
        return found

    def note_read(self, version: int) -> None:
        """Forget the states that the client can no longer show, as it has read those up to a version."""
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
        """Remember a write that arrived when `last` was durable and the client had received the states up to `seen`."""
        self._own = revision
        self._own_sent, self._own_seen = self.sent, seen
        self._own_read = self.sent if self._unread is None else self._unread.revision.version - 1
        self._read = None
        if self._unread is not None and (self._tail or last).total - self._unread.total > _MOST:
            self._unread, self._tail, self._lost = None, None, self.sent

    def note_lost(self, revision: Revision) -> None:
        """Forget the client's write, which has failed; it is sent `revision` instead."""
        self._own, self._read = None, revision

    def has_forgotten(self, seen: int, until: int) -> bool:
        """Return whether a client that has read the state `seen`, and none after `until`, may show a forgotten one."""
        read = -1 if self._read is None else self._read.version
        is_lost = max(read, self._own_seen) < seen <= self._lost
        return is_lost or (self._own is None and seen < min(self._lost, until))

    def states(self, seen: int) -> list[Revision]:
        """Return the states that may be shown if those up to `seen` were received: the likeliest, then the newest."""
        unread = [link.revision for link in self._links()]
        unread.reverse()
        return _unique(*self._likeliest(seen, unread), *unread)

    def states_in_step(self, seen: int, until: int) -> tuple[list[Revision], int]:
        """Return the states that may be shown by a client that has read `seen`; also how many of them are likely.

        The likely ones come first: the next state, and then the others up to `until`.
        """
        unread = [link.revision for link in self._links()]
        following = [each for each in unread if each.version > seen][:1]
        unread.reverse()
        reached = [each for each in unread if each.version <= until]
        likely = _unique(*self._likeliest(seen, unread), *following, *reached)
        return _unique(*likely, *unread), len(likely)

    def _likeliest(self, seen: int, unread: Iterable[Revision]) -> Iterator[Revision]:
        """Yield what is shown if nothing after `seen` was read; the newest of the `unread` ones is the first."""
        got = next((each for each in unread if each.version <= seen and each.version > self._own_seen), self._read)
        for each in (got, self._own, self._read):
            if each is not None:
                yield each

    def _join(self, tail: Link, link: Link) -> None:
        """Append a state to a separate list; the states between, which are not kept, do not count."""
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


def _unique(*revisions: Revision) -> list[Revision]:
    return list(dict.fromkeys(revisions))
