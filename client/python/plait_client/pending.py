"""The pushes of a client that have no answer, and the state as it is shown with them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from plait_schemas.codec import encode_json
from plait_schemas.messages import Version
from plait_schemas.patch import Op, PatchError, apply
from plait_schemas.rebase import rebase

__all__ = ["Pending", "Push", "fold"]

_LARGE: Final = 64 * 1024
"""A push of no more bytes than this is none that a server finds too large."""


class Push:
    """A change of the state on its way, made on the version `made`."""

    __slots__ = ("is_orphan", "is_settled", "lost_on", "made", "number", "ops", "ref", "sent")

    def __init__(self, number: int, ref: int, made: Version, ops: Sequence[Op]) -> None:
        # How many pushes there have been with this one. It stays, while the ref may become another.
        self.number = number
        self.ref = ref
        self.made = made
        # The operations on the latest known state, after those of the earlier pushes.
        self.ops = ops
        # The operations as they were sent last, None as long as they were not.
        self.sent: Sequence[Op] | None = None
        # The last version on which the operations stood, where others have taken away what they lead into.
        self.lost_on: Version | None = None
        # Whether it was refused, or made on an own push that is refused or lost: the server, which may know nothing of
        # that, is not to be asked.
        self.is_orphan = False
        # Whether the server has answered for it, and only the answer is missing: the known state has it, or never will.
        self.is_settled = False

    @property
    def is_shown(self) -> bool:
        """Whether its operations are to be carried out on what is shown, should they fit."""
        return self.lost_on is None and not self.is_settled


class Pending:
    """Pushes in the order of their refs."""

    def __init__(self) -> None:
        self._queue: list[Push] = []
        self._next_ref = 1
        # How many pushes there have been.
        self.count = 0

    def __iter__(self) -> Iterator[Push]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def __getitem__(self, index: int) -> Push:
        return self._queue[index]

    def find(self, ref: int) -> int | None:
        """Return the index of the push `ref`."""
        return next((index for index, push in enumerate(self._queue) if push.ref == ref), None)

    def add(self, made: Version, ops: Sequence[Op]) -> Push:
        """Put a push at the end."""
        self.count += 1
        push = Push(self.count, self._next_ref, made, ops)
        self._next_ref += 1
        self._queue.append(push)
        return push

    def drop(self, push: Push) -> int:
        """Take out a push that was answered; return the index at which it was."""
        index = self._queue.index(push)
        del self._queue[index]
        return index

    def largest_sent(self) -> Push | None:
        """Return the largest push on its way to the server, the oldest of several; None where none of them is large."""
        sent = ((len(encode_json(push.sent)), push) for push in self._queue if push.sent and not push.is_settled)
        size, push = max(sent, key=lambda each: each[0], default=(0, None))
        return push if size > _LARGE else None

    # Numbers

    def settle(self, last_ref: int) -> None:
        """Take notice of the last ref that the server has answered for.

        A push that never left cannot be among those: its number was used by this client when it was another process.
        """
        # It does not store that a push changed nothing. Once it has forgotten that, it would take what has lost its
        # place for made without that push, and may find another place for it.
        has_forgotten = bool(self._queue) and last_ref < self._queue[0].ref - 1
        for push in self._queue:
            push.is_orphan |= has_forgotten and push.lost_on is not None
            is_settled = push.sent is not None and push.ref <= last_ref
            if push.is_settled and not is_settled:
                # It was refused: what was accepted is not forgotten.
                push.lost_on, push.is_orphan = push.made, True
            push.is_settled = is_settled
        self._next_ref = max(self._next_ref, last_ref + 1)
        if any(push.ref <= last_ref and push.sent is None for push in self._queue):
            self.renumber(
                max([last_ref, *(push.ref for push in self._queue if push.sent is not None)]) + 1, only_unsent=True
            )

    def renumber(self, start: int, *, only_unsent: bool = False) -> None:
        """Give the pushes that the server has not answered for the numbers from `start` on."""
        for push in self._queue:
            if not (push.is_settled or (only_unsent and push.sent is not None)):
                push.ref = start
                start += 1
        self._next_ref = start

    def skip(self, push: Push) -> int:
        """Take out a push that the server will never see, and renumber the pushes after it from its number on.

        Returns the index at which it was.
        """
        start = next(each.ref for each in self._queue if not each.is_settled)
        index = self.drop(push)
        self.renumber(start)
        return index

    # What is shown

    def fold(self, state: Any, end: int | None = None) -> Any:
        """Return `state` with what is pending, up to an index, carried out in order, but for what does not fit."""
        return fold(state, (push for push in self._queue[:end] if push.is_shown))

    def fold_settled(self, state: Any, last_ref: int) -> Any:
        """Return `state` with the shown pushes up to `last_ref`, on which the pushes after them were made."""
        return fold(state, (push for push in self._queue if push.is_shown and push.sent and push.ref <= last_ref))

    def move(self, over: Sequence[Op], state: Any, at: Version, *, start: int = 0, takes_back: bool = False) -> Any:
        """Let `over`, which led from the version `at` to `state`, come before what is shown; return the fold.

        It comes before the pushes from the index `start` on: each of them is rebased over `over` as it is after the
        previous push. With `takes_back`, it may take back what they were made on.
        """
        for index, push in enumerate(self._queue):
            is_moved = index >= start
            if not push.is_shown:
                push.is_orphan |= takes_back and is_moved and push.lost_on is not None
                continue
            moved = rebase(push.ops, over if is_moved else (), state)
            if moved.is_lost:
                push.lost_on, push.is_orphan = at, takes_back
                over, takes_back = moved.over, True
                continue
            push.ops = moved.ops
            try:
                state = apply(state, moved.ops)
            except PatchError:
                continue
            if is_moved:
                over = moved.over
        return state


def fold(state: Any, pushes: Iterable[Push]) -> Any:
    """Return `state` with pushes carried out in order, but for what does not fit."""
    for push in pushes:
        try:
            state = apply(state, push.ops)
        except PatchError:
            continue
    return state
