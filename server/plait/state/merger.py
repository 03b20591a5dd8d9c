"""Turns the pushes of clients into changes, merged with the changes that the clients had not seen.

The operations that a client had not seen at a push are kept, and rebased over the client's later pushes. Its next push
was made after these pushes, so it is rebased over the result (as in Jupiter: Nichols et al., 1995).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from plait.errors import Conflict
from plait.limits import RateLimiter, TokenBucket
from plait.state.budget import FREE_OPS, MOST_PAIRS, PUSH_BUDGET, Budget
from plait.state.commit import Commit
from plait.state.concurrent import ConcurrentOp, ConcurrentOps, LoadedChanges, MissingChanges
from plait.state.conflicts import drop_known, drop_lost_moves, may_meet, merge
from plait.state.pipeline import Pipeline
from plait.state.push_log import ClientPushes, PushLog
from plait.state.revision import Revision
from plait.state.source import Client
from plait.state.view import find_epoch
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.diff import MOST_OPS
from plait_schemas.messages import Push
from plait_schemas.patch import Op, decode_ops, read_ops, without_own
from plait_schemas.rebase import rebase
from plait_schemas.trace import Origin, trace

__all__ = ["AcceptedPush", "Merger", "Proposal"]


class Proposal(NamedTuple):
    """A push, and the changes that it must be rebased over."""

    push: Push
    source: Client
    client: ClientPushes
    # The operations that the client had not seen at its last push.
    unseen: ConcurrentOps
    # The history that was read for this push.
    loaded: LoadedChanges
    # Charged for the work.
    limiter: RateLimiter | TokenBucket | None


class AcceptedPush(NamedTuple):
    """A push that was accepted and is being stored as a change."""

    commit: Commit
    # The operations that the client has not seen, for its next push.
    unseen: ConcurrentOps
    # Whether there were changes that the client had not seen.
    is_rebased: bool
    # The change; None if the push changed nothing. And whether its operations are the client's.
    change: ChangeRow | None
    is_as_sent: bool


class Merger(Pipeline):
    """Makes the changes of one thread, and merges its clients' pushes with the changes that they had not seen."""

    __slots__ = ("clients",)

    clients: PushLog
    """The clients that have joined, and their last pushes."""

    def leave_client(self, client: ClientPushes) -> None:
        """Forget a client once its pushes so far are durable, unless another socket of it is open."""
        self.after(lambda _: self.clients.leave(client))

    def push(self, proposal: Proposal) -> AcceptedPush | MissingChanges:
        """Apply a push as a change, rebased over the changes that its client had not seen.

        Returns the changes that must be read first, if they are neither in memory nor in `loaded`. Raises the errors of
        Pipeline.change, Conflict and PatchError.
        """
        push = proposal.push
        if self.views is not None:
            self.views.check(push.ops, proposal.source, self.current)
        self._check(push)
        if self._is_current(push, proposal.unseen):
            sent = without_own(push.ops)
            return self._apply(sent, sent, proposal)
        missing = self._find_missing(proposal)
        return self._rebase(proposal) if missing is None else missing

    def merge(
        self, ops: Sequence[Op], base: Revision, source: Client, limiter: RateLimiter | TokenBucket | None
    ) -> Commit:
        """Apply the operations of a client, made on `base`, to the current state; charge `limiter` for the work.

        Raises the errors of Pipeline.change, and Conflict.
        """
        history, policy = self.history, self.rules.policy
        if self.views is not None:
            self.views.check(ops, source, history.current)
        current, encoded = history.current, _encode_ops(ops)
        json = current.require_json()
        most = min(MOST_OPS, MOST_PAIRS // max(len(ops), 1))
        theirs = read_ops(_encode_ops(history.diff(base, current.base, json, self._limits, most=most)))
        ops = read_ops(encoded)  # The values of a diff may be objects of a type.
        budget, document = Budget(PUSH_BUDGET, limiter), current.partial
        budget.charge_rebase(ops, len(theirs))
        budget.charge_ops(ops, document)
        rebased = rebase(ops, theirs, document, budget.charge_places)
        if rebased.is_lost:
            ops = drop_lost_moves(ops, theirs, budget=budget)
            rebased = rebase(ops, theirs, document, budget.charge_places)
        budget.charge_parts(ops, rebased.ops, document)
        rebased = drop_known(rebased, theirs, document, keys=self.keys, budget=budget)
        origins = [] if policy == "last-writer" else trace(rebased.ops, theirs, document)
        made_on = base.partial if callable(policy) else None
        merged = partial(merge, rebased, origins, document=document, policy=policy, base=made_on)
        return self.change(self.ask(merged), source)

    # Inside

    @property
    def _read_ops(self) -> Callable[[bytes], Sequence[Op]]:
        """Decodes operations; large values are not decoded, if any JSON fits the type."""
        return read_ops if self._type.is_plain else decode_ops

    def _check(self, push: Push) -> None:
        """Raise Conflict for a push with versions that do not belong to the thread."""
        history = self.history
        epoch, base = push.base
        if epoch != history.epoch and find_epoch(epoch) != history.epoch:
            raise Conflict("the epoch of the push's base is not the thread's current epoch; join again")
        if not 0 <= base <= history.current.version:
            raise Conflict("the base of the push is not a version of this thread; join again")
        if push.made is not None and self.rules.policy != "last-writer":
            if find_epoch(push.made[0]) != history.epoch:
                raise Conflict("the epoch in `made` is not the thread's current epoch; join again")
            if not 0 <= push.made[1] <= base:
                raise Conflict("the version in `made` must not be later than its base")

    def _is_current(self, push: Push, unseen: ConcurrentOps) -> bool:
        """Whether a push is small, changes no text, and was made when its client had seen every change of others.

        Such a push is not rebased, and costs too little to be counted.
        """
        base, version = push.base[1], self.history.current.version
        if len(push.ops) > FREE_OPS:
            return False
        for op in push.ops:
            if op.op == "splice":
                return False
        if self.rules.policy != "last-writer":
            return base == version and (push.made is None or push.made[1] == version)
        # The versions after one that the client has seen may come from its own other pushes.
        return base == version or (unseen.to == version and base >= unseen.since and not unseen.ops)

    def _find_missing(self, proposal: Proposal) -> MissingChanges | None:
        """Return the history that must be read before a push can be rebased; None if everything is in memory.

        If others may have changed the same place, `resolve_conflict` needs the state on which the push was made.
        """
        push, source, _, unseen, loaded, _ = proposal
        history, policy = self.history, self.rules.policy
        after, made = max(push.base[1], unseen.to), (push.made or push.base)[1]
        if policy != "last-writer":
            after = min(after, made)
        if after == history.current.version:
            return None
        rows = loaded.since(history, after)
        if rows is not None:
            since = (row for row in rows if row.version > made and row.source != source.id)
            over = (op for row in since for op in self._read_ops(row.ops))
            if not callable(policy) or loaded.document is not msgspec.UNSET or not may_meet(push.ops, over):
                return None
        return MissingChanges(after, made if callable(policy) else None)

    def _rebase(self, proposal: Proposal) -> AcceptedPush:
        push, loaded = proposal.push, proposal.loaded
        document = self.history.current.partial
        concurrent = self._find_unseen(proposal)
        budget = Budget(PUSH_BUDGET, proposal.limiter)
        budget.charge_rebase(push.ops, len(concurrent))
        budget.charge_ops(push.ops, document)
        rebased = rebase(push.ops, (each.op for each in concurrent), document, budget.charge_places)
        budget.charge_parts(push.ops, rebased.ops, document)
        rebased = rebased._replace(ops=list(without_own(rebased.ops)))
        over = zip(rebased.indices, rebased.over, strict=True)
        unseen = [ConcurrentOp(op, concurrent[index].version) for index, op in over]
        policy = self.rules.policy
        origins = [] if policy == "last-writer" else self._origins(proposal, rebased.ops)
        ops = self.ask(partial(merge, rebased, origins, document=document, policy=policy, base=loaded.document))
        return self._apply(ops, without_own(push.ops), proposal, unseen=unseen, is_rebased=bool(concurrent))

    def _apply(
        self,
        ops: Sequence[Op],
        sent: Sequence[Op],
        proposal: Proposal,
        *,
        unseen: Sequence[ConcurrentOp] = (),
        is_rebased: bool = False,
    ) -> AcceptedPush:
        """Apply the operations of a push as a change; after a rebase, they differ from the `sent` operations."""
        before, (push, source, client, *_) = self.history.current, proposal
        commit = self.change(ops, source, accept=partial(client.accept, push.ref))
        change = None if commit.revision is before else commit.revision.change
        is_as_sent = change is None or change.ops == encode_json(sent)
        return AcceptedPush(
            commit,
            ConcurrentOps(unseen, commit.revision.version, push.base[1]),
            is_rebased,
            change,
            is_as_sent,
        )

    def _find_unseen(self, proposal: Proposal) -> list[ConcurrentOp]:
        """Return the operations that the client had not seen when it pushed, rebased over its pushes so far.

        Raises Conflict when the client has already pushed on a later version.
        """
        push, source, _, unseen, loaded, _ = proposal
        base = push.base[1]
        rows = loaded.since(self.history, max(base, unseen.to)) or []
        if base < unseen.since or any(row.source == source.id for row in rows):
            # The push was made after other pushes of this client, and the places of those pushes have changed since.
            raise Conflict("the push is based on lost changes; get the current state and make the change again")
        found = [each for each in unseen.ops if each.version > base]
        return found + [ConcurrentOp(op, row.version) for row in rows for op in self._read_ops(row.ops)]

    def _origins(self, proposal: Proposal, ops: Sequence[Op]) -> list[Origin]:
        """Return the places of operations at the time of the push, and whether others have changed them since."""
        push, source, _, _, loaded, limiter = proposal
        history = self.history
        rows = loaded.since(history, (push.made or push.base)[1]) or []
        over = [(op, row.source == source.id) for row in rows for op in self._read_ops(row.ops)]
        if not over:
            return [Origin(op.path, op.path, is_contested=False) for op in ops]
        # `over` has all changes since the push was made, even the ones charged above: use a separate budget.
        Budget(PUSH_BUDGET, limiter).charge_rebase(ops, len(over), traces=True)
        own = frozenset(index for index, (_, is_own) in enumerate(over) if is_own)
        return trace(ops, [op for op, _ in over], history.current.partial, own=own)


def _encode_ops(ops: Sequence[Op]) -> bytes:
    """Encode the differences of two states. Raises Conflict, without encoding, if they replace a whole container."""
    if any(op.path == "" and encode_json(op.value)[:1] in (b"{", b"[") for op in ops):
        raise Conflict("too much has changed at once to merge; get the current state and make the change again")
    return encode_json(ops)
