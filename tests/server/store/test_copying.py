"""Copying a store to another one."""

import random
from pathlib import Path

import msgspec
import pytest
from tests.mariadb import Mariadb
from tests.nats import Nats
from tests.postgres import Postgres
from tests.redis import Redis
from tests.schedules import in_soak
from tests.server.owning import submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, put
from tests.server.store.contract_records import delete, put_records
from tests.server.store.sqlite.test_store import change_file

from plait.errors import StoreError
from plait.store.copying import UNFINISHED, check_finished, copy_store
from plait.store.engines import find_engine
from plait.store.protocol import Order, Store, ThreadQuery, Write
from plait.store.sqlite.files import Files
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ClientRow, Prune, RecordRange, Snapshot, ThreadKey
from plait.store.urls import open_engine, open_files
from plait.store.whole import WholeStore

THREADS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "game.db"


async def fill(path: Path, files: int = 1, *, threads: int = THREADS) -> None:
    """Store threads that have all that a thread may have."""
    async with open_files(Files.find(path, files)) as store:
        await store.add_schema("room", "h1", b'{"a":1}')
        await store.add_schema("other", "h2", b"{}")
        for number in range(threads):
            await fill_thread(store, ThreadKey("room" if number % 3 else "other", f"ключ 🔑 {number}"), number)
        await put(store, put_records(("only", b"records"), after=None, key=ThreadKey("room", "stateless")))
        await put(store, *make_long(ThreadKey("room", "long"), 2500))


async def fill_thread(store: Store, key: ThreadKey, number: int) -> None:
    first = msgspec.structs.replace(
        beginning(key=key), secret=b"s%d" % number, created_at=number, user=f"u{number}" if number % 2 else None
    )
    await put(store, first, *(change(n, key=key, client=client_row(f"c{n}", n)) for n in range(1, number % 7 + 1)))
    last = number % 7
    if number % 4 == 0:
        await put(store, change(last + 1, key=key, snapshot=b"%d" % number, prune=Prune(last + 1), state_version=3))
        last += 1
    if number % 5 == 0:
        await put(store, change(last + 1, key=key))
        last += 1
    records = [(f"{n:04}🔑", random.Random(number).randbytes(9000)) for n in range(number % 80)]
    await put(store, put_records(*records, ("z", b""), after=last, key=key))
    await put(store, put_records(("a", b"x"), after=last, key=key, part="another"))
    await put(store, Write(key, "e1", last, last, due=number + 10))


def make_long(key: ThreadKey, changes: int) -> list[Write]:
    """Return the writes of a thread whose log has several pages and snapshots."""
    return [
        beginning(key=key),
        *(change(n, key=key, snapshot=b"%d" % n if n % 400 == 0 else None) for n in range(1, changes)),
    ]


async def read(path: Path) -> list[object]:
    """Return all that a store has, as its own methods tell it."""
    async with open_files(Files.find(path), readonly=True) as store:
        orders: tuple[Order, ...] = ("name", "created", "changed")
        found: list[object] = [[await store.threads(ThreadQuery(order=order, limit=10_000)) for order in orders]]
        found += [await store.schemas(), await store.due_threads(until=2**60, limit=10_000)]
        for row in await store.threads(ThreadQuery(limit=10_000)):
            key = row.key
            changes = await store.changes(key, after=0, limit=10_000)
            found += [key, await store.find(key), await store.load(key), changes]
            found += [await store.load(key, version=each.version) for each in changes[::50]]
            found += [await store.records(key, RecordRange(part)) for part in ("values", "another")]
            found += [await store.client(key, f"c{n}") for n in range(8)]
        return found


async def copy(source: Path, target: Path, files: int, shown: list[tuple[int, int]] | None = None) -> int:
    """Copy a store."""
    async with (
        open_files(Files.find(source), readonly=True) as original,
        open_files(Files.find(target, files)) as copied,
    ):
        return await copy_store(
            original, copied, str(source), lambda *each: None if shown is None else shown.append(each)
        )


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 4), (3, 1), (3, 2)])
async def test_a_copy_has_everything(path: Path, tmp_path: Path, before: int, after: int) -> None:
    await fill(path, before)
    shown: list[tuple[int, int]] = []
    target = tmp_path / "copy.db"
    assert await copy(path, target, after, shown) == THREADS + 2
    assert await read(target) == await read(path)
    assert shown[0] == (0, THREADS + 2)
    assert shown[-1] == (THREADS + 2, THREADS + 2)
    assert len(Files.find(target).paths) == after
    async with open_files(Files.find(target)) as store:
        await check_finished(store)
        key = ThreadKey("room", "long")
        await put(store, change(2500, key=key))
        # The thread times of the copy stay, also after a restart.
    async with open_files(Files.find(target)) as store:
        assert (await store.threads(ThreadQuery(order="changed", limit=1)))[0].key == key


async def test_a_target_that_is_not_empty_is_refused_and_left_as_it_is(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    await fill(path, threads=3)
    await fill(target, threads=1)
    before = await read(target)
    with pytest.raises(StoreError, match="not empty"):
        await copy(path, target, 1)
    assert await read(target) == before


async def interrupt(source: Path, target: Path, files: int = 2) -> None:
    """Leave a part of a copy, in which one thread is not complete."""

    def stop(done: int, _: int) -> None:
        if done:
            raise InterruptedError

    async with (
        open_files(Files.find(source), readonly=True) as original,
        open_files(Files.find(target, files)) as copied,
    ):
        with pytest.raises(InterruptedError):
            await copy_store(original, copied, str(source), stop)
        key = (await original.threads(ThreadQuery(limit=10_000)))[-1].key
        assert await copied.find(key) is None
        async for write in original.export(key):
            await submit(copied, write)
            break


async def test_an_interrupted_copy_goes_on_with_the_same_source_only(path: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "copy.db", tmp_path / "other.db"
    await fill(path)
    await fill(other, threads=1)
    await interrupt(path, target)
    async with open_files(Files.find(target)) as store:
        assert await store.find(UNFINISHED) is not None
        with pytest.raises(StoreError, match="unfinished copy"):
            await check_finished(store)
    with pytest.raises(StoreError, match=r"a copy of .*game.db, not of .*other.db"):
        await copy(other, target, 2)
    with pytest.raises(StoreError, match="unfinished copy"):
        await copy(target, tmp_path / "third.db", 1)
    assert await copy(path, target, 2) == THREADS + 2
    assert await read(target) == await read(path)
    with pytest.raises(StoreError, match="not empty"):
        await copy(path, target, 2)


async def test_what_has_changed_in_the_source_before_a_copy_goes_on_is_copied(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    await fill(path)
    await put_two(path)
    await interrupt(path, target)
    async with open_files(Files.find(path)) as store:
        await put(store, change(1), delete(0, key=OTHER))
        await store.add_schema("room", "h3", b"[]")
    await copy(path, target, 2)
    assert await read(target) == await read(path)


async def put_two(path: Path) -> None:
    async with open_files(Files.find(path)) as store:
        await put(store, beginning(), beginning(key=OTHER))


async def test_a_thread_that_cannot_be_read_is_named(path: Path, tmp_path: Path) -> None:
    await put_two(path)
    change_file(path, "UPDATE rows SET value = '5' WHERE part = '~s' AND thread = 1")
    with pytest.raises(StoreError, match="room/one cannot be read"):
        await copy(path, tmp_path / "copy.db", 2)


class Forgetful:
    """A store that loses a record of each write."""

    def __init__(self, store: WholeStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def submit(self, write: Write) -> object:
        return self._store.submit(msgspec.structs.replace(write, records=write.records[1:]))


async def test_a_copy_that_differs_is_noticed(path: Path, tmp_path: Path) -> None:
    await fill(path, threads=3)
    async with (
        open_files(Files.find(path), readonly=True) as original,
        open_files(Files.find(tmp_path / "copy.db")) as copied,
    ):
        with pytest.raises(StoreError, match="was not copied correctly"):
            await copy_store(original, Forgetful(copied), "it", lambda *_: None)  # type: ignore[arg-type]
        assert await copied.find(UNFINISHED) is not None


async def test_a_pruned_log_begins_at_its_snapshot(path: Path) -> None:
    begun = Write(ROOM, "e1", None, 7, snapshots=(Snapshot(7, b"7"),), begins_at=7, changed_at=5)
    async with open_files(Files.find(path)) as store:
        await put(store, begun, change(8))
        assert [row.version for row in await store.changes(ROOM, after=0)] == [8]
        found = await store.load(ROOM, version=7)
        assert found is not None
        assert found.snapshot == b"7"
        assert await store.load(ROOM, version=6) is None
        with pytest.raises(StoreError, match="is not the one after"):
            await submit(store, Write(OTHER, "e1", None, 8, begins_at=7))
        # It is that of the later write, also in the same transaction.
        assert (await store.threads())[0].changed_at > 5


@pytest.mark.parametrize("engine", ["postgres", "nats_server", *in_soak(["mariadb"], ["redis_server"])])
async def test_a_thread_with_many_clients_is_copied_to_an_engine_and_back(
    engine: str, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | Mariadb | Nats | Redis = request.getfixturevalue(engine)
    url = server.make_store()
    row = find_engine(url)
    assert row is not None
    clients = [ClientRow(f"client-{number * 7919 % 1000}", number, b"[]", 5) for number in range(600)]
    async with SqliteStore(path) as source, open_engine(row, url) as target:
        fence = await source.claim(ROOM)
        for write in (beginning(), msgspec.structs.replace(change(1), clients=clients)):
            await source.submit(msgspec.structs.replace(write, fence=fence))
        await copy_store(source, target, "a", lambda *_: None)
        async with SqliteStore(tmp_path / "back.db") as back:
            await copy_store(target, back, "b", lambda *_: None)
            assert await back.client(ROOM, clients[-1].client) == clients[-1]
