"""Messages on one socket: sent in their order, and again from the first that the server has refused."""

from typing import Final

from plait_schemas.messages import UNANSWERED, ClientMessage, Message, Ping

__all__ = ["Outbox"]

_ASKED: Final = UNANSWERED // 2
"""After so many messages the server is asked how far it has taken them."""


class Outbox:
    """The messages of which it is not known whether the server has taken them; at most UNANSWERED."""

    def __init__(self) -> None:
        self._sent: list[Message | bytes] = []
        # How many it has taken on this socket.
        self._taken = 0
        self._is_counted = False
        # How many it may have taken when others were sent again on this socket, and whether it has refused one since.
        self._resumed_from = -1
        self._is_refused = False
        # When to send them again, None where the server has not refused any.
        self.resumes_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it is not known of some message whether the server has taken it."""
        return len(self._sent) > 0

    @property
    def is_open(self) -> bool:
        """Whether another message may go out."""
        return self.resumes_at is None and len(self._sent) < UNANSWERED

    def reset(self) -> None:
        """Begin on a new socket; what was still to be sent again is kept, if the server has taken none of it."""
        if not self._is_refused:
            self._sent.clear()
        self.resumes_at = 0.0 if self._is_refused else None
        self._taken = 0
        self._resumed_from = -1
        self._is_counted = False

    def count(self) -> list[Ping]:
        """Return what says that messages are counted, where that was not said; best said before it has to be."""
        return [] if self._is_counted or self.resumes_at is not None else [self._count()]

    def send(self, message: Message | bytes) -> list[ClientMessage | bytes]:
        """Return the frames that carry a message."""
        frames: list[ClientMessage | bytes] = [*self.count(), message]
        self._sent.append(message)
        if len(self._sent) % _ASKED == 0:
            frames.append(self.ask())
        return frames

    def ask(self) -> Ping:
        """Return what asks how far the messages were taken."""
        return Ping(self._taken + len(self._sent))

    def confirm(self, taken: int) -> None:
        """Take in that the server has taken so many."""
        del self._sent[: max(0, taken - self._taken)]
        self._taken = max(self._taken, taken)

    def refused(self, taken: int, until: float) -> None:
        """Take in that the server refuses the message after so many, and those after it, until some time."""
        self.confirm(taken)
        # One that is late may be of what was sent before that, of which some is taken by now.
        self._is_refused = self._is_refused or taken > self._resumed_from
        self.resumes_at = max(until, self.resumes_at or 0.0)

    def resume(self, now: float) -> list[ClientMessage | bytes]:
        """Return what is to be sent again by this time."""
        if self.resumes_at is None or now < self.resumes_at:
            return []
        self.resumes_at = None
        self._resumed_from = self._taken + (0 if self._is_refused else len(self._sent))
        self._is_refused = False
        return [self._count(), *self._sent, self.ask()]

    def _count(self) -> Ping:
        self._is_counted = True
        return Ping(self._taken)
