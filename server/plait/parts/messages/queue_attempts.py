"""The attempts to have the queue of a thread taken by its agent. No I/O."""

from collections.abc import Sequence
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from plait.parts.attempts import PAUSES, Attempts
from plait.parts.messages.message import Message

__all__ = ["QueueAttempts", "StreamPlace"]


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """A streaming message: its position, and its `count_key`."""

    position: int
    id: str
    depth: int
    silent: bool


class QueueAttempts(Attempts, frozen=True, omit_defaults=True, kw_only=True):
    """The state of the attempts to have the queue taken; each method returns the next state."""

    # The position of the oldest message when the last attempt began, or when that last stored what it took; 0 if
    # nothing was queued. The counts belong to it.
    oldest: int = 0
    # Whether the last attempt has stored what it took, and has not ended well: another one is made even if nothing is
    # queued.
    is_owed: bool = False
    # The last position in the queue that an attempt which failed may have taken: up to there, an attempt takes one.
    until: int = 0
    # The messages of the last attempt that streamed, if they have not become history; and the position that the oldest
    # message got when that attempt took it.
    left: Sequence[StreamPlace] = ()
    place: int = 0

    def follow(self, oldest: int, now: int) -> "QueueAttempts":
        """Follow a change of the queue: its first message is at `oldest`, or 0 if there is none."""
        if self.process:
            return self  # The end of the attempt decides.
        if not oldest and not self.is_owed:
            return _NONE
        if not self.due or (oldest != self.oldest and self.oldest and not self.is_owed):
            # The first message, or the failed one has left the queue.
            return replace(self.succeed(oldest, now), left=self.left)
        return self

    def begin_at(self, oldest: int, process: str) -> Self:
        """Begin an attempt; the counts start at 0 if another message is the oldest now."""
        begun = replace(self, process=process, oldest=oldest, is_owed=False)
        return begun if oldest == self.oldest else replace(begun, failures=0, crashes=0, place=0)

    def progress_to(self, oldest: int) -> Self:
        """Follow a write of the running attempt: what has left the queue with it is done, and did not crash."""
        if not self.process or oldest == self.oldest != 0:
            return self
        failures = self.failures if oldest == self.oldest else 0
        return replace(self.progress(), oldest=oldest, is_owed=True, failures=failures, place=0)

    def recover_at(self, queue: Sequence[Message], now: int, process: str) -> Self:
        """End an attempt whose end was not stored: as a crash, unless it ran in this process."""
        if not self.process:  # A clock that was ahead may have set its time.
            return self.rest(now) if self.due > now + PAUSES.most * 1e6 else self
        oldest, last = (queue[0].position, queue[-1].position) if queue else (0, 0)
        if self.process == process:
            return self.rest(self.due).end(oldest)
        # It may have taken everything.
        return replace(self.recover(process), due=now).end(oldest, 0 if oldest <= self.until else last)

    def end(self, oldest: int, taken: int = 0) -> Self:
        """End an attempt that has not succeeded, and may have failed for the messages up to the position `taken`."""
        return replace(self, is_owed=self.has_taken(oldest), until=max(self.until, taken))

    def has_taken(self, oldest: int) -> bool:
        """Whether an attempt has succeeded: the message that was the oldest when it began is not queued."""
        return self.is_owed or not self.oldest or oldest != self.oldest

    def succeed(self, oldest: int, now: int) -> "QueueAttempts":
        """End the attempts at a message; later ones are due at once, and are taken one by one up to `until`."""
        return QueueAttempts(due=now, until=self.until) if oldest else _NONE

    def without(self, position: int) -> Self:
        """Return the attempts when the message at a position is no longer one that was left."""
        if not self.left:
            return self
        return replace(self, left=[each for each in self.left if each.position != position])


_NONE: Final = QueueAttempts()
