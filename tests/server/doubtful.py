"""A store that answers late, more than once or never, or that does not know the outcome of a write."""

import asyncio
import random
from contextlib import suppress
from typing import Literal

from tests.server.fakes import TroubledStore

from plait.errors import Indeterminate, StoreError
from plait.store.protocol import Write

__all__ = ["DoubtfulStore", "Fate"]

Fate = Literal["stored", "late", "twice", "lost", "unheard", "overdue", "never"]
"""The fate of a write: it is stored and answered, answered late, or delivered twice; it is in doubt and not stored,
stored, or stored later unless the thread has another owner; or neither it nor any write after it is answered."""

_WEIGHTS: dict[Fate, float] = {
    "stored": 70, "late": 10, "twice": 8, "lost": 2, "unheard": 2, "overdue": 2, "never": 1
}  # fmt: skip


class DoubtfulStore(TroubledStore):
    """A TroubledStore whose writes have the fates that dice say."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        # The fates of the next writes, before those that the dice say.
        self.fates: list[Fate] = []
        # How many writes had each fate.
        self.counts: dict[Fate, int] = dict.fromkeys(_WEIGHTS, 0)
        self.is_stuck = False
        self._overdue: set[asyncio.Task[None]] = set()

    async def store(self, write: Write) -> int:
        (fate,) = self._dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if self.fates:
            fate = self.fates.pop(0)
        self.counts[fate] += 1
        self.is_stuck = fate == "never"
        if fate in ("lost", "unheard", "overdue"):
            if fate == "unheard":
                await super().store(write)
            elif fate == "overdue":
                task = asyncio.create_task(self._store_overdue(write))
                self._overdue.add(task)
                task.add_done_callback(self._overdue.discard)
            raise Indeterminate(f"{write.key}: it is not known whether the change was stored")
        count = await super().store(write)
        if fate == "twice":
            # The second time it does not follow what is stored, or changes nothing.
            await asyncio.gather(super().store(write), return_exceptions=True)
        elif fate == "late":
            for _ in range(self._dice.randrange(20)):
                await asyncio.sleep(0)
        elif fate == "never":
            await asyncio.Event().wait()
        return count

    async def _store_overdue(self, write: Write) -> None:
        for _ in range(self._dice.randrange(10)):
            await asyncio.sleep(0)
        with suppress(StoreError):
            await super().store(write)

    async def settle(self) -> None:
        """Wait for the overdue writes."""
        while self._overdue:
            await asyncio.wait(self._overdue)
