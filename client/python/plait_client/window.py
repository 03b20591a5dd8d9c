"""Which pushes were sent on a socket, and which of them must be sent again."""

from collections.abc import Callable, Sequence
from typing import Final

from plait_client.fold import Pending
from plait_schemas.messages import UNANSWERED, Nack

__all__ = ["SendWindow"]

_RETRY_AFTER: Final = 1.0
"""The seconds to wait if the server names none."""

_SPACING: Final = 0.1
"""The minimum seconds between calls and messages, which cannot be sent again, while the server limits the rate."""


class SendWindow:
    """The number of pending pushes that were sent, and the time at which the next frame may be sent."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # The number of pushes, from the first on, that were sent on this socket and have no answer.
        self._sent = 0
        # The maximum number of pushes under way: one after a refusal, because all later ones are sent again, and one
        # more for each accepted push.
        self._most = UNANSWERED
        # Refs of pushes on this socket that must be sent again: their answers are ignored.
        self._stale: list[int] = []
        # The earliest time to send pushes, if the server has asked to wait.
        self._held_until: float | None = None
        # The longest wait that the server has asked for; 0 if it has not, or if all refused pushes are answered.
        self._pace = 0.0
        # The earliest time to send a call or message, if there is one.
        self._free_at: float | None = None

    def reset(self) -> None:
        """Start with a new socket: nothing was sent on it."""
        self._sent = 0
        self._most = UNANSWERED
        self._stale = []
        self._held_until = None
        self._pace = 0.0
        self._free_at = None

    @property
    def resumes_at(self) -> float | None:
        """When `release` frees the pushes.

        None if no pushes are held, or an answer must come first: pushes that were under way at the refusal are answered
        before that, and their answers may ask for a longer wait.
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
        """Note that all pushes that were refused as too fast are answered."""
        self._pace = 0.0

    def next(self, pushes: Sequence[Pending]) -> Pending | None:
        """Return the next push to send, if there is one."""
        is_open = self._held_until is None and self._sent < min(self._most, len(pushes))
        return pushes[self._sent] if is_open else None

    def take(self, push: Pending) -> None:
        """Note that the next push is sent."""
        self._sent += 1
        push.sent = push.ops

    def has(self, index: int) -> bool:
        """Tell whether the push at `index` is under way."""
        return index < self._sent

    def let_pass(self, index: int) -> bool:
        """Tell whether a call or message made after the push at `index` may be sent; if so, it counts as sent.

        Unlike a push, a call or message cannot be sent again: while the server limits the rate, it waits for the
        answers to all pushes before it, and after the last frame that the server took, for the time that the server has
        asked for.
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
        """Note that the push at `index` is answered; answers come in order, so all pushes before it are, too."""
        self._most = 1 if is_refused else min(self._most + 1, UNANSWERED)
        if index < self._sent:
            self._sent -= 1
        self._stale = []
        self._spent()

    def is_stale(self, nack: Nack) -> bool:
        """Tell whether a nack is for a push that is sent again anyway."""
        if nack.ref not in self._stale:
            return False
        del self._stale[: self._stale.index(nack.ref) + 1]
        if nack.code == "rate_limited":
            self.hold(nack)
        return True

    def rewind(self, pushes: Sequence[Pending], ref: int, index: int) -> None:
        """Send all pushes from `index` on again: the server has not read the push `ref`, nor those after it."""
        self._stale += [push.ref for push in pushes[: self._sent] if push.ref > ref]
        self._sent = min(self._sent, index)

    def hold(self, nack: Nack) -> None:
        """Wait as long as the server asks."""
        wait = _RETRY_AFTER if nack.retry_after is None else nack.retry_after
        self._pace = max(self._pace, _SPACING, wait)
        self._held_until = max(self._held_until or 0.0, self._now() + wait)

    def _spent(self) -> None:
        """Note that the server has taken a frame."""
        if self._pace > 0:
            self._free_at = self._now() + self._pace
