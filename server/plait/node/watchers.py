"""Tells the live listings of users when their threads have changed in this process. No I/O."""

from collections.abc import Callable

__all__ = ["Watchers"]

Tell = Callable[[bool], None]


class Watchers:
    """The watchers of the threads of a kind and a user."""

    def __init__(self) -> None:
        self._tells: dict[tuple[str, str], Tell] = {}

    def add(self, kind: str, user: str, tell: Tell) -> None:
        """Call `tell` for each durable change, with whether it is seen at once, or else only in the order."""
        self._tells[kind, user] = tell

    def remove(self, kind: str, user: str) -> None:
        """Stop the calls."""
        del self._tells[kind, user]

    def tell(self, kind: str, user: str | None, is_seen: bool = True) -> None:
        """Note a durable change of a thread of a user."""
        if self._tells and user is not None and (tell := self._tells.get((kind, user))) is not None:
            tell(is_seen)
