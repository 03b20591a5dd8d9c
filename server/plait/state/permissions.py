"""The places of a state that clients may change, by the patterns of a class, and the other rules of the class."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from plait.errors import Forbidden
from plait.state.conflicts import Policy, Resolve
from plait.state.revision import Revision
from plait.state.source import Client
from plait.state.storable import is_method
from plait_schemas.patch import Op, is_index, parse

__all__ = ["FindPermissions", "Permissions", "Rules", "check_permissions", "find_permissions"]

_USER: Final = "{user}"
_ANY: Final = "*"
_REST: Final = "**"
_PATTERN: Final = re.compile(r"(/(\{user\}|\*|([^/~{*]|~[01])*))*(/\*\*)?")


class Permissions:
    """Checks the operations of clients.

    A pattern is a JSON pointer in which `*` stands for any part, `{user}` for the id of the client's principal, and
    `**` at the end for any number of parts, even none.
    """

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [parse(pattern) for pattern in patterns]

    def check(self, ops: Sequence[Op], source: Client, before: Revision) -> None:
        """Raise Forbidden if the client may not change the place of an operation; `before` is the revision before."""
        user = source.user
        for op in ops:
            parts = parse(op.path)
            if not any(_matches(pattern, parts, user, before) for pattern in self._patterns):
                raise Forbidden("this client may not change this place", path=op.path)


FindPermissions = Callable[..., Permissions]


def _matches(pattern: Sequence[str], parts: Sequence[str], user: str | None, before: Revision) -> bool:
    if pattern and pattern[-1] == _REST:
        pattern = pattern[:-1]
        parts = parts[: len(pattern)]
    if len(pattern) != len(parts):
        return False
    for at, (wanted, part) in enumerate(zip(pattern, parts, strict=True)):
        if wanted == _USER:
            if part != user or ((part == "-" or is_index(part)) and before.has_array(parts[:at])):
                return False
        elif wanted not in (_ANY, part):
            return False
    return True


def find_permissions(cls: Any, name: str) -> Permissions | FindPermissions | None:
    """Return the permissions of a class: its patterns, a function that calls its method, or None for everything."""
    place, value = f"{cls.__name__}.{name}", getattr(cls, name)
    if is_method(inspect.getattr_static(cls, name)):
        found = f"the result of {place}"
        return lambda thread, *args: check_permissions(found, getattr(thread, name)(*args))
    return None if value is None else check_permissions(place, value)


def check_permissions(name: str, patterns: Any) -> Permissions:
    """Return the permissions of patterns. Raises TypeError."""
    if isinstance(patterns, str) or not isinstance(patterns, tuple | list):
        raise TypeError(f'{name} must be a tuple of JSON pointers such as ("/players/{{user}}/**",), not {patterns!r}')
    for pattern in patterns:
        if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
            raise TypeError(
                f"{name}: {pattern!r} must be a JSON pointer whose parts are names, {_USER}, {_ANY} for any part, or, "
                f'at the end, {_REST} for any number of parts, such as "/players/{_USER}/**"'
            )
    return Permissions(patterns)


class Rules(NamedTuple):
    """The decisions of a thread's class about changes. By default, every change is accepted."""

    # Raises to refuse a change, and must return None.
    validate: Callable[..., object] | None = None
    # Further arguments of `validate`: "ops", the operations, and "before", the state that they change.
    validated: Collection[str] = ()
    # The permissions of clients, or a function that finds them; None if clients may change everything.
    permissions: Permissions | FindPermissions | None = None
    # The policy for a push to a place that others have changed since the push was made.
    policy: Policy | Resolve = "last-writer"
