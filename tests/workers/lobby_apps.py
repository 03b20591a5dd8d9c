"""The app whose threads are listed: by default on a file, else on the store of PLAIT_STORE."""

from plait import Plait, Thread

__all__ = ["app"]


class Table(Thread[dict[str, int]]):
    """A table that a lobby shows."""

    listed = True
    initial_state = {"moves": 0}  # noqa: RUF012

    def card(self, state: dict[str, int]) -> dict[str, int]:
        return {"moves": state["moves"]}


app = Plait(Table, store="sqlite:///tables.db")
