"""The cells of each shared engine pass their contract, and earlier directories are refused."""

import asyncio
import gc
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.failover import failover
from tests.mariadb import Mariadb
from tests.nats import Nats
from tests.postgres import Postgres, private_folder
from tests.redis import Redis
from tests.server.store.contract_cells import CellsContract, make_first

from plait.errors import StoreError
from plait.store.cells import Cell, Cells, Reading
from plait.store.mysql.cells import MysqlCells
from plait.store.mysql.url import MysqlUrl
from plait.store.nats.cells import NatsCells
from plait.store.nats.jetstream import JetStream
from plait.store.nats.server_connection import ServerConnection
from plait.store.nats.url import NatsUrl
from plait.store.postgres.cells import PostgresCells
from plait.store.postgres.dialect import PostgresDialect
from plait.store.postgres.url import PostgresUrl
from plait.store.redis.cells import RedisCells
from plait.store.redis.url import RedisUrl


class TestPostgres(CellsContract):
    @pytest.fixture
    def make_cells(self, postgres: Postgres) -> Callable[[], Cells]:
        url = PostgresUrl.parse(postgres.make_store())
        postgres.execute(f"CREATE SCHEMA {url.schema}")
        return lambda: PostgresCells(url)


class TestMysql(CellsContract):
    @pytest.fixture
    def make_cells(self, mariadb: Mariadb) -> Callable[[], Cells]:
        url = MysqlUrl.parse(mariadb.make_store())
        return lambda: MysqlCells(url)


class TestNats(CellsContract):
    @pytest.fixture
    def make_cells(self, nats_server: Nats) -> Callable[[], Cells]:
        url = NatsUrl.parse(nats_server.make_store())
        return lambda: NatsCells(url)


class TestRedis(CellsContract):
    @pytest.fixture
    def make_cells(self, redis_server: Redis) -> Callable[[], Cells]:
        url = RedisUrl.parse(redis_server.make_store())
        return lambda: RedisCells(url)


async def test_nothing_is_swapped_after_redis_was_started_again_from_what_was_read_before(tmp_path: Path) -> None:
    with Redis(tmp_path / "data") as server:
        async with RedisCells(RedisUrl.parse(server.make_store())) as cells:
            await make_first(cells)
            before = await cells.read()
            revision = before.cells["first"].revision
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
            assert await cells.swap("first", revision, b"2", timeline=before.timeline) is None
            # A cell that was lost, and one that has a revision that was given out and lost.
            lost = {"other": Cell(revision + 1, b"lost"), "first": Cell(revision + 2, b"lost")}
            found = await cells.read(Reading(before.timeline, lost, revision + 2))
            assert found.timeline - before.timeline >= 1 << 20
            assert found.cells == before.cells
            later = await cells.swap("first", revision, b"2", timeline=found.timeline)
            assert later is not None
            assert later > revision + 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the open files of this process")
async def test_a_connection_to_redis_that_the_server_has_closed_is_closed_when_it_is_replaced(tmp_path: Path) -> None:
    with Redis(tmp_path / "data") as server:
        async with RedisCells(RedisUrl.parse(server.make_store())) as cells:
            await make_first(cells)
            gc.collect()
            gc.disable()  # It would close them, too, much later.
            try:
                before = len(os.listdir("/proc/self/fd"))
                for _ in range(5):
                    server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    for _ in range(10):  # The loop learns that the connection has ended.
                        await asyncio.sleep(0)
                    with suppress(StoreError):
                        await cells.confirm()
                await cells.confirm()
                assert len(os.listdir("/proc/self/fd")) <= before
            finally:
                gc.enable()


async def test_a_connection_to_postgres_that_hangs_at_its_beginning_is_closed(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    async def hang(db: Any, query: str) -> None:
        await asyncio.Event().wait()

    class Hanging(PostgresDialect):
        async def connect(self) -> Any:
            made.append(await super().connect())
            monkeypatch.setattr(asyncpg.Connection, "execute", hang)
            return made[-1]

    url = PostgresUrl.parse(postgres.make_store())
    cells = PostgresCells(url, Hanging(url))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await cells.confirm()
    found = [each.is_closed() for each in made]
    for each in made:
        each.terminate()
    assert found == [True]


async def test_cells_of_a_redis_that_has_lost_its_data_are_those_that_are_made_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis(tmp_path / "data") as server:
        async with RedisCells(RedisUrl.parse(server.make_store())) as cells:
            await make_first(cells)
            timeline = (await cells.read()).timeline
            for number in range(20):
                assert await cells.swap(f"node/{number}", 0, b"1", timeline=timeline)
            before = await cells.read()
            server.execute("FLUSHALL")
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
            empty = await cells.read(before)
            assert empty.cells == {}
            assert empty.timeline - before.timeline >= 1 << 20
            assert await cells.swap("first", 0, b"2", timeline=empty.timeline)
            assert (await cells.read(before)).cells.keys() == {"first"}
    assert not caplog.records  # The store tells of it.


async def test_nothing_is_swapped_after_a_failover_from_what_was_read_before() -> None:
    async with failover() as servers:
        url = PostgresUrl.parse(servers.url)
        assert isinstance(servers.primary, Postgres)
        servers.primary.execute(f"CREATE SCHEMA {url.schema}")
        async with PostgresCells(url) as cells:
            await make_first(cells)
            before = await cells.read()
            servers.wait()
            servers.cut_off()
            lost = await cells.swap("first", before.cells["first"].revision, b"lost", timeline=before.timeline)
            assert lost
            former = await cells.read(before)
            await asyncio.to_thread(servers.promote)
            # The standby has the cell as it was read before, and a swap from that would repeat what was lost.
            assert await cells.swap("first", before.cells["first"].revision, b"2", timeline=before.timeline) is None
            found = await cells.read(former)
            assert found.timeline - before.timeline == 1 << 40
            assert found.cells == before.cells
            assert await cells.swap("first", before.cells["first"].revision, b"2", timeline=found.timeline)


async def test_a_crash_of_postgresql_loses_no_swap_also_if_changes_do_not_wait_for_the_disk() -> None:
    with private_folder() as folder, Postgres(folder / "data", "--wal_writer_delay=10000") as server:
        url = PostgresUrl.parse(server.make_store("&synchronous_commit=off"))
        server.execute(f"CREATE SCHEMA {url.schema}")
        async with PostgresCells(url) as cells:
            await make_first(cells)
            before = await cells.read()
            assert await cells.swap("first", before.cells["first"].revision, b"2", timeline=before.timeline)
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
            with suppress(StoreError):  # The connection is lost.
                await cells.read()
            assert (await cells.read()).cells["first"].value == b"2"


async def test_tables_of_an_earlier_directory_in_postgresql_are_refused(postgres: Postgres) -> None:
    url = PostgresUrl.parse(postgres.make_store())
    postgres.execute(f"CREATE SCHEMA {url.schema}", f"CREATE TABLE {url.schema}.plait_nodes (id text PRIMARY KEY)")
    async with PostgresCells(url) as cells:
        for work in (cells.read, lambda: cells.swap("first", 0, b"1", timeline=1 << 40)):
            with pytest.raises(StoreError, match=r'"plait_nodes" and .*"plait_shards" are tables of an earlier plait'):
                await work()


async def test_an_earlier_plait_finds_no_table_of_its_directory(postgres: Postgres) -> None:
    url = PostgresUrl.parse(postgres.make_store())
    postgres.execute(f"CREATE SCHEMA {url.schema}")
    async with PostgresCells(url) as cells:
        await make_first(cells)
    # It would make the tables if there was no `plait_shards`, and did not know a `plait_nodes` with other columns.
    tables = postgres.execute(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{url.schema}'")
    assert tables == "plait_nodes"


@pytest.mark.parametrize("is_earlier", [True, False])
async def test_of_an_earlier_directory_in_nats_and_this_one_only_the_first_is_used(
    nats_server: Nats, *, is_earlier: bool
) -> None:
    url = NatsUrl.parse(nats_server.make_store())
    name = f"{url.stream}-directory"
    connection = ServerConnection(url)
    await connection.open()
    earlier = JetStream(url, connection, name)
    settings = {"max_msgs_per_subject": 1, "allow_atomic": True, "allow_msg_ttl": True}
    try:
        if is_earlier:
            await earlier.prepare(settings)
            with pytest.raises(StoreError, match=f"{re.escape(name)} is the stream of an earlier plait"):
                async with NatsCells(url):
                    pass
        else:
            async with NatsCells(url):
                pass
            with pytest.raises(StoreError, match="has allow_atomic=null"):
                await earlier.prepare(settings)
    finally:
        await connection.close()
