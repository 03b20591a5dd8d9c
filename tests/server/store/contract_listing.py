"""What any store must do with the times and users of threads, and to list threads by them."""

import time

import msgspec
from tests.server.owning import owned
from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, put, row_of
from tests.server.store.contract_due import due
from tests.server.store.contract_finding import find
from tests.server.store.contract_records import delete, put_records

from plait.store.protocol import READ, Order, Store, ThreadHeader, ThreadQuery, ThreadRow, Write
from plait.store.thread_rows import ThreadKey

EPOCH = beginning().epoch


def created(key: ThreadKey, at: int, user: str | None = None) -> Write:
    """Return the first write of a thread, with the time and the user."""
    return msgspec.structs.replace(beginning(key=key), created_at=at, user=user)


async def changed_at(store: Store, key: ThreadKey = ROOM) -> int:
    """Return when the thread has changed last."""
    (found,) = [row for row in await store.threads() if row.key == key]
    return found.changed_at


async def wait_for_clock(at: int) -> None:
    """Return when the clock of this machine has passed a time."""
    while time.time_ns() // 1000 <= at:
        pass


async def test_a_thread_has_the_time_and_the_user_of_its_first_write(store: Store) -> None:
    later = msgspec.structs.replace(change(1), created_at=9, user="eve", state_version=2)
    async with owned(store, ROOM, OTHER):
        await put(store, created(ROOM, 5, "ada"))
        await put(store, later)
        # Several writes of one breath, the first one without a user.
        await put(store, created(OTHER, 7), msgspec.structs.replace(later, key=OTHER))
        for key, at, user in ((ROOM, 5, "ada"), (OTHER, 7, None)):
            stored = await store.load(key)
            assert stored is not None
            assert (stored.created_at, stored.user, stored.state_version) == (at, user, 2)
            assert await find(store, key) == ThreadHeader(EPOCH, 1, at, user)
            (row,) = [row for row in await store.threads() if row.key == key]
            assert (row.version, row.created_at, row.user) == (1, at, user)
        await put(store, delete(1, epoch=EPOCH), created(ROOM, 8, "ümit 😀"))
        assert await find(store, ROOM) == ThreadHeader(EPOCH, 0, 8, "ümit 😀")


async def test_changes_and_records_set_the_time_of_the_last_change_and_nothing_else_does(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        before = time.time_ns() // 1000
        await put(store, created(ROOM, 1))
        first = await changed_at(store)
        assert before <= first <= time.time_ns() // 1000
        for write in (change(1, client=client_row()), put_records(("a", b"1"), after=1, epoch=EPOCH)):
            last = await changed_at(store)
            await wait_for_clock(last)
            await put(store, write)
            assert last < await changed_at(store) <= time.time_ns() // 1000
        last = await changed_at(store)
        await wait_for_clock(last)
        await put(store, due(9, version=1), due(0, version=1))
        assert await changed_at(store) == last
        # Together with others it counts, too.
        await put(store, due(5, version=1), change(2), due(9, version=2))
        assert await changed_at(store) > last


async def test_a_record_of_what_a_user_has_read_does_not_set_the_time_of_the_last_change(store: Store) -> None:
    mark = put_records(("messages/ada", b"1"), part=READ, epoch=EPOCH)
    async with owned(store, ROOM, OTHER):
        await put(store, created(ROOM, 1))
        last = await changed_at(store)
        await wait_for_clock(last)
        await put(store, mark)
        await put(store, mark, mark)
        assert await changed_at(store) == last
        assert await store.record(ROOM, READ, "messages/ada") == b"1"
        # Together with another record, it counts, in either order.
        for writes in (
            (mark, put_records(("a", b"1"), after=0, epoch=EPOCH)),
            (put_records(("a", b"2"), after=0, epoch=EPOCH), mark),
        ):
            last = await changed_at(store)
            await wait_for_clock(last)
            await put(store, *writes)
            assert await changed_at(store) > last


async def test_the_time_of_the_last_change_is_there_when_the_store_is_opened_again(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1))
        await put(store, put_records(("a", b"1"), after=1, epoch=EPOCH))
    async with owned(store, ROOM, OTHER):
        last = await changed_at(store)
        await put(store, due(5, version=1))
    async with owned(store, ROOM, OTHER):
        assert await changed_at(store) == last
        await wait_for_clock(last)
        await put(store, put_records(("a", b"2"), after=1, epoch=EPOCH))
    async with owned(store, ROOM, OTHER):
        assert await changed_at(store) > last


async def test_threads_are_listed_by_kind_prefix_and_user_in_each_order_and_in_pages(store: Store) -> None:
    keys = [ThreadKey(kind, name) for kind in ("a", "b") for name in ("x1", "x2", "y", "x\U0010ffff", "x3")]
    times = (5, 9, 5, 1, 7, 5, 2, 9, 3, 8)
    users = (None, "ada", "ada", "bob", "ada", "bob", None, "ada", "ad", "ada")
    async with owned(store, ROOM, OTHER):
        for key, at, user in zip(keys, times, users, strict=True):
            await put(store, created(key, at, user))
        for key in (keys[3], keys[0], keys[8]):
            await wait_for_clock(max([row.changed_at for row in await store.threads()]))
            await put(store, put_records(("a", b"1"), key=key, epoch=EPOCH))
        rows = await store.threads()
        assert [row.key for row in rows] == sorted(keys)
        newest = sorted(rows, key=lambda row: (row.created_at, row.key), reverse=True)
        latest = sorted(rows, key=lambda row: (row.changed_at, row.key), reverse=True)
        assert [row.key for row in latest][:3] == [keys[8], keys[0], keys[3]]
        orders: dict[Order, list[ThreadRow]] = {"name": rows, "created": newest, "changed": latest}
        for order, all_rows in orders.items():
            for kind in (None, "a", "b", "c"):
                for prefix in ("", "x", "x\U0010ffff", "z"):
                    for user in (None, "ada", "ad", "eve"):
                        wanted = [
                            row
                            for row in all_rows
                            if kind in (None, row.key.kind)
                            and row.key.name.startswith(prefix)
                            and user in (None, row.user)
                        ]
                        found: list[ThreadRow] = []
                        while page := await store.threads(
                            ThreadQuery(
                                kind=kind,
                                prefix=prefix,
                                user=user,
                                order=order,
                                after=found[-1] if found else None,
                                limit=2,
                            )
                        ):
                            assert len(page) <= 2
                            found += page
                        assert found == wanted, (order, kind, prefix, user)


async def test_a_page_begins_after_a_row_that_is_gone(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        for number in range(4):
            await put(store, created(ThreadKey("room", str(number)), number))
        page = await store.threads(ThreadQuery(kind="room", order="created", limit=2))
        assert [row.key.name for row in page] == ["3", "2"]
        await put(store, delete(0, key=page[-1].key, epoch=EPOCH))
        found = await store.threads(ThreadQuery(kind="room", order="created", after=page[-1]))
        assert [row.key.name for row in found] == ["1", "0"]
        assert (
            await store.threads(ThreadQuery(kind="room", order="created", after=row_of(ThreadKey("room", "0"), at=0)))
            == []
        )
