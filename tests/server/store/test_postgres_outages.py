"""A store in PostgreSQL that loses its connections or its server."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec
import pytest
from tests.failover import failover
from tests.postgres import Postgres, new_schema, private_folder
from tests.schedules import SEED
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.writing import KEYS, Writing, cut_answers, until

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import ThreadKey

log = logging.getLogger(__name__)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server of the test's own, which it may stop."""
    with private_folder() as folder, Postgres(folder / "data") as server:
        yield server


@asynccontextmanager
async def through(proxy: CuttingProxy, postgres: Postgres) -> AsyncIterator[PostgresStore]:
    """Open a store whose connections go through the proxy."""
    url = new_schema(postgres.url).replace(f":{postgres.port}/", f":{proxy.port}/")
    async with PostgresStore(PostgresUrl.parse(url)) as store:
        yield store


@pytest.mark.soak
@pytest.mark.parametrize("is_late", [False, True], ids=["lost", "late"])
async def test_a_write_whose_answer_is_lost_is_stored_once_or_refused_and_never_in_doubt(
    postgres: Postgres, is_late: bool
) -> None:
    async with CuttingProxy(postgres.port) as proxy, through(proxy, postgres) as store:
        await cut_answers(store, proxy, random.Random(SEED), is_late=is_late)


async def test_a_write_is_in_doubt_only_if_the_server_cannot_be_asked(postgres: Postgres) -> None:
    async with CuttingProxy(postgres.port) as proxy, through(proxy, postgres) as store:
        writing = Writing(store, random.Random(1))
        await writing.begin()
        write = msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]])
        proxy.fuse, proxy.is_closed = 1, True
        lost = store.submit(write)
        async with PostgresStore(PostgresUrl.parse(f"{postgres.url}?schema={store.url.schema}")) as other:
            # Another process takes over before the store can ask.
            await other.claim(KEYS[0])
            proxy.is_closed = False
            assert await outcomes([lost, store.submit(write)]) == [Indeterminate, Indeterminate]
            assert await outcomes([store.submit(write)]) == [Fenced]


async def test_a_server_that_is_killed_and_started_again_loses_nothing_and_the_store_goes_on(
    own_postgres: Postgres,
) -> None:
    dice = random.Random(3)
    async with PostgresStore(PostgresUrl.parse(new_schema(own_postgres.url))) as store:
        writing = Writing(store, dice)
        await writing.begin()

        async def write_on(key: ThreadKey, count: int) -> None:
            while writing.count < count:
                await writing.write(key)
                await asyncio.sleep(0)

        for _ in range(2):
            work = [asyncio.create_task(write_on(key, writing.count + 300)) for key in KEYS]
            await until(partial(writing.has_made, writing.count + 100))
            await asyncio.to_thread(own_postgres.crash)
            await asyncio.to_thread(own_postgres.start)
            await asyncio.gather(*work)
            await writing.check()
        await store.check_writes()


async def test_while_the_server_is_stopped_writes_are_refused_and_it_is_said(own_postgres: Postgres) -> None:
    async with PostgresStore(PostgresUrl.parse(new_schema(own_postgres.url))) as store:
        writing = Writing(store, random.Random(4))
        await writing.begin()
        own_postgres.stop()
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
        own_postgres.start()
        await until(lambda: store._writer._dbs._connecting is None)
        await writing.write(KEYS[0])
        await writing.check()


# Failover


async def begin(store: PostgresStore, *keys: ThreadKey) -> list[int]:
    """Begin threads, and return the numbers of their owner."""
    fences = [await store.claim(key) for key in keys]
    for key, fence in zip(keys, fences, strict=True):
        await store.submit(msgspec.structs.replace(beginning(key=key), fence=fence))
    return fences


async def test_after_a_failover_that_lost_writes_no_number_is_given_out_twice_and_epochs_are_new() -> None:
    losses: list[None] = []
    async with failover() as servers, PostgresStore(PostgresUrl.parse(servers.url)) as store:
        store.watch_claims(lambda: losses.append(None))
        fence, _ = await begin(store, ROOM, KEYS[0])
        servers.wait()
        servers.cut_off()
        # The standby gets neither these changes nor this claim.
        await store.submit(msgspec.structs.replace(change(1), fence=fence))
        await store.submit(msgspec.structs.replace(change(2), fence=fence))
        lost = await store.claim(KEYS[0])
        servers.promote()
        late = store.submit(msgspec.structs.replace(change(3), fence=fence))
        assert await outcomes([late]) in ([Fenced], [Indeterminate])
        await until(lambda: len(losses) == 1)
        # Nothing that was claimed before can be written.
        stale = store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=lost))
        assert await outcomes([stale]) == [Fenced]
        again, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert (stored.version, again >> 40) == (0, 2)
        # The clients of the lost changes must not resume.
        assert stored.epoch != beginning().epoch
        assert await store.claim(KEYS[0]) > lost
        # It is a new one once.
        again, found = await store.claim_and_load(ROOM)
        assert found == stored
        await store.submit(msgspec.structs.replace(change(1, epoch=stored.epoch), fence=again))
        assert len(losses) == 1


async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_keeps_epochs() -> None:
    # The next standby is there until the store is closed, which writes.
    async with failover() as servers, AsyncExitStack() as stack:
        primary, standby = servers.primary, servers.replica
        assert isinstance(primary, Postgres)
        assert isinstance(standby, Postgres)
        primary.require_standby()
        store = PostgresStore(PostgresUrl.parse(f"{servers.url}&standby=synchronous"))
        async with store:
            (fence,) = await begin(store, ROOM)
            await store.submit(msgspec.structs.replace(change(1), fence=fence))
            servers.promote()
            # The new primary has no standby, so that another failover would lose writes.
            with pytest.raises(StoreError, match="synchronous_standby_names is empty"):
                await store.load(ROOM)
            following = stack.enter_context(standby.replica(standby.folder.parent / "next"))
            following.wait_for(standby)
            standby.require_standby()
            await until(lambda: store._writer._dbs._connecting is None)
            again, stored = await store.claim_and_load(ROOM)
            assert stored is not None
            assert (stored.version, stored.epoch, again >> 40) == (1, beginning().epoch, 2)
            await store.submit(msgspec.structs.replace(change(2), fence=again))


async def test_without_synchronous_commits_a_crash_is_a_loss_and_a_restart_is_not(own_postgres: Postgres) -> None:
    url = PostgresUrl.parse(new_schema(own_postgres.url, "&synchronous_commit=off"))
    async with PostgresStore(url) as store:
        await begin(store, ROOM)
        own_postgres.stop()
        own_postgres.start()
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.epoch == beginning().epoch
        own_postgres.crash()
        own_postgres.start()
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.epoch != beginning().epoch


async def test_a_store_that_promises_a_standby_is_not_opened_without_one(postgres: Postgres) -> None:
    with pytest.raises(StoreError, match=r"cannot open the store .* synchronous_standby_names is empty"):
        await PostgresStore(PostgresUrl.parse(new_schema(postgres.url, "&standby=synchronous"))).__aenter__()
