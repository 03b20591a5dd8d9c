"""Whole states that one client writes, merged as pushes are: what differs from the state that it showed. No I/O."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.errors import Conflict, InvalidState, TooLarge
from plait.session.cloudflare.seen import SeenTracker
from plait.state.commit import Commit
from plait.state.conflicts import merge
from plait.state.revision import Revision
from plait.state.types import MOST_OPS
from plait.state.work import MOST_OF_A_PUSH, Work
from plait_schemas.align import Keys, id_of
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import Op, decode_ops, diff
from plait_schemas.rebase import rebase
from plait_schemas.trace import trace

__all__ = ["WholeStates"]

# States that a write is compared with, where it is not known which one it was made on, and bytes of their JSON.
_MOST_STATES: Final = 8
_MOST_BYTES: Final = 2 * 1024 * 1024


class WholeStates:
    """Carries out what a client writes."""

    __slots__ = ("_actor", "_charge", "_connection", "_pipeline", "_seen", "_type")

    def __init__(
        self, actor: Actor, connection: Connection, seen: SeenTracker, charge: Callable[[float], None]
    ) -> None:
        self._actor = actor
        self._pipeline = actor.pipeline
        self._type = actor.kind.state_type
        self._connection = connection
        # What the client has seen.
        self._seen = seen
        # Counts work as so many messages of the client.
        self._charge = charge

    def write(self, data: bytes) -> tuple[Commit, bool]:
        """Change the state to what a client sent as JSON; also returns whether that is just what it has become.

        Raises Conflict, InvalidState, TooLarge, and what `validate_state_change` raises.
        """
        pipeline, seen = self._pipeline, self._seen
        state, json = self._read(data)
        if not (self._actor.thread.merge_whole_states and self._connection.protocol_enabled):
            commit = pipeline.replace(state, json, self._connection)
            return commit, json == data or _is_as_sent(commit, data)
        current = pipeline.history.current
        if not current.has_state:
            shown = []
        elif seen.screen.shows(current):
            shown = [current]
        else:
            shown = seen.states()
        if not shown or (shown == [current] and (self._type.is_plain or json == data)):
            commit = pipeline.replace(state, json, self._connection)
            wrote = commit.revision
            is_as_sent = json == data or _is_as_sent(commit, data)
        else:
            commit, wrote = self._write_over(shown, Revision(self._type, json=json, state=state), data)
            is_as_sent = _is_as_sent(commit, data)
        seen.note_written(commit.revision if is_as_sent else wrote, pipeline.history.last)
        return commit, is_as_sent

    # Inside

    def _read(self, data: bytes) -> tuple[Any, bytes]:
        """Return the state that JSON says, and its JSON; the type of a page that was built earlier may have more."""
        return self._type.from_json(data, self._actor.limits, drops_unknown=True)

    def _write_over(self, shown: Sequence[Revision], wrote: Revision, data: bytes) -> tuple[Commit, Revision]:
        """Write over one of some states, the likeliest first; also returns the state that the client shows then."""
        pipeline, type_, json = self._pipeline, self._type, wrote.require_json()
        if type_.is_plain:
            wrote = Revision(type_, json=json, document=type_.read(json, self._actor.limits))
        base, ops = _made_on(wrote, shown, type_.keys)
        if json != data and (completed := self._complete(wrote, data, base)) is not wrote:
            wrote, ops = completed, _changes(base, completed, type_.keys)
        if base is pipeline.history.current:
            return pipeline.replace(wrote.base, wrote.require_json(), self._connection), wrote
        return self._merge(base, ops), wrote

    def _merge(self, base: Revision, ops: Sequence[Op]) -> Commit:
        """Carry out what a client did to the state that it showed on the current one."""
        pipeline, kind = self._pipeline, self._actor.kind
        current = pipeline.history.current
        document = current.tree
        ops, theirs = _plain(ops), _plain(_changes(base, current, self._type.keys))
        if any(op.path == "" and isinstance(op.value, dict | list) for op in (*ops, *theirs)):
            raise Conflict("too much has been changed at once to be brought together")
        work = Work(MOST_OF_A_PUSH, self._charge)
        work.compare(ops, len(theirs))
        work.carry_out(ops, document)
        rebased = rebase(ops, theirs, document)
        policy = kind.policy(self._actor.thread)
        origins = [] if policy == "last-writer" else trace(rebased.ops, theirs, document)
        merged = partial(merge, rebased, origins, document=document, policy=policy, base=base.tree)
        return pipeline.change(pipeline.ask(merged), self._connection)

    def _complete(self, wrote: Revision, data: bytes, base: Revision) -> Revision:
        """Return a typed state with the fields that were left out as the client was shown them.

        Its build may not know of them, and the type has put their defaults in their places.
        """
        type_ = self._type
        if type_.is_plain:
            return wrote
        document = wrote.document
        completed = _completed(document, decode_json(data), base.document)
        if completed is document:
            return wrote
        try:
            state, json = self._read(encode_json(completed))
        except (InvalidState, TooLarge):  # The field that was shown is of something else.
            return wrote
        return Revision(type_, json=json, state=state)


def _is_as_sent(commit: Commit, data: bytes) -> bool:
    stored = commit.revision.require_json()
    return stored == data or bool(decode_json(stored) == decode_json(data))


def _changes(before: Revision, after: Revision, keys: Keys | None) -> list[Op]:
    return diff(before.tree, after.tree, keys, most=MOST_OPS)


def _made_on(wrote: Revision, shown: Sequence[Revision], keys: Keys | None) -> tuple[Revision, list[Op]]:
    """Return the state that a write was most likely made on, and what was done to it.

    Of some states it is the one to which the least was done: what others have done is in the state that was shown, and
    seems to be taken back in all others. That nothing was done is the least likely. After the likeliest, of two with
    as little it is the older one, over which nothing is taken back that was not seen.
    """
    best, least = shown[0], _changes(shown[0], wrote, keys)
    is_likeliest = True
    size = shown[0].size
    # Among the last are the oldest.
    others = shown[1:] if len(shown) <= _MOST_STATES else [*shown[1 : _MOST_STATES // 2], *shown[-_MOST_STATES // 2 :]]
    for each in others:
        if (size := size + each.size) > _MOST_BYTES and each is not others[0]:
            break
        ops = _changes(each, wrote, keys)
        is_older = not is_likeliest and len(ops) == len(least) and each.version < best.version
        if ops and (not least or len(ops) < len(least) or is_older):
            is_likeliest = not least
            best, least = each, ops
    return best, least


def _plain(ops: Sequence[Op]) -> list[Op]:
    """Return operations with values that are JSON: those of a typed state may have parts of its type."""
    return decode_ops(encode_json(ops))


def _completed(wrote: Any, sent: Any, shown: Any) -> Any:
    """Return JSON with the fields that are in `wrote` but were not `sent` as they were `shown`: itself if none were."""
    match wrote, sent, shown:
        case dict(), dict(), dict():
            members = {
                key: _completed(value, sent[key], shown.get(key)) if key in sent else shown.get(key, value)
                for key, value in wrote.items()
            }
            return wrote if all(members[key] is wrote[key] for key in wrote) else members
        case list(), list(), list() if len(wrote) == len(sent):
            before = _partners(wrote, shown)
            elements = [_completed(*each) for each in zip(wrote, sent, before, strict=True)]
            return wrote if all(map(is_, elements, wrote)) else elements
    return wrote


def _partners(wrote: Sequence[Any], shown: Sequence[Any]) -> list[Any]:
    """Return for each element of a list the one of another that has its id, or else, in one as long, its place."""
    known: dict[Any, Any] = {}
    for element in shown:
        known.setdefault(id_of(element), element)
    by_place = shown if len(shown) == len(wrote) else [None] * len(wrote)
    return [
        known.get(id) if (id := id_of(element)) is not None else other
        for element, other in zip(wrote, by_place, strict=True)
    ]
