"""The identity of elements of lists, and the places of lists and texts in a state."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.members import attributes

__all__ = ["ID_KEYS", "Id", "Keys", "has_repeated", "id_of", "ids_of"]

ID_KEYS: Final = ("id", "key", "_id")
"""The members that may hold the id of an element; the first one with a string or an integer counts."""

Id = str | int

_IDS: Final = frozenset({str, int})
_NEVER_OBJECTS: Final = frozenset({str, int, float, bool, type(None), list, tuple})
_NEVER_IDS: Final = frozenset({bool, float, dict, list, tuple, set, frozenset, msgspec.UnsetType})


def id_of(element: Any, key: str | None = None) -> Id | None:
    """Return the id of an element, None if it has none; `key` is the member that holds it, if that is known."""
    keys = ID_KEYS if key is None else (key,)
    if isinstance(element, dict):
        for each in keys:
            if (found := _id(element.get(each))) is not None:
                return found
    elif (names := attributes(element)) is not None:
        for each in keys:
            if each in names and (found := _id(getattr(element, names[each]))) is not None:
                return found
    return None


def ids_of(elements: Sequence[Any], key: str | None = None) -> list[Id | None]:
    """Return the result of `id_of` for each element; faster if all are of one type."""
    kinds = set(map(type, elements))
    if len(kinds) == 1:
        first = ID_KEYS[0] if key is None else key
        names = attributes(elements[0])
        found: list[Any] | None = None
        if kinds == {dict}:
            found = [element.get(first) for element in elements]
        elif names is not None and first in names:
            found = list(map(attrgetter(names[first]), elements))
        elif kinds <= _NEVER_OBJECTS:
            return [None] * len(elements)
        if found is not None and set(map(type, found)) <= _IDS:
            return found
    return [id_of(element, key) for element in elements]


def _id(value: Any) -> Id | None:
    if value is None or type(value) in _NEVER_IDS:
        return None
    # A UUID, a time or an enum is compared as its JSON.
    plain: Any = value if type(value) in _IDS else decode_json(encode_json(value))
    return plain if type(plain) in _IDS else None


def has_repeated(names: Sequence[Hashable]) -> bool:
    """Tell whether a name occurs more than once."""
    return len(set(names)) < len(names)


class Keys:
    """Which member identifies the elements of a list, by the JSON pointer of the list, and which strings are texts.

    `*` stands for any part of a pointer; the pointer "" is the whole state. Texts are compared by their characters; all
    other strings change as a whole.
    """

    __slots__ = ("_keys", "_texts")

    def __init__(self, keys: Mapping[str, str], texts: Iterable[str] = ()) -> None:
        self._keys: dict[int, list[tuple[list[str], str]]] = {}
        self._texts: dict[int, list[list[str]]] = {}
        for pointer, key in keys.items():
            pattern = pointer.split("/")
            self._keys.setdefault(len(pattern), []).append((pattern, key))
        for pointer in texts:
            pattern = pointer.split("/")
            self._texts.setdefault(len(pattern), []).append(pattern)

    def at(self, path: str) -> str | None:
        """Return the member for the list at a JSON pointer, None if it is one of ID_KEYS."""
        parts = path.split("/")
        return next((key for pattern, key in self._keys.get(len(parts), ()) if _is_at(parts, pattern)), None)

    def has_text(self, path: str) -> bool:
        """Tell whether a string at a JSON pointer is a text."""
        parts = path.split("/")
        return any(_is_at(parts, pattern) for pattern in self._texts.get(len(parts), ()))


def _is_at(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return all(each in ("*", part) for each, part in zip(pattern, parts, strict=True))
