"""The queue of a socket: sends in order, and waits until the server takes more frames."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from plait_client.errors import TooLarge
from plait_client.events import CallLost, Dropped, Nacked
from plait_client.fold import Pending
from plait_client.outbox import Latest, Outbox, Outgoing, check_size, is_too_large
from plait_client.pushes import Follower, Pushes
from plait_schemas.messages import Auth, Call, Error, Message, Ping, Presence, Result

__all__ = ["CALLS_AT_ONCE", "CallQueue", "Sending", "Unsent"]

CALLS_AT_ONCE: Final = 256
"""The maximum number of calls under way; the server refuses more than this in one thread."""

Unsent = Nacked | Dropped
"""A frame that was not sent."""


class Sending:
    """The pushes, calls, messages, presences and tokens of a client on one socket after the other."""

    def __init__(self, pushes: Pushes, now: Callable[[], float]) -> None:
        self.calls: Final = CallQueue()
        self.presence: Final = Latest[Presence]()
        self.auth: Final = Latest[Auth]()
        self.outbox: Final = Outbox()
        # The maximum bytes of a frame, as the last join told.
        self.max_frame = inf
        self._pushes = pushes
        self._now = now
        self._is_finishing = False

    @property
    def is_busy(self) -> bool:
        """Whether a call or message waits to be sent, or, while finishing, a message may not have been taken."""
        is_resuming = self.outbox.resumes_at is not None
        return self.calls.first is not None or (self.outbox.is_busy and (self._is_finishing or is_resuming))

    @property
    def due(self) -> float:
        """When there may be a frame to send."""
        return min(self._pushes.resumes_at(self.calls.first), self.outbox.due, self.presence.due, self.auth.due)

    def reset(self) -> None:
        """Start with a new socket: nothing was sent on it."""
        for each in (self._pushes, self.outbox, self.presence, self.auth):
            each.reset()

    def handle_refusal(self, error: Error) -> list[Ping] | None:
        """Handle an error that refuses a frame as too fast; the frame is sent again later.

        Return the frames to send at once; None for any other error.
        """
        now = self._now()
        match error.refused:
            case "message":
                return self.outbox.refused(error.messages or 0, error.retry_after, now)
            case "presence":
                self.presence.refused(error.retry_after, now)
            case "auth":
                self.auth.refused(error.retry_after, now)
            case _:
                return None
        return []

    def finish(self) -> list[Ping]:
        """Return a ping for a client that is closing: it asks whether all messages were taken, if that is not known."""
        self._is_finishing = True
        # Refused messages bring a ping of their own when they are sent again.
        return [self.outbox.ask()] if self.outbox.is_busy and self.outbox.resumes_at is None else []

    def take(self) -> list[Outgoing | Unsent]:
        """Return the frames that may be sent now: calls, messages and pushes in the order in which they were made."""
        now = self._now()
        out: list[Outgoing | Unsent] = [*self.outbox.resume(now)]
        has_messages = False
        while (each := self._next()) is not None:
            if isinstance(each, Message | bytes):
                has_messages = True
                out += self.outbox.send(each)
            else:
                out.append(each)
        if has_messages and self._is_finishing:
            out.append(self.outbox.ask())
        return [*out, *self.presence.take(now), *self.auth.take(now)]

    def _next(self) -> Outgoing | Unsent | None:
        following = self.calls.next(self.max_frame, self._pushes, self.outbox)
        # Pushes made after refused messages wait until those are sent again.
        if following is not None or self.outbox.resumes_at is not None:
            return following
        return self._pushes.next(self.max_frame, self.calls.first)


class _Waiting(NamedTuple):
    frame: Call | Message | bytes
    after: Pending | None


class CallQueue:
    """Calls and messages that wait to be sent, and the calls that are under way on this socket."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._sent: set[int] = set()
        self._next = 1

    def add(self, call: Call, after: Pending | None, max_frame: float) -> int:
        """Add a call made after a push, and return the ref that it gets. Raises TooLarge."""
        frame = replace(call, ref=self._next)
        check_size(frame, max_frame)
        self._next += 1
        self._waiting.append(_Waiting(frame, after))
        return frame.ref

    def add_message(self, frame: Message | bytes, after: Pending | None, max_frame: float) -> None:
        """Add a message made after a push. Raises TooLarge."""
        check_size(frame, max_frame)
        self._waiting.append(_Waiting(frame, after))

    @property
    def first(self) -> Follower | None:
        """The next frame to send, if any waits."""
        return self._waiting[0] if self._waiting else None

    def next(self, max_frame: float, pushes: Pushes, outbox: Outbox) -> Outgoing | Dropped | None:
        """Remove and return the next frame, if it may be sent; for a frame that is too large, return its failure."""
        if not self._waiting or (len(self._sent) >= CALLS_AT_ONCE and isinstance(self._waiting[0].frame, Call)):
            return None
        # Frames made after refused messages wait until those are sent again.
        if not (outbox.is_open and pushes.let_pass(self._waiting[0])):
            return None
        frame, _ = self._waiting.popleft()
        ref = frame.ref if isinstance(frame, Call) else None
        if is_too_large(frame, max_frame):
            return Dropped(TooLarge(int(max_frame)), ref)
        if ref is not None:
            self._sent.add(ref)
        return frame

    def take(self, result: Result) -> Result | None:
        """Return the result if its call is under way."""
        is_awaited = self.end(result.ref) if result.done else result.ref in self._sent
        return result if is_awaited else None

    def end(self, ref: int) -> bool:
        """End a call, or remove it if it waits. Return whether it was under way."""
        if ref in self._sent:
            self._sent.remove(ref)
            return True
        self._waiting = deque(
            each for each in self._waiting if not (isinstance(each.frame, Call) and each.frame.ref == ref)
        )
        return False

    def fail(self, error: Error) -> Error | None:
        """End a call with an error; return the error if the call was under way."""
        return error if error.ref is not None and self.end(error.ref) else None

    def fail_all(self, *, for_good: bool = False) -> list[CallLost]:
        """Return the failures of all calls under way, lost with their socket; `for_good`, also of waiting calls."""
        waiting = [each.frame.ref for each in self._waiting if isinstance(each.frame, Call) and for_good]
        failed = [CallLost(ref) for ref in sorted((*self._sent, *waiting))]
        self._sent.clear()
        return failed
