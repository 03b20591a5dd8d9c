"""What is special to a store in Redis: each start is another timeline, replicas confirm writes, memory is limited."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.redis import Redis, new_store
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.contract_cells import make_first
from tests.server.store.contract_records import delete
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.engines import asks_redis
from tests.server.store.reclaiming import Reclaiming
from tests.server.store.writing import KEYS, until

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.redis.cells import RedisCells
from plait.store.redis.scripts import READ_CELLS, SWAP_CELL
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl
from plait.store.thread_rows import ThreadKey

MANY = [ThreadKey("room", str(number)) for number in range(32)]


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A server of the test's own, which it may stop."""
    with Redis(tmp_path / "data") as server:
        yield server


def make_proxy(server: Redis) -> CuttingProxy:
    return CuttingProxy(server.port, is_question=asks_redis)


@asynccontextmanager
async def through(proxy: CuttingProxy, server: Redis, options: str = "") -> AsyncIterator[RedisStore]:
    """Open a store whose connections go through the proxy."""
    url = new_store(server.url, options).replace(f":{server.port}/", f":{proxy.port}/")
    async with RedisStore(RedisUrl.parse(url)) as store:
        yield store


async def test_a_server_that_is_killed_five_times_loses_nothing_that_was_acknowledged(own_redis: Redis) -> None:
    counts = [0]
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        store.watch_claims(lambda: counts.append(len(counts)))
        writing = Reclaiming(store, MANY)
        await writing.start()
        for kill in range(1, 6):
            enough = writing.count + 300
            await until(partial(writing.has_made, enough))
            await asyncio.to_thread(own_redis.stop, signal.SIGKILL)
            await asyncio.to_thread(own_redis.start)
            # Each start is another run of the server, which may have lost changes.
            await until(partial(counts.__contains__, kill))
        await writing.stop()
        await writing.check()
        assert writing.lost == 0
        await store.check_writes()


async def test_a_write_on_a_connection_that_has_just_been_closed_is_made_on_the_next_one(redis_server: Redis) -> None:
    async with RedisStore(RedisUrl.parse(new_store(redis_server.url))) as store:
        fence = await store.claim(ROOM)
        line: Any = store._server
        connection = line._line.current._connection
        send = connection.send_packed_command

        async def close(*args: Any, **options: Any) -> None:
            # The driver does not notice it, and uvloop raises RuntimeError.
            connection._writer.transport.abort()
            while not connection._reader.at_eof():  # noqa: ASYNC110
                await asyncio.sleep(0)
            await send(*args, **options)

        connection.send_packed_command = close
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        assert (await store.load(ROOM)) is not None


# Failover


@pytest.fixture
def replica(own_redis: Redis, tmp_path: Path) -> Iterator[Redis]:
    with own_redis.replica(tmp_path / "replica") as found:
        yield found


async def promote(primary: Redis, replica: Redis, proxy: CuttingProxy) -> None:
    """Kill the primary, and move its address to the replica."""
    await asyncio.to_thread(primary.stop, signal.SIGKILL)
    await asyncio.to_thread(replica.execute, "REPLICAOF", "NO", "ONE")
    proxy.target = replica.port


async def test_a_primary_that_was_a_replica_for_a_while_is_noticed(own_redis: Redis, replica: Redis) -> None:
    losses: list[None] = []
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        store.watch_claims(lambda: losses.append(None))
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        await until(lambda: replica.execute("DBSIZE") == own_redis.execute("DBSIZE"))
        replica.execute("REPLICAOF", "NO", "ONE")
        await store.submit(msgspec.structs.replace(change(1), fence=fence))
        # The change is lost, and the connections stay.
        own_redis.execute("REPLICAOF", "127.0.0.1", replica.port)
        await until(lambda: own_redis.execute("INFO", "replication")["master_link_status"] == "up")
        own_redis.execute("REPLICAOF", "NO", "ONE")
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.version == 0
        assert stored.epoch != beginning().epoch
        await until(lambda: len(losses) == 1)


async def test_a_server_whose_data_is_lost_is_noticed_without_a_restart(own_redis: Redis) -> None:
    losses: list[None] = []
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        store.watch_claims(lambda: losses.append(None))
        fences = [await store.claim(key) for key in (ROOM, KEYS[0])]
        await store.submit(msgspec.structs.replace(beginning(), fence=fences[0]))
        own_redis.execute("FLUSHALL")
        lost = store.submit(msgspec.structs.replace(change(1), fence=fences[0]))
        assert await outcomes([lost]) == [Fenced]
        fence, stored = await store.claim_and_load(ROOM)
        assert stored is None
        assert fence > max(fences)
        await until(lambda: len(losses) == 1)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        # Others can read it, too.
        async with store.reader() as reader:
            assert await reader.find(ROOM) is not None


async def test_what_a_replica_has_confirmed_is_there_after_a_failover(
    own_redis: Redis, replica: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_proxy(own_redis) as proxy, through(proxy, own_redis, "&replicas=1") as store:
        writing = Reclaiming(store, MANY)
        await writing.start()
        await until(partial(writing.has_made, 300))
        await promote(own_redis, replica, proxy)
        # The new primary has no replica, so that nothing is acknowledged, however long it is waited for.
        monkeypatch.setattr("plait.store.redis.engine._WAIT", 100)
        # A claim that gives a thread a new epoch is in doubt, too.
        await until(lambda: writing.doubts >= len(MANY) and all(len(each) > 1 for each in writing.epochs.values()))
        await writing.stop()
        await writing.check()
        assert writing.lost == 0
        assert all(len(set(epochs)) == 2 for epochs in writing.epochs.values())


async def test_a_write_that_too_few_replicas_have_is_in_doubt(
    own_redis: Redis, replica: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = RedisUrl.parse(new_store(own_redis.url, "&replicas=1"))
    async with RedisStore(url) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        replica.pause()
        try:
            monkeypatch.setattr("plait.store.redis.engine._WAIT", 100)
            short = store.submit(msgspec.structs.replace(change(1), fence=fence))
            with pytest.raises(Indeterminate, match="too few replicas have it"):
                await short
            with pytest.raises(StoreError, match="too few replicas have it"):
                await store.check_writes()
            with pytest.raises(StoreError, match="a schema could not be written: too few replicas have it"):
                await store.add_schema("room", "h", b"{}")
        finally:
            replica.resume()
        monkeypatch.undo()
        assert await outcomes([store.submit(msgspec.structs.replace(change(2), fence=fence))]) == [Fenced]
        fence, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.version == 1
        await store.submit(msgspec.structs.replace(change(2), fence=fence))


async def test_a_full_memory_refuses_writes_and_nothing_else(own_redis: Redis) -> None:
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        own_redis.execute("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreError, match="maxmemory") as caught:
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
        assert type(caught.value) is StoreError
        with pytest.raises(StoreError, match="maxmemory"):
            await store.check_writes()
        stored = await store.load(ROOM)
        assert stored is not None
        own_redis.execute("CONFIG", "SET", "maxmemory", "0")
        await store.submit(msgspec.structs.replace(change(1), fence=fence))
        await store.check_writes()


async def test_while_the_memory_is_full_threads_are_owned_and_deleted_and_a_cluster_goes_on(own_redis: Redis) -> None:
    url = RedisUrl.parse(new_store(own_redis.url))
    async with RedisStore(url) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
    own_redis.execute("CONFIG", "SET", "maxmemory", "1")
    async with RedisStore(url) as store, RedisCells(url) as cells:
        await make_first(cells)
        fence, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        with pytest.raises(StoreError, match="maxmemory"):
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
        await store.submit(msgspec.structs.replace(delete(0), fence=fence))
        assert await store.find(ROOM) is None


async def test_while_the_memory_is_full_listings_have_the_last_changes(own_redis: Redis) -> None:
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        (before,) = await store.threads()
        await store.submit(msgspec.structs.replace(change(1), fence=fence))
        own_redis.execute("CONFIG", "SET", "maxmemory", "1")
        (row,) = await store.threads()
        assert row.version == 1
        assert row.changed_at > before.changed_at


async def test_while_the_memory_is_full_a_deletion_is_stored_whatever_is_written_at_the_same_time(
    own_redis: Redis,
) -> None:
    other = ThreadKey("room", "other")
    async with RedisStore(RedisUrl.parse(new_store(own_redis.url))) as store:
        fences = {key: await store.claim(key) for key in (ROOM, other)}
        for key, fence in fences.items():
            await store.submit(msgspec.structs.replace(beginning(), key=key, fence=fence))
        own_redis.execute("CONFIG", "SET", "maxmemory", "1")
        refused = store.submit(msgspec.structs.replace(change(1), fence=fences[ROOM]))
        deleted = store.submit(msgspec.structs.replace(delete(0), key=other, fence=fences[other]))
        with pytest.raises(StoreError, match="maxmemory"):
            await refused
        await deleted
        assert await store.find(other) is None
        assert (found := await store.find(ROOM)) is not None
        assert found.version == 0


def test_no_revision_is_given_twice_if_the_clock_is_centuries_ahead(own_redis: Redis) -> None:
    def run(script: bytes, *values: str | int) -> Any:
        ahead = script.decode().replace("redis.call('TIME')", "{'99999999999', '0'}")
        assert ahead != script.decode()
        return own_redis.execute("EVAL", ahead, 5, "origin", "fence", "format", "revisions", "cells", *values)

    number, *_ = run(READ_CELLS, 0, 0)
    assert len({run(SWAP_CELL, number, name, 0, "x") for name in "abcd"} - {None}) == 4


async def test_a_promotion_is_noticed_once_although_redis_forgets_it_after_a_while_without_replicas(
    own_redis: Redis, tmp_path: Path
) -> None:
    with own_redis.replica(tmp_path / "replica") as primary:
        primary.wait_for(own_redis)
        primary.execute("CONFIG", "SET", "repl-backlog-ttl", "1")
        primary.promote()
        losses: list[None] = []
        async with RedisStore(RedisUrl.parse(new_store(primary.url))) as store:
            store.watch_claims(lambda: losses.append(None))
            fence = await store.claim(ROOM)
            await store.submit(msgspec.structs.replace(beginning(), fence=fence))
            await until(lambda: set(str(primary.execute("INFO", "replication")["master_replid2"])) == {"0"})
            _, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            assert (stored.epoch, losses) == (beginning().epoch, [])
