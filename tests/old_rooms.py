"""Rooms that an earlier version of a game has stored, as docs/evolution.md tells of them."""

import asyncio
from pathlib import Path
from typing import Any

from plait import Plait, Thread

__all__ = ["store_old_rooms"]


class FirstRoom(Thread[dict[str, Any]]):
    """As it was at first: players are names, and the score is the room's."""

    kind = "game-room"


class ThirdRoom(Thread[dict[str, Any]]):
    """As it is on the page."""

    kind = "game-room"
    state_version = 3


def store_old_rooms(folder: Path) -> None:
    """Store two rooms that can be migrated, one that cannot, one that need not be, and two that would lose a member."""
    asyncio.run(_store(folder / "game.db"))


async def _store(path: Path) -> None:
    first, third = (Plait(cls, store=f"sqlite:///{path}") for cls in (FirstRoom, ThirdRoom))
    async with first:
        for name in ("room-1", "room-2"):
            await first.thread(FirstRoom, name).set_state({"players": ["Ada"], "score": 3})
        await first.thread(FirstRoom, "room-7").set_state({"score": 3})
    async with third:
        await third.thread(ThirdRoom, "room-3").set_state({"players": []})
        for name in ("room-4", "room-5"):
            await third.thread(ThirdRoom, name).set_state({"players": [{"name": "Ada", "nick": "countess"}]})
