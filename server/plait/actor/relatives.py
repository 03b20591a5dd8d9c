"""The family of a thread, as its turns and its end use it."""

from typing import Any, Protocol

from plait.actor.outcome import Done
from plait.actor.turn import Turn

__all__ = ["Relatives"]


class Relatives(Protocol):
    """The family of a thread. `flush` and `say_destroyed` must not raise."""

    async def flush(self) -> None:
        """Send the waiting items to the others, before the thread is destroyed."""

    async def say_destroyed(self) -> None:
        """Tell the family that the thread was destroyed."""

    async def wait_until_born(self, *children: str) -> None:
        """Wait until children are born. Raises Indeterminate if this fails, or takes longer than `turn_timeout`."""

    async def wait_for_births(self, turn: Turn) -> None:
        """Wait until the children that a turn has spawned are born. Raises Indeterminate."""

    def answer(self, turn: Turn, done: Done, result: Any, error: BaseException | None) -> None:
        """Call `done` with the outcome of a turn; with a result only when the children that it has spawned are born."""
