"""A store in MariaDB that loses its connections or its server."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.mariadb import Mariadb, new_prefix
from tests.schedules import SEED, TIMES
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.writing import KEYS, Writing, cut_answers, until

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.mysql.store import MysqlStore
from plait.store.mysql.url import MysqlUrl
from plait.store.outcomes import Unreachable
from plait.store.protocol import ThreadKey


@pytest.fixture
def own_mariadb(tmp_path: Path) -> Iterator[Mariadb]:
    """A server of the test's own, which it may stop."""
    with Mariadb(tmp_path / "own") as server:
        yield server


@asynccontextmanager
async def through(proxy: CuttingProxy, mariadb: Mariadb) -> AsyncIterator[MysqlStore]:
    """Open a store whose connections go through the proxy."""
    url = new_prefix(mariadb.url).replace(f":{mariadb.port}/", f":{proxy.port}/")
    async with MysqlStore(MysqlUrl.parse(url)) as store:
        yield store


def is_question(data: bytes) -> bool:
    """Whether a request asks for the outcome of a write: it locks the rows, as the one that was held back does."""
    return b"FOR UPDATE" in data


@pytest.mark.soak
@pytest.mark.parametrize("is_late", [False, True], ids=["lost", "late"])
async def test_a_write_whose_answer_is_lost_is_stored_once_or_refused_and_never_in_doubt(
    mariadb: Mariadb, is_late: bool
) -> None:
    async with CuttingProxy(mariadb.port, is_question=is_question) as proxy, through(proxy, mariadb) as store:
        await cut_answers(store, proxy, random.Random(SEED), is_late=is_late)


async def test_a_write_is_in_doubt_only_if_the_server_cannot_be_asked(mariadb: Mariadb) -> None:
    async with CuttingProxy(mariadb.port) as proxy, through(proxy, mariadb) as store:
        writing = Writing(store, random.Random(1))
        await writing.begin()
        write = msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]])
        # The first round trip is carried, and the one with the commit is cut.
        proxy.fuse, proxy.is_closed = 2200, True
        lost = store.submit(write)
        await until(lambda: proxy.cuts == 1)
        async with MysqlStore(MysqlUrl.parse(f"{mariadb.url}?prefix={store.url.prefix}")) as other:
            # Another process takes over before the store can ask.
            await other.claim(KEYS[0])
            proxy.is_closed = False
            assert await outcomes([lost, store.submit(write)]) == [Indeterminate, Indeterminate]
            assert await outcomes([store.submit(write)]) == [Fenced]


@pytest.mark.parametrize(
    ("options", "kills"), [((), 3), (("--log-bin", "--sync-binlog=1"), 2)], ids=["plain", "binlog"]
)
async def test_a_server_that_is_killed_and_started_again_loses_nothing_and_the_store_goes_on(
    tmp_path: Path, options: tuple[str, ...], kills: int
) -> None:
    dice, losses = random.Random(3), list[None]()
    with Mariadb(tmp_path / "own", *options) as server:
        async with MysqlStore(MysqlUrl.parse(new_prefix(server.url))) as store:
            store.watch_claims(lambda: losses.append(None))
            writing = Writing(store, dice)
            await writing.begin()

            async def write_on(key: ThreadKey, count: int) -> None:
                while writing.count < count:
                    await writing.write(key)
                    await asyncio.sleep(0)

            for _ in range(kills * TIMES):
                work = [asyncio.create_task(write_on(key, writing.count + 300)) for key in KEYS]
                await until(partial(writing.has_made, writing.count + 100))
                await asyncio.to_thread(server.crash)
                await asyncio.to_thread(server.start)
                await asyncio.gather(*work)
                await writing.check()
            await store.check_writes()
    # It is the same server, on the same timeline.
    assert losses == []


async def test_while_the_server_is_stopped_writes_are_refused_and_it_is_said(own_mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(own_mariadb.url))) as store:
        writing = Writing(store, random.Random(4))
        await writing.begin()
        own_mariadb.stop()
        for _ in range(2):  # The second one does not wait.
            with pytest.raises(StoreError, match="cannot be reached") as refused:
                await store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]]))
            assert refused.value.code == "unavailable"
        with pytest.raises(StoreError, match="cannot be"):
            await store.check_writes()
        for failing in (store.load(KEYS[0]), store.claim(ROOM)):
            with pytest.raises(StoreError, match="cannot be") as caught:
                await failing
            assert caught.value.code == "unavailable"
        own_mariadb.start()
        await until(lambda: store._writer._dbs._connecting is None)
        await writing.write(KEYS[0])
        await writing.check()


@pytest.mark.soak
async def test_a_server_that_hangs_does_not_hang_the_store(own_mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(own_mariadb.url))) as store:
        writing = Writing(store, random.Random(5))
        await writing.begin()
        own_mariadb.pause()
        try:
            failing = store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]]))
            # It depends on whether the round trip with the commit was sent.
            assert await outcomes([failing]) in ([Unreachable], [Indeterminate])
        finally:
            own_mariadb.resume()
        await until(lambda: store._writer._dbs._connecting is None)
        _, stored = await store.claim_and_load(KEYS[0])
        assert stored is not None
        assert stored.version in (0, 1)


@pytest.mark.soak
async def test_a_transaction_that_does_not_go_on_loses_its_locks(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        writing = Writing(store, random.Random(7))
        await writing.begin()
        stuck = await store._dialect.connect()
        assert len(await store._dialect.lock(stuck, [(b"room", b"0")])) == 1
        await writing.write(KEYS[0])
        assert writing.refused == 0
        stuck.terminate()


async def test_a_write_above_the_largest_packet_is_refused_and_the_connection_stays(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        writing = Writing(store, random.Random(6))
        await writing.begin()
        db = store._writer._dbs.current
        large = change(1, key=KEYS[0], snapshot=b"1" * 9_000_000)
        with pytest.raises(StoreError, match="max_allowed_packet is 1677"):
            await store.submit(msgspec.structs.replace(large, fence=writing.fences[KEYS[0]]))
        # One that needs several packets is stored.
        halves = [change(number, key=KEYS[0], snapshot=b"1" * 5_000_000) for number in (1, 2)]
        await asyncio.gather(
            *(store.submit(msgspec.structs.replace(each, fence=writing.fences[KEYS[0]])) for each in halves)
        )
        assert store._writer._dbs.current is db


# Failover


async def begin(store: MysqlStore, *keys: ThreadKey) -> list[int]:
    """Begin threads, and return the numbers of their owner."""
    fences = [await store.claim(key) for key in keys]
    for key, fence in zip(keys, fences, strict=True):
        await store.submit(msgspec.structs.replace(beginning(key=key), fence=fence))
    return fences


async def test_after_a_failover_that_lost_writes_no_number_is_given_out_twice_and_epochs_are_new(
    tmp_path: Path,
) -> None:
    losses: list[None] = []
    keys = [ThreadKey("room", str(number)) for number in range(32)]
    with Mariadb(tmp_path / "a", "--log-bin") as primary, primary.replica(tmp_path / "b") as replica:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        url = new_prefix(primary.url).replace(f"127.0.0.1:{primary.port}", hosts)
        async with MysqlStore(MysqlUrl.parse(url)) as store:
            store.watch_claims(lambda: losses.append(None))
            fence, *_ = await begin(store, ROOM, *keys)
            replica.wait_for(primary)
            replica.cut_off()
            # The replica gets neither these changes nor this claim.
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
            await store.submit(msgspec.structs.replace(change(2), fence=fence))
            lost = await store.claim(keys[0])
            primary.crash()
            replica.promote()
            # All at once, as the first that come after the failover.
            claims = await asyncio.gather(*(store.claim_and_load(key) for key in keys))
            assert [stored and stored.epoch == beginning().epoch for _, stored in claims] == [False] * len(keys)
            late = store.submit(msgspec.structs.replace(change(3), fence=fence))
            assert await outcomes([late]) in ([Fenced], [Indeterminate])
            await until(lambda: len(losses) == 1)
            again, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            # The clients of the lost changes must not resume.
            assert (stored.version, stored.epoch != beginning().epoch, again > fence) == (0, True, True)
            assert claims[0][0] > lost
            # It is a new one once.
            again, found = await store.claim_and_load(ROOM)
            assert found == stored
            await store.submit(msgspec.structs.replace(change(1, epoch=stored.epoch), fence=again))
            assert len(losses) == 1


async def test_a_claim_checks_the_timeline_in_its_own_statement(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        await begin(store, ROOM)
        # What a connection finds that a proxy has led to a promoted server since it was identified.
        mariadb.execute(f"UPDATE plait.{store.url.prefix}timeline SET server = 'other'")
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.epoch != beginning().epoch


async def test_a_server_that_does_not_sync_has_new_epochs_after_each_start(tmp_path: Path) -> None:
    with Mariadb(tmp_path / "own", "--innodb-flush-log-at-trx-commit=2") as server:
        async with MysqlStore(MysqlUrl.parse(new_prefix(server.url))) as store:
            assert "innodb_flush_log_at_trx_commit" in store.durability
            await begin(store, ROOM)
            _, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            assert stored.epoch == beginning().epoch
            server.crash()
            server.start()
            _, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            assert stored.epoch != beginning().epoch


async def test_a_replica_is_refused(own_mariadb: Mariadb) -> None:
    own_mariadb.execute("SET GLOBAL read_only = 1")
    with pytest.raises(StoreError, match=r"cannot open the store .* is a replica"):
        await MysqlStore(MysqlUrl.parse(new_prefix(own_mariadb.url))).__aenter__()
