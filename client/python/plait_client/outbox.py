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
        # How many pings on this socket have no pong yet. Pongs come in the order of what they and errors answer.
        self._asked = 0
        # The earliest time to send them again, None where the server has not refused any.
        self.resumes_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it is not known of some message whether the server has taken it."""
        return len(self._sent) > 0

    @property
    def is_open(self) -> bool:
        """Whether another message may go out."""
        return self.resumes_at is None and len(self._sent) < UNANSWERED

    @property
    def due(self) -> float | None:
        """When `resume` has something to send, None while an answer has to come before that."""
        return None if self._asked else self.resumes_at

    def reset(self) -> None:
        """Begin on a new socket; what was still to be sent again is kept, as the server has taken none of it."""
        if self.resumes_at is None:
            self._sent.clear()
        else:
            self.resumes_at = 0.0
        self._taken = self._asked = 0
        self._is_counted = False

    def count(self) -> list[Ping]:
        """Return what says that messages are counted, where that was not said; best said before it has to be."""
        return [] if self._is_counted or self.resumes_at is not None else [self._ping(self._taken)]

    def send(self, message: Message | bytes) -> list[ClientMessage | bytes]:
        """Return the frames that carry a message."""
        frames: list[ClientMessage | bytes] = [*self.count(), message]
        self._sent.append(message)
        if len(self._sent) % _ASKED == 0:
            frames.append(self.ask())
        return frames

    def ask(self) -> Ping:
        """Return what asks how far the messages were taken."""
        return self._ping(self._taken + len(self._sent))

    def answered(self, taken: int) -> None:
        """Take in a pong: the server has taken so many."""
        self._asked = max(0, self._asked - 1)
        self._confirm(taken)

    def refused(self, taken: int, until: float) -> list[Ping]:
        """Take in that the server refuses the message after so many, and those after it, until some time.

        Return what is to be sent at once: a ping whose pong comes after all other refusals.
        """
        is_first = self.resumes_at is None
        self._confirm(taken)
        self.resumes_at = max(until, self.resumes_at or 0.0)
        return [self.ask()] if is_first else []

    def resume(self, now: float) -> list[ClientMessage | bytes]:
        """Return what is to be sent again by this time; nothing while more refusals may be on their way."""
        if self.due is None or now < self.due:
            return []
        self.resumes_at = None
        return [self._ping(self._taken), *self._sent, self.ask()]

    def _confirm(self, taken: int) -> None:
        del self._sent[: max(0, taken - self._taken)]
        self._taken = max(self._taken, taken)

    def _ping(self, number: int) -> Ping:
        self._is_counted = True
        self._asked += 1
        return Ping(number)
