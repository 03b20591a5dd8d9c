"""A store in PostgreSQL whose commits wait for a standby."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.failover import failover
from tests.postgres import Postgres, new_schema
from tests.server.store.contract import PATIENCE, ROOM, beginning, change
from tests.server.store.writing import begin, until

from plait.errors import StoreError
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl


async def refuse_load(store: PostgresStore) -> str:
    """Return why a thread is not loaded."""
    with pytest.raises(StoreError) as caught:
        await store.load(ROOM)
    return str(caught.value)


@pytest.mark.usefixtures("impatient")
async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_keeps_epochs() -> None:
    # The next standby is there until the store is closed, which writes.
    async with failover() as servers, AsyncExitStack() as stack:
        primary, standby = servers.primary, servers.replica
        assert isinstance(primary, Postgres)
        assert isinstance(standby, Postgres)
        primary.require_standby()
        store = PostgresStore(PostgresUrl.parse(f"{servers.url}&standby=synchronous"))
        async with store:
            fence = (await begin(store, ROOM))[ROOM]
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
            servers.promote()
            # The new primary has no standby, so that another failover would lose writes.
            async with asyncio.timeout(PATIENCE):
                while "synchronous_standby_names is empty" not in await refuse_load(store):
                    pass
            following = stack.enter_context(standby.replica(standby.folder.parent / "next"))
            following.wait_for(standby)
            standby.require_standby()
            server: Any = store._server
            await until(lambda: server._writer._dbs._connecting is None)
            again, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            assert (stored.version, stored.epoch) == (1, beginning().epoch)
            assert again > fence
            await store.submit(msgspec.structs.replace(change(2), fence=again))


async def test_a_store_that_promises_a_standby_is_not_opened_without_one(postgres: Postgres) -> None:
    with pytest.raises(StoreError, match=r"cannot open the store .* synchronous_standby_names is empty"):
        await PostgresStore(PostgresUrl.parse(new_schema(postgres.url, "&standby=synchronous"))).__aenter__()


async def test_a_standby_is_refused() -> None:
    async with failover() as servers:
        with pytest.raises(StoreError, match=r"cannot open the store .* is a standby, which cannot be written"):
            await PostgresStore(PostgresUrl.parse(servers.replica.make_store())).__aenter__()
