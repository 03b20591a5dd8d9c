"""The store in MariaDB or MySQL."""

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


@pytest.mark.parametrize("found", [0, 999])
async def test_tables_of_another_build_are_refused_and_left_as_they_are(
    mariadb: Mariadb, store: MysqlStore, found: int
) -> None:
    async with store:
        pass
    table = f"plait.{store.url.prefix}format"
    mariadb.execute(f"UPDATE {table} SET format = {found}")
    which = "an earlier build" if found == 0 else "a newer plait"
    for other in (MysqlStore(store.url), store.reader()):
        with pytest.raises(StoreError, match=rf"cannot open the store .*: it was written by {which}"):
            await other.__aenter__()
    assert mariadb.execute(f"SELECT format FROM {table}") == str(found)
