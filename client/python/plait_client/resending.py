"""What is sent again when it came too fast: messages in their order, of presences and tokens the last one."""

from typing import Final

from plait_client.outbox import Outbox
from plait_schemas.messages import Auth, ClientMessage, Error, Message, Ping, Presence

__all__ = ["Resending"]

_RETRY_AFTER: Final = 1.0
"""How many seconds to wait where the server does not say how long."""

_APART: Final = 0.05
"""How many seconds apart frames are of which the server has refused one; it gathers presences for as long itself."""


class _Latest:
    """A frame of which only the last one counts."""

    def __init__(self) -> None:
        self._frame: Presence | Auth | None = None
        self._is_waiting = False
        self._free_at = 0.0
        self._apart = 0.0

    @property
    def due(self) -> float | None:
        return self._free_at if self._is_waiting else None

    def put(self, frame: Presence | Auth) -> None:
        self._frame = frame
        self._is_waiting = True

    def take(self, now: float) -> list[Presence | Auth]:
        if self._frame is None or not self._is_waiting or now < self._free_at:
            return []
        self._is_waiting = False
        if self._apart:
            self._free_at = now + self._apart
        return [self._frame]

    def refused(self, until: float) -> None:
        self._is_waiting = self._frame is not None
        self._apart = _APART
        self._free_at = max(self._free_at, until)


class Resending:
    """Carries messages, presences and tokens on one socket after the other."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._latest = {"presence": _Latest(), "auth": _Latest()}
        self._is_finishing = False

    @property
    def is_busy(self) -> bool:
        """Whether messages are to be sent again, or nothing more will be and some are not known to be taken."""
        return self._outbox.is_busy and (self._is_finishing or self.is_held)

    @property
    def is_held(self) -> bool:
        """Whether messages are to be sent again, and what was asked for after them waits for those."""
        return self._outbox.resumes_at is not None

    def may_send(self) -> bool:
        """Return whether another message may go out."""
        return self._outbox.is_open

    @property
    def due(self) -> float | None:
        """When `take` has something to send again."""
        times = [self._outbox.due, *(latest.due for latest in self._latest.values())]
        return min((time for time in times if time is not None), default=None)

    def reset(self) -> None:
        """Begin on a new socket."""
        self._outbox.reset()
        self._latest = {name: _Latest() for name in self._latest}

    def finish(self) -> list[Ping]:
        """Nothing more will be asked for: return what asks whether all that was sent was taken."""
        self._is_finishing = True
        # Messages that are sent again are followed by a ping of their own.
        return [self._outbox.ask()] if self._outbox.is_busy and not self.is_held else []

    def count(self) -> list[Ping]:
        """Return what is to be said before messages are sent, where that was not said."""
        return self._outbox.count()

    def send(self, message: Message | bytes) -> list[ClientMessage | bytes]:
        """Return the frames that carry a message."""
        frames = self._outbox.send(message)
        return [*frames, self._outbox.ask()] if self._is_finishing else frames

    def put_presence(self, frame: Presence) -> None:
        """Send this presence next, and none before it."""
        self._latest["presence"].put(frame)

    def put_token(self, frame: Auth) -> None:
        """Send this token next, and none before it."""
        self._latest["auth"].put(frame)

    def take_messages(self, now: float) -> list[ClientMessage | bytes]:
        """Return the messages that are to be sent again by this time."""
        return self._outbox.resume(now)

    def take_latest(self, now: float) -> list[Presence | Auth]:
        """Return the presence and the token that are to be sent by this time."""
        return [frame for latest in self._latest.values() for frame in latest.take(now)]

    def answered(self, taken: int) -> None:
        """Take in a pong: the server has taken so many messages."""
        self._outbox.answered(taken)

    def refused(self, frame: Error, now: float) -> list[Ping] | None:
        """Return what is to be sent at once where an error says that something came too fast, None for another error.

        What it refuses is sent again later.
        """
        wait = _RETRY_AFTER if frame.retry_after is None else frame.retry_after
        if frame.refused == "message":
            return self._outbox.refused(frame.messages or 0, now + wait)
        if frame.refused in self._latest:
            self._latest[frame.refused].refused(now + max(wait, _APART))
            return []
        return None
