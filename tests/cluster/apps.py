"""The app whose nodes are hurt: that of the workers, on the store of PLAIT_STORE."""

import os

from tests.workers.apps import Ledger

from plait import Plait, rpc

__all__ = ["Place", "app"]


class Place(Ledger):
    """Tells which process has it awake."""

    @rpc
    def where(self) -> int:
        """Return the id of the process."""
        return os.getpid()


app = Plait(Ledger, Place, limits=None)
