"""The messages that a client has sent to a conversation, and that have no answer: no I/O."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

from plait_client.outbox import check_size, is_too_large
from plait_schemas.messages import UNANSWERED, Send, Unsent

__all__ = ["SentMessage", "SentMessages"]

_RETRY_AFTER: Final = 1.0
"""The seconds to wait if the server names none."""


class SentMessage:
    """A message that was sent here. `id` is the id from the server."""

    __slots__ = ("attachments", "content", "id", "key", "part", "ref")

    def __init__(self, part: str, content: str, key: str, attachments: Iterable[Mapping[str, Any]]) -> None:
        self.part: Final = part
        self.content: Final = content
        self.key: Final = key
        self.attachments: Final = [*attachments]
        self.id: str | None = None
        # Its number on this socket; 0 while it is not under way.
        self.ref = 0

    def frame(self, ref: int) -> Send:
        """Return the frame that sends it."""
        return Send(ref, self.part, self.content, self.key, self.attachments)


class SentMessages:
    """The messages without an answer, in order; they are sent on one socket after the other until each has one."""

    def __init__(self) -> None:
        self.all: list[SentMessage] = []
        self._next_ref = 1
        # When messages that were refused as too fast are sent again; None if none was refused.
        self._resumes_at: float | None = None

    def reset(self) -> None:
        """Start with a new socket: nothing was sent on it."""
        for each in self.all:
            each.ref = 0
        self._next_ref, self._resumes_at = 1, None

    def add(self, message: SentMessage, max_frame: float) -> None:
        """Add a message to be sent. Raises TooLarge."""
        check_size(message.frame(self._next_ref), max_frame)
        self.all.append(message)

    @property
    def due(self) -> float:
        """When there may be a message to send again; infinity while answers must come first."""
        return inf if self._resumes_at is None or self._is_under_way else self._resumes_at

    def take(self, now: float, max_frame: float) -> tuple[list[Send], list[SentMessage]]:
        """Return the frames that may be sent now, and the messages too large for the socket, which are given up."""
        if self._resumes_at is not None:
            if now < self.due:
                return [], []
            self._resumes_at = None
        frames, too_large, count = list[Send](), list[SentMessage](), sum(each.ref > 0 for each in self.all)
        for each in tuple(self.all):
            if each.ref > 0:
                continue
            if count >= UNANSWERED:
                break
            frame = each.frame(self._next_ref)
            if is_too_large(frame, max_frame):
                too_large.append(each)
                self.all.remove(each)
                continue
            each.ref = self._next_ref
            self._next_ref += 1
            count += 1
            frames.append(frame)
        return frames, too_large

    def end(self, ref: int) -> SentMessage | None:
        """Remove a message by its number, because it was answered, and return it."""
        found = next((each for each in self.all if each.ref == ref), None)
        if found is not None:
            self.all.remove(found)
        return found

    def delay(self, answer: Unsent, now: float) -> bool:
        """Send a message again later if the answer asks for that; return whether it does."""
        found = next((each for each in self.all if each.ref == answer.ref), None)
        is_gap = answer.code == "gap"
        if found is None or (answer.retry_after is None and not is_gap):
            return False
        wait = 0.0 if is_gap else answer.retry_after or _RETRY_AFTER
        found.ref = 0
        self._next_ref = min(self._next_ref, answer.ref)
        self._resumes_at = max(self._resumes_at or 0.0, now + wait)
        return True

    @property
    def _is_under_way(self) -> bool:
        return any(each.ref > 0 for each in self.all)
