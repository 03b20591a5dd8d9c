"""The part of a state that a reader sees: the places that match patterns.

A picture of the state has the seen places under the same paths: an object has only the members that lead to seen
places, an array has all of its elements, and any other value on the way to seen places is null. So an operation on the
state is an operation on the picture, or none, and is found without the state and the picture.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from plait.state.places import Node, Places, step
from plait.state.revision import Revision
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json, read_parts
from plait_schemas.patch import Op, decode_ops, escape, parse

__all__ = ["EVERYTHING", "HIDDEN", "NOTHING", "View", "find_epoch", "find_view"]

HIDDEN: Final = "hidden"
"""The source of a change that the reader does not see."""

_Nodes = Sequence[Node]

# The ids of users that have no character with an escape.
_PLAIN: Final = re.compile(r"[\w .@:+=,;|-]+")


class _Unknown(Exception):
    """Whether a place is in an array depends on the states between the operations."""


class View:
    """The part of a state at and below the places that match the patterns of some readers."""

    __slots__ = ("__weakref__", "_digest", "_name", "_places", "_stranger", "_user")

    def __init__(self, places: Places, user: str | None) -> None:
        self._places = places
        # The user's id as it is in JSON and in JSON pointers; None if it may be written in several ways, or if changes
        # that do not name the user may need the whole picture.
        is_plain = user is not None and _PLAIN.fullmatch(user) and not places.has_indices
        self._name = user.encode() if user is not None and is_plain else None
        # The view of other users, for changes that do not name this one.
        self._stranger: View | None = None if self._name is None else find_view(places, None)
        # Filled in for `{user}` only when a path is read: a user may have the id `*`.
        self._user = user
        self._digest = hashlib.blake2b(encode_json((places.patterns, user)), digest_size=6).hexdigest()

    def name(self, epoch: str) -> str:
        """Return the epoch of the pictures of a thread with this epoch: no version of another picture belongs to it."""
        return f"{epoch}.{self._digest}"

    def picture(self, document: Any) -> Any:
        """Return the picture of a document, which shares its seen parts; undecoded parts are decoded in place."""
        return self._show(document, self._places.roots)

    def json(self, revision: Revision) -> bytes:
        """Return the picture of a revision as JSON; there must be a state."""
        return encode_json(self.picture(revision.parts))

    def stand_in(self, row: ChangeRow) -> "View":
        """Return a view in which a change looks the same as in this one; many views have the same."""
        if self._name is None or self._stranger is None or self._name in row.ops or b"\\" in row.ops:
            return self
        return self._stranger

    def show(self, row: ChangeRow, after: Revision | None = None) -> ChangeRow | None:
        """Return a change with the operations on the picture; None if they are not known without the revision `after`.

        The change leads to that revision. A change that is hidden says neither who made it nor when.
        """
        ops = decode_ops(row.ops) if after is None or after.change is None else after.ops
        if (seen := self.filter(ops, after)) is None:
            if after is None:
                return None
            seen = [Op("replace", "", self.picture(after.parts))]
        if len(seen) == len(ops) and all(map(is_, seen, ops)):
            return row
        if not seen:
            return msgspec.structs.replace(row, ops=b"[]", source=HIDDEN, at=0)
        return msgspec.structs.replace(row, ops=encode_json(seen))

    def filter(self, ops: Sequence[Op], after: Revision | None = None) -> Sequence[Op] | None:
        """Return operations on the state as operations on the picture; None if only the whole picture can tell them."""
        seen = []
        try:
            for op in ops:
                nodes = self._find(op.path, lambda parts: _is_array(parts, ops, after))
                if nodes is None or (nodes and op.op == "remove"):
                    seen.append(op)
                elif nodes and op.op != "splice":  # A text on the way to seen places is null.
                    seen.append(msgspec.structs.replace(op, value=self._show(op.value, nodes)))
        except _Unknown:
            return None
        return seen

    def find_hidden(self, ops: Iterable[Op], before: Revision) -> str | None:
        """Return the first place of an operation on the revision `before` that is not seen whole; None without one."""
        return next((op.path for op in ops if self._find(op.path, before.has_array) is not None), None)

    def sees(self, path: str) -> bool:
        """Return whether a place is seen whole, whatever contains it."""
        return self._find(path, lambda _: True) is None

    # Inside

    def _find(self, path: str, has_array: Callable[[Sequence[str]], bool]) -> _Nodes | None:
        """Return what is seen below a place; None if the place is seen whole."""
        nodes: _Nodes = self._places.roots
        parts = parse(path)
        for at, part in enumerate(parts):
            if not nodes:
                return nodes
            if any(node.is_end for node in nodes):
                return None
            nodes = step(nodes, part, self._user, lambda at=at: has_array(parts[:at]))  # type: ignore[misc]
        return None if any(node.is_end for node in nodes) else nodes

    def _show(self, value: Any, nodes: _Nodes) -> Any:
        for node in nodes:
            if node.is_end:
                return value
        if type(value) is msgspec.Raw:  # The value of an operation.
            value = read_parts(bytes(value))
        if isinstance(value, dict):
            names: Iterable[str] = value
            if all(node.any is None for node in nodes):
                names = dict.fromkeys(name for node in nodes for name in node.members)
                if self._user is not None:
                    names[self._user] = None
            return {
                name: self._show(_decode_in(value, name, below), below)
                for name in names
                if name in value and (below := step(nodes, name, self._user, _is_no_array))
            }
        if isinstance(value, list | tuple):
            below = tuple(node.any for node in nodes if node.any is not None)
            return [self._show(_decode_in(value, at, below), below) for at in range(len(value))] if below else None
        return None


def _decode_in(container: Any, at: str | int, nodes: _Nodes) -> Any:
    """Return a member or an element; decode it for all readers if only a part of it is seen."""
    value = container[at]
    if type(value) is msgspec.Raw and not any(node.is_end for node in nodes):
        value = container[at] = read_parts(bytes(value))
    return value


def _is_no_array() -> bool:
    return False


def _is_array(parts: Sequence[str], ops: Sequence[Op], after: Revision | None) -> bool:
    """Return whether a container is an array before and after each of the operations. Raises _Unknown."""
    begin = "".join(f"/{escape(part)}" for part in parts) + "/"
    if after is None or not all(op.path.startswith(begin) for op in ops):
        raise _Unknown
    return after.has_array(parts)


class _Everything(View):
    """The whole state, which the readers of a class without `can_read` see."""

    __slots__ = ()

    def name(self, epoch: str) -> str:
        return epoch

    def json(self, revision: Revision) -> bytes:
        return revision.require_json()

    def show(self, row: ChangeRow, after: Revision | None = None) -> ChangeRow | None:
        return row


EVERYTHING: Final[View] = _Everything(Places(("/**",)), None)
NOTHING: Final = View(Places(()), None)


def find_epoch(name: str) -> str:
    """Return the epoch of a thread from the epoch of any picture of it."""
    return name.partition(".")[0]


# The views that are in use.
_known: Final[WeakValueDictionary[tuple[Places, str | None], View]] = WeakValueDictionary()


def find_view(places: Places, user: str | None) -> View:
    """Return the view of a user by the patterns of a class."""
    key = (places, user if places.has_user else None)
    if (known := _known.get(key)) is None:
        is_whole = any(node.is_end for node in places.roots)
        known = _known[key] = EVERYTHING if is_whole else View(*key)
    return known
