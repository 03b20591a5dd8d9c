"""The store in PostgreSQL."""

import pytest
from tests.postgres import Postgres, new_schema
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import ROOM
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403
from tests.server.store.writing import begin

from plait.errors import CorruptThread, StoreError
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl


@pytest.fixture
def store(postgres: Postgres) -> PostgresStore:
    return PostgresStore(PostgresUrl.parse(new_schema(postgres.url)))


@pytest.mark.parametrize("found", [1, 999])
async def test_tables_of_another_build_are_refused_and_left_as_they_are(
    postgres: Postgres, store: PostgresStore, found: int
) -> None:
    async with store:
        pass
    schema = store.url.schema
    postgres.execute(f"UPDATE {schema}.plait_format SET format = {found}")
    which = "an earlier build" if found == 1 else "a newer plait"
    for other in (PostgresStore(store.url), store.reader()):
        with pytest.raises(StoreError, match=rf"cannot open the store .*: it was written by {which}") as caught:
            await other.__aenter__()
        assert ("`plait store export` of that build" in str(caught.value)) == (found == 1)
    assert postgres.execute(f"SELECT format FROM {schema}.plait_format").split() == [str(found)]


async def test_nothing_is_written_over_a_damaged_row_by_a_claim(postgres: Postgres, store: PostgresStore) -> None:
    async with store:
        await begin(store, ROOM)
        rows = f"{store.url.schema}.plait_rows"
        where = "thread = 0 AND part LIKE '~thread/%'"
        postgres.execute(f"UPDATE {rows} SET value = 'damaged' WHERE {where}")
        store.release(ROOM, await store.claim(ROOM))
        with pytest.raises(CorruptThread):
            await store.claim_and_load(ROOM)
        found = postgres.execute(f"SELECT convert_from(value, 'UTF8') FROM {rows} WHERE {where}")
    assert found.split() == ["damaged"]
