"""What any store must do to read records between two keys, the last ones first, and with their thread."""

import asyncio
import random

import pytest
from tests.cases import each_case
from tests.server.owning import own, owned, submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, emptied, outcomes, put
from tests.server.store.contract_records import names, put_records

from plait.errors import StoreError
from plait.store.protocol import Store, ThreadQuery, Write
from plait.store.thread_rows import Record, RecordRange, ThreadKey

# In UTF-16 the last two are the other way round.
KEYS = [
    "A",
    "a",
    "a/",
    "a/1",
    "a/10",
    "a/2",
    "a/\ud7ff",
    "a/\ue000",
    "a/\U0010ffff",
    "a/\U0010ffff1",
    "a0",
    "é",
    "\uffee",
    "😀",
]


async def fill(store: Store) -> None:
    shuffled = random.Random(1).sample(KEYS, len(KEYS))
    await put(store, beginning(), put_records(*((key, key.encode()) for key in shuffled)))
    await put(store, put_records(("a/0", b"other"), part="other"), put_records(("z", b"other"), part="w"))


async def test_records_are_read_between_two_keys_in_both_directions(store: Store) -> None:
    prefixes = ("", "a", "a/", "a/1", "a/\ud7ff", "a/\U0010ffff", "\U0010ffff", "zz")
    async with owned(store, ROOM, OTHER):
        await fill(store)
        for prefix in prefixes:
            for after in ("", "A", "a/", "a/1", "a0", "😀"):
                for before in (None, "", "A", "a/", "a/1", "a/2", "a0", "\U0010ffff"):
                    wanted = [key for key in KEYS if key.startswith(prefix) and key > after]
                    wanted = [key for key in wanted if before is None or key < before]
                    found = await store.records(ROOM, RecordRange("values", prefix=prefix, after=after, before=before))
                    assert [record.key for record in found] == wanted
                    found = await store.records(
                        ROOM, RecordRange("values", prefix=prefix, after=after, before=before, reverse=True)
                    )
                    assert [record.key for record in found] == wanted[::-1]


async def test_the_last_records_are_read_a_page_at_a_time(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await fill(store)
        found: list[str] = []
        before: str | None = None
        while page := await store.records(
            ROOM, RecordRange("values", prefix="a/", before=before, reverse=True, limit=3)
        ):
            assert len(page) <= 3
            found += [record.key for record in page]
            before = found[-1]
        assert found == KEYS[9:1:-1]
        sizes = {
            size: len(await store.records(ROOM, RecordRange("values", reverse=True, size=size)))
            for size in (1, 4, 5, 8)
        }
        assert sizes == {1: 1, 4: 1, 5: 2, 8: 3}
        assert await names(store, before="a0", limit=2) == ["A", "a"]


async def test_a_thread_is_loaded_with_the_records_of_ranges_in_their_order(store: Store) -> None:
    ranges = [
        RecordRange("values", "a/", reverse=True, limit=2),
        RecordRange("nothing"),
        RecordRange("other"),
        RecordRange("values", limit=3),
        RecordRange("values", "a0"),
        RecordRange("values", "a/", after="a/1", before="a/\ue000"),
        RecordRange("values", reverse=True, before="a", size=1),
        RecordRange("values", after="a/", size=4),
    ]
    async with owned(store, ROOM, OTHER):
        assert await store.load(ROOM, records=ranges) is None
        await fill(store)
        await put(store, change(1), change(2))
        for version in (None, 2, 1):
            stored = await store.load(ROOM, version=version, records=ranges)
            assert stored is not None
            assert stored.version == (version or 2)
            assert [[record.key for record in records] for records in stored.records] == [
                ["a/\U0010ffff1", "a/\U0010ffff"],
                [],
                ["a/0"],
                ["A", "a", "a/"],
                ["a0"],
                ["a/10", "a/2", "a/\ud7ff"],
                ["A"],
                ["a/1", "a/10"],
            ]
            assert stored.records[2][0] == Record("other", "a/0", b"other")
        stored = await store.load(ROOM)
        assert stored is not None
        assert list(stored.records) == []


# Text that is not in the Basic Multilingual Plane, and text that is not Unicode

CODE_POINTS = ["\x00", "a", "z", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "🔑", "\U0010ffff"]


async def test_names_and_record_keys_are_in_the_order_of_code_points(store: Store) -> None:
    keys = [ThreadKey("room", name + tail) for name in CODE_POINTS for tail in ("", "1", "\U0010ffff")]
    async with owned(store, ROOM, OTHER):
        await put(store, *(beginning(key=key) for key in reversed(keys)))
        await put(store, *(put_records((key.name, b"1"), key=keys[0]) for key in reversed(keys)))
        assert [row.key for row in await store.threads()] == keys
        assert [record.key for record in await store.records(keys[0], RecordRange("values"))] == [
            key.name for key in keys
        ]
        for start in CODE_POINTS:
            wanted = [key for key in keys if key.name.startswith(start)]
            assert [row.key for row in await store.threads(ThreadQuery(prefix=start))] == wanted
            found = await store.records(keys[0], RecordRange("values", prefix=start, reverse=True))
            assert [record.key for record in found] == [key.name for key in reversed(wanted)]
            after = [record.key for record in await store.records(keys[0], RecordRange("values", after=start))]
            assert after == [key.name for key in keys if key.name > start]


def start(store: Store, write: Write) -> asyncio.Future[int]:
    """Begin to write a thread; that of a shared store is claimed first."""
    if not store.is_shared:
        return submit(store, write)

    async def claim_and_submit() -> int:
        await own(store, write.key)
        return await submit(store, write)

    return asyncio.ensure_future(claim_and_submit())


@each_case("odd", ["\ud800", "a\udfff", "\udc00\ud800"])
async def test_text_that_a_store_cannot_keep_is_refused_for_its_own_thread_only(store: Store, odd: str) -> None:
    key = ThreadKey("room", odd)
    writes = [
        beginning(key=key),
        beginning(key=OTHER),
        put_records((odd, b"1"), after=None),
        put_records(("a", b"1"), key=OTHER),
    ]
    async with emptied(store):
        await own(store, OTHER, ROOM)
        refused, *others = (submit(store, write) if write.key != key else start(store, write) for write in writes)
        found = await outcomes([refused, *others])
        assert found[1] is found[3] is None
        assert set(found) <= {None, StoreError}
        for future, thread in ((refused, key), (others[1], ROOM)):
            if (error := future.exception()) is not None:
                assert str(thread).encode(errors="backslashreplace").decode() in str(error)
                assert "surrogate" in str(error)
        if found[0] is None:
            assert [row.key for row in await store.threads(ThreadQuery(prefix=odd))] == [key]
            assert [record.key for record in await store.records(ROOM, RecordRange("values"))] == [odd]
        else:
            with pytest.raises(StoreError, match="surrogate"):
                await store.load(key)
            with pytest.raises(StoreError, match="surrogate"):
                await store.record(OTHER, "values", odd)
            with pytest.raises(StoreError, match="surrogate"):
                await store.threads(ThreadQuery(prefix=odd))
        await put(store, change(1, key=OTHER))
        await store.check_writes()


async def test_a_store_says_whether_it_is_shared_and_what_its_changes_survive(store: Store) -> None:
    assert store.is_shared in (False, True)
    assert store.durability.startswith("changes ")
    assert "\n" not in store.durability
