"""The app whose nodes are hurt: that of the workers, on the store of PLAIT_STORE."""

import os

from tests.workers import apps

from plait import Plait, rpc

__all__ = ["Ledger", "Place", "app"]


class Ledger(apps.Ledger):
    """Tells the number of its owner in the store."""

    @property
    def fence(self) -> int:
        """The number of the thread's owner."""
        fence: int = self._actor.state.history.fence  # type: ignore[attr-defined]
        return fence


class Place(Ledger):
    """Tells which process has it awake."""

    @rpc
    def where(self) -> int:
        """Return the id of the process."""
        return os.getpid()


app = Plait(Ledger, Place, limits=None)
