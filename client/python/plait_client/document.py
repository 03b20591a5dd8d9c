"""A thread's state as a client has it: as the server told it, and as it is shown with what is pending."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from plait_client.happenings import Changed
from plait_client.pending import Pending, Push, fold
from plait_client.replica import Gap, Replica
from plait_schemas.codec import decode_json, encode_finite, encode_json
from plait_schemas.inverse import taking_back
from plait_schemas.messages import Ack, Change, Changes, Joined, Snapshot, Version
from plait_schemas.patch import Op, apply, decode_ops

__all__ = ["Document"]


class Document:
    """The confirmed state, the pending pushes, and their fold. Each method that raises Gap has changed nothing."""

    def __init__(self, replica: Replica, pending: Pending) -> None:
        self._replica = replica
        self._pending = pending
        # What the user sees: JSON values that nobody changes.
        self.shown: Any = None

    def edit(self, ops: Iterable[Op], check: Callable[[Any], None] | None = None) -> Push | None:
        """Change what is shown; None where there is nothing to do. Raises ValueError for what does not fit.

        `check` is given what would be shown, and may raise.
        """
        ops = decode_ops(encode_finite(list(ops)))
        shown = apply(self.shown, ops)
        if check is not None:
            check(shown)
        self.shown = shown
        return self._pending.add(self._replica.base, ops) if ops else None

    # What the server tells

    def join(self, frame: Joined) -> Changed | None:
        """Take in the answer to a join; None where it told nothing that was not known. Raises Gap."""
        before, had = self._replica.state, self._replica.have
        at = (self._replica.epoch or frame.epoch, self._replica.version)
        beneath = self._pending.fold_settled(before, frame.last_ref)
        ops = self._replica.join(frame)
        self._pending.settle(frame.last_ref)
        # What was answered for may have been refused: then what is pending was made on what is not there.
        is_exact = beneath is before
        self._move(beneath, ops if is_exact else None, at, takes_back=not is_exact)
        if had == self._replica.have:
            return None
        return Changed(before, self._replica.state, frame.epoch, frame.version, ops, None, self._replica.keys)

    def change(self, frame: Change | Changes | Snapshot) -> Changed:
        """Take in changes of others. Raises Gap."""
        before, at = self._replica.state, self._replica.base
        ops, source = None, None
        match frame:
            case Change():
                ops, source = frame.ops, frame.source
                self._replica.advance(frame.version, ops)
            case Changes():
                ops = frame.ops
                self._replica.skip(frame.from_, frame.to, ops)
            case Snapshot():
                self._replica.replace(frame.epoch, frame.version, decode_json(frame.state))
        self._move(before, ops, at)
        return Changed(before, self._replica.state, *self._replica.base, ops, source, self._replica.keys)

    def ack(self, frame: Ack, push: Push | None, connection: str | None) -> Changed | None:
        """Take in that a push is durable; None where that is known already. Raises Gap.

        The push is to be taken from the pending ones then, and `answered` to be called.
        """
        if (push is not None and push.is_settled) or frame.version <= self._replica.version:
            return None
        if push is None or push.sent is None:
            raise Gap
        before = self._replica.state
        ops = push.sent if frame.ops is msgspec.UNSET else frame.ops
        self._replica.advance(frame.version, ops)
        return Changed(before, self._replica.state, *self._replica.base, ops, connection)

    def refused(self, push: Push, index: int) -> None:
        """Stop showing a refused push that was at `index` of the pending ones, and rebase the pushes after it."""
        before = self._pending.fold(self._replica.state, index)
        over = taking_back(push.ops, before) if push.is_shown else []
        if len(over) < len(push.ops):
            over = []  # It did not fit, and so was not shown.
        state, at = self._replica.state, self._replica.base
        self.shown = self._pending.move(over, state, at, start=index, takes_back=bool(over))

    def answered(self, push: Push, change: Changed | None) -> None:
        """Show no more a push that is not pending any longer; `change` is what its ack made of the state."""
        if change is None or any(each.is_shown and each.ref < push.ref for each in self._pending):
            self.shown = self._pending.fold(self._replica.state)
        elif not push.is_shown:
            self._move(change.before, change.ops, (change.epoch, change.version - 1))
        elif encode_json(change.ops) != encode_json(push.ops):
            self._move(fold(change.before, (push,)), None, (change.epoch, change.version - 1))
        # What is confirmed just as it was shown leaves all that is shown as it is.

    def _move(self, beneath: Any, ops: Sequence[Op] | None, at: Version, *, takes_back: bool = False) -> None:
        """Let what led from `beneath`, at a version, to what is confirmed come before all that is pending."""
        state = self._replica.state
        if not (takes_back or any(push.is_shown for push in self._pending)):
            self.shown = state
            return
        over = self._replica.diff(beneath, state) if ops is None else ops
        self.shown = self._pending.move(over, state, at, takes_back=takes_back)
