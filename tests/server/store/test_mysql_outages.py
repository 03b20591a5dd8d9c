"""What is special to a store in MariaDB that loses its server, is led to another one, or is refused a write."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.mariadb import Mariadb, new_prefix
from tests.schedules import TIMES
from tests.server.store.contract import ROOM, beginning, change
from tests.server.store.contract_records import put_records
from tests.server.store.owners import found
from tests.server.store.writing import KEYS, Writing, begin, survive_kills

from plait.errors import StoreError
from plait.store.mysql.store import MysqlStore
from plait.store.mysql.url import MysqlUrl


@pytest.mark.usefixtures("patient")
async def test_a_server_with_a_binlog_that_is_killed_and_started_again_loses_nothing(tmp_path: Path) -> None:
    losses: list[None] = []
    with Mariadb(tmp_path / "own", "--log-bin", "--sync-binlog=1") as server:
        async with MysqlStore(MysqlUrl.parse(new_prefix(server.url))) as store:
            store.watch_claims(lambda: losses.append(None))
            await survive_kills(store, server, 2 * TIMES)
    assert losses == []


async def test_a_write_above_the_largest_packet_is_refused_and_the_connection_stays(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        writing = Writing(store, random.Random(6))
        await writing.begin()
        server: Any = store._server
        db = server._writer._dbs.current
        large = change(1, key=KEYS[0], snapshot=b"1" * 9_000_000)
        with pytest.raises(StoreError, match="max_allowed_packet is 1677"):
            await store.submit(msgspec.structs.replace(large, fence=writing.fences[KEYS[0]]))
        # One that needs several packets is stored.
        halves = [change(number, key=KEYS[0], snapshot=b"1" * 5_000_000) for number in (1, 2)]
        await asyncio.gather(
            *(store.submit(msgspec.structs.replace(each, fence=writing.fences[KEYS[0]])) for each in halves)
        )
        assert server._writer._dbs.current is db


async def test_a_claim_checks_the_timeline_in_its_own_statement(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        await begin(store, ROOM)
        # What a connection finds that a proxy has led to a promoted server since it was identified.
        mariadb.execute(f"UPDATE plait.{store.url.prefix}timeline SET server = 'other'")
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.epoch != beginning().epoch


async def test_a_removal_locks_no_row_but_the_one_that_it_removes(mariadb: Mariadb) -> None:
    async with MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))) as store:
        fence = (await begin(store, ROOM))[ROOM]
        await store.submit(msgspec.structs.replace(put_records(("a", b"1"), ("b", b"1")), fence=fence))
        table, other = f"{store.url.prefix}rows", await store.engine.connect()
        try:
            await other.execute("BEGIN")
            after = "thread > 0 AND part = 'values' AND `key` = 'b'"
            assert await other.fetch(f"SELECT 1 FROM {table} WHERE {after} FOR UPDATE")
            await store.submit(msgspec.structs.replace(put_records(("a", None)), fence=fence))
        finally:
            other.terminate()
        assert await found(store, ROOM) == (0, {"b"})


async def test_a_replica_is_refused(mariadb: Mariadb) -> None:
    mariadb.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreError, match=r"cannot open the store .* is a replica"):
            await MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url))).__aenter__()
    finally:
        mariadb.execute("SET GLOBAL read_only = 0")
