"""Notices when an engine may have lost durable writes."""

import logging
from collections.abc import Callable

__all__ = ["OriginWatch"]

log = logging.getLogger("plait.store")


class OriginWatch:
    """Knows what the last connection leads to, in `origin`: a server, its timeline, and what else may lose writes.

    `on_loss` is called when it is another one than before: writes that were durable may be missing.
    """

    def __init__(self, url: object, on_loss: Callable[[], None] | None = None) -> None:
        self._name = str(url)
        self._on_loss = on_loss
        # Empty before the first connection.
        self.origin = ""

    def note(self, origin: str) -> None:
        """Note what a connection leads to."""
        before, self.origin = self.origin, origin
        if before not in ("", origin) and self._on_loss is not None:
            log.warning(
                "%s may have lost changes (it was %s, and is %s): all threads are loaded again",
                *(self._name, before, origin),
            )
            self._on_loss()
