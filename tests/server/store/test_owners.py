"""Two stores of the same data: of two owners of a thread, only the later one writes, on each engine.

What is special to one is in `test_nats_owners.py` and so on.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from threading import Thread
from typing import Any

import msgspec
import pytest
from tests.schedules import TIMES
from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import delete, put_records
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.engines import Engine, Server, only
from tests.server.store.owners import check_fence_of_deleted, found, take_over_many
from tests.server.store.writing import begin

from plait.errors import Fenced, StoreError
from plait.store.protocol import Store
from plait.store.rows.engine import ReadPlan, Reads
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_store

log = logging.getLogger(__name__)

TAKEOVERS = 1000 * TIMES if TIMES > 1 else 200
# The value of the second attempt of a claim; as hexadecimal digits in MariaDB.
SECOND = re.compile(rb'"asked":2|(?i:2261736b6564223a32)')


def make_stores(server: Server, count: int = 2) -> list[Store]:
    """Return stores of the same data."""
    url = server.make_store()
    return [open_store(url) for _ in range(count)]


@asynccontextmanager
async def no_deadlock(engine: Engine, server: Any) -> AsyncIterator[None]:
    """Check that there is no deadlock of a server that counts them."""
    before = server.execute(engine.deadlocks) if engine.deadlocks else ""
    yield
    assert not engine.deadlocks or server.execute(engine.deadlocks) == before


@pytest.mark.soak
async def test_takeovers_while_writes_are_under_way_lose_and_repeat_nothing(engine: Engine, server: Server) -> None:
    stores = make_stores(server)
    async with no_deadlock(engine, server), stores[0], stores[1]:
        refused = await take_over_many(stores, TAKEOVERS)
    log.warning("%d takeovers, %d writes refused", TAKEOVERS, refused)
    assert refused > TAKEOVERS // 5


async def test_two_stores_that_both_write_the_same_threads_at_once_do_not_hang(engine: Engine, server: Server) -> None:
    first, second = make_stores(server)
    keys = [ThreadKey("room", str(number)) for number in range(40)]
    async with no_deadlock(engine, server), first, second:
        fences = await begin(first, *keys)
        for round in range(1, 20):
            owners = dict(zip(keys, await asyncio.gather(*map(second.claim, keys)), strict=True))
            # In another order, some as plain changes and some not.
            stale = [
                first.submit(msgspec.structs.replace(change(round, key=key), fence=fences[key]))
                for key in reversed(keys)
            ]
            snapshot = b"1" if round % 2 else None
            fresh = [
                second.submit(msgspec.structs.replace(change(round, key=key, snapshot=snapshot), fence=owners[key]))
                for key in keys
            ]
            assert await outcomes(stale) == [Fenced] * len(keys)
            assert await outcomes(fresh) == [None] * len(keys)


async def test_a_thread_that_was_deleted_keeps_its_fence_and_one_without_an_owner_takes_no_room(
    engine: Engine, server: Server
) -> None:
    first, second = make_stores(server)
    async with first, second:
        third = await check_fence_of_deleted(first, second)
    async with first:
        assert await engine.count_heads(server, first) == 0
        assert await first.claim(ROOM) > third
        assert await engine.count_heads(server, first) == 1


@only("postgres", "mysql", "redis")
async def test_the_rows_of_deleted_threads_are_removed_in_steps_by_any_of_the_stores(
    engine: Engine, server: Server
) -> None:
    first, second = make_stores(server)
    async with first:
        keys = [ThreadKey("room", str(number)) for number in range(130)]
        fences = dict(zip(keys, await asyncio.gather(*map(first.claim, keys)), strict=True))
        for key in keys:
            first.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
        rows = [put_records(*((str(n), b"x") for n in range(2500)), key=keys[0])]
        rows += [change(version, key=keys[1], client=client_row()) for version in range(1, 30)]
        await asyncio.gather(*(first.submit(msgspec.structs.replace(row, fence=fences[row.key])) for row in rows))
        assert await engine.count_rows(server, first) > 0
        async with second:
            gone = [delete(29 if key == keys[1] else 0, key=key) for key in keys]
            await asyncio.gather(
                *(first.submit(msgspec.structs.replace(each, fence=fences[each.key])) for each in gone)
            )
            assert await first.threads() == []
        async with asyncio.timeout(60):
            while await engine.count_rows(server, first):
                await first.threads()


async def test_stores_that_are_opened_at_once_make_their_tables_once(server: Server) -> None:
    stores = make_stores(server, 5)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        assert len({await store.claim(ROOM) for store in stores}) == 5


# With this option of PostgreSQL, each batch is a transaction of several statements.
@pytest.mark.parametrize(
    ("engine", "more"),
    [("postgres", ""), ("postgres", "&statement_cache_size=0"), ("mysql", "")],
    ids=["postgres", "pooled", "mysql"],
    indirect=["engine"],
)
async def test_a_write_that_the_server_refuses_leaves_nothing_and_prevents_no_other(server: Server, more: str) -> None:
    async with open_store(server.make_store(more)) as store:
        one, other = ThreadKey("room", "1"), ThreadKey("room", "2")
        fences = await begin(store, one, other)
        # The key of a record has too many bytes for the index of the table.
        odd = put_records(("a", b"x" * 140_000), ("".join(map(chr, range(300, 3300))), b"y" * 140_000), key=other)
        for _ in range(2):
            sound = msgspec.structs.replace(put_records(("a", b"of one"), key=one), fence=fences[one])
            refused = msgspec.structs.replace(odd, fence=fences[other])
            assert await outcomes([store.submit(sound), store.submit(refused)]) == [None, StoreError]
        assert await store.record(one, "values", "a") == b"of one"
        assert await store.record(other, "values", "a") is None
        later = msgspec.structs.replace(change(1, key=other), fence=fences[other])
        assert await outcomes([store.submit(later)]) == [None]


async def test_writes_that_wait_when_a_thread_is_released_are_made(server: Server) -> None:
    async with open_store(server.make_store()) as store:
        one, other, new = (ThreadKey("room", str(number)) for number in range(3))
        fences = await begin(store, one, other)
        fences[new] = await store.claim(new)
        for version in range(1, 30):
            await store.threads()  # Rows of threads are saved.
            writes = [
                store.submit(msgspec.structs.replace(change(version, key=key), fence=fences[key]))
                for key in (one, other)
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            made = [beginning(key=new)] if version == 1 else [change(version - 1, key=new)]
            writes += [store.submit(msgspec.structs.replace(write, fence=fences[new])) for write in made]
            store.release(new, fences[new])
            await store.threads()
            assert await outcomes(writes) == [None] * 3
            fences[new] = await store.claim(new)


async def test_an_owner_that_follows_a_release_is_not_taken_for_the_released_one(server: Server) -> None:
    async with open_store(server.make_store()) as store:
        keys = [ThreadKey("room", str(number)) for number in range(20)]
        fences = await begin(store, *keys)
        for version in range(1, 15):
            for key in keys:
                store.release(key, fences[key])
            # A listing saves what released threads have left.
            *claimed, _, _ = await asyncio.gather(*map(store.claim, keys), store.threads(), store.threads())
            fences = dict(zip(keys, claimed, strict=True))
            writes = [msgspec.structs.replace(change(version, key=key), fence=fences[key]) for key in keys]
            assert await outcomes([store.submit(write) for write in writes]) == [None] * len(keys)


# NATS reads them at one moment.
@only("postgres", "mysql", "redis")
async def test_a_claim_that_reads_beside_a_later_owner_loads_the_thread_and_writes_nothing(server: Server) -> None:
    url = server.make_store()
    async with open_store(url) as first, open_store(url) as second:
        fences = await begin(first, ROOM)
        for version in range(1, 201):
            await first.submit(msgspec.structs.replace(change(version), fence=fences[ROOM]))

        async def prune() -> None:
            async with open_store(url) as later:
                write = change(201, snapshot=b"201", prune=201)
                await later.submit(msgspec.structs.replace(write, fence=await later.claim(ROOM)))

        interrupt_reads(second, partial(asyncio.run, prune()))
        fence, stored = await second.claim_and_load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot) == (201, b"201")
        assert await outcomes([second.submit(msgspec.structs.replace(change(202), fence=fence))]) == [Fenced]


def interrupt_reads(store: Any, work: Callable[[], None]) -> None:
    """Have work done in another OS thread between the first two reads of the next claim."""
    read = store._server.read_owned

    def interrupt(reads: Reads[Any]) -> Reads[Any]:
        spans, is_done = next(reads), False
        while True:
            rows = yield spans
            if not is_done:
                is_done = True
                (thread := Thread(target=work)).start()
                thread.join()
            try:
                spans = reads.send(rows)
            except StopIteration as end:
                return end.value

    store._server.read_owned = lambda plan: read(ReadPlan(lambda: interrupt(plan.begin())))


# NATS claims with the sequence of the head that it has read.
@only("postgres", "mysql", "redis")
async def test_an_attempt_of_a_claim_that_arrives_after_the_next_one_gives_the_thread_to_nobody(server: Server) -> None:
    url = server.make_store()
    async with CuttingProxy(server.port, is_question=lambda data: SECOND.search(data) is not None) as proxy:
        proxy.is_late = True
        async with open_store(url.replace(f":{server.port}/", f":{proxy.port}/")) as store:
            await begin(store, ROOM, OTHER)
            # The statement is prepared, so that it is sent at once.
            proxy.fuse = 1
            fence, stored = await store.claim_and_load(ROOM)
            assert (stored is not None, proxy.cuts, proxy.arrived_late) == (True, 1, 1)
            assert await outcomes([store.submit(msgspec.structs.replace(change(1), fence=fence))]) == [Fenced]
            fence, _ = await store.claim_and_load(ROOM)
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
            assert await found(store, ROOM) == (1, set())
