"""An export of a thread whose log is shortened at the same time."""

import json
from collections.abc import AsyncGenerator

import pytest
from tests.cases import each_case
from tests.server.store.contract import EPOCH, ROOM, beginning, change, put
from tests.server.store.contract_records import delete

from plait.errors import NotFound, StoreError
from plait.store.export_file import export_thread
from plait.store.memory import MemoryStore
from plait.store.protocol import ThreadView, Write
from plait.store.thread_rows import INCOMPLETE, ThreadKey


class Busy(MemoryStore):
    """Shortens the log of a thread whenever an export of it begins, for as many exports as are left."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.last = 0

    async def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        if self.left:
            self.left -= 1
            version = self.last = self.last + 2
            await put(self, change(version - 1, snapshot=b"1", prune=version - 1), change(version))
        async for write in super().export(key, view=view):
            yield write


class Replaced(MemoryStore):
    """Deletes a thread when an export of it has begun, and makes another one if that has a state."""

    def __init__(self, state: bytes | None) -> None:
        super().__init__()
        self.state = state

    async def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        if (found := await self.find(key)) is not None and found.epoch == EPOCH:
            await put(self, delete(0))
            if self.state is not None:
                await put(self, beginning(epoch="other", snapshot=self.state))
        async for write in super().export(key, view=view):
            yield write


async def export(store: MemoryStore) -> list[dict[str, object]]:
    data = b"".join([lines async for lines in export_thread(store, ROOM)])
    return [json.loads(line) for line in data.splitlines()]


async def test_an_export_whose_log_is_shortened_at_the_same_time_begins_again() -> None:
    async with Busy(3) as store:
        await put(store, beginning())
        first, *lines, _ = await export(store)
        assert store.left == 0
        assert first["begins_at"] == 5
        assert [line["version"] for line in lines] == [5, 6]


async def test_a_thread_that_is_deleted_while_it_is_exported_is_not_found() -> None:
    async with Replaced(None) as store:
        await put(store, beginning(snapshot=b"1"))
        with pytest.raises(NotFound):
            await export(store)


async def test_an_export_has_nothing_of_a_thread_that_takes_the_name_at_the_same_time() -> None:
    async with Replaced(b"2") as store:
        await put(store, beginning(snapshot=b"1"))
        header, state, _ = await export(store)
        assert (header["epoch"], state["state"]) == ("other", 2)


async def test_an_export_that_never_gets_a_whole_log_fails() -> None:
    async with Busy(1000) as store:
        await put(store, beginning())
        with pytest.raises(StoreError, match="the history of room/one is pruned faster than it can be read"):
            await export(store)


@each_case("due", [None, INCOMPLETE])
async def test_a_thread_that_is_missing_or_incomplete_is_not_found(due: int | None) -> None:
    async with MemoryStore() as store:
        if due is not None:
            await put(store, beginning(), Write(ROOM, "e1", 0, 0, due=due))
        with pytest.raises(NotFound, match="there is no thread room/one"):
            await export(store)
