"""The app whose workers are killed."""

from plait import Plait, Retention, Thread, rpc

__all__ = ["Ledger", "app"]


class Ledger(Thread[dict[str, int]]):
    """Keeps the last number of each writer."""

    initial_state = {}  # noqa: RUF012
    retention = Retention(changes=1_000_000)

    @rpc
    def look(self) -> tuple[int, dict[str, int]]:
        """Return the version and the state."""
        return self.version, self.state


app = Plait(Ledger, store="sqlite:///ledger.db", limits=None)
