"""What any store must do with the times at which threads are due."""

import msgspec
import pytest
from tests.cases import each_case
from tests.server.owning import owned, submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, emptied, outcomes, put
from tests.server.store.contract_records import delete, put_records

from plait.errors import Fenced
from plait.store.protocol import DueThread, Store, Write
from plait.store.thread_rows import ThreadKey

EPOCH = beginning().epoch
ALWAYS = 2**62


def due(at: int, *, version: int = 0, key: ThreadKey = ROOM) -> Write:
    """Return the write that says when a thread is due, and nothing else."""
    return Write(key, EPOCH, version, version, due=at)


async def due_of(store: Store, key: ThreadKey = ROOM) -> int:
    found = await store.load(key)
    assert found is not None
    return found.due


async def test_a_due_time_is_stored_with_what_it_belongs_to_and_stays_until_another_is_written(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning())
        assert await due_of(store) == 0
        assert await store.due_threads(until=ALWAYS) == []
        await put(store, msgspec.structs.replace(put_records(("a", b"1"), epoch=EPOCH), due=7))
        assert await due_of(store) == 7
        await put(store, change(1))
        await put(store, put_records(("b", b"1"), after=1, epoch=EPOCH), change(2, snapshot=b"2"))
        assert await due_of(store) == 7
        assert await store.due_threads(until=ALWAYS) == [DueThread(7, ROOM)]
        await put(store, msgspec.structs.replace(change(3), due=5))
        assert await store.due_threads(until=ALWAYS) == [DueThread(5, ROOM)]
        await put(store, due(0, version=3))
        assert await due_of(store) == 0
        assert await store.due_threads(until=ALWAYS) == []


async def test_a_thread_may_begin_with_a_due_time(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, msgspec.structs.replace(beginning(), due=9))
        await put(store, msgspec.structs.replace(put_records(("a", b"1"), after=None, key=OTHER), due=8))
        assert await store.due_threads(until=ALWAYS) == [DueThread(8, OTHER), DueThread(9, ROOM)]


async def test_the_last_due_time_that_was_given_counts_in_one_breath(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), due(3), change(1), due(0, version=1), due(4, version=1), change(2))
        assert await due_of(store) == 4
        await put(store, due(5, version=2), due(0, version=2), change(3))
        assert await due_of(store) == 0
        assert await store.due_threads(until=ALWAYS) == []


async def test_a_due_time_must_follow_what_is_stored(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), change(1))
        for write in (due(5), due(5, version=2), msgspec.structs.replace(due(5, version=1), epoch="another")):
            with pytest.raises(Exception, match="another process"):
                await submit(store, write)
        fence = await store.claim(ROOM)
        with pytest.raises(Exception, match="another process"):
            await submit(store, due(5, version=1))
        await submit(store, msgspec.structs.replace(due(7, version=1), fence=fence))
        assert await due_of(store) == 7
        found = await store.find(ROOM)
        assert found is not None
        assert found.due == 7


async def test_due_threads_are_listed_the_earliest_first_and_in_pages(store: Store) -> None:
    times = {"a": 30, "b": 10, "c": 20, "d": 10, "e": 40, "f": 0}
    other = ThreadKey("other", "z")
    async with owned(store, ROOM, OTHER):
        for name, at in times.items():
            await put(store, beginning(key=ThreadKey("room", name)), due(at, key=ThreadKey("room", name)))
        await put(store, beginning(key=other), due(10, key=other))
        wanted = [DueThread(10, other)]
        wanted += [DueThread(times[name], ThreadKey("room", name)) for name in "bdca"]
        assert await store.due_threads(until=30) == wanted
        assert await store.due_threads(until=9) == []
        found: list[DueThread] = []
        while page := await store.due_threads(until=30, after=found[-1] if found else None, limit=2):
            assert len(page) <= 2
            found += page
        assert found == wanted


async def test_a_due_time_ends_with_its_thread(store: Store) -> None:
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), due(5), beginning(key=OTHER), due(6, key=OTHER))
        await put(store, delete(0, epoch=EPOCH))
        assert await store.due_threads(until=ALWAYS) == [DueThread(6, OTHER)]
        await put(store, beginning())
        assert await due_of(store) == 0
        # Deleted and begun again in one breath.
        await put(store, delete(0, key=OTHER, epoch=EPOCH), beginning(key=OTHER))
        assert await store.due_threads(until=ALWAYS) == []
        await put(store, due(5), delete(0, epoch=EPOCH), beginning())
        assert await store.due_threads(until=ALWAYS) == []


@each_case("version", [0, 2])
async def test_a_due_time_that_is_refused_changes_nothing(store: Store, version: int) -> None:
    async with emptied(store):
        await put(store, beginning(), due(5), change(1))
        assert await outcomes([submit(store, due(6, version=version))]) == [Fenced]
        # The second write of a unit is refused, so that the first one is, too.
        unit = [due(7, version=1), change(3)]
        assert await outcomes([submit(store, write) for write in unit]) == [Fenced, Fenced]
        assert await store.due_threads(until=ALWAYS) == [DueThread(5, ROOM)]
