"""What a store does after its writes is done again if it has failed."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from plait.errors import StoreError
from plait.store.protocol import ThreadKey
from plait.store.upkeep import HeadUpkeep

ROOM, OTHER = ThreadKey("room", "1"), ThreadKey("room", "2")


class Head(NamedTuple):
    fence: int
    version: int | None = None


class Rounds(HeadUpkeep[Head, ThreadKey]):
    """An upkeep whose rounds fail while `trouble` is true."""

    def __init__(self) -> None:
        self.heads = {ROOM: Head(1), OTHER: Head(1, 5)}
        self.changed: dict[ThreadKey, int] = {}
        self.trouble = ""
        self.saved: dict[ThreadKey, int] = {}
        self.removed: list[ThreadKey] = []
        self.has_failed = asyncio.Event()
        self.has_removed = asyncio.Event()
        super().__init__(self.heads, self.changed, lambda _: False, errors=(OSError,), explain=str)

    async def _save(self, changed: Mapping[ThreadKey, int]) -> None:
        if self.trouble == "save":
            raise StoreError("the server is away")
        self.saved.update(changed)

    async def _remove(self, heads: Sequence[tuple[ThreadKey, Head]]) -> None:
        if self.trouble == "remove":
            self.trouble = ""
            self.has_failed.set()
            raise OSError("the server is away")
        self.removed += [key for key, _ in heads]
        self.has_removed.set()


@asynccontextmanager
async def started() -> AsyncIterator[Rounds]:
    upkeep = Rounds()
    upkeep.start()
    try:
        yield upkeep
    finally:
        await upkeep.stop()


async def test_a_head_is_removed_later_if_the_server_was_away_once() -> None:
    async with started() as upkeep, asyncio.timeout(20):
        upkeep.trouble = "remove"
        upkeep.release(ROOM, 1)
        upkeep.release(OTHER, 1)
        await upkeep.has_failed.wait()
        await upkeep.has_removed.wait()
    assert upkeep.removed == [ROOM]
    assert not upkeep.heads


async def test_the_head_of_another_owner_stays() -> None:
    async with started() as upkeep:
        upkeep.release(ROOM, 1)
        upkeep.heads[ROOM] = Head(2)
    assert upkeep.heads[ROOM] == Head(2)
    assert not upkeep.removed


async def test_times_that_could_not_be_saved_are_saved_later_unless_the_thread_has_changed_again() -> None:
    async with started() as upkeep:
        upkeep.changed.update({ROOM: 1, OTHER: 1})
        upkeep.trouble = "save"
        try:
            await upkeep.save()
        except StoreError:
            upkeep.changed[ROOM] = 2
        upkeep.trouble = ""
    assert upkeep.saved == {ROOM: 2, OTHER: 1}
    assert not upkeep.changed
