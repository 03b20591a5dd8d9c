"""What any store must do with records, with what is submitted together, with owners and with deletions."""

import asyncio
import random
from collections.abc import Sequence

import msgspec
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.owning import owned, submit
from tests.server.store.contract import (
    OTHER,
    ROOM,
    beginning,
    change,
    client_row,
    emptied,
    listed,
    outcomes,
    put,
    versions,
)

from plait.errors import Fenced, StoreError
from plait.store.protocol import Store, StoredThread, Write
from plait.store.thread_rows import Record, RecordRange, ThreadKey


def put_records(
    *pairs: tuple[str, bytes | None],
    after: int | None = 0,
    part: str = "values",
    key: ThreadKey = ROOM,
    epoch: str = "e1",
) -> Write:
    """Return a write of records, and of nothing else."""
    rows = tuple(Record(part, name, value) for name, value in pairs)
    return Write(key, epoch, after, after or 0, records=rows, secret=b"s" if after is None else b"")


def delete(version: int, *, key: ThreadKey = ROOM, epoch: str = "e1") -> Write:
    """Return the write that deletes a thread at this version."""
    return Write(key, epoch, version, version, is_deletion=True)


async def names(store: Store, part: str = "values", **options: str | int) -> list[str]:
    """Return the keys of some records of a thread."""
    return [record.key for record in await store.records(ROOM, RecordRange(part, **options))]  # type: ignore[arg-type]


# Records


async def test_records_are_stored_replaced_and_deleted_and_make_no_version(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.record(ROOM, "values", "a") is None
        assert await store.records(ROOM, RecordRange("values")) == []
        await put(store, beginning(), beginning(key=OTHER))
        await put(store, put_records(("a", b"1"), ("b", b"\x00\xff"), ("c", b"")))
        assert await store.records(ROOM, RecordRange("values")) == [
            Record("values", "a", b"1"),
            Record("values", "b", b"\x00\xff"),
            Record("values", "c", b""),
        ]
        await put(store, put_records(("a", b"2"), ("b", None), ("nothing", None)))
        assert [await store.record(ROOM, "values", name) for name in "abc"] == [b"2", None, b""]
        assert await names(store) == ["a", "c"]
        assert await store.record(ROOM, "other", "a") is None
        assert await store.record(OTHER, "values", "a") is None
        assert await versions(store) == (0, [])
        await put(store, change(1))


async def test_one_record_of_several_threads_is_read_at_once(store: Store) -> None:
    missing = ThreadKey("room", "missing")
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
        await put(store, put_records(("a", b"1"), ("b", b"2")), put_records(("a", b"3"), key=OTHER))
        for keys, values in (
            ([OTHER, missing, ROOM], [b"3", None, b"1"]),
            ([ROOM, ROOM], [b"1", b"1"]),
            ([ThreadKey("other", ROOM.name)], [None]),
            ([], []),
        ):
            assert await store.records_of_each(keys, ("values", "a")) == [[each] for each in values]
        assert await store.records_of_each([ROOM, OTHER], ("values", "b")) == [[b"2"], [None]]
        assert await store.records_of_each([ROOM, OTHER], ("other", "a")) == [[None], [None]]
        several = await store.records_of_each([ROOM, OTHER], ("values", "a"), ("other", "a"), ("values", "b"))
        assert several == [[b"1", None, b"2"], [b"3", None, None]]
        await put(store, delete(0))
        assert await store.records_of_each([ROOM, OTHER], ("values", "a")) == [[None], [b"3"]]


async def test_the_last_record_of_a_key_counts_in_a_write_and_in_a_breath(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), put_records(("a", b"1"), ("a", None), ("b", None), ("b", b"2")))
        assert await names(store) == ["b"]
        await put(store, put_records(("a", b"1"), ("b", None)), put_records(("a", b"2")), put_records(("a", b"3")))
        assert await store.records(ROOM, RecordRange("values")) == [Record("values", "a", b"3")]


async def test_records_are_read_in_the_order_of_code_points_by_prefix_and_a_page_at_a_time(store: Store) -> None:
    # In UTF-16 the last two are the other way round.
    keys = ["A", "a", "a/", "a/1", "a/10", "a/2", "a/é", "a/\uffee", "a/😀", "a0", "b", "é", "\uffee", "😀"]
    shuffled = random.Random(1).sample(keys, len(keys))
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), put_records(*((key, key.encode()) for key in shuffled)))
        await put(store, put_records(("a/0", b"other"), part="other"))
        assert await names(store) == keys == sorted(keys)
        assert await names(store, prefix="a/") == keys[2:9]
        assert await names(store, prefix="a/1") == ["a/1", "a/10"]
        assert await names(store, prefix="zz") == []
        assert await names(store, prefix="a/", after="a/1") == keys[4:9]
        assert await names(store, prefix="a/", after="A") == keys[2:9]
        assert await names(store, prefix="a/", after="b") == []
        assert await names(store, after="a0", limit=2) == ["b", "é"]
        found: list[str] = []
        while page := await names(store, after=found[-1] if found else "", limit=3):
            assert len(page) <= 3
            found += page
        assert found == keys


async def test_a_page_of_records_ends_with_the_one_that_fills_it(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), put_records(*((str(n), b"x" * 100) for n in range(10))))
        for size, count in ((0, 1), (100, 1), (101, 2), (400, 4), (401, 5), (10**9, 10)):
            assert len(await names(store, size=size)) == count
        assert len(await names(store, size=401, limit=3)) == 3


async def test_records_go_with_the_change_that_they_come_with(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        good = msgspec.structs.replace(change(1), records=(Record("values", "a", b"1"),))
        await put(store, good)
        for write in (change(1), change(9, after=1)):
            bad = msgspec.structs.replace(write, records=(Record("values", "a", b"2"),))
            assert await outcomes([submit(store, bad)]) != [None]
        assert await store.record(ROOM, "values", "a") == b"1"


async def test_records_that_do_not_follow_what_is_stored_are_refused(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1))
        for after, epoch in ((0, "e1"), (2, "e1"), (1, "e2"), (None, "e1")):
            assert await outcomes([submit(store, put_records(("a", b"1"), after=after, epoch=epoch))]) == [Fenced]
        wrong = msgspec.structs.replace(put_records(("a", b"1"), after=1), version=2)
        assert await outcomes([submit(store, wrong)]) == [StoreError]
        assert await names(store) == []


async def test_records_survive_changes_snapshots_and_pruning(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), put_records(("a", b"1")))
        await put(store, *(change(version) for version in range(1, 10)), change(10, snapshot=b"10", prune=9))
        assert await store.record(ROOM, "values", "a") == b"1"


# Threads that begin without a state


async def test_a_thread_may_begin_with_records_and_has_no_state_until_its_first_change(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, put_records(("a", b"1"), after=None))
        nothing = await store.load(ROOM)
        assert nothing is not None
        assert nothing == StoredThread("e1", 0, None, [], secret=b"s", clients=frozenset())
        assert not nothing.has_state
        assert await store.load(ROOM, version=0) == msgspec.structs.replace(nothing, clients=None)
        assert await listed(store) == [(ROOM, 0)]
        await put(store, put_records(("b", b"2")))
        assert await outcomes([submit(store, change(1, after=None))]) == [Fenced]
        await put(store, change(1, state_version=3), change(2))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.state_version, stored.secret, stored.has_state) == (2, 3, b"s", True)
        assert await names(store) == ["a", "b"]


@each_case("is_in_one_breath", [True, False])
async def test_a_first_write_may_have_an_initial_state_records_and_changes(
    store: Store, is_in_one_breath: bool
) -> None:
    writes = [beginning(), put_records(("a", b"1")), change(1), change(2)]
    async with emptied(store):
        for some in [writes] if is_in_one_breath else [[write] for write in writes]:
            await put(store, *some)
        assert await versions(store) == (2, [1, 2])
        for version, snapshot in ((0, b"0"), (1, b"0")):
            stored = await store.load(ROOM, version=version)
            assert stored is not None
            assert (stored.snapshot, len(stored.changes)) == (snapshot, version)
        assert await names(store) == ["a"]


# What is submitted together


def bad_units() -> list[Sequence[Write]]:
    """Return units of writes after version 1; in each, the second or third write is refused or fails."""
    record = put_records(("b", b"1"), after=1)
    # No store can keep a key that is not text.
    broken = put_records(("\ud800", b""), after=2)
    return [
        [change(2, client=client_row()), change(2)],
        [change(2), change(4, after=2)],
        [record, change(3)],
        [change(2), put_records(("b", b"1"), after=2), put_records(("b", b"2"), after=1)],
        [change(2), msgspec.structs.replace(broken, version=3)],
        [delete(1), change(2)],
        [delete(1), beginning(epoch="e2"), change(5, epoch="e2")],
    ]


@each_case("unit", bad_units())
async def test_what_is_submitted_together_is_stored_together_or_not_at_all(store: Store, unit: Sequence[Write]) -> None:
    async with emptied(store):
        await put(store, beginning(), change(1), put_records(("a", b"1"), after=1), beginning(key=OTHER))
        before = await store.load(ROOM), await store.records(ROOM, RecordRange("values"))
        futures = [submit(store, write) for write in unit]
        other = submit(store, change(1, key=OTHER))
        assert None not in await outcomes(futures)
        assert (await store.load(ROOM), await store.records(ROOM, RecordRange("values"))) == before
        assert await store.client(ROOM, "c") is None
        await other
        await put(store, change(2))


async def test_what_comes_before_a_refused_unit_is_stored(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(key=OTHER))
        # The first write keeps the store busy, so that the next two units share a transaction.
        futures = [submit(store, change(1, key=OTHER))]
        await asyncio.sleep(0)
        futures += [submit(store, write) for write in (beginning(), change(1))]
        await asyncio.sleep(0)
        futures += [submit(store, write) for write in (change(2), change(2))]
        assert await outcomes(futures) == [None, None, None, Fenced, Fenced]
        assert await versions(store) == (1, [1])


async def test_after_records_that_fail_nothing_that_was_submitted_before_they_failed_is_stored(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        futures = [submit(store, put_records(("a", b"1"), after=7))]
        await asyncio.sleep(0)
        # This one follows the stored version.
        futures.append(submit(store, change(1)))
        assert await outcomes(futures) == [Fenced, Fenced]
        assert await versions(store) == (0, [])


# Owners


async def test_the_writes_of_an_owner_are_refused_as_soon_as_there_is_another(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        first = await store.claim(ROOM)
        await put(store, msgspec.structs.replace(change(1), fence=first))
        second = await store.claim(ROOM)
        assert second != first
        for fence in (0, first, second + 1):
            assert await outcomes([store.submit(msgspec.structs.replace(change(2), fence=fence))]) == [Fenced]
        store.release(ROOM, first)
        await put(store, msgspec.structs.replace(change(2), fence=second))
        store.release(ROOM, second)
        assert await outcomes([submit(store, msgspec.structs.replace(change(3), fence=second))]) == [Fenced]
        await put(store, beginning(key=OTHER))
        assert await store.claim(ROOM) not in (0, first, second)


async def test_nothing_that_was_submitted_before_a_claim_is_stored_after_it(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        fence, version = await store.claim(ROOM), 0
        for round in range(30):
            futures = []
            for each in range(1 + round % 4):
                futures.append(submit(store, msgspec.structs.replace(change(version + each + 1), fence=fence)))
                if round % 3:
                    await asyncio.sleep(0)
            fence = await store.claim(ROOM)
            assert all(future.done() for future in futures)
            found = await versions(store)
            await asyncio.sleep(0)
            results = await outcomes(futures)
            assert results == sorted(results, key=lambda result: result is Fenced)
            assert await versions(store) == found
            version += results.count(None)
            assert found[0] == version


async def test_what_an_owner_has_submitted_before_its_release_is_stored_before_the_next_claim_returns(
    store: Store,
) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        version = 0
        for round in range(8):
            fence = await store.claim(ROOM)
            futures = []
            # The first write is being carried out while the others wait.
            for _ in range(1 + round % 4):
                version += 1
                futures.append(submit(store, msgspec.structs.replace(change(version), fence=fence)))
                if round >= 4:
                    await asyncio.sleep(0)
            store.release(ROOM, fence)
            # Both wait, and of the owners only the last one stays.
            owners = await asyncio.gather(store.claim(ROOM), store.claim(ROOM))
            assert all(future.done() for future in futures)
            assert await outcomes(futures) == [None] * len(futures)
            assert await versions(store) == (version, list(range(1, version + 1)))
            for owner in owners:
                store.release(ROOM, owner)


async def test_a_thread_without_an_owner_cannot_be_written(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await outcomes([store.submit(beginning())]) == [Fenced]
        fence = await store.claim(ROOM)
        await put(store, msgspec.structs.replace(beginning(), fence=fence))
        store.release(ROOM, fence)
        assert await outcomes([store.submit(change(1))]) == [Fenced]
        assert await versions(store) == (0, [])


async def test_of_claims_at_the_same_time_the_greatest_number_is_the_owners(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        fences = await asyncio.gather(*(store.claim(ROOM) for _ in range(5)))
        assert len(set(fences)) == 5
        for fence in sorted(fences):
            wanted = None if fence == max(fences) else Fenced
            assert await outcomes([store.submit(msgspec.structs.replace(change(1), fence=fence))]) == [wanted]


# Deletion


async def everything(store: Store, key: ThreadKey = ROOM) -> list[object]:
    """Return all that a store has of a thread."""
    return [
        await store.load(key),
        await store.changes(key, after=0),
        await store.changes_before(key, 100),
        await store.client(key, "c"),
        await store.record(key, "values", "a"),
        await store.records(key, RecordRange("values")),
        await listed(store),
    ]


async def test_of_a_deleted_thread_nothing_is_left_and_others_keep_everything(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        for key in (ROOM, OTHER):
            await put(store, beginning(key=key), change(1, key=key, client=client_row()), change(2, key=key))
            await put(store, change(3, key=key, snapshot=b"3"), put_records(("a", b"1"), after=3, key=key))
        other = (await everything(store, OTHER))[:-1]
        await put(store, delete(3))
        assert await everything(store) == [None, [], [], None, None, [], [(OTHER, 3)]]
        assert (await everything(store, OTHER))[:-1] == other
        assert await outcomes([submit(store, change(4))]) == [Fenced]
        await put(store, change(4, key=OTHER))


@each_case("write", [delete(0), delete(2), delete(1, epoch="e2")])
async def test_a_deletion_that_does_not_follow_what_is_stored_is_refused(store: Store, write: Write) -> None:
    async with emptied(store):
        await put(store, beginning(), change(1))
        assert await outcomes([submit(store, write)]) == [Fenced]
        assert await versions(store) == (1, [1])


@each_case("is_in_one_breath", [True, False])
async def test_a_deleted_thread_may_begin_again_and_has_nothing_of_the_first(
    store: Store, is_in_one_breath: bool
) -> None:
    first = [beginning(), change(1, client=client_row()), put_records(("a", b"1"), after=1), delete(1)]
    again = [beginning(epoch="e2", snapshot=b"7"), change(1, epoch="e2")]
    async with emptied(store):
        for some in [[*first, *again]] if is_in_one_breath else [[write] for write in (*first, *again)]:
            await put(store, *some)
        assert await everything(store) == [
            StoredThread("e2", 1, b"7", list(again[1].changes), clients=frozenset()),
            list(again[1].changes),
            list(again[1].changes),
            None,
            None,
            [],
            [(ROOM, 1)],
        ]
        assert await outcomes([submit(store, change(2))]) == [Fenced]
        await put(store, change(2, epoch="e2"))


async def test_a_large_thread_is_deleted_at_once_and_others_may_begin_with_its_names(store: Store) -> None:
    keys = [f"{number:03}" for number in range(250)]
    new = [beginning(epoch="e2"), put_records(("000", b"new"), ("zzz", b"new"), epoch="e2")]
    rest = [*everything_of_new(new), [(ROOM, 0), (OTHER, 0)]]
    async with owned(store, ROOM, OTHER):
        for last in (False, True):
            await put(store, beginning(), put_records(*((key, b"x" * 16_384) for key in keys)))
            await put(store, *(change(version, client=client_row()) for version in range(1, 50)))
            await put(store, delete(49))
            assert await everything(store) == [None, [], [], None, None, [], []]
            # What is begun now may be stored where the deleted thread was.
            await put(store, *new, beginning(key=OTHER))
            assert await everything(store) == rest
            await put(store, *(put_records((key, b"y" * 16_384), key=OTHER) for key in keys))
            assert await everything(store) == rest
            assert len(await store.records(OTHER, RecordRange("values"))) == len(keys)
            if not last:
                await put(store, delete(0, epoch="e2"), delete(0, key=OTHER))


def everything_of_new(new: Sequence[Write]) -> list[object]:
    """Return `everything` but the threads, of a thread that begins with writes of a snapshot and records."""
    return [StoredThread("e2", 0, b"0", [], clients=frozenset()), [], [], None, None, list(new[1].records)]


@play_seeds(1)
async def test_threads_that_are_deleted_and_begun_at_random_have_what_was_written_to_them_last(
    store: Store, seed: int
) -> None:
    chance = random.Random(seed)
    keys = [ThreadKey("room", str(number)) for number in range(4)]
    # By thread: its epoch, version and records.
    expected: dict[ThreadKey, tuple[str, int, dict[str, bytes]]] = {}
    async with owned(store, *keys):
        for round in range(40):
            futures = []
            for _ in range(chance.randrange(1, 6)):
                key = chance.choice(keys)
                epoch, version, records = expected.get(key, (f"e{seed}/{round}", -1, {}))
                if version < 0:
                    futures.append(submit(store, beginning(key=key, epoch=epoch)))
                    expected[key] = epoch, 0, {}
                elif chance.random() < 0.3:
                    futures.append(submit(store, delete(version, key=key, epoch=epoch)))
                    del expected[key]
                elif chance.random() < 0.5:
                    futures.append(submit(store, change(version + 1, key=key, epoch=epoch)))
                    expected[key] = epoch, version + 1, records
                else:
                    pair = chance.choice("xyz"), b"%d" % round
                    futures.append(submit(store, put_records(pair, after=version, key=key, epoch=epoch)))
                    expected[key] = epoch, version, records | dict([pair])
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
            assert await outcomes(futures) == [None] * len(futures)
        assert await listed(store) == [(key, expected[key][1]) for key in sorted(expected)]
        for key, (epoch, version, records) in expected.items():
            stored = await store.load(key)
            assert stored is not None
            assert (stored.epoch, len(stored.changes)) == (epoch, version)
            assert {each.key: each.value for each in await store.records(key, RecordRange("values"))} == records
            await put(store, delete(version, key=key, epoch=epoch))
