"""What any store must do. A test module of a store takes these tests over and gives them a `store`, not yet opened."""

import asyncio
from collections.abc import Iterable
from functools import partial

import pytest

from plait.errors import Fenced, StoreError
from plait.store.protocol import ChangeRow, Store, Stored, ThreadKey, ThreadRow, Write

ROOM = ThreadKey("room", "one")
OTHER = ThreadKey("room", "two")
EPOCH = "e1"
PATIENCE = 10.0


def change(
    version: int,
    *,
    key: ThreadKey = ROOM,
    epoch: str = EPOCH,
    after: int | None = -1,
    snapshot: bytes | None = None,
    prune: int | None = None,
    at: int = 1,
) -> Write:
    """Return the write of a change that, unless `after` says otherwise, follows the version before."""
    row = ChangeRow(version, b'[{"op":"replace","path":"","value":%d}]' % version, "server", at)
    return Write(key, epoch, version - 1 if after == -1 else after, version, row, snapshot, prune)


def beginning(*, key: ThreadKey = ROOM, epoch: str = EPOCH, snapshot: bytes = b"0") -> Write:
    """Return the write of an initial state."""
    return Write(key, epoch, None, 0, snapshot=snapshot)


async def outcomes(futures: Iterable[asyncio.Future[None]]) -> list[type[BaseException] | None]:
    """Return the kinds of errors of writes, None for those that are durable."""
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*futures, return_exceptions=True)
    return [None if result is None else type(result) for result in results]


async def put(store: Store, *writes: Write) -> None:
    """Carry out writes that must not fail."""
    assert await outcomes([store.submit(write) for write in writes]) == [None] * len(writes)


async def versions(store: Store, key: ThreadKey = ROOM) -> tuple[int, list[int]]:
    """Return the stored version of a thread, and those of the changes since its snapshot."""
    stored = await store.load(key)
    assert stored is not None
    return stored.version, [row.version for row in stored.changes]


def note(done: list[int], number: int, _: object) -> None:
    """Take note of a write that has its outcome."""
    done.append(number)


# Load


async def test_of_a_thread_that_was_never_written_nothing_is_stored(store: Store) -> None:
    async with store:
        assert await store.load(ROOM) is None
        await put(store, beginning(key=OTHER))
        assert await store.load(ROOM) is None


async def test_load_returns_the_snapshot_and_all_changes_since(store: Store) -> None:
    async with store:
        await put(store, beginning())
        assert await store.load(ROOM) == Stored(EPOCH, 0, b"0", [])
        await put(store, change(1), change(2))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.epoch, stored.version, stored.snapshot) == (EPOCH, 2, b"0")
        assert list(stored.changes) == [change(1).change, change(2).change]


async def test_a_change_that_comes_with_a_snapshot_begins_the_log_anew(store: Store) -> None:
    async with store:
        await put(store, beginning(), change(1), change(2, snapshot=b"2"), change(3))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (3, b"2")
        assert list(stored.changes) == [change(3).change]


async def test_a_thread_may_begin_with_a_change_and_have_no_snapshot(store: Store) -> None:
    async with store:
        await put(store, change(1, after=None))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (1, None)
        assert list(stored.changes) == [change(1).change]


async def test_every_byte_and_number_comes_back_as_it_was(store: Store) -> None:
    odd = ThreadKey("odd-kind", "ключ/🔑 '\"\\%_\x00")
    row = ChangeRow(1, bytes(range(256)) * 100, "connection 🔑", 2**53)
    async with store:
        await put(store, Write(odd, "épo", None, 1, row, b"\x00\xff"), change(2, key=odd, epoch="épo"))
        stored = await store.load(odd)
        assert stored is not None
        assert (stored.epoch, stored.version, stored.snapshot) == ("épo", 2, b"\x00\xff")
        await put(store, Write(OTHER, EPOCH, None, 1, row))
        other = await store.load(OTHER)
        assert other is not None
        assert list(other.changes) == [row]


async def test_threads_of_the_same_name_and_another_kind_are_apart(store: Store) -> None:
    first, second = ThreadKey("a", "b/c"), ThreadKey("a/b", "c")
    async with store:
        await put(store, beginning(key=first, snapshot=b"1"), beginning(key=second, snapshot=b"2"))
        for key, snapshot in ((first, b"1"), (second, b"2")):
            stored = await store.load(key)
            assert stored is not None
            assert stored.snapshot == snapshot


# Submit


async def test_what_is_durable_can_be_loaded(store: Store) -> None:
    async with store:
        await put(store, beginning())
        for version in range(1, 20):
            await put(store, change(version))
            assert (await versions(store))[0] == version


async def test_the_writes_of_a_thread_are_carried_out_in_order(store: Store) -> None:
    async with store:
        done: list[int] = []
        futures = [store.submit(beginning())]
        for version in range(1, 200):
            futures.append(store.submit(change(version)))
            futures[-1].add_done_callback(partial(note, done, version))
            if version % 50 == 0:
                await asyncio.sleep(0)
        assert await outcomes(futures) == [None] * 200
        assert done == list(range(1, 200))
        assert await versions(store) == (199, list(range(1, 200)))


async def test_outcomes_come_in_order_those_of_refused_writes_too(store: Store) -> None:
    async with store:
        done: list[int] = []
        futures = []
        for number, write in enumerate((beginning(), change(1), change(9), change(2), change(7), change(3))):
            futures.append(store.submit(write))
            futures[-1].add_done_callback(partial(note, done, number))
        assert await outcomes(futures) == [None, None, Fenced, None, Fenced, None]
        assert done == [0, 1, 2, 3, 4, 5]


async def test_many_threads_may_write_at_once(store: Store) -> None:
    keys = [ThreadKey("room", str(number)) for number in range(100)]
    async with store:
        futures = [store.submit(beginning(key=key)) for key in keys]
        futures += [store.submit(change(version, key=key)) for version in (1, 2, 3) for key in keys]
        assert await outcomes(futures) == [None] * 400
        assert [await versions(store, key) for key in keys] == [(3, [1, 2, 3])] * 100


# The fence


@pytest.mark.parametrize(
    "write",
    [
        beginning(),
        change(1, after=None),
        change(1),
        change(2),
        change(4),
        change(5, after=4),
        change(3, epoch="e2"),
        change(1, after=None, epoch="e2"),
    ],
    ids=lambda write: f"{write.after}-{write.version}-{write.epoch}",
)
async def test_a_write_that_does_not_follow_what_is_stored_is_refused_and_changes_nothing(
    store: Store, write: Write
) -> None:
    async with store:
        await put(store, beginning(), change(1), change(2))
        before = await store.load(ROOM)
        assert await outcomes([store.submit(write)]) == [Fenced]
        assert await store.load(ROOM) == before
        await put(store, change(3))


@pytest.mark.parametrize("write", [change(1), change(1, after=5), Write(ROOM, EPOCH, 3, 3, snapshot=b"3")])
async def test_a_write_that_leans_on_what_is_not_there_is_refused(store: Store, write: Write) -> None:
    async with store:
        assert await outcomes([store.submit(write)]) == [Fenced]
        assert await store.load(ROOM) is None
        assert await store.threads() == []


async def test_what_leans_on_a_refused_write_is_refused_too_and_what_does_not_is_not(store: Store) -> None:
    async with store:
        await put(store, beginning())
        futures = [store.submit(write) for write in (change(2), change(3), change(1), change(2), change(4))]
        futures.append(store.submit(beginning(key=OTHER)))
        assert await outcomes(futures) == [Fenced, Fenced, None, None, Fenced, None]
        assert await versions(store) == (2, [1, 2])


async def test_a_thread_can_be_written_again_after_a_refusal_in_the_same_breath(store: Store) -> None:
    async with store:
        futures = [store.submit(write) for write in (change(1), beginning(), beginning(), change(1), change(1))]
        assert await outcomes(futures) == [Fenced, None, Fenced, None, Fenced]
        assert await versions(store) == (1, [1])


async def test_the_refused_write_is_named(store: Store) -> None:
    async with store:
        with pytest.raises(Fenced, match="room/one"):
            await store.submit(change(7))


async def test_a_caller_that_went_away_changes_nothing_for_the_others(store: Store) -> None:
    async with store:
        futures = [store.submit(write) for write in (beginning(), change(1), change(5), change(2))]
        futures[1].cancel()
        futures[2].cancel()
        futures.append(store.submit(change(3)))
        assert await outcomes(futures) == [None, asyncio.CancelledError, asyncio.CancelledError, None, None]
        assert await versions(store) == (3, [1, 2, 3])


# The log


async def test_a_pruned_log_still_loads(store: Store) -> None:
    async with store:
        await put(store, beginning(), *(change(version) for version in range(1, 10)))
        await put(store, change(10, snapshot=b"10", prune=7), change(11))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (11, b"10")
        assert list(stored.changes) == [change(11).change]


async def test_a_snapshot_may_come_without_a_change(store: Store) -> None:
    async with store:
        await put(store, beginning(), change(1), Write(ROOM, EPOCH, 1, 1, snapshot=b"1"))
        assert await store.load(ROOM) == Stored(EPOCH, 1, b"1", [])
        await put(store, change(2))
        assert await versions(store) == (2, [2])


# Listing


async def test_threads_are_listed_in_order_of_kind_and_name_with_their_versions(store: Store) -> None:
    keys = [ThreadKey("b", "x"), ThreadKey("a", "z"), ThreadKey("a-b", "a"), ThreadKey("a", "ä"), ThreadKey("a", "Z")]
    async with store:
        assert await store.threads() == []
        for version, key in enumerate(keys):
            await put(store, beginning(key=key), *(change(each, key=key) for each in range(1, version + 1)))
        assert await store.threads() == [ThreadRow(key, keys.index(key)) for key in sorted(keys)]


async def test_a_listing_can_be_read_a_page_at_a_time(store: Store) -> None:
    keys = sorted(ThreadKey(kind, str(number)) for kind in ("a", "b") for number in range(7))
    async with store:
        await put(store, *(beginning(key=key) for key in keys))
        found: list[ThreadKey] = []
        after: ThreadKey | None = None
        while page := await store.threads(after=after, limit=3):
            assert len(page) <= 3
            found += [row.key for row in page]
            after = page[-1].key
        assert found == keys
        assert [row.key for row in await store.threads(after=ThreadKey("a", "65"))] == [
            key for key in keys if key > ("a", "65")
        ]


async def test_a_thread_that_was_written_again_is_listed_once(store: Store) -> None:
    async with store:
        await put(store, beginning(), change(1), change(2, snapshot=b"2", prune=1))
        assert await store.threads() == [ThreadRow(ROOM, 2)]


# Open and closed


async def test_leaving_a_store_carries_out_what_is_pending(store: Store) -> None:
    async with store:
        futures = [store.submit(write) for write in (beginning(), *(change(version) for version in range(1, 50)))]
    assert await outcomes(futures) == [None] * 50


async def test_a_write_to_a_closed_store_is_refused(store: Store) -> None:
    async with store:
        await put(store, beginning())
    with pytest.raises(StoreError, match="closed"):
        await store.submit(change(1))


async def test_a_write_that_comes_while_the_store_closes_is_carried_out_or_refused(store: Store) -> None:
    await store.__aenter__()
    futures = [store.submit(beginning())]
    closing = asyncio.create_task(store.__aexit__(None, None, None))
    for version in range(1, 200):
        futures.append(store.submit(change(version)))
        await asyncio.sleep(0)
    await closing
    results = await outcomes(futures)
    accepted = results.index(StoreError) if StoreError in results else len(results)
    assert results == [None] * accepted + [StoreError] * (len(results) - accepted)
