"""What any store must do. A test module of a store takes these tests over and gives them a `store`, not yet opened."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.owning import own, owned, submit

from plait.errors import Fenced, StoreError
from plait.state.state_history import replay_json
from plait.store.outcomes import Unreachable
from plait.store.protocol import Store, StoredThread, ThreadQuery, ThreadRow, Write
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Prune, Snapshot, ThreadKey

ROOM = ThreadKey("room", "one")
OTHER = ThreadKey("room", "two")
EPOCH = "e1"
# Seconds in which servers on a busy machine can choose a leader.
PATIENCE = 120.0


def change(
    version: int,
    *,
    key: ThreadKey = ROOM,
    epoch: str = EPOCH,
    after: int | None = -1,
    snapshot: bytes | None = None,
    prune: Prune | int | None = None,
    at: int = 1,
    client: ClientRow | None = None,
    state_version: int | None = None,
) -> Write:
    """Return the write of a change that, unless `after` says otherwise, follows the version before."""
    row = ChangeRow(version, b'[{"op":"replace","path":"","value":%d}]' % version, "server", at)
    pruning = Prune(prune) if isinstance(prune, int) else prune
    return Write(
        key,
        epoch,
        version - 1 if after == -1 else after,
        version,
        (row,),
        () if snapshot is None else (Snapshot(version, snapshot),),
        pruning,
        () if client is None else (client,),
        state_version,
    )


def beginning(*, key: ThreadKey = ROOM, epoch: str = EPOCH, snapshot: bytes = b"0") -> Write:
    """Return the write of an initial state."""
    return Write(key, epoch, None, 0, snapshots=(Snapshot(0, snapshot),))


async def outcomes(futures: Iterable[asyncio.Future[int]]) -> list[type[BaseException] | None]:
    """Return the kinds of errors of writes, None for those that are durable."""
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*futures, return_exceptions=True)
    return [type(result) if isinstance(result, BaseException) else None for result in results]


async def put(store: Store, *writes: Write) -> None:
    """Carry out writes that must not fail."""
    await own(store, *(write.key for write in writes))
    assert await outcomes([submit(store, write) for write in writes]) == [None] * len(writes)


@asynccontextmanager
async def emptied(store: Store) -> AsyncIterator[None]:
    """Open a store for one of several cases, and leave it without threads."""
    async with owned(store, ROOM, OTHER):
        try:
            yield
        finally:
            for key in (ROOM, OTHER):
                if (stored := await store.load(key)) is not None:
                    await put(store, Write(key, stored.epoch, stored.version, stored.version, is_deletion=True))


def row_of(key: ThreadKey, at: int = 0) -> ThreadRow:
    """Return a row of a listing, after which another page may begin."""
    return ThreadRow(key, 0, at, at)


async def listed(store: Store) -> list[tuple[ThreadKey, int]]:
    """Return the keys and versions of all threads."""
    return [(row.key, row.version) for row in await store.threads()]


async def versions(store: Store, key: ThreadKey = ROOM) -> tuple[int, list[int]]:
    """Return the stored version of a thread, and those of the changes since its snapshot."""
    stored = await store.load(key)
    assert stored is not None
    return stored.version, [row.version for row in stored.changes]


def note(done: list[int], number: int, _: object) -> None:
    """Record that a write has its outcome."""
    done.append(number)


# Load


async def test_of_a_thread_that_was_never_written_nothing_is_stored(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.load(ROOM) is None
        await put(store, beginning(key=OTHER))
        assert await store.load(ROOM) is None


async def test_load_returns_the_snapshot_and_all_changes_since(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        assert await store.load(ROOM) == StoredThread(EPOCH, 0, b"0", [], clients=frozenset())
        await put(store, change(1), change(2))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.epoch, stored.version, stored.snapshot) == (EPOCH, 2, b"0")
        assert list(stored.changes) == [*change(1).changes, *change(2).changes]


async def test_a_change_that_comes_with_a_snapshot_begins_the_log_anew(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1), change(2, snapshot=b"2"), change(3))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (3, b"2")
        assert list(stored.changes) == list(change(3).changes)


async def test_a_thread_may_begin_with_a_change_and_have_no_snapshot(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, change(1, after=None))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (1, None)
        assert list(stored.changes) == list(change(1).changes)


async def test_every_byte_and_number_comes_back_as_it_was(store: Store) -> None:
    odd = ThreadKey("odd-kind", "ключ/🔑 '\"\\%_\x00")
    row = ChangeRow(1, bytes(range(256)) * 100, "connection 🔑", 2**53)
    async with owned(store, ROOM, OTHER):
        await put(
            store, Write(odd, "épo", None, 1, (row,), (Snapshot(1, b"\x00\xff"),)), change(2, key=odd, epoch="épo")
        )
        stored = await store.load(odd)
        assert stored is not None
        assert (stored.epoch, stored.version, stored.snapshot) == ("épo", 2, b"\x00\xff")
        await put(store, Write(OTHER, EPOCH, None, 1, (row,)))
        other = await store.load(OTHER)
        assert other is not None
        assert list(other.changes) == [row]


async def test_threads_of_the_same_name_and_another_kind_are_apart(store: Store) -> None:
    first, second = ThreadKey("a", "b/c"), ThreadKey("a/b", "c")
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(key=first, snapshot=b"1"), beginning(key=second, snapshot=b"2"))
        for key, snapshot in ((first, b"1"), (second, b"2")):
            stored = await store.load(key)
            assert stored is not None
            assert stored.snapshot == snapshot


# Submit


async def test_what_is_durable_can_be_loaded(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        for version in range(1, 20):
            await put(store, change(version))
            assert (await versions(store))[0] == version


async def test_the_writes_of_a_thread_are_carried_out_in_order(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        done: list[int] = []
        futures = [submit(store, beginning())]
        for version in range(1, 200):
            futures.append(submit(store, change(version)))
            futures[-1].add_done_callback(partial(note, done, version))
            if version % 50 == 0:
                await asyncio.sleep(0)
        assert await outcomes(futures) == [None] * 200
        assert done == list(range(1, 200))
        assert await versions(store) == (199, list(range(1, 200)))


async def test_outcomes_come_in_order_those_of_refused_writes_too(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        done: list[int] = []
        futures = []
        for number, write in enumerate((beginning(), change(1), change(9), change(2))):
            futures.append(submit(store, write))
            futures[-1].add_done_callback(partial(note, done, number))
            await asyncio.sleep(0)
        assert await outcomes(futures) == [None, None, Fenced, Fenced]
        await asyncio.sleep(0)  # From Python 3.12 on, `gather` waits for no iteration of the loop, as callbacks do.
        assert done == [0, 1, 2, 3]


async def test_many_threads_may_write_at_once(store: Store) -> None:
    keys = [ThreadKey("room", str(number)) for number in range(100)]
    async with owned(store, ROOM, OTHER):
        await own(store, *keys)
        futures = [submit(store, beginning(key=key)) for key in keys]
        futures += [submit(store, change(version, key=key)) for version in (1, 2, 3) for key in keys]
        assert await outcomes(futures) == [None] * 400
        assert [await versions(store, key) for key in keys] == [(3, [1, 2, 3])] * 100


async def test_a_write_tells_how_many_became_durable_with_it(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        futures = [submit(store, write) for write in (beginning(), change(1), beginning(key=OTHER))]
        first, second, other = await asyncio.gather(*futures)
        # Those of another thread may be stored at the same time.
        assert (first, second, other) in ((3, 3, 3), (2, 2, 1))
        futures = [submit(store, write) for write in (change(2), change(5, key=OTHER))]
        assert await outcomes(futures) == [None, Fenced]
        assert futures[0].result() == 1


# The fence


@each_case(
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
)
async def test_a_write_that_does_not_follow_what_is_stored_is_refused_and_changes_nothing(
    store: Store, write: Write
) -> None:
    async with emptied(store):
        await put(store, beginning(), change(1), change(2))
        before = await store.load(ROOM)
        assert await outcomes([submit(store, write)]) == [Fenced]
        assert await store.load(ROOM) == before
        await put(store, change(3))


@each_case("write", [change(4, after=2), change(9, after=2), change(2, after=2), change(4, after=2, snapshot=b"4")])
@each_case("is_alone", [True, False])
async def test_a_change_that_is_not_the_next_one_is_refused_and_changes_nothing(
    store: Store, write: Write, is_alone: bool
) -> None:
    async with emptied(store):
        await put(store, beginning(), change(1), change(2))
        before = await store.load(ROOM)
        futures = [submit(store, write)]
        if not is_alone:
            futures.append(submit(store, beginning(key=OTHER)))
        assert await outcomes(futures) == [StoreError, None][: len(futures)]
        assert await store.load(ROOM) == before
        await put(store, change(3))


async def test_a_thread_does_not_begin_with_a_later_change(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await outcomes([submit(store, change(2, after=None))]) == [StoreError]
        assert await store.load(ROOM) is None
        assert await store.threads() == []


@each_case("write", [change(1), change(1, after=5), Write(ROOM, EPOCH, 3, 3, snapshots=(Snapshot(3, b"3"),))])
async def test_a_write_that_leans_on_what_is_not_there_is_refused(store: Store, write: Write) -> None:
    async with emptied(store):
        assert await outcomes([submit(store, write)]) == [Fenced]
        assert await store.load(ROOM) is None
        assert await store.threads() == []


async def test_what_was_submitted_before_a_write_was_refused_is_refused_too_and_other_threads_are_not(
    store: Store,
) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        futures = [submit(store, change(2))]
        await asyncio.sleep(0)
        futures += [submit(store, write) for write in (change(1), beginning(key=OTHER))]
        assert await outcomes(futures) == [Fenced, Fenced, None]
        assert await versions(store) == (0, [])


async def test_a_thread_can_be_written_again_as_soon_as_a_refusal_is_known(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        for write in (change(1), beginning(), beginning(), change(1), change(1), change(2)):
            with suppress(Fenced):
                await submit(store, write)
        assert await versions(store) == (2, [1, 2])


async def test_the_refused_write_is_named(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        with pytest.raises(Fenced, match="room/one"):
            await submit(store, change(7))


async def test_a_caller_that_went_away_changes_nothing_for_the_others(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        futures = [submit(store, write) for write in (beginning(), change(1), change(2))]
        futures[1].cancel()
        await asyncio.sleep(0)
        assert await outcomes(futures) == [None, asyncio.CancelledError, None]
        futures = [submit(store, write) for write in (change(3), change(5))]
        futures[1].cancel()
        assert await outcomes(futures) == [Fenced, asyncio.CancelledError]
        await put(store, change(3))
        assert await versions(store) == (3, [1, 2, 3])


async def test_only_a_shared_store_asks_whether_this_process_may_write(store: Store) -> None:
    async with owned(store, ROOM):
        store.watch_claims(lambda: None, lambda: False)
        (error,) = await outcomes([submit(store, beginning())])
        assert error is (Unreachable if store.is_shared else None)


# The log


async def test_a_pruned_log_still_loads(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), *(change(version) for version in range(1, 10)))
        await put(store, change(10, snapshot=b"10", prune=7), change(11))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (11, b"10")
        assert list(stored.changes) == list(change(11).changes)


async def test_a_log_may_have_more_versions_than_32_bits_count(store: Store) -> None:
    first = 2**33
    begin = Write(ROOM, EPOCH, None, first, snapshots=(Snapshot(first, b"1"),), begins_at=first)
    for bounds in (Prune(first + 2), Prune(first + 2, at=2, bytes=10)):
        async with owned(store, ROOM, OTHER):
            await put(store, begin, change(first + 1))
            await put(store, change(first + 2, snapshot=b"2", prune=bounds), change(first + 3))
            assert await versions(store) == (first + 3, [first + 3])
            assert [row.version for row in await store.changes(ROOM, after=first + 1)] == [first + 3]
            await put(store, Write(ROOM, EPOCH, first + 3, first + 3, is_deletion=True))


async def test_a_snapshot_may_come_without_a_change(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1), Write(ROOM, EPOCH, 1, 1, snapshots=(Snapshot(1, b"1"),)))
        assert await store.load(ROOM) == StoredThread(EPOCH, 1, b"1", [], clients=frozenset())
        await put(store, change(2))
        assert await versions(store) == (2, [2])


async def test_changes_after_a_version_are_read_in_order_and_a_page_at_a_time(store: Store) -> None:
    writes = [change(version, snapshot=b"%d" % version if version % 4 == 0 else None) for version in range(1, 12)]
    async with owned(store, ROOM, OTHER):
        assert await store.changes(ROOM, after=0) == []
        await put(store, beginning(), beginning(key=OTHER), *writes, change(1, key=OTHER))
        assert await store.changes(ROOM, after=0) == [row for write in writes for row in write.changes]
        assert [row.version for row in await store.changes(ROOM, after=7)] == [8, 9, 10, 11]
        assert [row.version for row in await store.changes(ROOM, after=7, limit=2)] == [8, 9]
        assert await store.changes(ROOM, after=11) == []
        assert [row.version for row in await store.changes(OTHER, after=0)] == [1]
        found: list[ChangeRow] = []
        while page := await store.changes(ROOM, after=len(found), limit=4):
            found += page
        assert found == [row for write in writes for row in write.changes]


async def test_changes_before_a_version_are_read_the_last_one_first_and_a_page_at_a_time(store: Store) -> None:
    writes = [change(version, snapshot=b"%d" % version if version % 4 == 0 else None) for version in range(1, 12)]
    rows = [row for write in reversed(writes) for row in write.changes]
    async with owned(store, ROOM, OTHER):
        assert await store.changes_before(ROOM, 5) == []
        await put(store, beginning(), beginning(key=OTHER), *writes, change(1, key=OTHER))
        for version in (12, 13, 10**6):
            assert await store.changes_before(ROOM, version) == rows
        assert await store.changes_before(ROOM, 5) == rows[-4:]
        assert await store.changes_before(ROOM, 5, limit=2) == rows[-4:-2]
        assert await store.changes_before(ROOM, 1) == []
        assert [row.version for row in await store.changes_before(OTHER, 9)] == [1]
        await put(store, change(12, snapshot=b"12", prune=9))
        assert [row.version for row in await store.changes_before(ROOM, 12)] == [11, 10, 9]
        assert await store.changes_before(ROOM, 9) == []


async def test_a_page_of_changes_ends_with_the_one_that_fills_it(store: Store) -> None:
    writes = log(12, every=100, ops=100)
    rows = [row for write in writes for row in write.changes]
    async with owned(store, ROOM, OTHER):
        await put(store, *writes)
        for size, count in ((0, 1), (1, 1), (100, 1), (101, 2), (399, 4), (400, 4), (401, 5), (10**9, 9)):
            assert await store.changes(ROOM, after=3, size=size) == rows[3 : 3 + count]
            assert await store.changes_before(ROOM, 10, size=size) == rows[:9][::-1][:count]
        assert await store.changes(ROOM, after=3, limit=2, size=401) == rows[3:5]


async def test_what_was_forgotten_of_the_log_is_missing_from_its_front(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1), change(2, snapshot=b"2"), change(3), change(4, snapshot=b"4", prune=3))
        assert [row.version for row in await store.changes(ROOM, after=0)] == [3, 4]
        assert [row.version for row in await store.changes(ROOM, after=0, limit=1)] == [3]


# Earlier versions


async def states(store: Store, to: int, key: ThreadKey = ROOM) -> dict[int, bytes]:
    """Return the state at each version up to `to` that is kept."""
    found = {}
    for version in range(-1, to + 3):
        stored = await store.load(key, version=version)
        if stored is not None:
            assert stored.version == version
            found[version] = replay_json(key, stored)
    return found


def told(versions: Iterable[int]) -> dict[int, bytes]:
    """Return what `change` and `beginning` make the states at some versions."""
    return {version: b"%d" % version for version in versions}


def log(to: int, *, every: int, ops: int = 1, at: int = 1) -> list[Write]:
    """Return the writes of a thread with a snapshot every few changes."""
    writes = [beginning()]
    for version in range(1, to + 1):
        snapshot = b"%d" % version if version % every == 0 else None
        write = change(version, snapshot=snapshot, at=at * version)
        (row,) = write.changes
        row = ChangeRow(version, row.ops + b" " * (ops - len(row.ops)), "server", at * version)
        writes.append(msgspec.structs.replace(write, changes=(row,)))
    return writes


async def test_every_version_that_is_kept_can_be_loaded_and_no_other(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.load(ROOM, version=0) is None
        await put(store, *log(10, every=4))
        assert await states(store, 10) == told(range(11))
        stored = await store.load(ROOM, version=6)
        assert stored is not None
        assert (stored.epoch, stored.snapshot, [row.version for row in stored.changes]) == (EPOCH, b"4", [5, 6])
        assert await store.load(ROOM, version=8) == StoredThread(EPOCH, 8, b"8", [])
        assert await store.load(ROOM, version=11) is None
        assert await store.load(ROOM, version=-1) is None


async def test_a_thread_that_began_with_a_change_has_nothing_before_it(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, change(1, after=None, snapshot=b"1"), change(2), change(3, snapshot=b"3"))
        assert await states(store, 3) == told([1, 2, 3])


# What is kept after a prune of 20 changes with a snapshot every 5, of 100 bytes and 10 microseconds each.
PRUNES = {
    "nothing": (Prune(), 0),
    "by count": (Prune(12), 10),
    "by count, up to a snapshot": (Prune(15), 15),
    "by age": (Prune(at=120), 10),
    "by age, none": (Prune(at=5), 0),
    "by age, all but the last snapshot": (Prune(at=10**6), 20),
    "by bytes": (Prune(bytes=1_000), 10),
    "by bytes, barely": (Prune(bytes=1_599), 5),
    "by bytes, all": (Prune(bytes=1), 20),
    "by bytes, none": (Prune(bytes=10**6), 0),
    "by whichever forgets most": (Prune(6, at=170, bytes=1_999), 15),
}


@each_case(("prune", "oldest"), PRUNES.values())
async def test_pruning_keeps_every_version_from_the_newest_snapshot_past_a_bound_on(
    store: Store, prune: Prune, oldest: int
) -> None:
    async with emptied(store):
        writes = log(20, every=5, ops=100, at=10)
        writes[-1] = msgspec.structs.replace(writes[-1], prune=prune)
        await put(store, beginning(key=OTHER), change(1, key=OTHER), *writes)
        assert await states(store, 20) == told(range(oldest, 21))
        assert [row.version for row in await store.changes(ROOM, after=0)] == list(range(oldest + 1, 21))
        assert await versions(store) == (20, [])
        await put(store, change(21))
        assert await states(store, 21) == told(range(oldest, 22))
        assert await states(store, 1, OTHER) == told([0, 1])


# When changes were made by a clock that was wrong for a while, in minutes from now, and what may be forgotten of those
# older than an hour.
CLOCKS = {
    "right": ([-90, -80, -70, -50, 0], 3),
    "behind, once": ([-50, -40, -9_000, -30, 0], 0),
    "behind, then right": ([-90, -9_000, -9_001, -50, 0], 3),
    "ahead, long ago": ([-90, 9_000, 9_001, -70, -50, 0], 4),
    "ahead, just so": ([-50, 9_000, -40, 0], 0),
    "set back, and all was before": ([9_000, 9_001, 9_002, 0], 0),
    "set back, a while ago": ([9_000, 9_001, -70, -50, 0], 3),
    "ahead, all of the time": ([8_990, 9_000], 0),
}


@each_case(("minutes", "oldest"), CLOCKS.values())
async def test_a_clock_that_was_wrong_neither_forgets_what_is_young_nor_keeps_what_is_old(
    store: Store, minutes: list[int], oldest: int
) -> None:
    now = time.time_ns() // 1000
    async with emptied(store):
        await put(store, beginning())
        for version, minute in enumerate(minutes, 1):
            prune = Prune(at=now - 3600 * 1_000_000) if version == len(minutes) else None
            await put(store, change(version, snapshot=b"%d" % version, prune=prune, at=now + minute * 60 * 1_000_000))
        assert await states(store, len(minutes)) == told(range(oldest, len(minutes) + 1))


@play_seeds(2)
async def test_whatever_is_written_and_pruned_the_versions_that_are_kept_have_no_gap(store: Store, seed: int) -> None:
    chance, key = random.Random(seed), ThreadKey("room", str(seed))
    async with owned(store, key):
        await put(store, beginning(key=key))
        oldest, snapshots = 0, {0}
        for version in range(1, 60):
            prune = None
            snapshot = b"%d" % version if chance.random() < 0.2 else None
            if snapshot is not None:
                snapshots.add(version)
            if chance.random() < 0.2:
                prune = Prune(chance.randrange(version + 1), at=chance.choice([0, chance.randrange(version + 1)]))
                bound = max(prune.version, prune.at - 1)
                oldest = max(oldest, *(each for each in snapshots if each <= bound)) if bound > 0 else oldest
            await put(store, change(version, key=key, snapshot=snapshot, prune=prune, at=version))
            assert (await versions(store, key))[0] == version
        assert await states(store, 60, key) == told(range(oldest, 60))


# Secrets


async def test_the_secret_of_a_thread_is_that_of_its_first_write(store: Store) -> None:
    first = msgspec.structs.replace(beginning(), secret=b"\x00\xff")
    other = msgspec.structs.replace(change(1, key=OTHER, after=None), secret=b"other")
    async with owned(store, ROOM, OTHER):
        await put(store, first, change(1), other, change(2, snapshot=b"2"))
        for version in (None, 0, 1, 2):
            stored = await store.load(ROOM, version=version)
            assert stored is not None
            assert stored.secret == b"\x00\xff"
        stored = await store.load(OTHER)
        assert stored is not None
        assert stored.secret == b"other"


# Clients


def client_row(client: str = "c", ref: int = 1, *, refused: bytes = b"[]", age: float = 0) -> ClientRow:
    """Return what is kept of a client whose last push was `age` seconds ago."""
    return ClientRow(client, ref, refused, time.time_ns() // 1000 - int(age * 1e6))


DAY = 24 * 3600


async def test_a_client_is_stored_with_its_change_and_replaced_by_the_next(store: Store) -> None:
    first, second = client_row(ref=1, refused=b'[[1,"a"]]'), client_row(ref=2, refused=b"\x00\xff")
    other = client_row("ключ 🔑", 2**53)
    async with owned(store, ROOM, OTHER):
        assert await store.client(ROOM, "c") is None
        await put(store, beginning(), beginning(key=OTHER))
        assert await store.client(ROOM, "c") is None
        await put(store, change(1, client=first))
        assert await store.client(ROOM, "c") == first
        assert await store.client(OTHER, "c") is None
        await put(store, change(2, client=other), change(3, client=second), change(4))
        assert await store.client(ROOM, "c") == second
        assert await store.client(ROOM, other.client) == other


async def test_a_thread_is_loaded_with_the_ids_of_its_clients_if_they_are_not_too_many(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1, client=client_row("ключ")), change(2, client=client_row("b")))
        loaded = await store.load(ROOM)
        assert loaded is not None
        assert loaded.clients == {"ключ", "b"}
        more = [change(version, client=client_row(str(version))) for version in range(3, KNOWN_CLIENTS + 2)]
        await put(store, *more[:-1])
        loaded = await store.load(ROOM)
        assert loaded is not None
        assert loaded.clients is not None
        assert len(loaded.clients) == KNOWN_CLIENTS
        await put(store, more[-1])
        loaded = await store.load(ROOM)
        assert loaded is not None
        assert loaded.clients is None


async def test_of_several_changes_of_a_client_in_one_breath_the_last_one_counts(store: Store) -> None:
    rows = [client_row(ref=ref) for ref in range(1, 20)]
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), *(change(row.ref, client=row) for row in rows))
        assert await store.client(ROOM, "c") == rows[-1]


async def test_a_client_of_a_write_that_was_refused_is_not_stored(store: Store) -> None:
    first, second = client_row(ref=1), client_row(ref=2)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1, client=first))
        assert await outcomes([submit(store, change(1, client=second))]) == [Fenced]
        assert await outcomes([submit(store, change(3, after=1, client=second))]) == [StoreError]
        assert await outcomes([submit(store, change(1, key=OTHER, client=second))]) == [Fenced]
        assert await store.client(ROOM, "c") == first
        assert await store.client(OTHER, "c") is None


async def kept(store: Store, ages: Sequence[float]) -> list[float]:
    """Return those of some clients, whose last pushes were so many days ago, that a snapshot leaves."""
    rows = {age: client_row(str(age), age=age * DAY) for age in ages}
    await put(store, beginning(), *(change(version, client=row) for version, row in enumerate(rows.values(), 1)))
    await put(store, change(len(rows) + 1, snapshot=b"", prune=Prune()))
    found = {age: await store.client(ROOM, row.client) for age, row in rows.items()}
    assert all(row in (None, rows[age]) for age, row in found.items())
    return [age for age, row in found.items() if row is not None]


async def test_a_client_is_kept_for_30_days_after_its_last_push(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        row = client_row("31", age=31 * DAY)
        await put(store, beginning(key=OTHER), change(1, key=OTHER, client=row))
        assert await kept(store, [400, *range(35), 0.1]) == [*range(30), 0.1]
        assert await store.client(OTHER, "31") == row


JUMPS: dict[str, list[float]] = {
    "nobody has pushed since": [40, 41, 70],
    "one has pushed since": [0, 40, 41, 70],
    "many have pushed on two days since": [*(day + n / 1000 for day in range(2) for n in range(50)), 70],
    "it was ahead before": [*range(-100, 0), 0, 40, 41, 70],
    "others have pushed on 29 days": [0, *range(40, 68), 75],
}


@each_case("ages", JUMPS.values())
async def test_a_clock_that_jumps_ahead_forgets_no_client(store: Store, ages: list[float]) -> None:
    async with emptied(store):
        assert await kept(store, ages) == ages


# The version of the state's type


async def test_the_version_of_the_states_type_is_1_until_another_is_written(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1, key=OTHER, after=None, state_version=7))
        assert await state_version(store) == 1
        assert await state_version(store, OTHER) == 7
        await put(store, change(1), change(2, state_version=3, snapshot=b"2"))
        assert await state_version(store) == 3
        await put(store, change(3), change(4, snapshot=b"4", prune=3), change(5))
        assert await state_version(store) == 3
        assert await state_version(store, OTHER) == 7
        assert await outcomes([submit(store, change(9, state_version=4))]) == [Fenced]
        assert await state_version(store) == 3


async def test_a_beginning_and_a_lone_change_carry_the_version_of_the_states_type(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, msgspec.structs.replace(beginning(), state_version=2))
        assert await state_version(store) == 2
        await put(store, change(1))
        await put(store, change(2, state_version=5))
        assert await state_version(store) == 5


async def state_version(store: Store, key: ThreadKey = ROOM) -> int:
    stored = await store.load(key)
    assert stored is not None
    return stored.state_version


# Schemas of states


async def test_a_schema_is_kept_by_its_kind_and_hash_and_stays_the_first(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.schema("room", "h1") is None
        await store.add_schema("room", "h1", b"{}")
        await store.add_schema("room", "h2", b'{"a":1}')
        await store.add_schema("room", "h1", b"{}")
        assert [await store.schema("room", hash) for hash in ("h1", "h2", "h3")] == [b"{}", b'{"a":1}', None]
        assert await store.schema("other", "h1") is None
        assert await store.threads() == []


# Listing


async def test_threads_are_listed_in_order_of_kind_and_name_with_their_versions(store: Store) -> None:
    keys = [ThreadKey("b", "x"), ThreadKey("a", "z"), ThreadKey("a-b", "a"), ThreadKey("a", "ä"), ThreadKey("a", "Z")]
    async with owned(store, ROOM, OTHER):
        assert await store.threads() == []
        for version, key in enumerate(keys):
            await put(store, beginning(key=key), *(change(each, key=key) for each in range(1, version + 1)))
        assert await listed(store) == [(key, keys.index(key)) for key in sorted(keys)]


async def test_a_listing_can_be_read_a_page_at_a_time(store: Store) -> None:
    keys = sorted(ThreadKey(kind, str(number)) for kind in ("a", "b") for number in range(7))
    async with owned(store, ROOM, OTHER):
        await put(store, *(beginning(key=key) for key in keys))
        found: list[ThreadKey] = []
        after: ThreadRow | None = None
        while page := await store.threads(ThreadQuery(after=after, limit=3)):
            assert len(page) <= 3
            found += [row.key for row in page]
            after = page[-1]
        assert found == keys
        assert [row.key for row in await store.threads(ThreadQuery(after=row_of(ThreadKey("a", "65"))))] == [
            key for key in keys if key > ("a", "65")
        ]


async def test_a_thread_that_was_written_again_is_listed_once(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1), change(2, snapshot=b"2", prune=1))
        assert await listed(store) == [(ROOM, 2)]


# Open and closed


async def test_leaving_a_store_carries_out_what_is_pending(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        futures = [submit(store, write) for write in (beginning(), *(change(version) for version in range(1, 50)))]
    assert await outcomes(futures) == [None] * 50


async def test_a_write_to_a_closed_store_is_refused(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
    with pytest.raises(StoreError, match="closed"):
        await submit(store, change(1))


async def test_an_open_store_can_be_written_and_a_closed_one_cannot(store: Store) -> None:
    with pytest.raises(StoreError, match="closed"):
        await store.check_writes()
    async with owned(store, ROOM, OTHER):
        await store.check_writes()
        await put(store, beginning())
        assert await outcomes([submit(store, change(7))]) == [Fenced]
        await store.check_writes()
    with pytest.raises(StoreError, match="closed"):
        await store.check_writes()


async def test_a_store_that_has_begun_to_close_takes_no_more_writes(store: Store) -> None:
    await store.__aenter__()
    await own(store, ROOM)
    first = submit(store, beginning())
    closing = asyncio.create_task(store.__aexit__(None, None, None))
    await asyncio.sleep(0)
    late = submit(store, change(1))
    await closing
    assert await outcomes([first]) == [None]
    with pytest.raises(StoreError, match="closed"):
        await late
    async with owned(store, ROOM, OTHER):
        assert await versions(store) == (0, [])


async def test_a_write_that_comes_while_the_store_closes_is_carried_out_or_refused(store: Store) -> None:
    await store.__aenter__()
    await own(store, ROOM)
    futures = [submit(store, beginning())]
    closing = asyncio.create_task(store.__aexit__(None, None, None))
    for version in range(1, 200):
        futures.append(submit(store, change(version)))
        await asyncio.sleep(0)
    await closing
    results = await outcomes(futures)
    accepted = results.index(StoreError) if StoreError in results else len(results)
    assert results == [None] * accepted + [StoreError] * (len(results) - accepted)


async def test_a_store_that_is_open_is_not_opened_again_and_goes_on(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        with pytest.raises(StoreError, match="already open"):
            await store.__aenter__()
        await put(store, change(1))
        assert await versions(store) == (1, [1])
    async with owned(store, ROOM, OTHER):
        assert await versions(store) == (1, [1])


async def test_of_two_who_open_a_store_at_once_one_has_it(store: Store) -> None:
    results = await asyncio.gather(*(store.__aenter__() for _ in range(2)), return_exceptions=True)
    assert sorted(isinstance(each, StoreError) for each in results) == [False, True]
    await put(store, beginning())
    await store.__aexit__(None, None, None)
