"""What is special to a store in NATS: it loses the leader of its stream, the stream, or what a backup lacks."""

import asyncio
import logging
import random
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.nats import Nats, NatsCluster, new_stream
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.writing import KEYS, Writing, begin, until

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.nats.api import Publication
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl

log = logging.getLogger(__name__)


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[Nats]:
    """A server of the test's own, which it may stop."""
    with Nats(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    """Three servers of the test's own."""
    with NatsCluster(tmp_path) as cluster:
        yield cluster


def open_store(url: str, *options: str) -> NatsStore:
    return NatsStore(NatsUrl.parse(new_stream(url, *options)))


@asynccontextmanager
async def through(proxy: CuttingProxy, server: Nats) -> AsyncIterator[NatsStore]:
    """Open a store whose connections go through the proxy."""
    async with open_store(server.url.replace(f":{server.port}", f":{proxy.port}"), "replicas=1") as store:
        yield store


async def test_a_write_is_in_doubt_only_if_others_have_owned_the_thread_meanwhile(nats_server: Nats) -> None:
    async with CuttingProxy(nats_server.port) as proxy, through(proxy, nats_server) as store:
        writing = Writing(store, random.Random(1))
        await writing.begin()
        writes = [msgspec.structs.replace(change(1, key=key), fence=writing.fences[key]) for key in KEYS]
        proxy.fuse, proxy.is_closed = 1, True
        lost = [store.submit(write) for write in writes]
        async with NatsStore(NatsUrl.parse(f"{nats_server.url}/{store.url.stream}?replicas=1")) as other:
            # Other processes take over before the store can ask. Of one of them, it can tell; of two, it cannot.
            await other.claim(KEYS[0])
            await other.claim(KEYS[1])
            await other.claim(KEYS[1])
            proxy.is_closed = False
            found = await outcomes(lost)
            assert found[0] is Fenced
            assert found[1] in (Fenced, Indeterminate)
            assert found[2:] == [None, None]
            assert await outcomes([store.submit(writes[0]), store.submit(writes[1])]) == [Fenced, Fenced]


@pytest.mark.usefixtures("patient")
async def test_when_the_leader_is_killed_nothing_acknowledged_is_lost(own_cluster: NatsCluster) -> None:
    losses: list[None] = []
    async with open_store(own_cluster.url) as store:
        store.watch_claims(lambda: losses.append(None))
        writing = Writing(store, random.Random(5))
        await writing.begin()
        is_over = False

        async def write_on(key: object) -> None:
            (own,) = (each for each in KEYS if each == key)
            while not is_over:
                await writing.write(own)
                await asyncio.sleep(0)

        work = [asyncio.create_task(write_on(key)) for key in KEYS]
        await until(partial(writing.has_made, 100))
        leader = await asyncio.to_thread(own_cluster.find_leader, store.url.stream)
        leader.stop(signal.SIGKILL)
        before = sum(writing.versions.values())
        await until(lambda: sum(writing.versions.values()) > before + 100)
        is_over = True
        await asyncio.gather(*work)
        await writing.check()
        log.warning("%d writes, %d refused", writing.count, writing.refused)
    assert losses == []


@pytest.mark.usefixtures("patient")
async def test_when_all_servers_are_killed_at_once_nothing_acknowledged_is_lost(own_cluster: NatsCluster) -> None:
    losses: list[None] = []
    async with open_store(own_cluster.url) as store:
        store.watch_claims(lambda: losses.append(None))
        writing = Writing(store, random.Random(6))
        await writing.begin()
        for _ in range(30):
            await asyncio.gather(*map(writing.write, KEYS))
        for server in own_cluster.servers:
            server.stop(signal.SIGKILL)
        work = [asyncio.create_task(writing.write(key)) for key in KEYS]
        for server in own_cluster.servers:
            server.begin()
        await asyncio.gather(*work)
        async with asyncio.timeout(60):
            while not await can_be_written(store):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await writing.check()
    assert losses == []


async def can_be_written(store: NatsStore) -> bool:
    try:
        await store.claim(ROOM)
    except StoreError:
        return False
    return True


# What may have been lost


async def test_a_stream_that_was_deleted_and_made_again_gives_no_number_out_twice(own_nats: Nats) -> None:
    losses: list[None] = []
    url = new_stream(own_nats.url, "replicas=1")
    async with NatsStore(NatsUrl.parse(url)) as store, NatsStore(NatsUrl.parse(url)) as other:
        store.watch_claims(lambda: losses.append(None))
        fence = (await begin(store, ROOM))[ROOM]
        await other._stream.api(f"STREAM.DELETE.{store.url.stream}", {})
        async with NatsStore(NatsUrl.parse(url)) as third:  # It makes the stream.
            again = await third.claim(ROOM)
            assert again > fence
            # The store has the same connection as before; the write tells it.
            assert await outcomes([store.submit(msgspec.structs.replace(change(1), fence=fence))]) == [Fenced]
            await until(lambda: losses == [None])
            assert await store.claim(ROOM) > again
            assert await store.load(ROOM) is None
            assert await store.threads() == []


async def test_a_copy_of_the_data_that_is_older_is_a_loss(own_nats: Nats, tmp_path: Path) -> None:
    losses: list[None] = []
    async with open_store(own_nats.url, "replicas=1") as store:
        store.watch_claims(lambda: losses.append(None))
        fence = (await begin(store, ROOM))[ROOM]
        own_nats.stop()
        data = own_nats.folder / "data"
        data.rename(tmp_path / "new")
        await asyncio.to_thread(shutil.copytree, tmp_path / "new", data)
        own_nats.start()
        await store.submit(msgspec.structs.replace(change(1), fence=fence))
        assert losses == []
        own_nats.stop()
        data.rename(tmp_path / "newer")
        await asyncio.to_thread(shutil.copytree, tmp_path / "new", data)
        own_nats.start()
        await until(lambda: losses == [None])
        assert await outcomes([store.submit(msgspec.structs.replace(change(2), fence=fence))]) == [Fenced]
        again, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert again > fence
        assert stored.version == 0
        # The clients of the lost change must not resume.
        assert stored.epoch != beginning().epoch


async def test_after_a_restored_backup_an_operator_tells_the_stores_that_changes_may_be_lost(nats_server: Nats) -> None:
    losses: list[None] = []
    async with open_store(nats_server.url, "replicas=1") as store:
        store.watch_claims(lambda: losses.append(None))
        await begin(store, ROOM)
        await store.load(ROOM)
        assert losses == []
        # `nats pub game.anchor restored`
        await store._stream.publish(Publication(f"{store.url.stream}.anchor", b"restored"))
        await store.load(ROOM)
        await until(lambda: losses == [None])
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.epoch != beginning().epoch
    async with store:  # It is a new one once.
        _, again = await store.claim_and_load(ROOM)
        assert again == stored
