"""The shown state: the server's state with the operations of all unanswered pushes."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from plait_client.burst import Burst
from plait_client.insertion import LastInsertion
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.elements import Keys
from plait_schemas.inverse import taking_back
from plait_schemas.messages import Joined, Version
from plait_schemas.patch import Op, PatchError, apply, without_own
from plait_schemas.rebase import rebase

__all__ = ["Fold", "Pending"]


class Pending:
    """A push without an answer; it changes as the server's state does, and keeps its identity until it is answered."""

    __slots__ = ("is_orphan", "is_settled", "is_visible", "lost_on", "made", "ops", "ref", "sent")

    def __init__(self, ref: int, made: Version, ops: Sequence[Op]) -> None:
        self.ref = ref
        # The version on which the user made it.
        self.made = made
        # Its effect on the confirmed state after the pushes before it.
        self.ops = ops
        # The operations that were sent last; None if none were.
        self.sent: Sequence[Op] | None = None
        # A place that it leads into is gone: the last version on which it stood. It is left out of what is shown.
        self.lost_on: Version | None = None
        # It was refused, or made on an own push that is refused or lost: the server, which may know nothing of that, is
        # not to be asked.
        self.is_orphan = False
        # The server's state has it, or does without it: only its answer is to come.
        self.is_settled = False
        # Whether what is shown is shown with it.
        self.is_visible = False


class Fold:
    """The confirmed state with the pending pushes folded onto it: trees of dicts and lists that are never changed.

    Nothing of it is kept beyond this life of a client, as the TypeScript client does in a page's storage.
    """

    def __init__(self) -> None:
        self._at: Version | None = None
        self._confirmed: Any = None
        # Something of the server's did not fit: what is known is shown on, but not resumed from.
        self._is_forgotten = False
        self._shown: Any = None
        self._pushes: list[Pending] = []
        # As the last join has told them.
        self._list_keys: Mapping[str, str] = {}
        self._texts: Sequence[str] = ()
        self._keys: Keys | None = None
        self._insertion = LastInsertion()

    @property
    def at(self) -> Version | None:
        """Epoch and version of `confirmed`; None before the first join."""
        return self._at

    @property
    def have(self) -> Version | None:
        """The state that the client has, for a join."""
        return None if self._is_forgotten else self._at

    @property
    def keys(self) -> Keys | None:
        """The declared members that identify elements when states of the thread are compared, and its texts."""
        return self._keys

    @property
    def confirmed(self) -> Any:
        """The state as the server told it; None where the thread has none."""
        return self._confirmed

    @property
    def shown(self) -> Any:
        """The confirmed state with the pushes; the same object as long as neither changes."""
        return self._shown

    @property
    def pushes(self) -> Sequence[Pending]:
        """The pushes in the order of their refs."""
        return self._pushes

    def difference(self, before: Any, after: Any, ops: Iterable[Op]) -> list[Op]:
        """Return what others may have done that made `after` of `before`, for `ops` to be rebased over.

        A string that `ops` splice is a text, whether declared or not.
        """
        spliced = {op.path for op in ops if op.op == "splice"}
        keys = Keys(self._list_keys, {*self._texts, *spliced})
        return diff(before, after, keys, by_letters=True)

    # Pushes

    def add(self, ref: int, ops: Sequence[Op], check: Callable[[Any], None] | None = None) -> Pending:
        """Add a push of operations on what is shown. Raises PatchError, and changes nothing, where they do not fit.

        `check` is given what would be shown, and may raise.
        """
        assert self._at is not None, "no push can be made before the first join"
        shown = apply(self._shown, ops)
        if check is not None:
            check(shown)
        if len(ops) > MOST_OPS:
            ops = self.difference(self._shown, shown, ops)
            ops = [Op("replace", "", shown)] if len(ops) > MOST_OPS else ops
        push = Pending(ref, self._at, [self._insertion.add(op) for op in ops])
        self._pushes.append(push)
        self._shown, push.is_visible = shown, True
        return push

    def drop(self, push: Pending) -> None:
        """A push is without effect: what is shown is folded again without it."""
        self._pushes.remove(push)
        if push.is_visible:
            self._refold(())

    def refuse(self, push: Pending) -> None:
        """Remove a refused push; the pushes after it, which were made on it, are rebased and shown without it."""
        index = self._pushes.index(push)
        before = self._show(index)
        self._pushes.remove(push)
        # Also where it does not fit, and is not visible: the pushes after it were made as if it did.
        if push.lost_on is None and not push.is_settled:
            self._refold(taking_back(push.ops, before), start=index, takes_back=True)

    # The server's state

    def forget(self) -> None:
        """Do not build on the known state until the next join."""
        self._is_forgotten = True

    def join(self, frame: Joined) -> None:
        """Take in the answer to a join. Raises PatchError, and changes nothing, where what was missed is missing."""
        at = (frame.epoch, frame.version)
        self._list_keys, self._texts = frame.list_keys, frame.texts
        self._keys = Keys(frame.list_keys, frame.texts) if frame.list_keys or frame.texts else None
        is_known = self.have is not None and self.have[0] == frame.epoch
        if frame.state is not msgspec.UNSET:
            self._rejoin(at, decode_json(frame.state), None, frame.last_ref)
        elif is_known and frame.ops is not msgspec.UNSET:
            self._rejoin(at, apply(self._confirmed, frame.ops), frame.ops, frame.last_ref)
        elif frame.ops is msgspec.UNSET and self.have == at:
            self._rejoin(at, self._confirmed, (), frame.last_ref)
        elif frame.ops is msgspec.UNSET and frame.version == 0:
            self._rejoin(at, None, None, frame.last_ref)
        else:
            raise PatchError("the join lacks the changes since the last socket")
        self._is_forgotten = False

    def follow(self, start: int, end: int, ops: Sequence[Op]) -> None:
        """The server has applied the operations of the versions after `start`, up to `end`. Raises as `advance`."""
        assert self._at is not None
        epoch, version = self._at
        if start != version or end < start:
            raise PatchError("changes are missing")
        self.advance((epoch, end), ops)

    def advance(self, at: Version, over: Sequence[Op]) -> None:
        """The server has applied operations of others. Raises PatchError, and changes nothing, if they do not fit."""
        self._confirmed = apply(self._confirmed, over)
        self._refold(over)
        self._at = at

    def replace(self, at: Version, confirmed: Any) -> None:
        """The server's state is another, whatever was known before."""
        over = self._difference(self._confirmed, confirmed)
        self._confirmed = confirmed
        self._refold(over)
        self._at = at

    def _rejoin(self, at: Version, confirmed: Any, over: Sequence[Op] | None, last_ref: int) -> None:
        """The server has answered for all pushes up to `last_ref`. `over` leads to `confirmed`, where that is known."""
        settled = {push.ref for push in self._pushes if push.sent is not None and push.ref <= last_ref}
        # Later pushes were made on what the settled ones left: only what differs from that is the others' doing.
        expected = [index for index, push in enumerate(self._pushes) if push.ref in settled and push.is_visible]
        if over is None or expected:
            over = self._difference(self._show(expected[-1] + 1 if expected else 0), confirmed)
        for push in self._pushes:
            is_settled = push.ref in settled
            # What is not settled any longer was refused: what was accepted is not forgotten.
            if push.is_settled and not is_settled:
                push.lost_on, push.is_orphan = push.made, True
            push.is_settled = is_settled
        self._confirmed = confirmed
        # The settled ones may have been refused.
        self._refold(over, takes_back=len(expected) > 0)
        self._at = at

    def acknowledge(self, at: Version, push: Pending, ops: Sequence[Op]) -> None:
        """The server has carried out `ops` for a push. Raises PatchError, and changes nothing, if they do not fit."""
        is_first = next((each for each in self._pushes if each.is_visible), None) is push
        if is_first and (ops is push.ops or encode_json(without_own(ops)) == encode_json(without_own(push.ops))):
            self._confirmed = self._show(self._pushes.index(push) + 1)
            self._pushes.remove(push)
        else:
            after = self._show(self._pushes.index(push) + 1) if is_first else None
            self._confirmed = apply(self._confirmed, ops)
            self._pushes.remove(push)
            if is_first:
                self._refold(self._difference(after, self._confirmed))
            else:
                self._refold(() if push.is_visible else ops)
        self._at = at

    def _show(self, end: int) -> Any:
        """Return the confirmed state and the visible pushes up to an index; each is not kept, as that costs memory."""
        if not any(push.is_visible for push in self._pushes[end:]):
            return self._shown
        visible = (push for push in self._pushes[:end] if push.is_visible)
        return functools.reduce(lambda state, push: apply(state, push.ops), visible, self._confirmed)

    def _difference(self, before: Any, after: Any) -> list[Op]:
        """Return what others may have done that made `after` of `before`; nothing where no push is shown over it."""
        if not any(push.is_visible for push in self._pushes):
            return []
        return self.difference(before, after, (op for push in self._pushes for op in push.ops))

    def _refold(self, over: Sequence[Op], *, start: int = 0, takes_back: bool = False) -> None:
        """Bring `over`, which led to `confirmed`, before what is shown of the pushes from the index `start` on.

        With `takes_back`, it may take back what they were made on.
        """
        document = self._confirmed
        for pushes, burst, is_moved in _group(self._pushes, start):
            others = over if is_moved else ()
            moved = None if burst is None else burst.rebase(others, document)
            if moved is None:
                for push in pushes:
                    is_back = takes_back and is_moved
                    document, others, is_back = self._refold_one(push, others, document, takes_back=is_back)
                    takes_back |= is_back
            else:
                for push, ops in zip(pushes, moved.ops, strict=True):
                    push.is_visible = True
                    push.ops = ops if others else push.ops
                others, document = moved.over, moved.document
            # The next push is rebased over what is left after these.
            if is_moved:
                over = others
        self._insertion.follow(over, self._shown, document)
        self._shown = document

    def _refold_one(
        self, push: Pending, over: Sequence[Op], document: Any, *, takes_back: bool
    ) -> tuple[Any, Sequence[Op], bool]:
        """Rebase a push, and show it on a document if it fits; return what the next one comes after."""
        push.is_visible = False
        if push.lost_on is not None:
            push.is_orphan |= takes_back
        if push.lost_on is not None or push.is_settled:
            return document, over, takes_back
        moved = rebase(push.ops, over, document)
        if moved.is_lost:
            push.lost_on, push.is_orphan = self._at, takes_back
            return document, moved.over, True
        if over:
            push.ops = moved.ops
        try:
            document = apply(document, push.ops)
        except PatchError:
            return document, over, takes_back
        push.is_visible = True
        return document, moved.over, takes_back


def _group(pushes: Sequence[Pending], start: int) -> Iterator[tuple[list[Pending], Burst | None, bool]]:
    """Yield pushes in order, those of one burst together, and whether they are from the index `start` on."""
    group: list[Pending] = []
    burst: Burst | None = None
    for index, push in enumerate(pushes):
        is_out = push.lost_on is not None or push.is_settled
        op = push.ops[0] if len(push.ops) == 1 and push.ops[0].op == "splice" and not is_out else None
        if burst is not None and op is not None and index != start and burst.take(op):
            group.append(push)
            continue
        if group:
            yield group, burst, index > start
        group, burst = [push], None if op is None else Burst(op)
    if group:
        yield group, burst, len(pushes) > start
