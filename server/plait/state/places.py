"""Places of a state, by the patterns of a class: JSON pointers with `*`, `{user}` and `**`."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from plait.author_code import is_method
from plait_schemas.patch import is_index, parse

__all__ = ["ArrayTest", "FindPlaces", "Node", "Places", "find_places", "read_places", "step"]

_USER: Final = "{user}"
_ANY: Final = "*"
_REST: Final = "**"
_PATTERN: Final = re.compile(r"(/(\{user\}|\*|([^/~{*]|~[01])*))*(/\*\*)?")

FindPlaces = Callable[..., "Places"]

ArrayTest = Callable[[], bool]
"""Returns whether the container that has a part is an array; it is asked only if the part could be an index."""


class Node:
    """The patterns with the same beginning."""

    __slots__ = ("any", "has_rest", "is_end", "members", "user")

    def __init__(self) -> None:
        self.members: dict[str, Node] = {}
        self.any: Node | None = None
        self.user: Node | None = None
        # Whether a pattern ends here, and whether one goes on with `**`.
        self.is_end = False
        self.has_rest = False

    def add(self, parts: Iterable[str]) -> None:
        """Add the parts of a pattern."""
        node = self
        for part in parts:
            match part:
                case "**":  # Only at the end.
                    node.has_rest = True
                case "*":
                    node.any = node = node.any or Node()
                case "{user}":
                    node.user = node = node.user or Node()
                case _:
                    node = node.members.setdefault(part, Node())
        node.is_end = True


class Places:
    """The places that match any of some patterns.

    A pattern is a JSON pointer in which a name stands for a member of an object, `*` for any member or element,
    `{user}` for the member whose name is the id of a client's principal, and `**` at the end for any number of parts,
    even none.
    """

    __slots__ = ("__weakref__", "has_indices", "has_user", "patterns", "roots")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = patterns
        self.roots = (Node(),)
        # Whether a part is `{user}`, and whether a name could be an index of an array.
        self.has_user = self.has_indices = False
        for pattern in patterns:
            parts = parse(pattern)
            self.roots[0].add(parts)
            self.has_user = self.has_user or _USER in parts
            self.has_indices = self.has_indices or any(map(_may_be_index, parts))


def step(nodes: Sequence[Node], part: str, user: str | None, is_array: ArrayTest) -> tuple[Node, ...]:
    """Return the nodes below a part of a path. Only `*` stands for an element of an array."""
    named = [each for node in nodes if (each := node.members.get(part)) is not None]
    if part == user:
        named += [node.user for node in nodes if node.user is not None]
    if named and _may_be_index(part) and is_array():
        named = []
    return (*named, *(node.any for node in nodes if node.any is not None))


def _may_be_index(part: str) -> bool:
    return part == "-" or is_index(part)


# The places of patterns that are in use: methods return the same ones again and again.
_known: Final[WeakValueDictionary[tuple[str, ...], Places]] = WeakValueDictionary()


def find_places(cls: Any, name: str) -> Places | FindPlaces | None:
    """Return the places of a class: by its patterns, by a function that calls its method, or None for everything."""
    place, value = f"{cls.__name__}.{name}", getattr(cls, name)
    if is_method(inspect.getattr_static(cls, name)):
        found = f"the result of {place}"
        return lambda thread, *args: read_places(found, getattr(thread, name)(*args))
    return None if value is None else read_places(place, value)


def read_places(name: str, patterns: Any) -> Places:
    """Return the places of patterns. Raises TypeError."""
    if isinstance(patterns, str) or not isinstance(patterns, tuple | list):
        raise TypeError(f'{name} must be a tuple of JSON pointers such as ("/players/{{user}}/**",), not {patterns!r}')
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(_explain(name, pattern))
    key = tuple(sorted(set(patterns)))
    if (known := _known.get(key)) is None:
        for pattern in key:
            if _PATTERN.fullmatch(pattern) is None:
                raise TypeError(_explain(name, pattern))
        known = _known[key] = Places(key)
    return known


def _explain(name: str, pattern: Any) -> str:
    return (
        f"{name}: {pattern!r} must be a JSON pointer whose parts are names, {_USER}, {_ANY} for any part, or, "
        f'at the end, {_REST} for any number of parts, such as "/players/{_USER}/**"'
    )
