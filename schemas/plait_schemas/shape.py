"""The containers that a document had before or after operations on it: arrays with their lengths, and objects.

A text is one value: operations inside it do not matter here.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from plait_schemas.codec import decoded
from plait_schemas.members import attributes
from plait_schemas.patch import Owned, find, is_index, own, walk

__all__ = ["Shape"]

_HOLE: Final = object()
"""Stands for an unknown earlier value."""


class Shape:
    """A copy of a document on which operations are undone and done, as far as they fit.

    Nothing is copied before the first `look`, which copies only the containers that lead to a change.
    """

    __slots__ = ("_owned", "_root", "_waiting")

    def __init__(self, document: Any) -> None:
        self._root = document
        # The containers that are this shape's own, by their ids.
        self._owned: Owned = {}
        # The operations that the next `look` carries out: whether each is undone, its name, place and value.
        self._waiting: list[tuple[bool, str, Sequence[str], Any]] = []

    def look(self, parts: Sequence[str]) -> Any:
        """Return the container at a place; any other value if no container is known to be there."""
        waiting, self._waiting = self._waiting, []
        for takes_back, name, place, value in waiting:
            self._change(takes_back, name, place, value)
        return find(self._root, parts)

    def undo(self, name: str, parts: Sequence[str]) -> None:
        """Undo the document's last operation, whose path names the end of an array by its index, not by `-`."""
        if name != "splice":
            self._waiting.append((True, name, tuple(parts), _HOLE))

    def undo_move(self, start: Sequence[str], end: Sequence[str]) -> None:
        """Undo the move of an element of an array from one place to another."""
        self._waiting.append((True, "move", tuple(start), tuple(end)))

    def do(self, name: str, parts: Sequence[str], value: Any) -> None:
        """Carry out an operation."""
        if name != "splice":
            self._waiting.append((False, name, tuple(parts), value))

    # Inside

    def _change(self, takes_back: bool, name: str, parts: Sequence[str], value: Any) -> None:
        if name == "move":
            array = self._own(parts[:-1])
            if isinstance(array, list) and int(value[-1]) < len(array):
                array.insert(int(parts[-1]), array.pop(int(value[-1])))
            return
        if takes_back and isinstance(find(self._root, parts), dict | msgspec.Struct):
            # The earlier value was most likely an object, too.
            value = {}
        if not parts:
            self._root = decoded(value)
            return
        container = self._own(parts[:-1])
        if isinstance(container, dict):
            if name == "remove" and not takes_back:
                container.pop(parts[-1], None)
            else:
                container[parts[-1]] = value
        elif isinstance(container, list):
            _change_array(container, takes_back, name, parts[-1], value)

    def _own(self, parts: Sequence[str]) -> Any:
        """Return a copy of the container at a place, to be changed; None if no container is known to be there."""
        self._root, node, depth = walk(self._root, parts, self._owned, _own)
        return node if depth == len(parts) else None


def _own(node: Any, owned: Owned) -> Any:
    """Return a dict or list that may be changed for a container of a tree, which may be a tuple or a Struct."""
    copy: Any
    if isinstance(node, tuple):
        copy = list(node)
    elif not isinstance(node, dict | list) and (names := attributes(node)) is not None:
        copy = {name: getattr(node, attribute) for name, attribute in names.items()}
    else:
        return own(node, owned)
    owned[id(copy)] = copy
    return copy


def _change_array(array: list[Any], takes_back: bool, name: str, part: str, value: Any) -> None:
    if part == "-":
        index = len(array)
    elif is_index(part):
        index = int(part)
    else:
        return
    if name == ("remove" if takes_back else "add"):
        array.insert(index, value)
    elif 0 <= index < len(array):
        if name == "replace":
            array[index] = value
        else:
            del array[index]
