"""What any store must do to list and find threads, and to remember since when they are idle."""

import msgspec
import pytest
from tests.server.owning import owned, submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, row_of
from tests.server.store.contract_records import delete, put_records

from plait.store.protocol import IdleThread, Store, ThreadHeader, ThreadKey, Write

EPOCH = beginning().epoch


def idle(since: int, *, version: int = 0, key: ThreadKey = ROOM, epoch: str = EPOCH) -> Write:
    """Return the write that says since when a thread is idle, or with 0 that it is awake."""
    return Write(key, epoch, version, version, idle_since=since)


async def since(store: Store, key: ThreadKey = ROOM) -> int | None:
    found = await store.find(key)
    assert found is not None
    return found.idle_since


# Finding and listing


async def test_a_thread_is_found_without_its_data(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.find(ROOM) is None
        await put(store, beginning(), change(1), change(2))
        assert await store.find(ROOM) == ThreadHeader(EPOCH, 2)
        await put(store, Write(OTHER, "e2", None, 0, secret=b"s"))
        assert await store.find(OTHER) == ThreadHeader("e2", 0)
        await put(store, delete(2, epoch=EPOCH))
        assert await store.find(ROOM) is None


async def test_a_thread_may_begin_with_nothing_but_its_name(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, Write(ROOM, EPOCH, None, 0, secret=b"s"))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.has_state, stored.secret) == (0, False, b"s")
        await put(store, change(1))
        again = await store.load(ROOM)
        assert again is not None
        assert again.has_state


async def test_threads_are_listed_by_kind_and_prefix(store: Store) -> None:
    keys = [
        ThreadKey(kind, name)
        for kind in ("a", "b", "bb")
        for name in ("x", "x%", "x1", "x\U0010ffff", "x\U0010ffff1", "xy", "X1", "y", "é1")
    ]
    async with owned(store, ROOM, OTHER):
        await put(store, *(beginning(key=key) for key in keys))
        for kind in (None, "a", "b", "bb", "c"):
            for prefix in ("", "x", "x%", "x\U0010ffff", "y", "é", "z"):
                wanted = sorted(key for key in keys if kind in (None, key.kind) and key.name.startswith(prefix))
                found = await store.threads(kind=kind, prefix=prefix)
                assert [each.key for each in found] == wanted
                for after in (ThreadKey("a", "xy"), ThreadKey("b", "x1"), ThreadKey("bb", ""), ThreadKey("c", "")):
                    found = await store.threads(kind=kind, prefix=prefix, after=row_of(after), limit=2)
                    assert [each.key for each in found] == [key for key in wanted if key > after][:2]


# Idle threads


async def test_a_thread_is_idle_from_when_a_write_says_so_until_one_says_that_it_is_awake(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        assert await since(store) is None
        await put(store, idle(5))
        assert await since(store) == 5
        await put(store, change(1), put_records(("a", b"1"), after=1, epoch=EPOCH))
        assert await since(store) == 5
        await put(store, idle(0, version=1))
        assert await since(store) is None
        # The last of several in one transaction.
        await put(store, idle(7, version=1), change(2), idle(0, version=2), idle(8, version=2))
        assert await since(store) == 8
        await put(store, delete(2, epoch=EPOCH), beginning(epoch="e9"))
        assert await since(store) is None


async def test_what_says_since_when_a_thread_is_idle_must_follow_what_is_stored(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1))
        for write in (idle(5), idle(5, version=2), idle(5, version=1, epoch="another")):
            with pytest.raises(Exception, match="another process"):
                await submit(store, write)
        fence = await store.claim(ROOM)
        with pytest.raises(Exception, match="another process"):
            await submit(store, idle(5, version=1))
        await submit(store, msgspec.structs.replace(idle(6, version=1), fence=fence))
        assert await since(store) == 6


async def test_idle_threads_are_listed_by_time_and_name_in_pages(store: Store) -> None:
    times = {"a": 30, "b": 10, "c": 20, "d": 10, "e": 40, "f": None}
    async with owned(store, ROOM, OTHER):
        for name, at in times.items():
            key = ThreadKey("room", name)
            await put(store, beginning(key=key))
            if at is not None:
                await put(store, idle(at, key=key))
        await put(store, beginning(key=ThreadKey("other", "z")), idle(1, key=ThreadKey("other", "z")))
        wanted = [IdleThread(10, "b"), IdleThread(10, "d"), IdleThread(20, "c"), IdleThread(30, "a")]
        assert await store.idle_threads("room", until=30) == wanted
        assert await store.idle_threads("room", until=9) == []
        assert await store.idle_threads("nothing", until=99) == []
        found: list[IdleThread] = []
        while page := await store.idle_threads("room", until=30, after=found[-1] if found else None, limit=2):
            assert len(page) <= 2
            found += page
        assert found == wanted


async def test_threads_of_which_nothing_is_known_begin_to_count(store: Store) -> None:
    other = ThreadKey("other", "one")
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER), idle(5, key=OTHER), beginning(key=other))
        assert ROOM.kind == OTHER.kind != other.kind
        await store.mark_idle(ROOM.kind, 100)
        assert [await since(store, key) for key in (ROOM, OTHER, other)] == [100, 5, None]
        await store.mark_idle(ROOM.kind, 200)
        assert await since(store) == 100


async def test_of_threads_that_another_node_may_have_awake_none_begins_to_count(store: Store) -> None:
    if not store.is_shared:
        return
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
        await store.mark_idle(ROOM.kind, 100, lambda key: key == ROOM)
        assert [await since(store, key) for key in (ROOM, OTHER)] == [100, None]
