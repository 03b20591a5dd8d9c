"""What any store must do to show a thread as it is at one moment, and to hide those that are not complete."""

import msgspec
import pytest
from tests.server.owning import owned
from tests.server.store.contract import OTHER, ROOM, beginning, change, put
from tests.server.store.contract_due import due
from tests.server.store.contract_records import delete

from plait.errors import CorruptThread
from plait.store.protocol import DueThread, Order, Store, ThreadQuery, Write
from plait.store.thread_rows import INCOMPLETE, Record, RecordRange

EPOCH = beginning().epoch
ORDERS: tuple[Order, ...] = ("name", "created", "changed")

RECORDS = [
    Record(part, key, f"{part} {key}".encode())
    for part in ("a", "a-b", "b", "z")
    for key in ("", "1", "10", "2", "\x7f", "é", "\uffff", "😀")
    if key
]


def records(*found: Record, version: int = 0) -> Write:
    return Write(ROOM, EPOCH, version, version, records=found)


async def test_a_view_has_all_records_in_pages_in_the_order_of_parts_and_keys(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), records(*reversed(RECORDS)), beginning(key=OTHER))
        async with store.view(ROOM) as view:
            assert view is not None
            assert view.thread == await store.load(ROOM)
            assert await view.records() == RECORDS
            for limit in (1, 3, 100):
                found, after = list[Record](), ("", "")
                while page := await view.records(after=after, limit=limit):
                    assert len(page) <= limit
                    found += page
                    after = page[-1].part, page[-1].key
                assert found == RECORDS
            # The last one is that at which they reach the size.
            size = len(RECORDS[0].value or b"") + 1
            assert await view.records(size=size) == RECORDS[:2]
            assert await view.records(size=1) == RECORDS[:1]
            at_end = [record for record in RECORDS if record.part == "a"][-1]
            assert await view.records(after=("a", at_end.key), limit=1) == [RECORDS[len(RECORDS) // 4]]
        async with store.view(OTHER) as view:
            assert view is not None
            assert await view.records() == []


async def test_a_view_is_of_one_moment_whatever_is_written_after_it(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), records(*RECORDS))
        async with store.view(ROOM) as view, store.view(OTHER) as other:
            assert view is not None
            assert other is None
            first = await view.records(limit=1)
            await put(store, change(1))
            await put(store, records(*(Record(each.part, each.key, b"new") for each in RECORDS), version=1))
            await put(store, records(Record("b", "3", b"more"), Record("z", "1", None), version=1))
            assert first + await view.records(after=(first[0].part, first[0].key)) == RECORDS
            assert (await store.records(ROOM, RecordRange("b", limit=1)))[0].value == b"new"
            await put(store, delete(1, epoch=EPOCH))
            assert await view.records() == RECORDS
            assert view.thread.version == 0
        async with store.view(ROOM) as view:
            assert view is None


async def test_no_listing_shows_a_thread_that_is_not_complete(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        incomplete = msgspec.structs.replace(beginning(), due=INCOMPLETE, user="ada")
        await put(store, incomplete, beginning(key=OTHER))
        for order in ORDERS:
            assert [row.key for row in await store.threads(ThreadQuery(order=order))] == [OTHER]
            assert await store.threads(ThreadQuery(order=order, user="ada", kind=ROOM.kind, prefix=ROOM.name[:1])) == []
        header = await store.find(ROOM)
        assert header is not None
        assert header.due == INCOMPLETE
        assert await store.due_threads(until=INCOMPLETE) == [DueThread(INCOMPLETE, ROOM)]
        await put(store, due(0))
        assert len(await store.threads()) == 2
        assert await store.due_threads(until=2**62) == []


async def test_an_export_of_a_view_is_of_its_moment_with_the_history_before(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), *(change(n, snapshot=b"%d" % n if n == 3 else None) for n in range(1, 6)))
        await put(store, records(*RECORDS, version=5))
        expected = [write async for write in store.export(ROOM)]
        async with store.view(ROOM) as view, store.view(OTHER) as other:
            assert other is None
            await put(store, change(6, snapshot=b"6"), change(7), change(8))
            await put(store, records(Record("b", "3", b"more"), Record("z", "1", None), version=8))
            found = [write async for write in store.export(ROOM, view=view)]
            times = {each.changed_at for each in found}
            assert len(times) == 1
            assert [msgspec.structs.replace(each, changed_at=expected[0].changed_at) for each in found] == expected
            # Changes that it needs are removed.
            await put(store, change(9, snapshot=b"9", prune=9), change(10))
            if await store.load(ROOM, version=8) is None:
                with pytest.raises(CorruptThread):
                    [write async for write in store.export(ROOM, view=view)]
        assert [write async for write in store.export(OTHER)] == []
