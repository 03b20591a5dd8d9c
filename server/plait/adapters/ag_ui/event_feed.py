"""The events of the runs of one thread, and the changes of its state during the runs, in the same order for all."""

import asyncio
import secrets
from collections import deque
from typing import Final, NamedTuple

from plait.actor.actor import Actor
from plait.actor.connection import Wire
from plait.actor.per_actor import PerActor
from plait.actor.transport import HIGH_WATER, Frame
from plait.adapters.ag_ui.event_frames import Cursor, Opened, encode_delta
from plait.errors import Conflict
from plait.state.revision import Revision
from plait.state.view import View, find_epoch

__all__ = ["EventFeed", "FeedChange", "FeedRun", "RunEvent", "feed_of"]

# Bytes that an entry counts in addition to its frame.
_ENTRY: Final = 200


class FeedRun:
    """A run with its events in a feed. `claim` tells who has requested it, with which body."""

    def __init__(self, id: str, claim: object) -> None:
        self.id = id
        self.claim = claim
        # The position after its first event, when it has begun, and the bytes that it keeps beside its events.
        self.position: int | None = None
        self.size = 0


class RunEvent(NamedTuple):
    """One event of a run, as a frame without its id."""

    run: FeedRun
    frame: bytes
    # Whether the event is the first or the last one of its run.
    is_first: bool = False
    is_last: bool = False
    # The item that the event begins, and the one that it continues or ends.
    opens: Opened | None = None
    of: Opened | None = None


class FeedChange:
    """A change of the state during a run. The frames of old changes are dropped, as they may contain whole texts."""

    __slots__ = ("frame", "run", "version")

    def __init__(self, run: FeedRun, version: int, frame: bytes) -> None:
        self.run = run
        self.version = version
        self.frame: bytes | None = frame


class _Wire(Wire):
    """Adds each change to the feed, once for all viewers."""

    def __init__(self, feed: "EventFeed") -> None:
        self._feed = feed

    def encode_change(self, revision: Revision, view: View) -> Frame | None:
        self._feed.put_change(revision)
        return _NOTHING


# The feed has the frame.
_NOTHING: Final = Frame(b"")


class _RunConflict(Conflict):
    status = 409  # Unlike for a state, no condition of the request has failed.


class EventFeed:
    """The events of the last runs of a thread, up to a number of bytes; the oldest are dropped first."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.wire = _Wire(self)
        # Names this feed in cursors; a thread that wakes again gets another feed.
        self.id = secrets.token_hex(4)
        # The run that has started and not ended, and all runs that wait or have events here, by their ids.
        self.run: FeedRun | None = None
        self.runs: dict[str, FeedRun] = {}
        self._entries: deque[RunEvent | FeedChange] = deque()
        # The position of the first entry that is kept, and the bytes of all entries.
        self.first = 0
        self._size = 0
        self._changes: deque[FeedChange] = deque()
        self._changes_size = 0
        # Set when an entry is added.
        self._viewers: set[asyncio.Event] = set()

    @property
    def next(self) -> int:
        """The position of the next entry."""
        return self.first + len(self._entries)

    def entry(self, position: int) -> RunEvent | FeedChange:
        """Return the entry at a position, which must not have been dropped."""
        return self._entries[position - self.first]

    def find_run(self, id: str, claim: object) -> FeedRun | None:
        """Return the run of a request that is repeated. Raises Conflict if it was another request."""
        if (run := self.runs.get(id)) is not None and run.claim != claim:
            raise _RunConflict(f"this thread has a run {id[:80]!r} of another request: use a new runId")
        return run

    def begin(self, run: FeedRun, frame: bytes) -> None:
        """Begin a run with its first frame."""
        self.run = run
        self.put(RunEvent(run, frame, is_first=True))
        run.position = self.next

    def forget(self, run: FeedRun) -> None:
        """Forget a run that has not begun, or has no events here."""
        if self.runs.get(run.id) is run:
            del self.runs[run.id]

    def put(self, event: RunEvent) -> None:
        """Append an event of a run."""
        self._append(event, _measure(event))
        if event.is_last and event.run is self.run:
            self.run = None

    def find(self, cursor: Cursor) -> int | None:
        """Return the position at which a viewer continues, None if an entry that it has missed was dropped."""
        epoch, version = cursor.version
        if find_epoch(epoch) != self.actor.state.epoch:
            return None
        if cursor.feed is not None:
            is_kept = cursor.feed == self.id and self.first <= cursor.position <= self.next
            return cursor.position if is_kept else None
        for index, entry in enumerate(self._entries, self.first + 1):
            if isinstance(entry, FeedChange) and entry.version == version:
                return index
        return None

    def watch(self, wake: asyncio.Event) -> None:
        """Set `wake` whenever an entry is added."""
        self._viewers.add(wake)

    def unwatch(self, wake: asyncio.Event) -> None:
        """Stop setting `wake`."""
        self._viewers.discard(wake)

    def wake(self) -> None:
        """Call all viewers."""
        for wake in tuple(self._viewers):
            wake.set()

    # Inside

    def put_change(self, revision: Revision) -> None:
        if self.run is None or (self._changes and self._changes[-1].version == revision.version):
            return  # The change is put once, and not for each view of the state.
        change = FeedChange(self.run, revision.version, encode_delta(self.actor.state.epoch, revision))
        self._append(change, 0)
        assert change.frame is not None
        self._changes.append(change)
        self._changes_size += len(change.frame)
        while self._changes_size > HIGH_WATER and len(self._changes) > 1:
            oldest = self._changes.popleft()
            assert oldest.frame is not None
            self._changes_size -= len(oldest.frame)
            oldest.frame = None

    def _append(self, entry: RunEvent | FeedChange, size: int) -> None:
        self._entries.append(entry)
        self._size += size + _ENTRY
        while self._size > self.actor.limits.write_buffer and len(self._entries) > 1:
            dropped = self._entries.popleft()
            self.first += 1
            self._size -= _ENTRY
            if isinstance(dropped, RunEvent):
                self._size -= _measure(dropped)
                if dropped.is_last:
                    self.forget(dropped.run)
        self.wake()


def _measure(event: RunEvent) -> int:
    return len(event.frame) + (event.run.size if event.is_last else 0)


feed_of: Final = PerActor[EventFeed](EventFeed).of
"""Returns the feed of an awake thread."""
