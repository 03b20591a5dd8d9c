"""The pushes of one client: brought onto the current state, applied once, and answered in order. No I/O.

What others change while pushes are under way is kept as it is behind the pushes that came meanwhile, so that the next
one, which was made on top of those, can be brought behind it (as in Jupiter: Nichols et al., 1995). So is what takes
back a push that was refused: those behind it were made as if it were there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from plait.actor import Actor
from plait.clients import MOST_PUSHES, Client
from plait.connection import Connection
from plait.errors import Conflict, Gap, InvalidState, NotFound, PlaitError, Readonly, Reject, TooLarge, Unanswerable
from plait.logs import log_error
from plait.merge import merge
from plait.session.bridge import Bridge, Other, taking_back
from plait.store.protocol import ChangeRow
from plait_schemas.codec import NOT_JSON, decode_json, encode_json, nests_deeper
from plait_schemas.messages import Nack, Push, encode
from plait_schemas.patch import Op, PatchError, decode_ops, diff
from plait_schemas.rebase import rebase
from plait_schemas.trace import Origin, trace

__all__ = ["Pushes"]

_TOO_OLD: Final = "it was made on a version that is too old"
# Bringing so many operations behind as many others as make this product takes about half a second.
_MOST_PAIRS: Final = 500_000


class _Past(NamedTuple):
    """What was read of the past for one push: the changes behind a version, and states, by their versions."""

    after: int | None = None
    rows: Sequence[ChangeRow] = ()
    documents: Mapping[int, Any] = {}


class _NeedsPast(Exception):
    """The push cannot be judged by what is in memory: the changes behind a version are needed, and maybe a state."""

    def __init__(self, after: int, document: int | None = None) -> None:
        self.after = after
        self.document = document


class Pushes:
    """Takes the pushes of one client, on one socket."""

    __slots__ = ("_actor", "_answer", "_bridge", "_client", "_connection", "_storing", "_task", "_waiting")

    def __init__(
        self, actor: Actor, connection: Connection, client: Client, answer: Callable[[bytes, int], None]
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._client = client
        # Sends an answer, which says that the client is at a version, behind what was sent before.
        self._answer = answer
        self._bridge = Bridge()
        # How many pushes are on their way to the disk.
        self._storing = 0
        # Pushes that wait until the past has been read for the one in front of them.
        self._waiting: deque[Push] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a push may be carried out of which the client does not know yet."""
        return self._storing > 0 or self._task is not None

    def receive(self, push: Push) -> None:
        """Take a push."""
        if self._task is not None:
            self._waiting.append(push)
        else:
            self._take(push, _Past())

    def limit(self, push: Push, wait: float, error: PlaitError) -> None:
        """Refuse to look at a push that came too fast; it may come again."""
        self._client.expect(push.ref)
        self._nack(push.ref, error, retry_after=wait)

    def close(self) -> None:
        """Take nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    # Inside

    def _take(self, push: Push, past: _Past) -> None:
        client = self._client
        if push.ref <= client.ref:
            self._actor.pipeline.after(lambda _: self._repeat(push.ref))
        elif push.ref > MOST_PUSHES:
            self._nack(push.ref, Unanswerable(f"pushes are numbered up to {MOST_PUSHES}"))
        elif not client.is_next(push.ref):
            self._nack(push.ref, Gap(f"push {client.ref + 1} is to come first"), expected=client.ref + 1)
        else:
            client.expect(push.ref)
            try:
                self._apply(push, past)
            except _NeedsPast as needs:
                self._task = asyncio.get_running_loop().create_task(self._read(push, past, needs), name="plait past")
            except PlaitError as error:
                self._refuse(push.ref, error)
            except PatchError as error:
                self._refuse(push.ref, Conflict(str(error)))
            except Exception as error:  # Whatever the author's hooks raise refuses the change.
                log_error(error, self._actor.key, self._connection)
                self._refuse(push.ref, Reject("State update rejected"))

    async def _read(self, push: Push, past: _Past, needs: _NeedsPast) -> None:
        after = needs.after if past.after is None else min(needs.after, past.after)
        documents = {**past.documents}
        try:
            rows = await self._actor.past.changes(after)
            if needs.document is not None:
                documents[needs.document] = await self._actor.past.document(needs.document)
            if rows is None:
                raise Conflict(_TOO_OLD)
        except PlaitError as error:
            self._task = None
            self._refuse(push.ref, Conflict(_TOO_OLD) if isinstance(error, NotFound) else error)
        else:
            self._task = None
            self._take(push, _Past(after, rows, documents))
        while self._waiting and self._task is None:
            self._take(self._waiting.popleft(), _Past())

    def _apply(self, push: Push, past: _Past) -> None:
        if self._connection.readonly:
            raise Readonly("Connection is readonly")
        pipeline = self._actor.pipeline
        document = pipeline.history.current.tree
        epoch, base = push.base
        if epoch != pipeline.history.epoch or not 0 <= base <= pipeline.history.current.version:
            raise Conflict("its base is not a version of this thread")
        bridge = self._bridge_from(push, past)
        ops = self._ops(push, bridge, past)
        _check_work(ops, bridge)
        rebased = rebase(ops, (other.op for other in bridge), document)
        behind = [other._replace(op=op) for other, op in zip(bridge, rebased.over, strict=True) if op is not None]
        policy = self._actor.kind.policy(self._actor.thread)
        origins = [] if policy == "last-writer" else self._origins(push, rebased.ops, past)
        origin = msgspec.UNSET
        if callable(policy) and any(each.is_contested for each in origins):
            origin = _document(past, (push.made or push.base)[1])
        before = pipeline.history.current
        try:
            ops = merge(rebased, origins, document=document, policy=policy, base=origin)
            commit = pipeline.change(ops, self._connection, accept=partial(self._client.accept, push.ref))
        except Exception:
            behind += taking_back(push.ref, rebased.ops, before.tree, before.version)
            self._bridge = Bridge(behind, before.version, base)
            raise
        self._client.ref = push.ref
        last, self._bridge = self._bridge, Bridge(behind, commit.version, base)
        change = None if commit.revision is before else commit.revision.change
        self._storing += 1
        commit.then(partial(self._take_back, last))
        is_rebased = any(other.refused is None for other in bridge)
        commit.then(partial(self._committed, push, commit.version, change, is_rebased))

    def _bridge_from(self, push: Push, past: _Past) -> list[Other]:
        """Return what the client did not know of when it pushed, as it is behind its pushes so far.

        Raises Conflict where the client has pushed on a later version already: an old one names what it has lost.
        """
        base = push.base[1]
        rows = self._rows(max(base, self._bridge.to), self._actor.pipeline.history.current.version, past)
        if base < self._bridge.since or any(row.source == self._connection.id for row in rows):
            # It was made behind other pushes of this client, which by then were elsewhere than they have come to be.
            raise Conflict("others have taken away what it was made on")
        return self._bridge.unknown(push, rows)

    def _rows(self, after: int, to: int, past: _Past) -> list[ChangeRow]:
        history = self._actor.pipeline.history
        rows = history.since(after, to)
        if rows is not None:
            return rows
        is_read = past.after is not None and past.after <= after
        older = [row for row in past.rows if after < row.version <= to] if is_read else []
        last = older[-1].version if older else after
        newer = history.since(last, to)
        if newer is None:
            raise _NeedsPast(after)
        return older + newer

    def _ops(self, push: Push, bridge: Sequence[object], past: _Past) -> Sequence[Op]:
        if push.ops is not msgspec.UNSET:
            return push.ops
        if push.state is msgspec.UNSET:
            raise InvalidState("a push has ops or a state")
        state = _read_state(bytes(push.state), self._actor.limits.depth)
        base = push.base[1]
        if not bridge:
            return diff(self._actor.pipeline.history.current.document, state)
        if self._bridge.to > base:
            raise Conflict("a whole state is pushed when the push before it has been answered")
        return diff(_document(past, base), state)

    def _origins(self, push: Push, ops: Sequence[Op], past: _Past) -> list[Origin]:
        """Return where the places of operations were when the push was made, and whether others changed them since."""
        epoch, made = push.made or push.base
        if epoch != push.base[0]:
            raise Conflict("it was made on a history that is gone")
        if not 0 <= made <= push.base[1]:
            raise Conflict("it was made on a version that its base does not have")
        current = self._actor.pipeline.history.current
        rows = self._rows(made, current.version, past)
        over = [(op, row.source == self._connection.id) for row in rows for op in decode_ops(row.ops)]
        _check_work(ops, over)
        own = frozenset(index for index, (_, is_own) in enumerate(over) if is_own)
        return trace(ops, [op for op, _ in over], current.tree, own=own)

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
        if change is not None and (push.ops is msgspec.UNSET or change.ops != encode_json(push.ops)):
            answer += b',"ops":' + change.ops
        self._answer(answer + b"}", version)

    def _take_back(self, last: Bridge, error: PlaitError | None) -> None:
        """Have the bridge again that was there before the first of the pushes that could not be stored."""
        if error is not None and last.to < self._bridge.to:
            durable = self._actor.pipeline.history.durable.version
            self._bridge = last.back_to(durable)

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


def _check_work(ops: Sequence[Op], others: Sequence[object]) -> None:
    if len(ops) * len(others) > _MOST_PAIRS:
        raise Conflict("too much has been changed at once to be brought together")


def _document(past: _Past, version: int) -> Any:
    """Return the state at a version as it was read; raises _NeedsPast when it was not."""
    if version not in past.documents:
        raise _NeedsPast(version, version)
    return past.documents[version]


def _read_state(data: bytes, depth: int) -> Any:
    if nests_deeper(data, depth):
        raise TooLarge(f"JSON is nested more than {depth} deep", path="")
    try:
        return decode_json(data)
    except NOT_JSON as error:
        raise InvalidState(str(error), path="") from None
