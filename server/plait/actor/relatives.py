"""The family of a thread, as its turns and its end use it."""

from typing import Any, Protocol

from plait.actor.outcome import Done
from plait.actor.turn import Turn, latest_turn
from plait.store.protocol import ThreadKey

__all__ = ["Relatives", "wait_for_birth"]


class Relatives(Protocol):
    """The family of a thread. `flush` and `say_destroyed` must not raise."""

    async def flush(self) -> None:
        """Send what waits for others, before the thread is destroyed."""

    async def say_destroyed(self) -> None:
        """Tell them that it was destroyed."""

    async def wait_until_born(self, *children: str) -> None:
        """Wait until children are born. Raises Indeterminate if that fails, or takes longer than `turn_timeout`."""

    async def wait_for_births(self, turn: Turn) -> None:
        """Wait until the children that a turn has spawned are born. Raises Indeterminate."""

    def answer(self, turn: Turn, done: Done, result: Any, error: BaseException | None) -> None:
        """Call `done` with the outcome of a turn: a result, when the children that it has spawned are born."""


async def wait_for_birth(key: ThreadKey) -> None:
    """Wait until a thread is born that the calling turn, or one that waits for it, calls as its child."""
    latest = latest_turn()
    for turn in () if latest is None else latest.chain():
        if (relatives := getattr(turn.actor, "relatives", None)) is not None:
            await relatives.wait_until_born(str(key))
