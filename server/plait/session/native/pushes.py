"""The pushes of one client: rebased onto the current state, applied once, and answered in order. No I/O.

What others change while pushes are under way is kept as it is after the pushes that came meanwhile, so that the next
one, which was made on top of those, can be rebased over it (as in Jupiter: Nichols et al., 1995). What was made on a
refused push must be sent again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from plait.session.native.concurrent import ConcurrentOps, Needs, Other, Past
from plait.session.receive_queue import ReceiveQueue
from plait.state.conflicts import Policy, Resolve, may_meet, merge
from plait.state.push_log import MOST_PUSHES, Client
from plait.state.work import MOST_OF_A_PUSH, Work
from plait.store.protocol import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.messages import Nack, Push, encode
from plait_schemas.patch import Op, PatchError, decode_ops
from plait_schemas.rebase import rebase
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
        "_policy",
        "_queue",
        "_refused",
        "_storing",
        "_task",
        "_traces",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        client: Client,
        queue: ReceiveQueue,
        *,
        answer: Callable[[bytes, int], None],
        charge: Callable[[float], None],
    ) -> None:
        self._actor = actor
        self._connection = connection
        # What is done where others have changed the same.
        self._policy: Policy | Resolve = actor.kind.policy(actor.thread)
        self._client = client
        # Holds what comes after a push for which older changes are read.
        self._queue = queue
        # Sends an answer, which says that the client is at a version, after what was sent before.
        self._answer = answer
        # Counts work as so many messages of the client.
        self._charge = charge
        self._concurrent = ConcurrentOps()
        # The last push that was refused on this socket.
        self._refused = 0
        # How many pushes are on their way to the disk.
        self._storing = 0
        # Reads the past for a push.
        self._task: asyncio.Task[None] | None = None
        # The traces of the pushes that are not answered, in order; None before the first, to save memory.
        self._traces: deque[Any] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a push may be carried out of which the client does not know yet."""
        return self._storing > 0 or self._task is not None

    def receive(self, push: Push) -> None:
        """Take a push."""
        self._begin()
        self._take(push, Past())

    def refuse(self, push: Push, error: PlaitError) -> None:
        """Refuse a push of which only the number could be read, in its turn."""
        self._begin()
        if self._is_due(push):
            self._refuse(push.ref, error)

    def limit(self, push: Push, wait: float, error: PlaitError) -> None:
        """Refuse to look at a push that came too fast; it may come again."""
        self._begin()
        self._actor.tell_limit(error)
        self._client.expect(push.ref)
        self._nack(push.ref, error, retry_after=wait)

    def close(self) -> None:
        """Take nothing more."""
        if self._task is not None:
            self._task.cancel()
            if self._traces and self._actor.instruments is not None:
                self._actor.instruments.message_ended(self._traces.pop(), "cancelled")

    # Inside

    def _begin(self) -> None:
        """Tell the instruments that a push has come."""
        if self._actor.instruments is not None:
            self._actor.begin_message(self._connection, "push")
            if self._traces is None:
                self._traces = deque()
            self._traces.append(self._connection.trace)

    def _is_due(self, push: Push) -> bool:
        """Whether it is the turn of a push; one whose turn it is not is answered."""
        client, ref = self._client, push.ref
        if ref <= client.ref:
            self._actor.pipeline.after(lambda _: self._repeat(ref))
        elif ref > MOST_PUSHES:
            self._nack(ref, Unanswerable(f"pushes are numbered up to {MOST_PUSHES}"))
        elif not client.is_next(ref):
            self._nack(ref, Gap(f"push {client.ref + 1} is to come first"), expected=client.ref + 1)
        elif push.answered is not None and push.answered < self._refused and not self._connection.readonly:
            self._nack(ref, Gap(f"push {self._refused} was refused: what was made on it is to come anew"), expected=ref)
        else:
            client.expect(ref)
            return True
        return False

    def _take(self, push: Push, past: Past) -> None:
        """Judge a push, once all is read that it is judged by: what came meanwhile may ask for more."""
        if not self._is_due(push):
            return
        try:
            self._check(push)
            needs = self._needs(push, past)
            if needs is None:
                self._judge(push, past)
                return
        except (TooMany, Gap, Unanswerable) as error:  # An author's: as codes of a nack they say something else.
            self._refuse(push.ref, Reject(str(error), path=error.path))
        except PlaitError as error:
            self._refuse(push.ref, error)
        except PatchError as error:
            self._refuse(push.ref, Conflict(str(error)))
        except Exception as error:  # Whatever the author's hooks raise refuses the change.
            log_error(error, self._actor.key, self._connection)
            self._refuse(push.ref, Reject("State update rejected"))
        else:
            self._queue.hold()
            self._task = asyncio.get_running_loop().create_task(self._read(push, needs), name="plait past")

    async def _read(self, push: Push, needs: Needs) -> None:
        past: Past | PlaitError
        try:
            past = await needs.read(self._actor.change_log)
        except PlaitError as error:
            past = error
        except Exception as error:  # Not every store is plait's own.
            log_error(error, self._actor.key, self._connection)
            past = StoreError("the past could not be read")
        self._task = None
        if isinstance(past, Past):
            self._take(push, past)
        elif self._is_due(push):
            self._refuse(push.ref, past)
        if self._task is None:
            self._queue.release()

    def _check(self, push: Push) -> None:
        """Raise what refuses a push whatever it does."""
        if self._connection.readonly:
            raise Readonly("Connection is readonly")
        history = self._actor.pipeline.history
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

    def _needs(self, push: Push, past: Past) -> Needs | None:
        """Return what is to be read to judge a push, None where nothing is.

        The state that it was made on is for who makes one of two values, where others may have changed the same.
        """
        history, policy = self._actor.pipeline.history, self._policy
        after, made = max(push.base[1], self._concurrent.to), (push.made or push.base)[1]
        if policy != "last-writer":
            after = min(after, made)
        if after == history.current.version:
            return None
        rows = past.since(history, after)
        if rows is not None:
            since = (row for row in rows if row.version > made and row.source != self._connection.id)
            over = (op for row in since for op in decode_ops(row.ops))
            if not callable(policy) or past.document is not msgspec.UNSET or not may_meet(push.ops, over):
                return None
        return Needs(after, made if callable(policy) else None)

    def _judge(self, push: Push, past: Past) -> None:
        pipeline = self._actor.pipeline
        document = pipeline.history.current.tree
        concurrent = self._bridge_from(push, past)
        work = Work(MOST_OF_A_PUSH, self._charge)
        work.charge_rebase(push.ops, len(concurrent))
        work.charge_ops(push.ops, document)
        rebased = rebase(push.ops, (other.op for other in concurrent), document)
        others = [concurrent[index]._replace(op=op) for index, op in zip(rebased.indices, rebased.over, strict=True)]
        policy = self._policy
        origins = [] if policy == "last-writer" else self._origins(push, rebased.ops, past)
        before = pipeline.history.current
        ops = pipeline.ask(partial(merge, rebased, origins, document=document, policy=policy, base=past.document))
        commit = pipeline.change(ops, self._connection, accept=partial(self._client.accept, push.ref))
        self._client.ref = push.ref
        last, self._concurrent = self._concurrent, ConcurrentOps(others, commit.version, push.base[1])
        change = None if commit.revision is before else commit.revision.change
        self._storing += 1
        commit.then(partial(self._take_back, last))
        commit.then(partial(self._committed, push, commit.version, change, bool(concurrent)))

    def _bridge_from(self, push: Push, past: Past) -> list[Other]:
        """Return what the client did not know of when it pushed, as it is after its pushes so far.

        Raises Conflict where the client has pushed on a later version already: an old one names what it has lost.
        """
        base = push.base[1]
        rows = past.since(self._actor.pipeline.history, max(base, self._concurrent.to)) or []
        if base < self._concurrent.since or any(row.source == self._connection.id for row in rows):
            # It was made after other pushes of this client, which were then at other places than they are now.
            raise Conflict("others have taken away what it was made on")
        return self._concurrent.unknown(base, rows)

    def _origins(self, push: Push, ops: Sequence[Op], past: Past) -> list[Origin]:
        """Return where the places of operations were when the push was made, and whether others changed them since."""
        history = self._actor.pipeline.history
        rows = past.since(history, (push.made or push.base)[1]) or []
        over = [(op, row.source == self._connection.id) for row in rows for op in decode_ops(row.ops)]
        if not over:
            return [Origin(op.path, op.path, is_contested=False) for op in ops]
        # These are all changes of others since the push was made, some of them a second time: a bound of their own.
        Work(MOST_OF_A_PUSH, self._charge).charge_rebase(ops, len(over), traces=True)
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
        self._end(answer + b"}", version, "rebased" if is_rebased else "accepted")

    def _take_back(self, last: ConcurrentOps, error: PlaitError | None) -> None:
        """Have the bridge again that was there before pushes, if what they were compared with could not be stored."""
        if error is not None and last.to < self._concurrent.to:
            durable = self._actor.pipeline.history.durable.version
            self._concurrent = last.back_to(durable)

    def _repeat(self, ref: int) -> None:
        version = self._actor.pipeline.history.durable.version
        refusal = self._client.refusal(ref)
        if refusal is not None:
            nack = encode(Nack(ref, refusal.code, refusal.message, version, refusal.path))
            self._end(nack, version, "repeated")
        elif self._client.remembers(ref):
            self._end(b'{"type":"ack","ref":%d,"version":%d}' % (ref, version), version, "repeated")
        else:
            self._nack(ref, Unanswerable("it was answered too long ago"))

    def _refuse(self, ref: int, error: PlaitError) -> None:
        self._actor.tell_limit(error)
        self._refused = max(self._refused, ref)
        self._client.refuse(ref, error)
        self._nack(ref, error)

    def _nack(
        self, ref: int, error: PlaitError, *, retry_after: float | None = None, expected: int | None = None
    ) -> None:
        def tell(_: object) -> None:
            version = self._actor.pipeline.history.durable.version
            nack = Nack(ref, error.code, str(error), version, error.path, retry_after, expected)
            self._end(encode(nack), version, error.code)

        self._actor.pipeline.after(tell)

    def _end(self, answer: bytes, version: int, outcome: str) -> None:
        """Send the answer to the first push that is not answered."""
        self._answer(answer, version)
        instruments = self._actor.instruments
        if instruments is not None and self._traces:
            instruments.push_answered(self._actor.key.kind, outcome)
            is_made = outcome in ("accepted", "rebased", "repeated")
            instruments.message_ended(self._traces.popleft(), "ok" if is_made else outcome)
