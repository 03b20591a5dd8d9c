"""Merges the whole states that a client writes, by their differences from the state that the client showed. No I/O."""

from collections.abc import Sequence
from operator import is_
from typing import Any

from msgspec import Raw
from msgspec.json import format as format_json

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.errors import InvalidState, TooLarge
from plait.limits import RateLimiter, count_extra_messages
from plait.session.cloudflare.seen import SeenTracker
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.types import UNDECODED
from plait.state.view import EVERYTHING, View
from plait_schemas.codec import decode_json, decoded, encode_json, read_parts
from plait_schemas.elements import id_of
from plait_schemas.patch import Op, apply
from plait_schemas.text_patch import TextDiff

__all__ = ["WholeStates"]


class WholeStates:
    """Applies the writes of one client."""

    __slots__ = ("_actor", "_connection", "_limiter", "_seen", "_type")

    def __init__(self, actor: Actor, connection: Connection, seen: SeenTracker, limiter: RateLimiter | None) -> None:
        self._actor = actor
        self._type = actor.kind.state_type
        self._connection = connection
        # Tracks the state that the client shows.
        self._seen = seen
        # Charged for the work of merging.
        self._limiter = limiter

    def write(self, data: bytes) -> tuple[Commit, bool]:
        """Apply a state that a client sent as JSON; also return whether the new state equals it.

        Raises Conflict, InvalidState, TooLarge, and the error of `validate_state_change`.
        """
        actor, seen = self._actor, self._seen
        views = actor.state.views
        if views is not None and (view := views.find_for_whole(self._connection)) is not EVERYTHING:
            return self._write_picture(data, view)
        # An older page may send unknown fields.
        state, json = self._type.from_json(data, actor.limits, drops_unknown=True)
        if not (actor.kind.cls.merge_whole_states and self._connection.protocol_enabled):
            commit = actor.state.replace(state, json, self._connection)
            return commit, self._find_other(json, data) is None
        other = self._find_other(json, data)
        base = self._find_base(state, json) if actor.state.current.has_state else None
        if base is None or (base is actor.state.current and (self._type.is_plain or json == data)):
            commit = actor.state.replace(state, json, self._connection)
            wrote, is_as_sent = commit.revision, other is None
        else:
            commit, wrote = self._write_over(base, Revision(self._type, json=json, tree=state), other)
            is_as_sent = other is None and _is_state(commit.revision, state, json)
        seen.note_written(commit.revision if is_as_sent else wrote, commit.version, base)
        return commit, is_as_sent

    # Inside

    def _write_picture(self, data: bytes, view: View) -> tuple[Commit, bool]:
        """Apply the differences from the picture that the client showed: of two possible ones, the nearer one."""
        actor, seen = self._actor, self._seen
        merges = actor.kind.cls.merge_whole_states and self._connection.protocol_enabled
        shown = [each for each in (seen.base, seen.other_base) if merges and each is not None] or [actor.state.current]
        made = [(base, actor.state.compare(base, self._complete_picture(data, view, base), view)) for base in shown]
        base, ops = min(made, key=lambda each: len(encode_json(each[1])))
        commit = actor.state.merge(ops, base, self._connection, self._limiter)
        is_as_sent = bool(view.picture(commit.revision.document) == decode_json(data))
        if merges:
            wrote = Revision(self._type, json=encode_json(apply(base.document, ops)))
            seen.note_written(commit.revision if is_as_sent else wrote, commit.version, base)
        return commit, is_as_sent

    def _complete_picture(self, data: bytes, view: View, base: Revision) -> bytes:
        """Return a picture of a typed state, with the shown values of fields that the page does not know."""
        if self._type.is_plain:
            return data
        try:
            _, json = self._type.from_json(data, self._actor.limits, drops_unknown=True)
        except (InvalidState, TooLarge):  # It may fit only together with what the client does not see.
            return data
        shown = view.picture(base.document)
        return encode_json(_fill_missing(decode_json(json), decode_json(data), shown, is_whole=False))

    def _find_other(self, json: bytes, data: bytes) -> tuple[Any, Any] | None:
        """Return the documents of a typed state and of the data that was sent; None if they are equal.

        Large parts that are equal may be JSON, as msgspec.Raw.
        """
        if self._type.is_plain or json == data:
            return None
        wrote, sent = read_parts(json), read_parts(format_json(data, indent=-1))
        for key in wrote.keys() & sent.keys() if isinstance(wrote, dict) and isinstance(sent, dict) else ():
            if wrote[key] != sent[key]:
                sent[key] = decoded(sent[key])
                # Encoding is faster than decoding: often only the spelling of numbers or strings differs.
                is_same = type(wrote[key]) is Raw and encode_json(sent[key]) == bytes(wrote[key])
                wrote[key] = sent[key] if is_same else decoded(wrote[key])
        return None if wrote == sent else (wrote, sent)

    def _find_base(self, state: Any, json: bytes) -> Revision | None:
        """Return the base of a write: of two possible states, the one that differs less from the write."""
        base, other = self._seen.base, self._seen.other_base
        if base is None or other is None:
            return base
        if self._limiter is not None:
            self._limiter.charge(2 * count_extra_messages(json))
        wrote = Revision(self._type, json=json, tree=state)
        return min(base, other, key=lambda each: len(encode_json(self._diff(each, wrote))))

    def _diff(self, base: Revision, wrote: Revision) -> list[Op]:
        both = [(each.base, each.require_json()) for each in (base, wrote)]
        return self._type.diff(both[0], both[1], self._actor.limits, TextDiff(self._type.keys))

    def _write_over(self, base: Revision, wrote: Revision, other: tuple[Any, Any] | None) -> tuple[Commit, Revision]:
        """Merge a write that was made on `base`; also return the state that the client now shows."""
        actor = self._actor
        if other is not None:
            wrote = self._complete(wrote, *other, base)
        if base is actor.state.current:
            return actor.state.replace(wrote.base, wrote.require_json(), self._connection), wrote
        return actor.state.merge(self._diff(base, wrote), base, self._connection, self._limiter), wrote

    def _complete(self, wrote: Revision, document: Any, sent: Any, base: Revision) -> Revision:
        """Fill fields that a client left out of a typed state with the values of the state that it was shown.

        The page may not know these fields, and decoding has filled in their defaults.
        """
        completed = encode_json(_fill_missing(document, sent, read_parts(base.require_json())))
        if completed == wrote.json:
            return wrote
        try:
            state, json = self._type.from_json(completed, self._actor.limits, drops_unknown=True)
        except (InvalidState, TooLarge):  # The shown value does not fit.
            return wrote
        return Revision(self._type, json=json, tree=state)


def _is_state(revision: Revision, state: Any, json: bytes) -> bool:
    """Return whether a revision equals a merged state."""
    stored = revision.require_json()
    if stored == json:
        return True
    # Objects are compared first, as decoding takes much longer; equal objects may differ in fields that do not compare.
    is_equal = revision.base is not UNDECODED and bool(revision.base == state)
    return is_equal and bool(decode_json(stored) == decode_json(json))


def _fill_missing(wrote: Any, sent: Any, shown: Any, *, is_whole: bool = True) -> Any:
    """Return `wrote`, with fields that were not `sent` taken from `shown`; the same object if all were sent.

    Unless `shown` is a whole state, fields that were neither sent nor shown are left out.
    """
    if wrote == sent:  # Compared at once, as most parts of a state have all their fields.
        return wrote
    shown = decoded(shown)
    match wrote, sent, shown:
        case dict(), dict(), dict():
            members = {
                key: _fill_missing(value, sent[key], shown.get(key), is_whole=is_whole)
                if key in sent
                else shown.get(key, value)
                for key, value in wrote.items()
                if is_whole or key in sent or key in shown
            }
            return wrote if all(members.get(key) is wrote[key] for key in wrote) else members
        case list(), list(), list() if len(wrote) == len(sent):
            before = _match_elements(wrote, shown)
            elements = [_fill_missing(*each, is_whole=is_whole) for each in zip(wrote, sent, before, strict=True)]
            return wrote if all(map(is_, elements, wrote)) else elements
    return wrote


def _match_elements(wrote: Sequence[Any], shown: Sequence[Any]) -> list[Any]:
    """Return for each element the one of `shown` with the same id, or at the same index if both lengths are equal."""
    known: dict[Any, Any] = {}
    for element in shown:
        known.setdefault(id_of(element), element)
    by_place = shown if len(shown) == len(wrote) else [None] * len(wrote)
    return [
        known.get(id) if (id := id_of(element)) is not None else other
        for element, other in zip(wrote, by_place, strict=True)
    ]
