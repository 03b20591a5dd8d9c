"""The app of pages with many threads."""

from plait import Plait, Thread, rpc

__all__ = ["app"]


class Page(Thread[dict[str, int]]):
    """Has a number."""

    initial_state = {"n": -1}  # noqa: RUF012

    @rpc
    def add(self, n: int) -> int:
        """Set the number."""
        self.set_state({"n": n})
        return n

    @rpc
    def count(self) -> int:
        """Return how many changes there were."""
        return self.version


app = Plait(Page)
