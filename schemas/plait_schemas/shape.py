"""Which containers a document had at some time before or after operations on it: arrays, their lengths, and objects.

A text is one value, whatever is done inside of it.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from plait_schemas.members import attributes
from plait_schemas.patch import Owned, find, is_index, own, walk

__all__ = ["Shape"]

_HOLE: Final = object()
"""Stands for what has been there, of which nothing is known."""


class Shape:
    """A copy of a document on which operations are taken back, and carried out, as far as they fit.

    Nothing is copied before somebody looks, and then only what lies on the way to a change.
    """

    __slots__ = ("_owned", "_root", "_waiting")

    def __init__(self, document: Any) -> None:
        self._root = document
        # The containers that are this shape's own, by their ids.
        self._owned: Owned = {}
        # What is to be done before anybody looks: whether an operation is taken back, its name, place and value.
        self._waiting: list[tuple[bool, str, Sequence[str], Any]] = []

    def look(self, parts: Sequence[str]) -> Any:
        """Return what is at a place: a container, or anything else where none is known to be."""
        waiting, self._waiting = self._waiting, []
        for takes_back, name, place, value in waiting:
            self._change(takes_back, name, place, value)
        return find(self._root, parts)

    def undo(self, name: str, parts: Sequence[str]) -> None:
        """Take back an operation that was the last on the document; the end of an array is named by its index."""
        if name != "splice":
            self._waiting.append((True, name, tuple(parts), _HOLE))

    def undo_move(self, start: Sequence[str], end: Sequence[str]) -> None:
        """Take back that an element of an array has moved from one place to another."""
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
            # Most likely it has been an object before, too.
            value = {}
        if not parts:
            self._root = value
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
        """Return the container at a place, as one that may be changed; None where none is known to be."""
        self._root, node, depth = walk(self._root, parts, self._owned, _own)
        return node if depth == len(parts) else None


def _own(node: Any, owned: Owned) -> Any:
    """Return a container of a tree, which may have tuples and Structs, as a dict or list that may be changed."""
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
