"""A store in PostgreSQL that loses its connections or its server."""

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.postgres import Postgres, new_schema, private_folder
from tests.schedules import SEED, schedules
from tests.server.store.contract import PATIENCE, ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import put_records
from tests.server.store.cutting_proxy import CuttingProxy

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import ThreadKey, Write

log = logging.getLogger(__name__)

KEYS = [ThreadKey("room", str(number)) for number in range(4)]


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server of the test's own, which it may stop."""
    with private_folder() as folder, Postgres(folder / "data") as server:
        yield server


class Writing:
    """Writes to some threads, and knows what must be stored, and what may be."""

    def __init__(self, store: PostgresStore, dice: random.Random) -> None:
        self.store = store
        self._dice = dice
        self.fences: dict[ThreadKey, int] = {}
        self.versions = dict.fromkeys(KEYS, 0)
        self.records: dict[ThreadKey, set[str]] = {key: set() for key in KEYS}
        self.count = 0
        self.refused = 0

    async def begin(self) -> None:
        for key in KEYS:
            self.fences[key] = await self.store.claim(key)
            await self.store.submit(msgspec.structs.replace(beginning(key=key), fence=self.fences[key]))

    async def write(self, key: ThreadKey) -> None:
        """Make one write, and check its outcome against what is stored. Nothing may be in doubt."""
        self.count += 1
        write = self._make(key)
        try:
            await self.store.submit(msgspec.structs.replace(write, fence=self.fences[key]))
        except StoreError as error:
            assert type(error) is StoreError, error
            self.refused += 1
        else:
            self.versions[key] = write.version
            self.records[key].update(record.key for record in write.records)

    def _make(self, key: ThreadKey) -> Write:
        version, name = self.versions[key], str(self.count)
        what = self._dice.choice(("change", "client", "snapshot", "record"))
        if what == "record":
            return put_records((name, b""), after=version, key=key)
        client = client_row(ref=self.count) if what == "client" else None
        return change(version + 1, key=key, client=client, snapshot=b"1" if what == "snapshot" else None)

    async def check(self) -> None:
        """Check that exactly the writes that were acknowledged are stored."""
        for key in KEYS:
            stored = await self.store.load(key)
            assert stored is not None
            assert stored.version == self.versions[key]
            assert {record.key for record in await self.store.records(key, "values")} == self.records[key]


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
    dice = random.Random(SEED)
    async with CuttingProxy(postgres.port) as proxy, through(proxy, postgres) as store:
        proxy.is_late = is_late
        writing = Writing(store, dice)
        await writing.begin()
        for _ in range(schedules(60)):
            proxy.fuse = dice.randrange(1, 1500)
            while proxy.fuse is not None:
                await asyncio.gather(*(writing.write(key) for key in KEYS if dice.random() < 0.7))
            await writing.check()
        log.warning("%d writes, %d connections cut, %d refused", writing.count, proxy.cuts, writing.refused)
        assert proxy.cuts >= 60
        # A write that was lost is made again.
        assert writing.refused <= writing.count // 50


async def test_a_write_is_in_doubt_only_if_the_server_cannot_be_asked(postgres: Postgres) -> None:
    async with CuttingProxy(postgres.port) as proxy, through(proxy, postgres) as store:
        writing = Writing(store, random.Random(1))
        await writing.begin()
        fence = writing.fences[KEYS[0]]
        proxy.fuse = 1
        write = store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=fence))
        # Another process takes over before the store has asked.
        async with PostgresStore(PostgresUrl.parse(postgres.url + f"?schema={store.url.schema}")) as other:
            await other.claim(KEYS[0])
            assert await outcomes([write]) in ([Indeterminate], [Fenced])
            assert await outcomes([store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=fence))]) == [
                Fenced
            ]


async def test_a_server_that_is_killed_and_started_again_loses_nothing_and_the_store_goes_on(
    own_postgres: Postgres,
) -> None:
    dice = random.Random(3)
    async with PostgresStore(PostgresUrl.parse(new_schema(own_postgres.url))) as store:
        writing = Writing(store, dice)
        await writing.begin()
        for _ in range(2):
            is_over = False

            async def write_on(key: ThreadKey) -> None:
                while not is_over:
                    await writing.write(key)
                    await asyncio.sleep(0)

            work = [asyncio.create_task(write_on(key)) for key in KEYS]
            await until(lambda: writing.count > 100)
            await asyncio.to_thread(own_postgres.crash)
            await asyncio.to_thread(own_postgres.start)
            count = writing.count
            await until(lambda: writing.count > count + 100)
            is_over = True
            await asyncio.gather(*work)
            await writing.check()
            writing.count = 0
        await store.check_writes()


async def test_while_the_server_is_stopped_writes_are_refused_and_it_is_said(own_postgres: Postgres) -> None:
    async with PostgresStore(PostgresUrl.parse(new_schema(own_postgres.url))) as store:
        writing = Writing(store, random.Random(4))
        await writing.begin()
        own_postgres.stop()
        for _ in range(2):  # The second one does not wait.
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]]))
        for failing in (store.check_writes(), store.load(KEYS[0]), store.claim(KEYS[0])):
            with pytest.raises(StoreError, match="cannot be") as caught:
                await failing
            assert type(caught.value) is not Indeterminate
        own_postgres.start()
        async with asyncio.timeout(PATIENCE):
            await store._writer._connecting if store._writer._connecting is not None else None
        await writing.write(KEYS[0])
        await writing.check()


async def until(is_reached: object) -> None:
    """Wait until something is true."""
    assert callable(is_reached)
    async with asyncio.timeout(60):
        while not is_reached():
            await asyncio.sleep(0.005)


# Failover


@asynccontextmanager
async def failover(options: str = "", *, loses: bool) -> AsyncIterator[tuple[PostgresStore, list[str], dict[str, int]]]:
    """Open a store, write, promote a standby that may have lost the last writes, and yield the store."""
    with private_folder() as folder, Postgres(folder / "primary") as primary:
        names = "standby" if "synchronous" in options and "synchronous_commit" not in options else ""
        standby = primary.make_standby(folder / "standby", name="standby")
        with standby_running(standby):
            follows(primary)
            primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
            both = f"postgresql://plait@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
            lost: list[str] = []
            async with PostgresStore(PostgresUrl.parse(new_schema(both, options))) as store:
                store.watch_claims(lambda: lost.append("lost"))
                fence = await store.claim(ROOM)
                await store.submit(msgspec.structs.replace(beginning(), fence=fence))
                other = await store.claim(KEYS[0])
                await store.submit(msgspec.structs.replace(beginning(key=KEYS[0]), fence=other))
                follows(primary)
                if loses:
                    standby.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
                    await until(lambda: primary.execute("SELECT count(*) FROM pg_stat_replication") == "0")
                    # The standby gets neither these changes nor this claim.
                    await store.submit(msgspec.structs.replace(change(1), fence=fence))
                    await store.submit(msgspec.structs.replace(change(2), fence=fence))
                    other = await store.claim(KEYS[0])
                primary.crash()
                standby.execute("SELECT pg_promote()")
                yield store, lost, {"room": fence, "other": other}


def follows(primary: Postgres) -> None:
    """Wait until the standby has everything."""
    caught_up = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
    for _ in range(1000):
        if primary.execute(caught_up) == "1":
            return
    raise AssertionError("the standby does not follow")


class standby_running:  # noqa: N801
    """Starts a standby, and stops it."""

    def __init__(self, standby: Postgres) -> None:
        self.standby = standby

    def __enter__(self) -> None:
        self.standby.start()

    def __exit__(self, *_: object) -> None:
        self.standby.stop(signal.SIGQUIT)


async def test_after_a_failover_that_lost_writes_no_number_is_given_out_twice_and_epochs_are_new() -> None:
    async with failover(loses=True) as (store, lost, fences):
        late = store.submit(msgspec.structs.replace(change(3), fence=fences["room"]))
        assert await outcomes([late]) in ([Fenced], [Indeterminate])
        await until(lambda: lost == ["lost"])
        # Nothing that was claimed before can be written.
        stale = store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=fences["other"]))
        assert await outcomes([stale]) == [Fenced]
        fence, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert (stored.version, fence >> 40) == (0, 2)
        # The clients of the lost changes must not resume.
        assert stored.epoch != beginning().epoch
        again = await store.claim(KEYS[0])
        assert again > fences["other"]
        assert again >> 40 == 2
        assert (await store.claim_and_load(ROOM))[1] == stored
        await store.submit(msgspec.structs.replace(change(1, epoch=stored.epoch), fence=await store.claim(ROOM)))


async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_keeps_epochs() -> None:
    async with failover("&standby=synchronous", loses=False) as (store, lost, fences):
        with pytest.raises(StoreError, match="synchronous_standby_names is empty"):
            await store.load(ROOM)
        assert lost == []
        assert fences
