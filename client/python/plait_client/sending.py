"""Which pushes go out on a socket, and which of them an answer is for."""

from collections import deque
from typing import NamedTuple

from plait_client.pending import Pending, Push
from plait_schemas.messages import UNANSWERED

__all__ = ["Sending"]


class _Sent(NamedTuple):
    ref: int
    push: Push


class Sending:
    """The pushes on one socket: sent in order, each answered once and in order, at most UNANSWERED without an answer.

    An answer may tell the client to send again from some push on. The pushes after that one that were already sent
    get the same kind of answer, and those answers must not make the client send once more.
    """

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._is_open = False
        # The index of the first pending push that is still to be sent.
        self._next = 0
        # What was sent and not answered, and what of it has been told to come again since.
        self._waiting: deque[_Sent] = deque()
        self._superseded: deque[_Sent] = deque()
        # How many may be on their way: one after a refusal, as all after that are to come again, and one more for each
        # push that is accepted.
        self._most = UNANSWERED
        # The earliest time to go on sending, where the server has asked for patience.
        self._held_until: float | None = None

    def open(self) -> None:
        """Begin on a socket that has joined."""
        self.close()
        self._is_open = True

    def close(self) -> None:
        """The socket is gone, and with it all that was on its way."""
        self._is_open = False
        self._next = 0
        self._most = UNANSWERED
        self._waiting.clear()
        self._superseded.clear()
        self._held_until = None

    @property
    def resumes_at(self) -> float | None:
        """When `release` goes on sending, None where nothing is held, or where an answer has to come before that.

        What was told to come again while it was on its way is answered first, as that may ask for more patience.
        """
        return None if self._superseded else self._held_until

    def release(self, now: float) -> None:
        """Go on sending, if it is time for that."""
        if self.resumes_at is not None and now >= self.resumes_at:
            self._held_until = None

    @property
    def due(self) -> Push | None:
        """The push that may go out at this time."""
        if not self._is_open or self._held_until is not None or self._next >= min(len(self._pending), self._most):
            return None
        return self._pending[self._next]

    def sent(self, push: Push) -> None:
        """The push that was due has gone out."""
        push.sent = push.ops
        self._next += 1
        self._waiting.append(_Sent(push.ref, push))

    def has_sent(self, count: int) -> bool:
        """Return whether the first so many pushes have gone out on this socket, as far as they were still to go out."""
        return self._is_open and (self._next >= len(self._pending) or self._pending[self._next].number > count)

    def has_answers(self, count: int) -> bool:
        """Return whether the first so many pushes are answered on an open socket."""
        return self._is_open and (len(self._pending) == 0 or self._pending[0].number > count)

    # Answers

    def look_up(self, ref: int) -> Push | None:
        """Return the push that a final answer is for; None for one that was answered before."""
        return next((sent.push for sent in (*self._waiting, *self._superseded) if sent.ref == ref), None)

    def drop(self, push: Push, *, is_refused: bool) -> int:
        """Take a push that was answered from the pending ones; return the index at which it was."""
        self._most = 1 if is_refused else min(self._most + 1, UNANSWERED)
        index = self._pending.drop(push)
        self._next -= index < self._next
        self._waiting = deque(sent for sent in self._waiting if sent.push is not push)
        # Answers come in order: all that was sent before what this one is for has had its own.
        self._superseded.clear()
        return index

    def was_superseded(self, ref: int) -> bool:
        """Tell whether an answer is to a push that had been told to come again already, and take it as that."""
        is_known = any(sent.ref == ref for sent in self._superseded)
        while is_known and self._superseded.popleft().ref != ref:
            pass
        return is_known

    def wait(self, ref: int, until: float) -> None:
        """Send the push `ref` and all after it again, not before `until`."""
        self._back_to(self._pending.find(ref), ref)
        self._held_until = max(until, self._held_until or 0.0)

    def expect(self, ref: int, expected: int) -> None:
        """Send again from `expected` on, with numbers from there where there is no such push."""
        index = self._pending.find(expected)
        if index is None:
            self._pending.renumber(expected)
            index = next((at for at, push in enumerate(self._pending) if not push.is_settled), len(self._pending))
        self._back_to(index, ref)

    def _back_to(self, index: int | None, answered: int) -> None:
        if index is not None:
            self._next = min(self._next, index)
        self._superseded += (sent for sent in self._waiting if sent.ref != answered)
        self._waiting.clear()
