"""A shared counter: the smallest thread that has a state, a rule and an rpc."""

from pathlib import Path

import msgspec

from plait import Plait, Reject, Source, Thread, rpc

PAGES = Path(__file__).parent / "pages"


class Count(msgspec.Struct, frozen=True):
    """The state of a counter."""

    count: int = 0


class Counter(Thread[Count]):
    """Clients call `increment` or change the count themselves; it must not go below zero."""

    initial_state = Count()

    def validate_state_change(self, next_state: Count, source: Source) -> None:
        if next_state.count < 0:
            raise Reject("a count cannot be negative", path="/count")

    @rpc
    async def increment(self, by: int = 1) -> int:
        """Add to the current count, and return the sum."""
        self.set_state(lambda state: Count(state.count + by))
        return self.state.count


app = Plait(Counter, static=PAGES)
