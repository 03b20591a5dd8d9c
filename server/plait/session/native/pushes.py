"""Applies each push of one client once, and answers the pushes, both in order. No I/O.

A client resends the pushes that are based on a refused push.
"""

import asyncio
from functools import partial
from typing import Any

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
    TooLarge,
    TooMany,
    Unanswerable,
)
from plait.instruments.protocol import NO_INSTRUMENTS, tell_limit
from plait.limits import RateLimiter
from plait.session.native.follower import Follower
from plait.session.receive_queue import ReceiveQueue
from plait.state.concurrent import ConcurrentOps, LoadedChanges, MissingChanges
from plait.state.merger import AcceptedPush, Proposal
from plait.state.push_log import MOST_PUSHES, ClientPushes
from plait_schemas.diff import MOST_OPS
from plait_schemas.frames import encode
from plait_schemas.messages import Nack, Push
from plait_schemas.patch import PatchError

__all__ = ["Pushes"]


class Pushes:
    """Handles the pushes of one client on one socket."""

    __slots__ = (
        "_actor",
        "_client",
        "_connection",
        "_follower",
        "_limiter",
        "_queue",
        "_refused",
        "_task",
        "_traces",
        "_unseen",
        "under_way",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        client: ClientPushes,
        queue: ReceiveQueue,
        limiter: RateLimiter | None,
        *,
        follower: Follower,
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._client = client
        # Holds the messages after a push while older changes are read for it.
        self._queue = queue
        # Sends the answers.
        self._follower = follower
        # Charged for the work of rebasing.
        self._limiter = limiter
        # The operations that the client had not seen at its last push.
        self._unseen = ConcurrentOps()
        # The last push that was refused on this socket.
        self._refused = 0
        # The number of pushes that are being stored or wait for older changes. Their changes may be sent before their
        # answers.
        self.under_way = 0
        # Reads older changes for a push.
        self._task: asyncio.Task[None] | None = None
        # The traces of the unanswered pushes, in order. A list, as an empty deque is large.
        self._traces: list[Any] = []

    def receive(self, push: Push) -> None:
        """Apply or refuse a push."""
        if self._begin():
            self._take(push, LoadedChanges())

    def refuse(self, push: Push, error: PlaitError) -> None:
        """Refuse an undecodable push, in order."""
        if self._begin() and self._is_due(push):
            self._refuse(push.ref, error)

    def limit(self, push: Push, wait: float, error: PlaitError) -> None:
        """Refuse a push that came too fast; the client may send it again after `wait` seconds."""
        if self._begin():
            tell_limit(self._actor.instruments, error)
            self._client.expect(push.ref)
            self._nack(push.ref, error, retry_after=wait)

    def close(self) -> None:
        """Stop reading older changes, as the socket is closed."""
        if self._task is not None:
            self._task.cancel()
            self._drop()

    # Inside

    def _begin(self) -> bool:
        """Tell the instruments about a push; return False to ignore the push, while the thread is being destroyed.

        The client gets no answer: its socket is closed when the thread is destroyed.
        """
        if self._actor.is_ending:
            return False
        self._connection.begin_message("push", self._actor.instruments, self._actor.key)
        self._traces.append(self._connection.trace)
        return True

    def _drop(self) -> None:
        """Tell the instruments that the last push, which waited for older changes, gets no answer."""
        self._actor.instruments.message_ended(self._traces.pop(), "cancelled")

    def _is_due(self, push: Push) -> bool:
        """Whether a push is the next one; answer it if it is not."""
        client, ref = self._client, push.ref
        if ref <= client.ref:
            self._actor.state.after(lambda _: self._repeat(ref))
        elif ref > MOST_PUSHES:
            self._nack(ref, Unanswerable(f"pushes are numbered up to {MOST_PUSHES}"))
        elif not client.is_next(ref):
            self._nack(ref, Gap(f"push {client.ref + 1} must come first"), expected=client.ref + 1)
        elif push.answered is not None and push.answered < self._refused and not self._connection.readonly:
            self._nack(
                ref, Gap(f"push {self._refused} was refused; rebase the later pushes and resend them"), expected=ref
            )
        else:
            client.expect(ref)
            return True
        return False

    def _take(self, push: Push, loaded: LoadedChanges) -> None:
        """Apply or refuse a push; if it needs changes that are no longer in memory, read them first."""
        if not self._is_due(push):
            return
        try:
            if self._connection.readonly:
                raise Readonly("Connection is readonly")
            if (count := len(push.ops)) > MOST_OPS:
                what = "replace the changed values as a whole, or divide the push"
                raise TooLarge(f"the push has {count} operations, the limit is {MOST_OPS}: {what}", limit="weight")
            proposal = Proposal(push, self._connection, self._client, self._unseen, loaded, self._limiter)
            pushed = self._actor.state.push(proposal)
        except (TooMany, Gap, Unanswerable) as error:  # Raised by a hook; a nack uses these codes otherwise.
            self._refuse(push.ref, Reject(str(error), path=error.path))
        except PlaitError as error:
            self._refuse(push.ref, error)
        except PatchError as error:
            self._refuse(push.ref, Conflict(str(error)))
        except BaseException as error:  # Any exception of a hook refuses the change.
            self._refuse(push.ref, Reject(str(self._actor.explain(error, self._connection))))
        else:
            if isinstance(pushed, MissingChanges):
                self._queue.hold()
                self.under_way += 1
                self._task = asyncio.get_running_loop().create_task(
                    self._read(push, pushed), name="plait older changes"
                )
            else:
                self._store(push, pushed)

    async def _read(self, push: Push, missing: MissingChanges) -> None:
        loaded: LoadedChanges | PlaitError
        try:
            loaded = await missing.read(self._actor.log)
        except PlaitError as error:
            loaded = error
        except Exception as error:  # A store of the application may raise any exception.
            log_error(error, self._actor.key, self._connection)
            loaded = StoreError("older changes could not be read")
        self._task = None
        self.under_way -= 1
        if self._actor.is_ending or self._connection.is_closed:
            self._drop()
        elif isinstance(loaded, LoadedChanges):
            self._take(push, loaded)
        elif self._is_due(push):
            self._refuse(push.ref, loaded)
        if self._task is None:
            self._queue.release()

    def _store(self, push: Push, pushed: AcceptedPush) -> None:
        """Record an accepted push, and answer it when it is durable."""
        self._client.ref = push.ref
        last, self._unseen = self._unseen, pushed.unseen
        self.under_way += 1
        pushed.commit.then(partial(self._finish, push.ref, pushed, last))

    # Answers

    def _finish(self, ref: int, pushed: AcceptedPush, last: ConcurrentOps, error: PlaitError | None) -> None:
        self.under_way -= 1
        if error is not None:
            if last.to < self._unseen.to:  # Restore the concurrent operations.
                self._unseen = last.back_to(self._actor.state.durable.version)
            self._refuse(ref, error)
            return
        version = pushed.commit.revision.version
        answer = b'{"type":"ack","ref":%d,"version":%d' % (ref, version)
        if pushed.is_rebased:
            answer += b',"rebased":true'
        if pushed.change is not None:
            shown = self._follower.show(pushed.change, pushed.commit.revision)
            if not pushed.is_as_sent or shown is not pushed.change:  # The place may be hidden by now.
                answer += b',"ops":' + shown.ops
        self._end(answer + b"}", version, "rebased" if pushed.is_rebased else "accepted")

    def _repeat(self, ref: int) -> None:
        version = self._actor.state.durable.version
        refusal = self._client.refusal(ref)
        if refusal is not None:
            nack = encode(Nack(ref, refusal.code, refusal.message, version, refusal.path))
            self._end(nack, version, "repeated")
        elif self._client.remembers(ref):
            self._end(b'{"type":"ack","ref":%d,"version":%d}' % (ref, version), version, "repeated")
        else:
            self._nack(ref, Unanswerable("the push was answered too long ago"))

    def _refuse(self, ref: int, error: PlaitError) -> None:
        tell_limit(self._actor.instruments, error)
        self._refused = max(self._refused, ref)
        self._client.refuse(ref, error)
        self._nack(ref, error)

    def _nack(
        self, ref: int, error: PlaitError, *, retry_after: float | None = None, expected: int | None = None
    ) -> None:
        def tell(_: object) -> None:
            version = self._actor.state.durable.version
            nack = Nack(ref, error.code, str(error), version, error.path, retry_after, expected)
            self._end(encode(nack), version, error.code)

        self._actor.state.after(tell)

    def _end(self, answer: bytes, version: int, outcome: str) -> None:
        """Send the answer to the first unanswered push."""
        self._follower.answer(answer, version)
        instruments, trace = self._actor.instruments, self._traces.pop(0)
        if instruments is not NO_INSTRUMENTS:
            instruments.push_answered(self._actor.key.kind, outcome)
            is_made = outcome in ("accepted", "rebased", "repeated")
            instruments.message_ended(trace, "ok" if is_made else outcome)
