"""Remembers the version that each client showed when it left."""

from plait.store.thread_rows import ThreadKey

__all__ = ["Departures"]

_KEPT = 10_000


class Departures:
    """Remembers clients that have left, by thread and connection id; forgets the oldest first."""

    def __init__(self) -> None:
        self._versions: dict[tuple[ThreadKey, str], int] = {}

    def add(self, key: ThreadKey, id: str, version: int) -> None:
        """Remember the version that a client showed."""
        self._versions.pop((key, id), None)
        self._versions[key, id] = version
        if len(self._versions) > _KEPT:
            del self._versions[next(iter(self._versions))]

    def find(self, key: ThreadKey, id: str) -> int | None:
        """Return the version that a client showed; None if it is not known."""
        return self._versions.get((key, id))

    def forget(self, key: ThreadKey, id: str) -> None:
        """Forget a client, if it is remembered."""
        self._versions.pop((key, id), None)
