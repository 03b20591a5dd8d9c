"""What any store must do to find threads, and to list them by name."""

import msgspec
from tests.server.owning import owned
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, row_of
from tests.server.store.contract_records import delete

from plait.store.protocol import Store, ThreadHeader, ThreadQuery, Write
from plait.store.thread_rows import ThreadKey

EPOCH = beginning().epoch


async def find(store: Store, key: ThreadKey) -> ThreadHeader:
    """Return the header of a thread, whose time of the last change must be the one in listings, without that."""
    (row,) = [row for row in await store.threads() if row.key == key]
    found = await store.find(key)
    assert found is not None
    assert found.changed_at == row.changed_at > 0
    return msgspec.structs.replace(found, changed_at=0)


async def test_a_thread_is_found_without_its_data(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        assert await store.find(ROOM) is None
        await put(store, beginning(), change(1), change(2))
        assert await find(store, ROOM) == ThreadHeader(EPOCH, 2)
        await put(store, Write(OTHER, "e2", None, 0, secret=b"s"))
        assert await find(store, OTHER) == ThreadHeader("e2", 0)
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
                found = await store.threads(ThreadQuery(kind=kind, prefix=prefix))
                assert [each.key for each in found] == wanted
                for after in (ThreadKey("a", "xy"), ThreadKey("b", "x1"), ThreadKey("bb", ""), ThreadKey("c", "")):
                    found = await store.threads(ThreadQuery(kind=kind, prefix=prefix, after=row_of(after), limit=2))
                    assert [each.key for each in found] == [key for key in wanted if key > after][:2]
