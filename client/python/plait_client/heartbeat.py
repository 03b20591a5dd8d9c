"""Whether the server is still there, by when it was heard last."""

from collections.abc import Callable
from typing import Final

__all__ = ["Heartbeat"]

QUIET: Final = 20.0
DEAD: Final = 40.0
"""After how many seconds of silence to ask for a sign of life, and to open a new socket."""


class Heartbeat:
    """Notices that a server is silent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = 0.0
        self._has_asked = False

    def heard(self) -> None:
        """Something has come, whatever it was."""
        self._heard_at, self._has_asked = self._clock(), False

    def due(self, *, may_ask: bool) -> float:
        """Return when there will be something to do, should nothing come."""
        return self._heard_at + (QUIET if may_ask and not self._has_asked else DEAD)

    @property
    def is_dead(self) -> bool:
        """Whether nothing has come for so long that nothing will."""
        return self._clock() >= self._heard_at + DEAD

    def ask(self) -> bool:
        """Return whether a sign of life is to be asked for, which is so once in a silence."""
        if self._has_asked or self._clock() < self._heard_at + QUIET:
            return False
        self._has_asked = True
        return True
