"""The pushes of one client: their refs, the pushes to send, and the answers."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

import msgspec

from plait_client.events import Acked, Changed, Nacked
from plait_client.fold import Fold, Pending
from plait_client.outbox import is_too_large
from plait_client.window import SendWindow
from plait_schemas.codec import encode_json
from plait_schemas.encoding import encode_given
from plait_schemas.messages import Ack, Joined, Nack, Push
from plait_schemas.patch import Op, PatchError, decode_ops, without_own

__all__ = ["Follower", "Pushes"]

_LARGE: Final = 64 * 1024
"""No server refuses a push of this many bytes as too large."""

_TOO_LARGE: Final = ("too_large", "the change is larger than the server takes")
_ORPHANED: Final = ("conflict", "it was refused, or what it was made on")


class Follower(Protocol):
    """A call or message, which must not overtake the push that was made before it."""

    @property
    def after(self) -> Pending | None: ...


class Pushes:
    """The pushes without an answer, in the order of their refs, and the state that is shown with them."""

    def __init__(self, now: Callable[[], float], *, has_state: bool = True) -> None:
        self.fold: Final = Fold(has_state=has_state)
        self._window = SendWindow(now)
        self._next = 1
        # The push that was probably too large, unless the next join says that it was answered.
        self._suspect: Pending | None = None

    @property
    def all(self) -> Sequence[Pending]:
        """The pushes without an answer."""
        return self.fold.pushes

    @property
    def last(self) -> Pending | None:
        """The push that was made last, if it has no answer."""
        return self.all[-1] if self.all else None

    def resumes_at(self, waiting: Follower | None) -> float:
        """Return when to send again, if the server has asked to wait; `waiting` may have to wait longer."""
        times = (self._window.resumes_at, None if waiting is None else self._window.free_at)
        return min((time for time in times if time is not None), default=inf)

    # Sending

    def add(self, ops: Sequence[Op], check: Callable[[object], None] | None = None) -> Pending:
        """Add a push of a copy of operations on the shown state; `check` as in `Fold.add`.

        Raises PatchError, and changes nothing, if they do not fit, and ValueError if JSON cannot hold them.
        """
        push = self.fold.add(self._next, decode_ops(encode_given(ops)), check)
        self._next += 1
        return push

    def next(self, max_frame: float, waiting: Follower | None) -> Push | Nacked | None:
        """Return the next push that may be sent, if any: its frame, or its refusal in the server's place.

        No push overtakes `waiting`.
        """
        suspect, self._suspect = self._suspect, None
        if suspect is not None and not suspect.is_settled:
            return self._refuse(suspect, *_TOO_LARGE)
        if waiting is not None and self._window.has(self._index_of(waiting)):
            return None
        push = self._window.next(self.all)
        if push is None:
            if not self.all and waiting is None:
                self._window.end()
            return None
        frame = self._frame(push)
        if not push.is_settled:
            if push.is_orphan:
                return self._refuse(push, *_ORPHANED)
            if is_too_large(frame, max_frame):
                return self._refuse(push, *_TOO_LARGE)
        self._window.take(push)
        return frame

    def let_pass(self, waiting: Follower) -> bool:
        """Tell whether a call or message may be sent; if so, it counts as sent."""
        return self._window.let_pass(self._index_of(waiting))

    def _index_of(self, waiting: Follower) -> int:
        """Return the index of the push that `waiting` must follow; -1 if all pushes before it are answered."""
        return next((index for index, push in enumerate(self.all) if push is waiting.after), -1)

    def _frame(self, push: Pending) -> Push:
        assert self.fold.at is not None
        answered = self.all[0].ref - 1
        # A push whose place is gone must not find a place in the state that is known now.
        base = push.lost_on or self.fold.at
        return Push(
            push.ref,
            base,
            # The server knows a settled push, and is only asked for its answer.
            [] if push.is_settled else push.ops,
            None if push.made == base else push.made,
            answered if answered < push.ref - 1 else None,
        )

    def reset(self) -> None:
        """Start with a new socket: nothing was sent on it."""
        self._window.reset()

    def release(self) -> None:
        """End the waits that are over."""
        self._window.release()

    # Pushes that the server has not seen, and must not see

    def suspect(self) -> None:
        """Note that the server has closed the socket over a frame's size: probably the largest push, if it is large."""
        largest = _LARGE
        for push in self.all:
            if push.sent is None or push.is_settled:
                continue
            size = len(encode_json(push.sent))
            if size > largest:
                largest, self._suspect = size, push

    def _refuse(self, push: Pending, code: str, message: str) -> Nacked:
        """Refuse a push, in the server's place, that the server has not seen."""
        assert self.fold.at is not None
        still_open = [each for each in self.all if not each.is_settled]
        answer = Nack(push.ref, code, message, self.fold.at[1])
        self.fold.refuse(push)
        self._renumber([each for each in still_open if each is not push], still_open[0].ref)
        return Nacked(push, answer)

    # Answers of the server

    def join(self, frame: Joined) -> None:
        """Take in the answer to a join. Raises PatchError if missed changes are missing."""
        self._settle(frame.last_ref)
        self.fold.join(frame)

    def _settle(self, last_ref: int) -> None:
        """Settle all pushes up to `last_ref`, which the server has answered.

        A push that was never sent cannot be among them: this client has used its number in another life.
        """
        self._next = max(self._next, last_ref + 1)
        # The server does not store that a push changed nothing. Once the server has forgotten such a push, it would
        # take a push that lost its place as made without it, and might find another place for that push.
        if self.all and last_ref < self.all[0].ref - 1:
            for push in self.all:
                push.is_orphan |= push.lost_on is not None
        sent = [push.ref for push in self.all if push.sent is not None]
        unsent = [push for push in self.all if push.sent is None]
        if unsent and unsent[0].ref <= last_ref:
            self._renumber(unsent, max([last_ref, *sent]) + 1)

    def ack(self, frame: Ack, connection: str | None) -> list[Changed | Acked]:
        """Take an ack; return its events, none if its change was known. Raises PatchError for a gap.

        The change of an own push is reported, too, as a change by `connection`.
        """
        assert self.fold.at is not None
        push = self._find(frame.ref)
        told: list[Changed | Acked] = []
        epoch, known = self.fold.at
        # A settled push that was carried out was a part of the changes in a join.
        if frame.version > known and not (push and push.is_settled):
            applied = push.sent if push and frame.ops is msgspec.UNSET else frame.ops
            if frame.version > known + 1 or applied is None or applied is msgspec.UNSET:
                raise PatchError("changes are missing")
            before, at = self.fold.confirmed, (epoch, frame.version)
            if push:
                self._answer(push, lambda: self.fold.acknowledge(at, push, applied))
            else:
                self.fold.advance(at, applied)
            told.append(Changed(before, self.fold.confirmed, *at, without_own(applied), connection))
        elif push:
            self._answer(push, lambda: self.fold.drop(push))
        return [*told, Acked(push, frame.version)] if push else told

    def nack(self, frame: Nack) -> Nacked | None:
        """Take a nack; return the refusal, None if the push goes on, or was not asked about."""
        is_unseen = frame.code == "rate_limited" or (frame.code == "gap" and frame.expected is not None)
        if is_unseen and self._window.is_stale(frame):
            return None
        push = self._find(frame.ref)
        if push is None:
            return None
        if not is_unseen:
            # A push that was answered on an earlier socket had no push sent after it in vain.
            self._answer(push, lambda: self.fold.refuse(push), is_refused=not push.is_settled)
            return Nacked(push, frame)
        if frame.code == "gap" and frame.expected is not None:
            self._send_from(frame.expected, frame.ref)
        else:
            self._window.rewind(self.all, frame.ref, self.all.index(push))
            self._window.hold(frame)
        return None

    def _find(self, ref: int) -> Pending | None:
        return next((push for push in self.all if push.ref == ref), None)

    def _send_from(self, expected: int, nacked: int) -> None:
        still_open = [index for index, push in enumerate(self.all) if not push.is_settled]
        start = still_open[0] if still_open else len(self.all)
        index = next((index for index, push in enumerate(self.all) if push.ref == expected), None)
        self._window.rewind(self.all, nacked, start if index is None else index)
        if index is None:
            self._renumber(self.all[start:], expected)

    def _renumber(self, pushes: Sequence[Pending], start: int) -> None:
        for ref, push in enumerate(pushes, start):
            push.ref = ref
        self._next = start + len(pushes)

    def _answer(self, push: Pending, change: Callable[[], None], *, is_refused: bool = False) -> None:
        index = self.all.index(push)
        change()
        self._window.answered(index, is_refused=is_refused)
