"""Which pushes were sent on a socket, and which of them are to be sent again."""

from collections.abc import Callable, Sequence
from typing import Final

from plait_client.fold import Pending
from plait_schemas.messages import UNANSWERED, Nack

__all__ = ["SendWindow"]

_RETRY_AFTER: Final = 1.0
"""The seconds to wait if the server names none."""

_SPACING: Final = 0.1
"""The least seconds between calls and messages, which cannot be sent again, while the server limits the rate."""


class SendWindow:
    """The number of pending pushes that were sent, and the time at which the next frame may be sent."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # The number of pushes, from the first on, that were sent on this socket and have no answer.
        self._sent = 0
        # The maximum number on their way: one after a refusal, as all after that are to be sent again, and one more
        # for each push that is accepted.
        self._most = UNANSWERED
        # Refs of pushes on this socket that are to be sent again: their answers are ignored.
        self._stale: list[int] = []
        # The earliest time to send pushes, where the server has asked to wait.
        self._held_until: float | None = None
        # The longest wait that the server has asked for; 0 where it has not, or all that it refused is answered.
        self._pace = 0.0
        # The earliest time to send a call or message, where there is one.
        self._free_at: float | None = None

    def reset(self) -> None:
        """A new socket: nothing was sent on it."""
        self._sent = 0
        self._most = UNANSWERED
        self._stale = []
        self._held_until = None
        self._pace = 0.0
        self._free_at = None

    @property
    def resumes_at(self) -> float | None:
        """When `release` frees the pushes.

        None where none are held, or an answer has to come before that: what was on its way when it was told to come
        again is answered first, as that may ask to wait for longer.
        """
        return None if self._stale else self._held_until

    def release(self) -> None:
        """End the waits that are over."""
        if self.resumes_at is not None and self._now() >= self.resumes_at:
            self._held_until = None
        if self._free_at is not None and self._now() >= self._free_at:
            self._free_at = None

    @property
    def free_at(self) -> float | None:
        """When `release` frees a call or message; None for at once."""
        return self._free_at

    def end(self) -> None:
        """All that was refused as too fast is answered."""
        self._pace = 0.0

    def next(self, pushes: Sequence[Pending]) -> Pending | None:
        """Return the next push to send, if there is one."""
        is_open = self._held_until is None and self._sent < min(self._most, len(pushes))
        return pushes[self._sent] if is_open else None

    def take(self, push: Pending) -> None:
        """The next push is sent."""
        self._sent += 1
        push.sent = push.ops

    def has(self, index: int) -> bool:
        """Tell whether the push at `index` is on its way."""
        return index < self._sent

    def let_pass(self, index: int) -> bool:
        """Tell whether a call or message made after the push at `index` may be sent; if so, it counts as sent.

        Unlike a push, it cannot be sent again: while the server limits the rate, it waits for the answers to all pushes
        before it, and for as long after the last frame that the server took as it has asked to wait.
        """
        if self._free_at is not None:
            return False
        if self._pace == 0:
            return self.has(index)
        if index >= 0 or self._held_until is not None:
            return False
        self._spent()
        return True

    def answered(self, index: int, *, is_refused: bool) -> None:
        """The push at `index` is answered; as answers come in order, so is all that was sent before it."""
        self._most = 1 if is_refused else min(self._most + 1, UNANSWERED)
        if index < self._sent:
            self._sent -= 1
        self._stale = []
        self._spent()

    def is_stale(self, nack: Nack) -> bool:
        """Tell whether a nack is for what is to be sent again anyway."""
        if nack.ref not in self._stale:
            return False
        del self._stale[: self._stale.index(nack.ref) + 1]
        if nack.code == "rate_limited":
            self.hold(nack)
        return True

    def rewind(self, pushes: Sequence[Pending], ref: int, index: int) -> None:
        """The server has not read the push `ref`, nor those after it: all from `index` on are to be sent again."""
        self._stale += [push.ref for push in pushes[: self._sent] if push.ref > ref]
        self._sent = min(self._sent, index)

    def hold(self, nack: Nack) -> None:
        """The server asks to wait."""
        wait = _RETRY_AFTER if nack.retry_after is None else nack.retry_after
        self._pace = max(self._pace, _SPACING, wait)
        self._held_until = max(self._held_until or 0.0, self._now() + wait)

    def _spent(self) -> None:
        """The server has just taken a frame."""
        if self._pace > 0:
            self._free_at = self._now() + self._pace
