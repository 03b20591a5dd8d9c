"""The app whose workers are killed."""

from plait import Plait, Retention, Thread, rpc

__all__ = ["Ledger", "app"]


class Ledger(Thread[dict[str, int]]):
    """Keeps the last number of each writer."""

    initial_state = {}  # noqa: RUF012
    retention = Retention(changes=1_000_000)

    @property
    def fence(self) -> int:
        """The number of the thread's owner, if each owner has a higher one than those before."""
        return 0

    @rpc
    def look(self) -> tuple[int, dict[str, int], str, int]:
        """Return the version, the state, its epoch and the owner's number."""
        return self.version, self.state, self._actor.state.epoch, self.fence


app = Plait(Ledger, store="sqlite:///ledger.db", limits=None)
