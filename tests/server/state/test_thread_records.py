"""Values in memory and their records: a write changes both, or neither."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import in_soak
from tests.server.parts.workshop import FlakyStore, make_store, open_workshop

from plait import Thread, TooLarge
from plait.errors import CorruptThread, StoreError
from plait.state.thread_records import Table, Values
from plait.store.thread_rows import Record, RecordRange, ThreadKey


class Note(msgspec.Struct, frozen=True):
    text: str
    size: int = 0


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


class Shelf:
    """Two kinds of values of one thread."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.notes, self.lists = Values[str, Note](), Values[int, tuple[Note, ...]]()
        self.kinds = (
            Table("shelf", "n/", Note, self.notes.set),
            Table("shelf", "l/", tuple[Note, ...], self.lists.set, digits=4),
        )

    def put(self, *changes: tuple[int, Any, Any]) -> Any:
        """Set values of the kinds 0 and 1."""
        return self.room._actor.records.put(self.kinds[kind].change(key, value) for kind, key, value in changes)

    async def stored(self) -> dict[str, bytes | None]:
        records = await self.room._actor.records.list(RecordRange("shelf"))
        return {record.key: record.value for record in records}


async def test_values_of_several_kinds_are_one_write(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as shop:
        shelf = Shelf(await shop.thread(Room))
        await shelf.put((0, "a", Note("x")), (0, "b", Note("y")), (1, 10, (Note("z", 1),)))
        writes = len(store.writes)
        await shelf.put((0, "a", None), (1, 10, (Note("z", 2),)), (0, "none", None))
        assert len(store.writes) == writes + 1
        assert (shelf.notes, shelf.lists) == ({"b": Note("y")}, {10: (Note("z", 2),)})
        assert await shelf.stored() == {"n/b": b'{"text":"y","size":0}', "l/000a": b'[{"text":"z","size":2}]'}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (Note("\ud800"), ValueError),
        (Note(object()), TypeError),  # type: ignore[arg-type]
        (Note(5), ValueError),  # type: ignore[arg-type]
        (Note("x" * 2_000_000), TooLarge),
    ],
)
async def test_a_value_that_cannot_be_stored_or_read_changes_nothing(
    store: FlakyStore, value: Note, error: type[Exception]
) -> None:
    async with open_workshop(store, Room) as shop:
        shelf = Shelf(await shop.thread(Room))
        await shelf.put((0, "a", Note("x")))
        before = await shelf.stored()
        with pytest.raises(error):
            shelf.put((0, "a", None), (0, "b", Note("y")), (0, "a", value))
        assert shelf.notes == {"a": Note("x")}
        assert await shelf.stored() == before


async def test_values_are_as_before_when_their_write_fails_or_is_rolled_back(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as shop:
        room = await shop.thread(Room)
        shelf = Shelf(room)
        await shelf.put((0, "a", Note("x")))

        def write_in_vain() -> None:
            with room.transaction():
                shelf.put((0, "a", Note("y")), (1, 1, ()))
                shelf.put((0, "a", None))
                assert (shelf.notes, shelf.lists) == ({}, {1: ()})
                raise KeyError

        with pytest.raises(KeyError):
            write_in_vain()
        assert (shelf.notes, shelf.lists) == ({"a": Note("x")}, {})
        store.refuses = lambda _: True
        writes = shelf.put((0, "a", Note("y"))), shelf.put((0, "b", Note("z")), (0, "a", Note("z")))
        assert shelf.notes == {"a": Note("z"), "b": Note("z")}
        assert [type(each) for each in await asyncio.gather(*writes, return_exceptions=True)] == [StoreError] * 2
        assert shelf.notes == {"a": Note("x")}


async def test_a_write_comes_after_the_rollback_of_a_transaction_whose_block_awaits(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as shop:
        room = await shop.thread(Room)
        shelf = Shelf(room)
        await shelf.put((0, "a", Note("x")))

        async def await_in_transaction() -> None:
            with room.transaction():
                shelf.put((0, "a", Note("y")))
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        waiting = asyncio.create_task(await_in_transaction())
        await asyncio.sleep(0)
        await shelf.put((0, "a", Note("z")))
        with pytest.raises(RuntimeError):
            await waiting
        assert shelf.notes == {"a": Note("z")}
        assert await shelf.stored() == {"n/a": b'{"text":"z","size":0}'}


async def test_of_two_changes_of_a_value_the_last_one_is_stored(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as shop:
        shelf = Shelf(await shop.thread(Room))
        await shelf.put((0, "a", Note("x")), (0, "a", None), (0, "b", None), (0, "b", Note("y")))
        assert shelf.notes == {"b": Note("y")}
        assert [*await shelf.stored()] == ["n/b"]


def test_a_record_whose_key_has_no_number_is_of_a_corrupt_thread() -> None:
    table = Table("shelf", "l/", tuple[Note, ...], Values[int, tuple[Note, ...]]().set, digits=4)
    with pytest.raises(CorruptThread, match="shelf/l/x of room/one cannot be read"):
        list(table.load([Record("shelf", "l/x", b"[]")], ThreadKey("room", "one")))


@each_case("data", [b'{"text":1}', b'{"text":"\xff"}', b""])
def test_a_record_that_cannot_be_read_is_of_a_corrupt_thread(data: bytes) -> None:
    table = Table("shelf", "n/", Note, Values[str, Note]().set)
    with pytest.raises(CorruptThread, match="shelf/n/a of room/one cannot be read"):
        dict(table.load([Record("shelf", "n/a", data)], ThreadKey("room", "one")))


async def test_each_table_loads_its_own_records(store: FlakyStore) -> None:
    async with open_workshop(store, Room) as shop:
        shelf = Shelf(await shop.thread(Room))
        await shelf.put((0, "a", Note("x")), (1, 10, (Note("z"),)))
        records = await shelf.room._actor.records.list(RecordRange("shelf"))
        loaded = [dict(kind.load(records, shelf.room._actor.key)) for kind in shelf.kinds]
        assert loaded == [shelf.notes, shelf.lists]
