"""Which states a client of a protocol without acknowledgements may show. No I/O."""

from itertools import islice
from typing import Final

from plait.revision import Revision

__all__ = ["Screen"]

# State frames that are remembered while it is not known that they were read, and bytes of their JSON. Of more, the
# client shows one of the first, which it had read before, or one of the last.
_MOST_FRAMES: Final = 64
_MOST_BYTES: Final = 1024 * 1024


class Screen:
    """Remembers the state frames that a client may show, and the last state that it wrote itself.

    Frames are numbered from 1 on. A client shows the last of what it has read and written; which of both came last is
    not known of a frame that was under way when the write came.
    """

    __slots__ = ("_frames", "_own", "_own_read", "_own_seen", "_own_sent", "_size")

    def __init__(self) -> None:
        # A number, when it was sent, and the state; the first may be the last that was read.
        self._frames: list[tuple[int, float, Revision]] = []
        self._size = 0
        # What the client wrote last, and how many frames had been sent, seen and read when that came.
        self._own: Revision | None = None
        self._own_sent = 0
        self._own_seen = 0
        self._own_read = 0

    @property
    def is_certain(self) -> bool:
        """Whether only one state may be shown."""
        return len(self._frames) + (self._own is not None) <= 1

    def note_sent(self, number: int, at: float, revision: Revision) -> None:
        """Remember a state frame that has been sent."""
        frames = self._frames
        frames.append((number, at, revision))
        self._size += revision.size
        while len(frames) > 2 and (len(frames) > _MOST_FRAMES or self._size > _MOST_BYTES):
            self._forget(1)

    def read_before(self, at: float, seen: int) -> int:
        """Return the number of the last frame, up to `seen`, that was sent before a time; 0 for none."""
        found = 0
        for number, sent_at, _ in self._frames:
            if number > seen or sent_at > at:
                break
            found = number
        return found

    def note_read(self, number: int) -> None:
        """Forget what cannot be shown any more, as the frames up to `number` have been read."""
        frames = self._frames
        while len(frames) > 1 and frames[1][0] <= number:
            self._forget(0)
        if self._own is None or not frames or frames[0][0] > number:
            return
        if frames[0][0] > self._own_sent:
            self._own = None
        elif frames[0][0] <= self._own_read:
            self._forget(0)

    def note_written(self, revision: Revision, *, sent: int, seen: int, read: int) -> None:
        """Remember what the client wrote, and how many frames had been sent, seen and read when that came."""
        self._own = revision
        self._own_sent, self._own_seen, self._own_read = sent, seen, read
        self.note_read(read)

    def states(self, seen: int) -> list[Revision]:
        """Return the states that may be shown when some frames have been seen: the likeliest, then the newest first."""
        frames, own = self._frames, self._own
        if own is None and len(frames) == 1:
            return [frames[0][2]]
        got = (each for each in reversed(frames) if each[0] <= seen and (own is None or each[0] > self._own_seen))
        likeliest = [each[2] for each in islice(got, 1)]
        found = [*likeliest, *([] if own is None else [own]), *(each[2] for each in reversed(frames))]
        return list(dict.fromkeys(found))

    def _forget(self, index: int) -> None:
        self._size -= self._frames[index][2].size
        del self._frames[index]
