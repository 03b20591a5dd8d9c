"""The users of clients, as an app's `authenticate` returns them."""

import math
from collections.abc import Collection
from typing import Any, Final

import msgspec

__all__ = ["Principal"]

_FIELDS: Final = (
    ("id", str, "a str"),
    ("claims", dict, "a dict"),
    ("expires_at", int | float | None, "seconds since 1970, as time.time() returns, or None"),
    ("groups", frozenset, "a set, list or tuple of str"),
)


class Principal(msgspec.Struct, frozen=True):
    """The user of a connection, as returned by the app's `authenticate`. Raises TypeError and ValueError."""

    id: str
    claims: dict[str, Any] = {}
    # The time at which the authentication expires, in seconds since the epoch; a client may send a new token earlier.
    expires_at: float | None = None
    # The groups of the user, such as "staff"; kept as a frozenset.
    groups: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.groups, Collection) and not isinstance(self.groups, str | bytes):
            msgspec.structs.force_setattr(self, "groups", frozenset(self.groups))
        for name, types, what in _FIELDS:
            if not isinstance(value := getattr(self, name), types) or isinstance(value, bool):
                raise TypeError(f"Principal.{name} must be {what}, not a {type(value).__name__}")
        if not all(isinstance(group, str) for group in self.groups):
            raise TypeError("Principal.groups must be a set, list or tuple of str")
        if self.expires_at is not None and math.isnan(self.expires_at):
            raise ValueError("Principal.expires_at is NaN")
