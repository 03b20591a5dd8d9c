"""A thread's earlier versions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.owning import claim_now, submit

from plait.errors import NotFound, StoreError
from plait.limits import DEFAULT_LIMITS
from plait.state.change_log import ChangeLog
from plait.state.permissions import Rules
from plait.state.pipeline import Pipeline
from plait.state.retention import DEFAULT_RETENTION, Retention
from plait.state.state_history import StateHistory
from plait.state.types import StateType
from plait.state.update import splice
from plait.store.protocol import StoredThread, Write
from plait.store.thread_rows import ChangeRow, ClientRow, RecordRange, Snapshot, ThreadKey
from plait_schemas.patch import Op

KEY = ThreadKey("room", "one")
ANY = StateType(Any)
PATIENCE = 10.0


class WatchedStore(TroubledStore):
    """Records what is read, hands out pages of at most a few changes, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int | None]] = []
        # How many changes were handed out.
        self.rows = 0
        self.is_broken = False
        # Is set when changes are read, which then waits for the other.
        self.is_read = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        self._read("load", version)
        return await super().load(key, version=version, records=records)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        self._read("changes", after)
        self.is_read.set()
        await self.may_read.wait()
        rows = await super().changes(key, after=after, limit=min(limit, 300), size=size)
        self.rows += len(rows)
        return rows

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        self._read("changes_before", version)
        return await super().changes_before(key, version, limit=min(limit, 300), size=size)

    def _read(self, what: str, version: int | None) -> None:
        self.reads.append((what, version))
        if self.is_broken:
            raise StoreError("the disk is broken")


class Bench:
    """A thread whose state is a number, and its past."""

    def __init__(self, store: WatchedStore, stored: StoredThread | None, retention: Retention) -> None:
        history = StateHistory(KEY, ANY, stored, retention=retention, fence=claim_now(store, KEY))
        self.store = store
        self.pipeline = Pipeline(
            history, ANY, store, DEFAULT_LIMITS, Rules(), on_commit=lambda _: None, on_lost=lambda _: None
        )
        self.change_log = ChangeLog(KEY, store, history)

    async def count(self, to: int) -> None:
        """Count the state up, each number a change of its own."""
        version = self.pipeline.history.current.version
        for n in range(version + 1, to + 1):
            self.pipeline.set(n, "server")
        async with asyncio.timeout(PATIENCE):
            await self.pipeline.wait_until_durable()

    async def changes(self, after: int) -> list[int] | None:
        rows = await self.change_log.changes(after)
        return None if rows is None else [row.version for row in rows]

    async def kept(self) -> list[int]:
        found = await self.changes(await self.change_log.start())
        assert found is not None
        return found

    async def before(self, version: int) -> list[int]:
        """Return the versions that are kept before a version, read page by page."""
        found: list[int] = []
        while rows := await self.change_log.before(found[-1] if found else version):
            found += [row.version for row in rows]
        return found


@asynccontextmanager
async def bench(to: int, *, retention: Retention = DEFAULT_RETENTION, is_woken: bool = False) -> AsyncIterator[Bench]:
    """Give a thread that began with 0 and has counted."""
    async with WatchedStore() as store:
        made = Bench(store, None, retention)
        made.pipeline.start(0)
        await made.pipeline.store_thread()
        await made.count(to)
        if is_woken:
            made = Bench(store, await store.load(KEY), retention)
        store.reads.clear()
        yield made


# Changes


async def test_changes_that_are_in_memory_are_not_read_from_the_store() -> None:
    async with bench(100) as b:
        assert await b.changes(90) == list(range(91, 101))
        assert await b.changes(0) == list(range(1, 101))
        assert await b.changes(100) == []
        assert [row.version for row in await b.change_log.before(90)] == list(range(89, 0, -1))
        assert b.store.reads == []


@each_case("is_woken", [False, True])
async def test_changes_that_are_not_in_memory_are_read_from_the_store_a_page_at_a_time(is_woken: bool) -> None:
    async with bench(900, is_woken=is_woken) as b:
        assert await b.changes(0) == list(range(1, 901))
        pages = [after for what, after in b.store.reads if what == "changes" and after is not None]
        assert len(pages) == len(b.store.reads) == len(set(pages)) > 2
        assert pages[0] == 0
        assert pages == sorted(pages)
        assert await b.changes(899 if is_woken else 500) == list(range(900 if is_woken else 501, 901))
        assert await b.kept() == list(range(1, 901))


@each_case("is_woken", [False, True])
async def test_what_is_before_a_version_is_read_the_last_change_first(is_woken: bool) -> None:
    async with bench(900, is_woken=is_woken) as b:
        for version in (901, 900, 700, 2, 1):
            assert await b.before(version) == list(range(version - 1, 0, -1))
        b.store.reads.clear()
        await b.change_log.before(500)
        assert b.store.reads == [("changes_before", 500)]


async def test_a_page_has_no_more_than_was_asked_for() -> None:
    async with bench(900) as b:
        for after in (0, 300, 895):
            rows = await b.change_log.page(after, limit=7)
            assert rows is not None
            assert [row.version for row in rows] == list(range(after + 1, min(after + 7, 900) + 1))
        rows = await b.change_log.page(100, size=200)
        assert rows is not None
        assert sum(len(row.ops) for row in rows[:-1]) < 200 <= sum(len(row.ops) for row in rows)


async def test_who_is_too_far_behind_is_told_so_before_all_is_read() -> None:
    async with WatchedStore() as store:
        first = Write(KEY, "e", None, 0, snapshots=(Snapshot(0, b"0"),))
        ops = b'[{"op":"replace","path":"","value":0}]'
        rows = [ChangeRow(n, ops, "server", n) for n in range(1, 15_001)]
        writes = (Write(KEY, "e", row.version - 1, row.version, (row,)) for row in rows)
        await asyncio.gather(*(submit(store.inner, write) for write in (first, *writes)))
        b = Bench(store, await store.load(KEY), DEFAULT_RETENTION)
        assert await b.changes(5_000) == list(range(5_001, 15_001))
        store.rows = 0
        assert await b.changes(0) is None
        assert store.rows <= 10_300


async def test_who_is_too_many_bytes_behind_is_told_so_before_all_is_read() -> None:
    async with bench(0) as b:
        for n in range(20):
            await b.pipeline.set(f"{n}" + "x" * 500_000, "server")
        assert await b.changes(13) == list(range(14, 21))
        b.store.rows = 0
        assert await b.changes(0) is None
        assert b.store.rows < 15


async def test_no_more_is_read_from_the_store_than_was_asked_for() -> None:
    async with bench(900, is_woken=True) as b:
        missed = await b.change_log.missed(0, most=100_000)
        assert missed is not None
        whole = len(b.store.reads)
        again = await b.change_log.missed(0, most=missed.size)
        assert again is not None
        assert (again.ops, again.version) == (missed.ops, 900)
        assert await b.change_log.missed(0, most=missed.size - 1) is None
        b.store.reads.clear()
        assert await b.change_log.missed(0, most=1) is None
        assert len(b.store.reads) == 1 < whole


async def test_changes_that_come_to_little_are_not_all_read_for_a_reader_that_could_be_sent_little() -> None:
    async with bench(0, is_woken=True) as b:
        await b.pipeline.set("", "server")
        for _ in range(500):
            splice(b.pipeline, "", 0, insert="x")
            splice(b.pipeline, "", 0, 1)
        await b.pipeline.wait_until_durable()
        missed = await b.change_log.missed(1, most=100_000)
        assert missed is not None
        assert (missed.ops, missed.version) == ([], 1_001)
        b.store.rows = 0
        assert await b.change_log.missed(1, most=1_000) is None
        assert b.store.rows < 500


async def test_changes_that_are_not_durable_are_no_past() -> None:
    async with bench(10) as b:
        b.store.is_held = True
        b.pipeline.set(11, "server")
        assert await b.changes(8) == [9, 10]
        assert await b.changes(10) == []
        assert await b.changes(11) == []
        assert await b.kept() == list(range(1, 11))
        with pytest.raises(NotFound):
            await b.change_log.document(11)
        b.store.resume()


@each_case("is_woken", [False, True])
async def test_changes_that_are_not_all_kept_are_none(is_woken: bool) -> None:
    async with bench(1_000, retention=Retention(changes=300), is_woken=is_woken) as b:
        kept = await b.kept()
        assert 300 <= len(kept) < 1_000
        assert kept == list(range(kept[0], 1_001))
        assert await b.changes(kept[0] - 1) == kept
        assert await b.changes(kept[0] - 2) is None
        assert await b.changes(0) is None
        assert await b.before(kept[5]) == kept[:5][::-1]
        assert await b.change_log.start() == kept[0] - 1
        assert await b.change_log.start(10**6) == kept[0] - 1
        assert await b.change_log.start(10) == 990


async def test_changes_that_become_durable_while_the_store_is_read_are_there_once() -> None:
    async with bench(700, is_woken=True) as b:
        b.store.may_read.clear()
        changes = asyncio.create_task(b.changes(0))
        async with asyncio.timeout(PATIENCE):
            await b.store.is_read.wait()
        await b.count(710)
        b.store.may_read.set()
        found = await changes
        assert found is not None
        assert found[:700] == list(range(1, 701))
        assert found == list(range(1, len(found) + 1))
        assert await b.kept() == list(range(1, 711))


async def test_a_thread_that_has_nothing_has_no_past() -> None:
    async with WatchedStore() as store:
        b = Bench(store, None, DEFAULT_RETENTION)
        assert await b.changes(0) == []
        assert await b.kept() == await b.before(1) == []
        assert await b.change_log.document(0) is None
        with pytest.raises(NotFound):
            await b.change_log.document(1)


# States


@each_case("is_woken", [False, True])
async def test_every_version_that_is_kept_is_there(is_woken: bool) -> None:
    async with bench(1_000, retention=Retention(changes=300), is_woken=is_woken) as b:
        first = (await b.kept())[0] - 1
        for version in range(first, 1_001, 7):
            assert await b.change_log.document(version) == version
        assert await b.change_log.document(1_000) == 1_000
        for version in (first - 1, 0, -1, 1_001):
            with pytest.raises(NotFound, match=f"version {version} of room/one"):
                await b.change_log.document(version)


async def test_the_last_version_is_not_read_from_the_store() -> None:
    async with bench(10) as b:
        assert await b.change_log.document(10) == 10
        assert b.store.reads == []
        assert await b.change_log.document(9) == 9
        assert b.store.reads == [("load", 9)]


async def test_others_have_their_turns_while_a_version_is_made_of_many_changes() -> None:
    async with bench(0) as b:
        b.pipeline.set({"text": "x" * 100_000, "list": []}, "server")
        for n in range(1_000):
            b.pipeline.change([Op("add", "/list/0", n), Op("add", "/list/-", n)], "server")
        await b.pipeline.wait_until_durable()
        reading = asyncio.create_task(b.change_log.document(1_000))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 15
        found = (await reading)["list"]
        assert found == [*range(998, -1, -1), *range(999)]


# Trouble


async def test_what_the_store_cannot_read_is_an_error() -> None:
    async with bench(10, is_woken=True) as b:
        b.store.is_broken = True
        for read in (b.changes(0), b.kept(), b.before(5), b.change_log.document(3)):
            with pytest.raises(StoreError):
                await read


async def test_a_client_is_read_from_the_store() -> None:
    async with bench(0) as b:
        row = ClientRow("c", 1, b"[]", 2**60)
        assert await b.change_log.client("c") is None
        await b.pipeline.change([Op("replace", "", 1)], "server", accept=lambda: row)
        assert await b.change_log.client("c") == row


async def test_a_log_that_is_shortened_while_it_is_read_is_not_all_there() -> None:
    async with bench(1000, is_woken=True) as b:
        whole = await b.change_log.changes(0)
        assert whole is not None
        pages = iter([whole[:300], whole[500:800]])

        async def changes(key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None) -> list[ChangeRow]:
            return next(pages)

        b.store.changes = changes  # type: ignore[method-assign]
        assert await b.changes(0) is None


async def test_there_is_nothing_after_a_version_that_cannot_be() -> None:
    async with bench(3) as b:
        assert await b.changes(-(10**30)) is None
