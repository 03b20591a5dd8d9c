"""One part of a thread that a client has opened: no I/O.

The same as `opened-part.ts` of the JavaScript client, with the same names.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from plait_client.sent_messages import SentMessage
from plait_schemas.messages import Close, Open, Page, Part, Unopened

__all__ = ["OpenedPart"]

_NO_TIME: Final = float("inf")


class OpenedPart:
    """Asks for a part, and follows its changes.

    After a reconnect the part is opened again, and gets the missed changes. Frames that come between an Open and its
    page are held back.
    """

    def __init__(self, part: str) -> None:
        self.part: Final = part
        # Why the part cannot be opened.
        self.error: Unopened | None = None
        # The revision of the known items; None before the first page, and when the history has begun again.
        self._revision: int | None = None
        self._epoch: str | None = None
        self._limit = 50
        self._is_wanted = False
        # Whether the socket reports changes, and the request that waits for an answer on it.
        self._is_following = False
        self._awaits: Literal["page", "older"] | None = None
        self._leaves = False
        self._held: list[Part] = []
        # When a refused Open may be sent again.
        self._resumes_at = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether the part was opened."""
        return self._is_wanted

    @property
    def is_ready(self) -> bool:
        """Whether a page has come."""
        return self._revision is not None

    @property
    def keeps_answered(self) -> bool:
        """Whether items that the server has are still to come with a page."""
        return self._is_wanted and not (self._is_following and self._awaits is None)

    def show(self, sent: Iterable[SentMessage]) -> Sequence[Any]:
        """Return the known items in the form in which they are shown, with the items that are being sent."""
        raise NotImplementedError

    # Requests

    def open(self, limit: int | None = None) -> None:
        """Ask for the newest page, and all changes."""
        self._limit = self._limit if limit is None else limit
        self._is_wanted, self.error = True, None

    def close(self) -> None:
        """Stop following, and forget all items."""
        self._leaves = self._leaves or self._is_following or self._awaits is not None
        self._is_wanted = self._is_following = False
        self._awaits = self._revision = self.error = None

    # The socket

    def reset(self) -> None:
        """Start with a new socket: nothing was sent on it, or refused."""
        self._is_following = self._leaves = False
        self._awaits = self.error = None
        self._held = []
        self._resumes_at = 0.0

    def join(self, epoch: str) -> None:
        """Note that the thread is joined; items of another epoch are shown until the page comes."""
        if epoch != self._epoch:
            self._revision = None
        self._epoch = epoch

    @property
    def due(self) -> float:
        """When there may be a frame to send."""
        return self._resumes_at if self._next() is not None else _NO_TIME

    def take(self, now: float) -> list[Open | Close]:
        """Return the frames that may be sent now."""
        frames: list[Open | Close] = []
        if self._leaves:
            self._leaves = False
            frames.append(Close(self.part))
        if now >= self._resumes_at and (frame := self._next()) is not None:
            self._awaits = "page" if frame.before is None else "older"
            frames.append(frame)
        return frames

    # Frames

    def receive(self, frame: Page | Part | Unopened, now: float) -> bool:
        """Take in a frame; return whether the shown items may have changed."""
        match frame:
            case Unopened():
                return self._refused(frame, now)
            case Part() if self._awaits is not None:
                self._held.append(frame)
                return False
            case Part():
                return self._is_following and self._follow(frame)
            case Page():
                return self._turn(frame)

    # Inside

    def _apply_page(self, page: Page) -> None:
        """Take in a page."""
        raise NotImplementedError

    def _apply(self, frame: Part) -> bool:
        """Apply a change; return False if it does not fit."""
        raise NotImplementedError

    def _fail(self, frame: Unopened, *, is_older: bool) -> None:
        """Keep the reason why the part cannot be opened, or an older page cannot be read."""
        self.error = frame

    def _next_older(self) -> Open | None:
        """Return the request for the older page, if one is wanted."""
        return None

    def _next(self) -> Open | None:
        """Return the next request."""
        if not self._is_wanted or self._awaits is not None or self.error is not None:
            return None
        return self._next_older() if self._is_following else Open(self.part, self._revision, limit=self._limit)

    def _turn(self, page: Page) -> bool:
        if self._awaits != ("page" if page.before is None else "older"):
            return False  # It was closed since.
        self._awaits = None
        if page.before is None:
            self._is_following = True
            self._revision = page.revision
        self._apply_page(page)
        self._release()
        return True

    def _refused(self, frame: Unopened, now: float) -> bool:
        if self._awaits is None:
            return False
        is_older = self._awaits == "older"
        self._awaits = None
        if frame.retry_after is not None:
            self._resumes_at = now + frame.retry_after
        else:
            self._fail(frame, is_older=is_older)
        self._release()
        return True

    def _release(self) -> None:
        """Apply the frames that were held back."""
        held, self._held = self._held, []
        for frame in held:
            if self._is_following:
                self._follow(frame)

    def _follow(self, frame: Part) -> bool:
        """Apply a change, unless the page has it; open the part again if an earlier change is missing."""
        assert self._revision is not None
        if frame.op == "missed":
            self._is_following = False
            return False
        if frame.revision <= self._revision:
            return False
        if frame.revision > self._revision + 1 or not self._apply(frame):
            self._is_following = False
            return False
        self._revision = frame.revision
        return True
