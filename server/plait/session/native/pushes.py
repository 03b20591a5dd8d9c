"""The pushes of one client: brought onto the current state, applied once, and answered in order. No I/O.

What others change while pushes are under way is kept as it is behind the pushes that came meanwhile, so that the next
one, which was made on top of those, can be brought behind it (as in Jupiter: Nichols et al., 1995). So is what takes
back a push that was refused: those behind it were made as if it were there.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.logs import log_error
from plait.errors import (
    Conflict,
    Gap,
    PlaitError,
    Readonly,
    Reject,
    StoreError,
    TooMany,
    Unanswerable,
)
from plait.session.native.concurrent import ConcurrentOps, Lookup, NeedsPast, Other
from plait.session.receive_queue import ReceiveQueue
from plait.state.conflicts import merge
from plait.state.push_log import MOST_PUSHES, Client
from plait.state.work import carried_out, compared, count_moves
from plait.store.protocol import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.messages import Nack, Push, encode
from plait_schemas.patch import Op, PatchError, decode_ops
from plait_schemas.rebase import Rebased, rebase, taking_back
from plait_schemas.trace import Origin, trace

__all__ = ["Pushes"]


class Pushes:
    """Takes the pushes of one client, on one socket."""

    __slots__ = (
        "_actor",
        "_answer",
        "_charge",
        "_client",
        "_concurrent",
        "_connection",
        "_joined",
        "_queue",
        "_storing",
        "_task",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        client: Client,
        queue: ReceiveQueue,
        joined: int,
        *,
        answer: Callable[[bytes, int], None],
        charge: Callable[[float], None],
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._client = client
        # Holds what comes behind a push for which the past is read.
        self._queue = queue
        # The version that the client has joined at.
        self._joined = joined
        # Sends an answer, which says that the client is at a version, behind what was sent before.
        self._answer = answer
        # Counts work as so many messages of the client.
        self._charge = charge
        self._concurrent = ConcurrentOps()
        # How many pushes are on their way to the disk.
        self._storing = 0
        # Reads the past for a push.
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a push may be carried out of which the client does not know yet."""
        return self._storing > 0 or self._task is not None

    def receive(self, push: Push) -> None:
        """Take a push."""
        self._take(push, Lookup())

    def refuse(self, push: Push, error: PlaitError) -> None:
        """Refuse a push of which only the number could be read, in its turn."""
        if not self._client.is_next(push.ref):
            self._take(push, Lookup())  # It has been answered for, or is not the next: what it says is not looked at.
            return
        self._client.expect(push.ref)
        if self._concurrent.ref is None:
            self._concurrent = ConcurrentOps(ref=self._client.ref)
        self._refuse(push.ref, error)

    def limit(self, push: Push, wait: float, error: PlaitError) -> None:
        """Refuse to look at a push that came too fast; it may come again."""
        self._client.expect(push.ref)
        self._nack(push.ref, error, retry_after=wait)

    def close(self) -> None:
        """Take nothing more."""
        if self._task is not None:
            self._task.cancel()

    # Inside

    def _take(self, push: Push, known: Lookup) -> None:
        client = self._client
        if push.ref <= client.ref:
            self._actor.pipeline.after(lambda _: self._repeat(push.ref))
        elif push.ref > MOST_PUSHES:
            self._nack(push.ref, Unanswerable(f"pushes are numbered up to {MOST_PUSHES}"))
        elif not client.is_next(push.ref):
            self._nack(push.ref, Gap(f"push {client.ref + 1} is to come first"), expected=client.ref + 1)
        else:
            client.expect(push.ref)
            if self._concurrent.ref is None:
                self._concurrent = ConcurrentOps(ref=client.ref)
            try:
                self._apply(push, known)
            except NeedsPast as needs:
                self._queue.hold()
                self._task = asyncio.get_running_loop().create_task(self._read(push, known, needs), name="plait past")
            except (TooMany, Gap, Unanswerable) as error:  # An author's: as codes of a nack they say something else.
                self._refuse(push.ref, Reject(str(error), path=error.path))
            except PlaitError as error:
                self._refuse(push.ref, error)
            except PatchError as error:
                self._refuse(push.ref, Conflict(str(error)))
            except Exception as error:  # Whatever the author's hooks raise refuses the change.
                log_error(error, self._actor.key, self._connection)
                self._refuse(push.ref, Reject("State update rejected"))

    async def _read(self, push: Push, known: Lookup, needs: NeedsPast) -> None:
        try:
            known = await known.read(self._actor.change_log, needs)
        except PlaitError as error:
            self._task = None
            if isinstance(error, Conflict) and push.base[1] < self._joined:
                self._pass_over(push)
            self._refuse(push.ref, error)
        except Exception as error:  # Not every store is plait's own.
            self._task = None
            log_error(error, self._actor.key, self._connection)
            self._refuse(push.ref, StoreError("the past could not be read"))
        else:
            self._task = None
            self._take(push, known)
        if self._task is None:
            self._queue.release()

    def _apply(self, push: Push, known: Lookup) -> None:
        if self._connection.readonly:
            raise Readonly("Connection is readonly")
        pipeline = self._actor.pipeline
        document = pipeline.history.current.tree
        epoch, base = push.base
        if epoch != pipeline.history.epoch:
            self._pass_over(push)
            raise Conflict("its base is in a history that is gone")
        if not 0 <= base <= pipeline.history.current.version:
            raise Conflict("its base is not a version of this thread")
        concurrent = self._bridge_from(push, known)
        compared(push.ops, len(concurrent), self._charge)
        carried_out(push.ops, document, self._charge)
        rebased = rebase(push.ops, (other.op for other in concurrent), document)
        behind = [concurrent[index]._replace(op=op) for index, op in zip(rebased.indices, rebased.over, strict=True)]
        policy = self._actor.kind.policy(self._actor.thread)
        origins = [] if policy == "last-writer" else self._origins(push, rebased.ops, known)
        made_on = msgspec.UNSET
        if callable(policy) and any(each.is_contested for each in origins):
            made_on = known.document((push.made or push.base)[1])
        before = pipeline.history.current
        try:
            merged = partial(merge, rebased, origins, document=document, policy=policy, base=made_on)
            ops = pipeline.ask(merged)
            commit = pipeline.change(ops, self._connection, accept=partial(self._client.accept, push.ref))
        except Exception:
            last, self._concurrent = self._concurrent, self._bridge_behind_refused(push, rebased, behind)
            pipeline.after(partial(self._take_back, last))
            raise
        self._client.ref = push.ref
        last, self._concurrent = self._concurrent, ConcurrentOps(behind, commit.version, base, push.ref)
        change = None if commit.revision is before else commit.revision.change
        self._storing += 1
        commit.then(partial(self._take_back, last))
        is_rebased = any(other.refused is None for other in concurrent)
        commit.then(partial(self._committed, push, commit.version, change, is_rebased))

    def _bridge_from(self, push: Push, known: Lookup) -> list[Other]:
        """Return what the client did not know of when it pushed, as it is behind its pushes so far.

        Raises Conflict where the client has pushed on a later version already: an old one names what it has lost.
        """
        base, history = push.base[1], self._actor.pipeline.history
        rows = known.changes(history, max(base, self._concurrent.to), history.current.version)
        if base < self._concurrent.since or any(row.source == self._connection.id for row in rows):
            # It was made behind other pushes of this client, which by then were elsewhere than they have come to be.
            self._pass_over(push)
            raise Conflict("others have taken away what it was made on")
        return self._concurrent.unknown(push, rows)

    def _pass_over(self, push: Push) -> None:
        """Take note that a client has not shown a push since it was lost, so that those behind it were made without.

        They may have been made on those in front of it all the same.
        """
        if self._concurrent.ref == push.ref - 1:
            self._concurrent = self._concurrent._replace(ref=push.ref)

    def _bridge_behind_refused(self, push: Push, rebased: Rebased, behind: list[Other]) -> ConcurrentOps:
        """Return the bridge behind a push that was compared, and refused.

        Its client shows it until it is told, or until it knows of who has taken its place away. When it stopped showing
        one that does not fit is not known: that one stays out, and those that may have been made on it are refused.
        """
        current = self._actor.pipeline.history.current
        if not rebased.is_lost:
            back = taking_back(rebased.ops, current.tree)
            if len(back) < len(rebased.ops):
                return self._concurrent
            behind = [*behind, *(Other(op, current.version, push.ref) for op in back)]
        return ConcurrentOps(behind, current.version, push.base[1], push.ref)

    def _origins(self, push: Push, ops: Sequence[Op], known: Lookup) -> list[Origin]:
        """Return where the places of operations were when the push was made, and whether others changed them since."""
        epoch, made = push.made or push.base
        if epoch != push.base[0]:
            raise Conflict("it was made on a history that is gone")
        if not 0 <= made <= push.base[1]:
            raise Conflict("it was made on a version that its base does not have")
        history = self._actor.pipeline.history
        rows = known.changes(history, made, history.current.version)
        over = [(op, row.source == self._connection.id) for row in rows for op in decode_ops(row.ops)]
        if not over:
            return [Origin(op.path, op.path, is_contested=False) for op in ops]
        compared(ops, len(over) + count_moves(ops), self._charge)
        own = frozenset(index for index, (_, is_own) in enumerate(over) if is_own)
        return trace(ops, [op for op, _ in over], history.current.tree, own=own)

    # Answers

    def _committed(
        self, push: Push, version: int, change: ChangeRow | None, is_rebased: bool, error: PlaitError | None
    ) -> None:
        self._storing -= 1
        if error is not None:
            self._refuse(push.ref, error)
            return
        answer = b'{"type":"ack","ref":%d,"version":%d' % (push.ref, version)
        if is_rebased:
            answer += b',"rebased":true'
        if change is not None and change.ops != encode_json(push.ops):
            answer += b',"ops":' + change.ops
        self._answer(answer + b"}", version)

    def _take_back(self, last: ConcurrentOps, error: PlaitError | None) -> None:
        """Have the bridge again that was there before pushes, if what they were compared with could not be stored."""
        if error is not None and last.to < self._concurrent.to:
            durable = self._actor.pipeline.history.durable.version
            self._concurrent = last.back_to(durable)

    def _repeat(self, ref: int) -> None:
        version = self._actor.pipeline.history.durable.version
        refusal = self._client.refusal(ref)
        if refusal is not None:
            self._answer(encode(Nack(ref, refusal.code, refusal.message, version, refusal.path)), version)
        elif self._client.remembers(ref):
            self._answer(b'{"type":"ack","ref":%d,"version":%d}' % (ref, version), version)
        else:
            self._nack(ref, Unanswerable("it was answered too long ago"))

    def _refuse(self, ref: int, error: PlaitError) -> None:
        self._client.refuse(ref, error)
        self._nack(ref, error)

    def _nack(
        self, ref: int, error: PlaitError, *, retry_after: float | None = None, expected: int | None = None
    ) -> None:
        def tell(_: object) -> None:
            version = self._actor.pipeline.history.durable.version
            nack = Nack(ref, error.code, str(error), version, error.path, retry_after, expected)
            self._answer(encode(nack), version)

        self._actor.pipeline.after(tell)
