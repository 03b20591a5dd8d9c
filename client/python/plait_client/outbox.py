"""Sends frames again that the server refused as too fast: messages in order, and the last presence and token."""

from math import inf
from typing import Final, Generic, TypeVar

from plait_client.errors import TooLarge
from plait_schemas.frames import encode
from plait_schemas.messages import UNANSWERED, ClientMessage, Message, Ping

__all__ = ["Latest", "Outbox", "Outgoing", "check_size", "is_too_large"]

Frame = TypeVar("Frame")

Outgoing = ClientMessage | bytes
"""The output of a socket: frames, and binary messages in order with them."""

_PING_EVERY: Final = UNANSWERED // 2
"""After this many messages, a ping asks how many the server has taken."""

_RETRY_AFTER: Final = 1.0
"""The seconds to wait if the server names none."""

_SPACING: Final = 0.05
"""The minimum seconds between two presences, or tokens, after a refusal; the server collects presences for as long."""


class Outbox:
    """The messages on one socket; at most UNANSWERED of them are not known to have been taken."""

    def __init__(self) -> None:
        # Messages that are not known to have been taken by the server.
        self._sent: list[Message | bytes] = []
        # The number that the server has taken on this socket.
        self._taken = 0
        self._is_counted = False
        # The number of pings on this socket without a pong. Pongs and errors come in the order of the frames that they
        # answer.
        self._pings = 0
        # The earliest time to send refused messages again; None if none was refused.
        self.resumes_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a message is not known to have been taken."""
        return len(self._sent) > 0

    @property
    def is_open(self) -> bool:
        """Whether another message may be sent."""
        return self.resumes_at is None and len(self._sent) < UNANSWERED

    @property
    def due(self) -> float:
        """When `resume` has something to send; infinity while a pong must come first."""
        return inf if self._pings > 0 or self.resumes_at is None else self.resumes_at

    def reset(self) -> None:
        """Start with a new socket: refused messages are kept, because the server has taken none of them."""
        if self.resumes_at is None:
            self._sent = []
        else:
            self.resumes_at = 0.0
        self._taken = self._pings = 0
        self._is_counted = False

    def count(self) -> list[Ping]:
        """Return the ping that starts the count of messages, if it was not sent yet."""
        return [] if self._is_counted or self.resumes_at is not None else [self._ping(self._taken)]

    def send(self, message: Message | bytes) -> list[Outgoing]:
        """Return the frames that send a message."""
        first = self.count()
        self._sent.append(message)
        return [*first, message, *([self.ask()] if len(self._sent) % _PING_EVERY == 0 else [])]

    def ask(self) -> Ping:
        """Return a ping that asks how many messages were taken."""
        return self._ping(self._taken + len(self._sent))

    def answered(self, taken: int) -> None:
        """Handle a pong: the server has taken `taken` messages."""
        self._pings = max(0, self._pings - 1)
        self._confirm(taken)

    def refused(self, taken: int, wait: float | None, now: float) -> list[Ping]:
        """The server has refused the message after the first `taken`, and refuses all after it.

        Return a ping to send at once: its pong comes after all other refusals.
        """
        is_first = self.resumes_at is None
        self._confirm(taken)
        self.resumes_at = max(self.resumes_at or 0.0, now + (_RETRY_AFTER if wait is None else wait))
        return [self.ask()] if is_first else []

    def resume(self, now: float) -> list[Outgoing]:
        """Return the frames to send again now; none while more refusals may come."""
        if now < self.due:
            return []
        self.resumes_at = None
        return [self._ping(self._taken), *self._sent, self.ask()]

    def _confirm(self, taken: int) -> None:
        del self._sent[: max(0, taken - self._taken)]
        self._taken = max(self._taken, taken)

    def _ping(self, messages: int) -> Ping:
        self._is_counted = True
        self._pings += 1
        return Ping(messages)


class Latest(Generic[Frame]):
    """Frames that replace each other: the last one is sent as soon as the server takes it."""

    def __init__(self) -> None:
        self._frame: Frame | None = None
        self._is_waiting = False
        self._free_at = 0.0
        self._spacing = 0.0

    def put(self, frame: Frame) -> None:
        """Set the frame to send next."""
        self._frame = frame
        self._is_waiting = True

    def take(self, now: float) -> list[Frame]:
        """Return the frame to send by now, if there is one."""
        if self._frame is None or not self._is_waiting or now < self._free_at:
            return []
        self._is_waiting = False
        if self._spacing > 0:
            self._free_at = now + self._spacing
        return [self._frame]

    def refused(self, wait: float | None, now: float) -> None:
        """The server has refused a frame, and takes the next one after `wait` seconds."""
        self._is_waiting = self._frame is not None
        self._spacing = _SPACING
        self._free_at = max(self._free_at, now + max(_RETRY_AFTER if wait is None else wait, _SPACING))

    @property
    def due(self) -> float:
        """When the next frame may be sent; infinity if none waits."""
        return self._free_at if self._is_waiting else inf

    def reset(self) -> None:
        """Start with a new socket: it has refused nothing, and the frame to send on it is set again."""
        self._frame = None
        self._is_waiting = False
        self._free_at = self._spacing = 0.0


# Sizes


def is_too_large(frame: Outgoing, limit: float) -> bool:
    """Tell whether a frame has more bytes than `limit`."""
    return limit < inf and len(frame if isinstance(frame, bytes) else encode(frame)) > limit


def check_size(frame: Outgoing, limit: float) -> None:
    """Raise TooLarge for a frame that has more bytes than `limit`."""
    if is_too_large(frame, limit):
        raise TooLarge(int(limit))
