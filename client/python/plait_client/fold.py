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
    """A push without an answer; it changes with the server's state, and keeps its identity until it is answered."""

    __slots__ = ("is_orphan", "is_settled", "is_visible", "lost_on", "made", "ops", "ref", "sent")

    def __init__(self, ref: int, made: Version, ops: Sequence[Op]) -> None:
        self.ref = ref
        # The version on which the user made it.
        self.made = made
        # The effect of the push on the confirmed state after the pushes before it.
        self.ops = ops
        # The operations that were sent last; None if none were.
        self.sent: Sequence[Op] | None = None
        # The last version on which all places of the push existed; set when one of them is gone. The push is then not
        # shown.
        self.lost_on: Version | None = None
        # Whether the push was refused, or was made on an own push that is refused or lost: the server may not know of
        # this, and must not be asked.
        self.is_orphan = False
        # Whether the server has dealt with the push, so that only the answer is missing.
        self.is_settled = False
        # Whether the shown state includes the push.
        self.is_visible = False


class Fold:
    """The confirmed state with the pending pushes folded onto it: trees of dicts and lists that are never changed.

    The states are not kept after the end of the client, unlike in a page's storage with the TypeScript client.
    """

    def __init__(self, *, has_state: bool = True) -> None:
        # Whether the server sends the state; if not, only the version is known.
        self._has_state = has_state
        self._at: Version | None = None
        self._confirmed: Any = None
        # Whether a change from the server did not fit: the known state is still shown, but a join does not resume from
        # it.
        self._is_forgotten = False
        self._shown: Any = None
        self._pushes: list[Pending] = []
        # The keys from the last join.
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
        """The version of the state that the client has, for a join."""
        return self._at if self._has_state and not self._is_forgotten else None

    @property
    def keys(self) -> Keys | None:
        """The declared members that identify elements when states of the thread are compared, and its texts."""
        return self._keys

    @property
    def confirmed(self) -> Any:
        """The state that the server has confirmed; None if the thread has none."""
        return self._confirmed

    @property
    def shown(self) -> Any:
        """The confirmed state with the pushes; the same object while neither changes."""
        return self._shown

    @property
    def pushes(self) -> Sequence[Pending]:
        """The pushes in the order of their refs."""
        return self._pushes

    def difference(self, before: Any, after: Any, ops: Iterable[Op]) -> list[Op]:
        """Return changes of others that may lead from `before` to `after`, for rebasing `ops` over them.

        A string that `ops` splice is a text, whether declared or not.
        """
        spliced = {op.path for op in ops if op.op == "splice"}
        keys = Keys(self._list_keys, {*self._texts, *spliced})
        return diff(before, after, keys, by_letters=True)

    # Pushes

    def add(self, ref: int, ops: Sequence[Op], check: Callable[[Any], None] | None = None) -> Pending:
        """Add a push of operations on the shown state. Raises PatchError, and changes nothing, if they do not fit.

        `check` gets the next shown state, and may raise.
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
        """Drop a push that has no effect: the shown state is folded again without it."""
        self._pushes.remove(push)
        if push.is_visible:
            self._refold(())

    def refuse(self, push: Pending) -> None:
        """Remove a refused push; the pushes after it, which were made on it, are rebased and shown without it."""
        index = self._pushes.index(push)
        before = self._show(index)
        self._pushes.remove(push)
        # This includes a push that does not fit and is not visible: the pushes after it were made as if it fitted.
        if push.lost_on is None and not push.is_settled:
            self._refold(taking_back(push.ops, before), start=index, takes_back=True)

    # The server's state

    def forget(self) -> None:
        """Stop building on the known state until the next join."""
        self._is_forgotten = True

    def join(self, frame: Joined) -> None:
        """Take in the answer to a join. Raises PatchError, and changes nothing, if missed changes are missing."""
        at = (frame.epoch, frame.version)
        if not self._has_state:
            self._at = at
            return
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

    def reach(self, version: int) -> None:
        """Note a version that the server has reached, without the state."""
        if not self._has_state and self._at is not None:
            self._at = (self._at[0], max(self._at[1], version))

    def follow(self, start: int, end: int, ops: Sequence[Op]) -> None:
        """Apply operations that the server has applied as versions after `start`, up to `end`. Raises as `advance`."""
        assert self._at is not None
        epoch, version = self._at
        if start != version or end < start:
            raise PatchError("changes are missing")
        self.advance((epoch, end), ops)

    def advance(self, at: Version, over: Sequence[Op]) -> None:
        """Apply others' operations, as the server has. Raises PatchError, and changes nothing, if they do not fit."""
        self._confirmed = apply(self._confirmed, over)
        self._refold(over)
        self._at = at

    def replace(self, at: Version, confirmed: Any) -> None:
        """Replace the server's state, whatever was known before."""
        over = self._difference(self._confirmed, confirmed)
        self._confirmed = confirmed
        self._refold(over)
        self._at = at

    def _rejoin(self, at: Version, confirmed: Any, over: Sequence[Op] | None, last_ref: int) -> None:
        """Settle all pushes up to `last_ref`, which the server has answered. `over` leads to `confirmed`, if known."""
        settled = {push.ref for push in self._pushes if push.sent is not None and push.ref <= last_ref}
        # Later pushes were made on the result of the settled ones: only the differences from that result are changes of
        # others.
        expected = [index for index, push in enumerate(self._pushes) if push.ref in settled and push.is_visible]
        if over is None or expected:
            over = self._difference(self._show(expected[-1] + 1 if expected else 0), confirmed)
        for push in self._pushes:
            is_settled = push.ref in settled
            # A push that is not settled any longer was refused: the server does not forget what it has accepted.
            if push.is_settled and not is_settled:
                push.lost_on, push.is_orphan = push.made, True
            push.is_settled = is_settled
        self._confirmed = confirmed
        # The settled pushes may have been refused.
        self._refold(over, takes_back=len(expected) > 0)
        self._at = at

    def acknowledge(self, at: Version, push: Pending, ops: Sequence[Op]) -> None:
        """Apply `ops`, the server's result of a push. Raises PatchError, and changes nothing, if they do not fit."""
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
        """Return the confirmed state with the visible pushes up to an index; it is not kept, to save memory."""
        if not any(push.is_visible for push in self._pushes[end:]):
            return self._shown
        visible = (push for push in self._pushes[:end] if push.is_visible)
        return functools.reduce(lambda state, push: apply(state, push.ops), visible, self._confirmed)

    def _difference(self, before: Any, after: Any) -> list[Op]:
        """Return changes of others that may lead from `before` to `after`; nothing if no push is shown over them."""
        if not any(push.is_visible for push in self._pushes):
            return []
        return self.difference(before, after, (op for push in self._pushes for op in push.ops))

    def _refold(self, over: Sequence[Op], *, start: int = 0, takes_back: bool = False) -> None:
        """Move `over`, which led to `confirmed`, before the shown effect of the pushes from the index `start` on.

        With `takes_back`, `over` may take back the base of these pushes.
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
            # The next push is rebased over the operations that are left after these.
            if is_moved:
                over = others
        self._insertion.follow(over, self._shown, document)
        self._shown = document

    def _refold_one(
        self, push: Pending, over: Sequence[Op], document: Any, *, takes_back: bool
    ) -> tuple[Any, Sequence[Op], bool]:
        """Rebase a push, and show it on a document if it fits; return the document and operations for the next push."""
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
