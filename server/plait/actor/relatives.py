"""The threads that a thread has spawned, or that are told of its end, as its turns use them."""

from typing import Any, Protocol

from plait.actor.outcome import Done
from plait.actor.turn import Turn, latest_turn
from plait.store.protocol import ThreadKey

__all__ = ["Relatives", "find_parent"]


class Relatives(Protocol):
    """The family of a thread. `flush` and `say_destroyed` must not raise."""

    async def flush(self) -> None:
        """Send what waits for others, before the thread is destroyed."""

    async def say_destroyed(self) -> None:
        """Tell them that it was destroyed."""

    def is_unborn(self, key: ThreadKey) -> bool:
        """Whether a thread is a child of this one that is not born yet, and the calling code does not bear it."""
        ...

    async def wait_until_born(self, *children: str) -> None:
        """Wait until children are born. Raises Indeterminate if that fails, or takes longer than `turn_timeout`."""

    async def wait_for_births(self, turn: Turn) -> None:
        """Wait until the children that a turn has spawned are born. Raises Indeterminate."""

    def answer(self, turn: Turn, done: Done, result: Any, error: BaseException | None) -> None:
        """Call `done` with the outcome of a turn: a result, when the children that it has spawned are born."""


def find_parent(key: ThreadKey) -> Relatives | None:
    """Return the family in which a thread is not born yet, if a turn of the calling code's chain is of the parent."""
    if (latest := latest_turn()) is not None:
        for turn in latest.chain():
            relatives: Relatives | None = getattr(turn.actor, "relatives", None)
            if relatives is not None and relatives.is_unborn(key):
                return relatives
    return None
