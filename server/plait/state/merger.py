"""Merges what a client has changed with what others have changed since, and makes a change of it.

What a client did not know of at a push is kept as it is after the pushes that came meanwhile, so that the next one,
which was made on top of those, can be rebased over it (as in Jupiter: Nichols et al., 1995).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from plait.errors import Conflict
from plait.limits import Limits
from plait.state.commit import Commit
from plait.state.concurrent import ConcurrentOps, Needs, Other, Past
from plait.state.conflicts import Policy, Resolve, may_meet, merge
from plait.state.log import ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.revision import Revision
from plait.state.source import Client
from plait.state.types import MOST_OPS
from plait.state.work import MOST_OF_A_PUSH, MOST_PAIRS, Work
from plait.store.protocol import ClientRow
from plait_schemas.codec import encode_json, has_long_integers
from plait_schemas.messages import Push
from plait_schemas.patch import Op, decode_ops, without_own
from plait_schemas.rebase import rebase
from plait_schemas.trace import Origin, trace

__all__ = ["Charge", "Merger", "Proposal", "Pushed"]

Charge = Callable[[float], None]
"""Charges work to a client, as a number of messages."""


# A state with more objects and lists, and fewer bytes for each, takes too long to decode and encode.
_MOST_CONTAINERS: Final = 100_000
_BYTES_EACH: Final = 10


class Proposal(NamedTuple):
    """A push, and what it is judged by."""

    push: Push
    source: Client
    # What the client did not know of at its last push.
    unknown: ConcurrentOps
    # What was read for this push.
    past: Past
    charge: Charge


class Pushed(NamedTuple):
    """A push that has been made a change, which is being stored."""

    commit: Commit
    # What the client does not know of, for its next push.
    unknown: ConcurrentOps
    # Whether others had changed something that the client did not know of.
    is_rebased: bool
    # The operations as JSON, if they are other ones than the client's.
    ops: bytes | None


class Merger:
    """Merges the pushes and the whole states of one thread's clients."""

    __slots__ = ("_change_log", "_limits", "_pipeline", "_policy")

    def __init__(self, pipeline: Pipeline, change_log: ChangeLog, policy: Policy | Resolve, limits: Limits) -> None:
        self._pipeline = pipeline
        self._change_log = change_log
        self._limits = limits
        # What is done where others have changed the same.
        self._policy: Policy | Resolve = policy

    def push(self, proposal: Proposal, accept: Callable[[], ClientRow]) -> Pushed | Needs:
        """Rebase a push over what its client did not know of, and make a change of it.

        Returns what is to be read first, if that is not in memory or in `past`. `accept` is called when the push can no
        longer be refused, and returns the client's row to store. Raises what Pipeline.change raises, Conflict and
        PatchError.
        """
        self._check(proposal.push)
        needs = self._needs(proposal)
        return self._rebase(proposal, accept) if needs is None else needs

    async def read(self, needs: Needs) -> Past:
        """Read what a push needs. Raises Conflict where it is not kept, and StoreError."""
        return await needs.read(self._change_log)

    def merge(self, ops: Sequence[Op], base: Revision, source: Client, charge: Charge) -> Commit:
        """Apply the operations of a client, made on `base`, to the current state.

        Raises what Pipeline.change raises, and Conflict.
        """
        history, policy = self._pipeline.history, self._policy
        current, encoded = history.current, _encode_ops(ops)
        json = current.require_json()
        if any(map(_is_costly, (base.require_json(), json, encoded))):
            raise Conflict("the state has too many objects and lists, or too long integers, to be merged")
        most = min(MOST_OPS, MOST_PAIRS // max(len(ops), 1))
        theirs = decode_ops(_encode_ops(history.diff(base, current.base, json, self._limits, most=most)))
        ops = decode_ops(encoded)  # Those of a state may have texts or objects for values.
        work, document = Work(MOST_OF_A_PUSH, charge), current.tree
        work.charge_rebase(ops, len(theirs))
        work.charge_ops(ops, document)
        rebased = rebase(ops, theirs, document, work.charge_places)
        work.charge_parts(ops, rebased.ops, document)
        origins = [] if policy == "last-writer" else trace(rebased.ops, theirs, document)
        made_on = base.tree if callable(policy) else None
        merged = partial(merge, rebased, origins, document=document, policy=policy, base=made_on)
        return self._pipeline.change(self._pipeline.ask(merged), source)

    # Inside

    def _check(self, push: Push) -> None:
        """Raise what refuses a push whatever it does."""
        history = self._pipeline.history
        epoch, base = push.base
        if epoch != history.epoch:
            raise Conflict("its base is in a history that is gone")
        if not 0 <= base <= history.current.version:
            raise Conflict("its base is not a version of this thread")
        if push.made is not None and self._policy != "last-writer":
            if push.made[0] != epoch:
                raise Conflict("it was made on a history that is gone")
            if not 0 <= push.made[1] <= base:
                raise Conflict("it was made on a version that its base does not have")

    def _needs(self, proposal: Proposal) -> Needs | None:
        """Return what is to be read to judge a push, None where nothing is.

        The state that it was made on is for who makes one of two values, where others may have changed the same.
        """
        push, source, unknown, past, _ = proposal
        history, policy = self._pipeline.history, self._policy
        after, made = max(push.base[1], unknown.to), (push.made or push.base)[1]
        if policy != "last-writer":
            after = min(after, made)
        if after == history.current.version:
            return None
        rows = past.since(history, after)
        if rows is not None:
            since = (row for row in rows if row.version > made and row.source != source.id)
            over = (op for row in since for op in decode_ops(row.ops))
            if not callable(policy) or past.document is not msgspec.UNSET or not may_meet(push.ops, over):
                return None
        return Needs(after, made if callable(policy) else None)

    def _rebase(self, proposal: Proposal, accept: Callable[[], ClientRow]) -> Pushed:
        push, past = proposal.push, proposal.past
        pipeline = self._pipeline
        document = pipeline.history.current.tree
        concurrent = self._find_unknown(proposal)
        work = Work(MOST_OF_A_PUSH, proposal.charge)
        work.charge_rebase(push.ops, len(concurrent))
        work.charge_ops(push.ops, document)
        rebased = rebase(push.ops, (other.op for other in concurrent), document, work.charge_places)
        work.charge_parts(push.ops, rebased.ops, document)
        rebased = rebased._replace(ops=list(without_own(rebased.ops)))
        over = zip(rebased.indices, rebased.over, strict=True)
        others = [Other(op, concurrent[index].version) for index, op in over]
        policy = self._policy
        origins = [] if policy == "last-writer" else self._origins(proposal, rebased.ops)
        before = pipeline.history.current
        ops = pipeline.ask(partial(merge, rebased, origins, document=document, policy=policy, base=past.document))
        commit = pipeline.change(ops, proposal.source, accept=accept)
        change = None if commit.revision is before else commit.revision.change
        is_as_sent = change is None or change.ops == encode_json(without_own(push.ops))
        return Pushed(
            commit,
            ConcurrentOps(others, commit.version, push.base[1]),
            bool(concurrent),
            None if change is None or is_as_sent else change.ops,
        )

    def _find_unknown(self, proposal: Proposal) -> list[Other]:
        """Return what the client did not know of when it pushed, as it is after its pushes so far.

        Raises Conflict where the client has pushed on a later version already: an old one names what it has lost.
        """
        push, source, unknown, past, _ = proposal
        base = push.base[1]
        rows = past.since(self._pipeline.history, max(base, unknown.to)) or []
        if base < unknown.since or any(row.source == source.id for row in rows):
            # It was made after other pushes of this client, which were then at other places than they are now.
            raise Conflict("others have taken away what it was made on")
        return unknown.unknown(base, rows)

    def _origins(self, proposal: Proposal, ops: Sequence[Op]) -> list[Origin]:
        """Return where the places of operations were when the push was made, and whether others changed them since."""
        push, source, _, past, charge = proposal
        history = self._pipeline.history
        rows = past.since(history, (push.made or push.base)[1]) or []
        over = [(op, row.source == source.id) for row in rows for op in decode_ops(row.ops)]
        if not over:
            return [Origin(op.path, op.path, is_contested=False) for op in ops]
        # These are all changes of others since the push was made, some of them a second time: a bound of their own.
        Work(MOST_OF_A_PUSH, charge).charge_rebase(ops, len(over), traces=True)
        own = frozenset(index for index, (_, is_own) in enumerate(over) if is_own)
        return trace(ops, [op for op, _ in over], history.current.tree, own=own)


def _encode_ops(ops: Sequence[Op]) -> bytes:
    """Encode the differences of two states. Raises Conflict where all is different, before that is encoded."""
    if any(op.path == "" and encode_json(op.value)[:1] in (b"{", b"[") for op in ops):
        raise Conflict("too much has changed at once to be merged")
    return encode_json(ops)


def _is_costly(text: bytes) -> bool:
    count = text.count(b"[") + text.count(b"{")
    return (count > _MOST_CONTAINERS and len(text) < _BYTES_EACH * count) or has_long_integers(text)
