"""Merges the whole states that a client writes, by their differences from the state that it showed. No I/O."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final

from plait.actor.connection import Connection
from plait.actor.facade import Facade
from plait.errors import Conflict, InvalidState, TooLarge
from plait.session.cloudflare.seen import SeenTracker
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.types import MOST_OPS
from plait_schemas.align import Keys, id_of
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import Op, region_of

__all__ = ["WholeStates"]

# How many possible base states a write is compared with if none of them must be, and the bytes of their JSON.
_MOST_STATES: Final = 8
_MOST_BYTES: Final = 2 * 1024 * 1024
# How many states are compared whatever their size: one that was read, an own write, and the next one.
_ALWAYS: Final = 3


class WholeStates:
    """Applies the writes of one client."""

    __slots__ = ("_actor", "_charge", "_connection", "_seen", "_type")

    def __init__(
        self, actor: Facade, connection: Connection, seen: SeenTracker, charge: Callable[[float], None]
    ) -> None:
        self._actor = actor
        self._type = actor.kind.state_type
        self._connection = connection
        # What the client has seen.
        self._seen = seen
        # Charges work to the client, as a number of messages.
        self._charge = charge

    def write(self, data: bytes) -> tuple[Commit, bool]:
        """Apply a state that a client sent as JSON; also return whether the new state equals it.

        Raises Conflict, InvalidState, TooLarge, and whatever `validate_state_change` raises.
        """
        actor, seen = self._actor, self._seen
        state, json = self._read(data)
        if not (actor.merges_whole_states and self._connection.protocol_enabled):
            commit = actor.replace(state, json, self._connection)
            return commit, json == data or _is_as_sent(commit, data)
        current = actor.current
        shown: list[Revision] = []
        if current.has_state:
            shown = [current] if seen.screen.shows(current) else _select_states(*seen.states())
        if not shown or (shown == [current] and (self._type.is_plain or json == data)):
            commit = actor.replace(state, json, self._connection)
            wrote = commit.revision
            is_as_sent = json == data or _is_as_sent(commit, data)
        else:
            commit, wrote = self._write_over(shown, Revision(self._type, json=json, state=state), data)
            is_as_sent = _is_as_sent(commit, data)
        seen.note_written(commit.revision if is_as_sent else wrote, actor.last)
        return commit, is_as_sent

    # Inside

    def _read(self, data: bytes) -> tuple[Any, bytes]:
        """Decode a state, and return it with its JSON; unknown fields, as of an older page, are dropped."""
        return self._type.from_json(data, self._actor.limits, drops_unknown=True)

    def _write_over(self, shown: Sequence[Revision], wrote: Revision, data: bytes) -> tuple[Commit, Revision]:
        """Merge a write that was made on one of the states `shown`; also return the state that the client now shows."""
        actor, type_, json = self._actor, self._type, wrote.require_json()
        if type_.is_plain:
            wrote = Revision(type_, json=json, document=type_.read(json, self._actor.limits))
        base, ops = _find_base(wrote, shown, type_.keys)
        if json != data and (completed := self._complete(wrote, data, base)) is not wrote:
            wrote, ops = completed, _diff(base, completed, type_.keys)
        if base is actor.current:
            return actor.replace(wrote.base, wrote.require_json(), self._connection), wrote
        return actor.merge(ops, base, self._connection, self._charge), wrote

    def _complete(self, wrote: Revision, data: bytes, base: Revision) -> Revision:
        """Fill the fields that a client left out of a typed state with the values that it was shown.

        Its page may not know them, and decoding has filled in their defaults.
        """
        type_ = self._type
        if type_.is_plain:
            return wrote
        document = wrote.document
        completed = _fill_missing(document, decode_json(data), base.document)
        if completed is document:
            return wrote
        try:
            state, json = self._read(encode_json(completed))
        except (InvalidState, TooLarge):  # The shown value does not fit.
            return wrote
        return Revision(type_, json=json, state=state)


def _is_as_sent(commit: Commit, data: bytes) -> bool:
    stored = commit.revision.require_json()
    return stored == data or bool(decode_json(stored) == decode_json(data))


def _diff(before: Revision, after: Revision, keys: Keys | None) -> list[Op]:
    return diff(before.tree, after.tree, keys, most=MOST_OPS)


def _select_states(shown: Sequence[Revision], count: int) -> list[Revision]:
    """Return the states that a write is compared with: the first `count`, and some others.

    Raises Conflict if those are too large, as the write may have been made on the one that is left out.
    """
    first = max(count, _MOST_STATES // 2)
    # The last ones are the oldest.
    last = max(first, len(shown) - max(0, _MOST_STATES - first))
    size = 0
    selected: list[Revision] = []
    for index, each in enumerate((*shown[:first], *shown[last:])):
        size += each.size
        if size > _MOST_BYTES and index >= (_ALWAYS if count else 2):
            if index < count:
                raise Conflict("too large states were on their way to know which one it was made on")
            break
        selected.append(each)
    return selected


def _find_base(wrote: Revision, shown: Sequence[Revision], keys: Keys | None) -> tuple[Revision, list[Op]]:
    """Return the state that a write was most likely made on, and the operations that lead from it to the write.

    That is the state with the fewest operations, because compared with any other state the write seems to undo changes
    of others. Of as many operations, those that change fewer characters of texts are more likely: whatever differs in
    a text is one operation. A write without any operation is the least likely. Of two states after the likeliest that
    are equally likely, take the older one, so that no unseen change is undone.
    """
    best, least = shown[0], _diff(shown[0], wrote, keys)
    is_likeliest = True
    for each in shown[1:]:
        ops = _diff(each, wrote, keys)
        changed = len(ops) - len(least) or _compare_texts(ops, least)
        is_older = not is_likeliest and not changed and each.version < best.version
        if ops and (not least or changed < 0 or is_older):
            is_likeliest = not least
            best, least = each, ops
    return best, least


def _compare_texts(ops: Sequence[Op], others: Sequence[Op]) -> int:
    """Return how many more characters of texts `ops` change than `others`; 0 if they do not have as many splices."""
    mine, theirs = ([region_of(op) for op in each if op.op == "splice"] for each in (ops, others))
    if len(mine) != len(theirs):
        return 0
    counts = [sum(removed + len(insert) for _, removed, insert in regions) for regions in (mine, theirs)]
    return counts[0] - counts[1]


def _fill_missing(wrote: Any, sent: Any, shown: Any) -> Any:
    """Return `wrote` with the fields that were not `sent` as they were `shown`; the same object if none were."""
    match wrote, sent, shown:
        case dict(), dict(), dict():
            members = {
                key: _fill_missing(value, sent[key], shown.get(key)) if key in sent else shown.get(key, value)
                for key, value in wrote.items()
            }
            return wrote if all(members[key] is wrote[key] for key in wrote) else members
        case list(), list(), list() if len(wrote) == len(sent):
            before = _match_elements(wrote, shown)
            elements = [_fill_missing(*each) for each in zip(wrote, sent, before, strict=True)]
            return wrote if all(map(is_, elements, wrote)) else elements
    return wrote


def _match_elements(wrote: Sequence[Any], shown: Sequence[Any]) -> list[Any]:
    """Return for each element the one of `shown` with the same id, or at the same index if both are as long."""
    known: dict[Any, Any] = {}
    for element in shown:
        known.setdefault(id_of(element), element)
    by_place = shown if len(shown) == len(wrote) else [None] * len(wrote)
    return [
        known.get(id) if (id := id_of(element)) is not None else other
        for element, other in zip(wrote, by_place, strict=True)
    ]
