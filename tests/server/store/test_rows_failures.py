"""The store over rows, when its engine or a plan fails, or rows are damaged."""

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.server.owning import owned, submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, outcomes, put, versions
from tests.server.store.contract_records import delete, put_records

from plait.errors import CorruptThread, Indeterminate, StoreError
from plait.store.memory import MemoryRows
from plait.store.protocol import ThreadQuery
from plait.store.rows.engine import ReadPlan, Reads
from plait.store.rows.store import RowStore
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait.store.urls import open_store

T = TypeVar("T")

NEW = ThreadKey("room", "new")


class BrokenRows(MemoryRows):
    """Rows of some threads cannot be read."""

    def __init__(self, *broken: ThreadKey) -> None:
        super().__init__()
        self.broken = broken

    async def read(self, plan: ReadPlan[T], /) -> T:
        return await super().read(ReadPlan(lambda: self._spoil(plan.begin())))

    def _spoil(self, reads: Reads[T]) -> Reads[T]:
        """Yield the spans of `reads`, those of broken threads without the limit that the engine needs."""
        nothing: Any = None
        try:
            spans = next(reads)
            while True:
                try:
                    rows = yield [span._replace(limit=nothing) if span.space in self.broken else span for span in spans]
                except StoreError as error:
                    spans = reads.throw(error)
                else:
                    spans = reads.send(rows)
        except StopIteration as end:
            found: T = end.value
            return found


class _OddPart(str):
    """The name of a part that no plan can compare."""

    __slots__ = ()

    def __ge__(self, other: str) -> bool:
        raise MemoryError


async def test_after_a_plan_with_an_unexpected_error_writes_go_on() -> None:
    async with owned(RowStore(MemoryRows()), ROOM, OTHER) as store:
        await put(store, beginning(), beginning(key=OTHER))
        odd = msgspec.structs.replace(put_records(), records=[Record(_OddPart("odd"), "a", b"1")])
        assert await outcomes([submit(store, odd)]) == [Indeterminate]
        await put(store, change(1), change(1, key=OTHER))
        assert await versions(store) == (1, [1])


async def test_a_thread_that_cannot_be_read_does_not_prevent_the_writes_of_others() -> None:
    engine = BrokenRows()
    store = RowStore(engine)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
    engine.broken = (ROOM,)
    async with owned(store, ROOM, OTHER):
        refused, made = submit(store, change(1)), submit(store, change(1, key=OTHER))
        assert await outcomes([refused, made]) == [StoreError, None]
        error = refused.exception()
        assert error is not None
        assert str(error).startswith("room/one could not be written: ")
        assert str(error).count("could not be") == 1
        assert isinstance(error.__cause__, TypeError)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Limit the size of files to that of a store's log."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_disk_that_is_full_when_the_first_thread_is_made_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    async with owned(store, ROOM):
        await put(store, beginning())
    async with owned(store, ROOM, NEW):
        with full_disk(path):
            write = submit(store, beginning(key=NEW))
            assert await outcomes([write]) == [StoreError]
            reason = str(write.exception()).removeprefix("room/new could not be written: ")
            with pytest.raises(StoreError) as error:
                await store.check_writes()
            assert str(error.value) == f"the store cannot be written: {reason}"
            with pytest.raises(StoreError, match=f"^a schema could not be written: {reason}$") as error:
                await store.add_schema("room", "hash", b"{}")
            assert not error.value.is_logged
        await put(store, beginning(key=NEW), change(1))


@pytest.mark.parametrize("damage", ["UPDATE rows SET value = value || '1'", "DELETE FROM rows"])
async def test_a_damaged_number_of_the_next_space_is_found_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"{damage} WHERE part = '~number'")
        db.execute("UPDATE rows SET value = value || ' ' WHERE part = '~thread/room' AND key = 'two'")
        db.commit()
    async with owned(store, ROOM, NEW):
        await put(store, change(1), beginning(key=NEW, snapshot=b"7"))
    with closing(sqlite3.connect(path)) as db:
        snapshots = db.execute("SELECT value FROM rows WHERE part = '~s' ORDER BY thread").fetchall()
        assert snapshots == [("0",), ("0",), ("7",)]
    async with owned(store, ThreadKey("room", "newer")):
        await put(store, beginning(key=ThreadKey("room", "newer")))
        assert await versions(store) == (1, [1])
        assert await versions(store, NEW) == (0, [])


async def test_a_store_whose_format_is_damaged_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    async with owned(store, ROOM):
        await put(store, beginning())
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE rows SET value = 'x' WHERE part = '~format' AND key = 'change'")
        db.commit()
    with pytest.raises(StoreError, match=r"^cannot open the store .*: the record 'change' of ~format is damaged$"):
        await store.__aenter__()


async def test_a_thread_whose_row_is_damaged_can_be_found_listed_deleted_and_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    first = msgspec.structs.replace(beginning(), due=5, user="ada", created_at=7)
    other = msgspec.structs.replace(first, key=OTHER)
    async with owned(store, ROOM, OTHER):
        await put(store, first, other)
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "UPDATE rows SET value = replace(value, 'epoch', 'epocH') WHERE part = '~thread/room' AND key = 'one'"
        )
        db.commit()
    async with owned(store, ROOM, OTHER):
        found = await store.find(ROOM)
        assert found is not None
        assert [row.key for row in await store.threads()] == [ROOM, OTHER]
        by_time = await store.threads(ThreadQuery(order="created", limit=1))
        by_time += await store.threads(ThreadQuery(order="created", after=by_time[-1]))
        assert [(row.key, row.created_at) for row in by_time] == [(OTHER, 7), (ROOM, 7)]
        assert await store.records_of_each([ROOM], ("values", "a")) == [[None]]
        for read in (
            store.load(ROOM),
            store.record(ROOM, "values", "a"),
            store.records(ROOM, RecordRange("values")),
            store.changes(ROOM, after=0),
            store.changes_before(ROOM, 9),
            store.client(ROOM, "c"),
        ):
            with pytest.raises(CorruptThread):
                await read
        assert await outcomes([submit(store, change(1)), submit(store, change(1, key=OTHER))]) == [StoreError, None]
        assert await outcomes([submit(store, beginning())]) == [StoreError]
        deletion = msgspec.structs.replace(delete(found.version), epoch=found.epoch)
        await put(store, deletion)
        assert await store.find(ROOM) is None
        assert [each.key for each in await store.due_threads(until=9)] == [OTHER]
        for query in (ThreadQuery(user="ada"), ThreadQuery(order="created"), ThreadQuery(order="changed")):
            assert [row.key for row in await store.threads(query)] == [OTHER]
        await put(store, first)
        assert await versions(store) == (0, [])
    with closing(sqlite3.connect(path)) as db:
        found_by = db.execute("SELECT part FROM rows WHERE thread = 0 AND instr(key, 'one') ORDER BY part").fetchall()
        assert [part for (part,) in found_by] == [
            "~changed/room",
            "~created/room",
            "~due",
            "~thread/room",
            '~user/"ada"/changed/room',
            '~user/"ada"/created/room',
            '~user/"ada"/name/room',
        ]
