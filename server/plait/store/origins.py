"""Notices when an engine may have lost durable writes."""

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from plait.store.outcomes import Unreachable

__all__ = ["OriginWatch"]

log = logging.getLogger("plait.store")


class OriginWatch:
    """Knows what the last connection leads to, in `origin`: a server, its timeline, and what else may lose writes.

    `on_loss` is called when it is another one than before: writes that were durable may be missing.
    """

    def __init__(self, url: object) -> None:
        self._name = str(url)
        self.on_loss: Callable[[], None] | None = None
        # Empty before the first connection.
        self.origin = ""
        # What each connection leads to.
        self._connections: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def note(self, origin: str, connection: Any = None, *, is_older: bool = False) -> None:
        """Note what a connection leads to, and close those that lead to something else.

        Raises Unreachable if the engine says that it is older than what was noted before.
        """
        if is_older:
            raise Unreachable("a failover has replaced the server, as its timeline is an earlier one")
        before, self.origin = self.origin, origin
        if connection is not None:
            self._connections[connection] = origin
        if before not in ("", origin):
            self.drop()
            if self.on_loss is not None:
                log.warning(
                    "%s may have lost changes (it was %s, and is %s): all threads are loaded again",
                    *(self._name, before, origin),
                )
                self.on_loss()

    def drop(self, *, is_replaced: bool = False) -> None:
        """Close the connections that lead to something else than the last one; all if the server is replaced."""
        for connection, origin in list(self._connections.items()):
            if is_replaced or origin != self.origin:
                connection.terminate()
