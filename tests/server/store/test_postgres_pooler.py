"""A store in PostgreSQL behind a real PgBouncer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pgbouncer import PgBouncer
from tests.postgres import Postgres, new_schema, private_folder
from tests.server.store.contract import ROOM, beginning, change, client_row
from tests.server.store.contract_records import put_records
from tests.server.store.owners import found

from plait.errors import StoreError
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.thread_rows import ThreadKey


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


def open_store(url: str) -> PostgresStore:
    return PostgresStore(PostgresUrl.parse(url))


async def test_a_pooler_of_transactions_is_refused_unless_the_url_says_so(postgres: Postgres, folder: Path) -> None:
    with PgBouncer(folder / "pooler", postgres, "transaction") as pooler:
        url = new_schema(pooler.url)
        refused = pytest.raises(StoreError, match=r"cannot open .* add statement_cache_size=0 to the URL")
        for store in (open_store(url), open_store(url).reader()):
            with refused:
                async with store:
                    pass
        async with open_store(f"{url}&statement_cache_size=0") as store:
            keys = [ThreadKey("room", str(number)) for number in range(50)]
            fences = await asyncio.gather(*map(store.claim, keys))
            for write in (beginning(), change(1), change(2)):
                same = [
                    msgspec.structs.replace(write, key=key, fence=fence)
                    for key, fence in zip(keys, fences, strict=True)
                ]
                await asyncio.gather(*map(store.submit, same))
            assert [await found(store, key) for key in keys] == [(2, set())] * len(keys)


async def test_a_pooler_of_sessions_is_accepted(postgres: Postgres, folder: Path) -> None:
    with PgBouncer(folder / "pooler", postgres, "session") as pooler:
        async with open_store(new_schema(pooler.url)) as store:
            fence = await store.claim(ROOM)
            await store.submit(msgspec.structs.replace(beginning(), fence=fence))
            assert await found(store, ROOM) == (0, set())


async def test_behind_a_pooler_no_statement_is_prepared_and_each_write_says_how_durable_it_is(
    postgres: Postgres,
) -> None:
    async with open_store(new_schema(postgres.url, "&statement_cache_size=0&synchronous_commit=off")) as store:
        fence = await store.claim(ROOM)
        for write in (beginning(), change(1), change(2, client=client_row()), put_records(("a", b"1"), after=2)):
            await store.submit(msgspec.structs.replace(write, fence=fence))
        assert await found(store, ROOM) == (2, {"a"})
        assert (await store.load(ROOM)) is not None
        server: Any = store._server
        async with server._writer.use() as db:
            assert await db.fetch("SELECT name FROM pg_prepared_statements") == []
