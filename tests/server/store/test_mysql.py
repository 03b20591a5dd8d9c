"""The store in MariaDB or MySQL."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.mariadb import Mariadb, new_prefix
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.errors import StoreError
from plait.store.mysql.store import MysqlStore
from plait.store.mysql.url import MysqlUrl
from plait.store.thread_rows import ThreadKey


@pytest.fixture
def store(mariadb: Mariadb) -> MysqlStore:
    return MysqlStore(MysqlUrl.parse(new_prefix(mariadb.url)))


@pytest.mark.parametrize(
    "left",
    [("DELETE FROM plait.{}timeline", "DROP TABLE plait.{}format"), ("DELETE FROM plait.{}format",)],
    ids=["timeline", "format"],
)
async def test_tables_that_a_kill_has_left_without_their_rows_are_completed(
    mariadb: Mariadb, store: MysqlStore, left: tuple[str, ...]
) -> None:
    async with store:
        pass
    mariadb.execute(*(statement.format(store.url.prefix) for statement in left))
    async with store:
        assert await store.claim(ROOM) > 0  # noqa: F405


@pytest.mark.parametrize("found", [1, 999])
async def test_tables_of_another_build_are_refused_and_left_as_they_are(
    mariadb: Mariadb, store: MysqlStore, found: int
) -> None:
    async with store:
        pass
    table = f"plait.{store.url.prefix}format"
    mariadb.execute(f"UPDATE {table} SET format = {found}")
    which = "an earlier build" if found == 1 else "a newer plait"
    for other in (MysqlStore(store.url), store.reader()):
        with pytest.raises(StoreError, match=rf"cannot open the store .*: it was written by {which}") as caught:
            await other.__aenter__()
        assert ("`plait store export` of that build" in str(caught.value)) == (found == 1)
    assert mariadb.execute(f"SELECT format FROM {table}") == str(found)


async def test_a_table_of_another_program_is_named_and_left_as_it_is(mariadb: Mariadb, store: MysqlStore) -> None:
    table = f"{store.url.prefix}rows"
    mariadb.execute(f"CREATE TABLE plait.{table} (id int PRIMARY KEY, value text)")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"the table {table} has other columns: give the store another prefix"):
            async with store:
                pass
    assert mariadb.execute(f"SELECT count(*) FROM plait.{table}") == "0"


async def test_a_lost_timeline_begins_again_and_its_claims_end(mariadb: Mariadb, store: MysqlStore) -> None:
    async with store:
        await store.claim(ROOM)  # noqa: F405
        mariadb.execute(f"DELETE FROM plait.{store.url.prefix}timeline")
        async with asyncio.timeout(20):
            assert await store.claim(ROOM) > 0  # noqa: F405


# What would refuse updates, cut results, end a session with a commit, or read text in another way.
_ODD = (
    *("--sql-safe-updates=1", "--completion-type=RELEASE", "--autocommit=0", "--transaction-read-only=1"),
    *("--sql-mode=ORACLE,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH", "--collation-server=utf16_general_ci"),
    *("--character-set-server=utf16", "--lower-case-table-names=1", "--default-time-zone=+05:30", "--wait-timeout=1"),
    "--max-allowed-packet=1M",
)


async def test_settings_of_a_server_change_nothing_and_what_is_above_a_packet_takes_several(tmp_path: Path) -> None:
    names = ["a", "A", "a ", "\u00e4", "a\u0308", "\U0001f600", "%", "\\", "'", '"', "$1", "%s", "{threads}"]
    with Mariadb(tmp_path / "own", *_ODD) as server:
        server.execute("SET GLOBAL sql_select_limit = 5")
        async with MysqlStore(MysqlUrl.parse(new_prefix(server.url))) as store:
            for name in names:
                key = ThreadKey("room", name)
                fence = await store.claim(key)
                await store.submit(msgspec.structs.replace(beginning(key=key), fence=fence))  # noqa: F405
                rows = [(f"{number}{name}", name.encode() * (100_000 // len(name.encode()))) for number in range(12)]
                await store.submit(msgspec.structs.replace(put_records(*rows, key=key), fence=fence))  # noqa: F405
                found = await store.records(key, RecordRange("values"))  # noqa: F405
                assert [(record.key, record.value) for record in found] == sorted(rows)
                gone = [(f"{number:060}", None) for number in range(8000)]
                await store.submit(msgspec.structs.replace(put_records(*gone, key=key), fence=fence))  # noqa: F405
            assert {row.key.name for row in await store.threads()} == set(names)
