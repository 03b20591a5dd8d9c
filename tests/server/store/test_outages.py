"""A store that loses its connections, its server, or what its server had, on each engine.

What is special to one is in `test_postgres_outages.py`, `test_mysql_outages.py` and so on.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.failover import failover
from tests.postgres import private_folder
from tests.schedules import SEED, TIMES
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.cutting_proxy import CuttingProxy
from tests.server.store.engines import Engine, Server, only
from tests.server.store.writing import KEYS, Writing, begin, cut_answers, survive_kills, until

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.outcomes import Unreachable
from plait.store.protocol import Store
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_store

# MariaDB has another dialect than PostgreSQL, and the same pool, hosts and rows.
each_engine = only("postgres", "redis", "nats", soak=["mysql"])
MANY = [ThreadKey("room", str(number)) for number in range(32)]


@asynccontextmanager
async def through_proxy(
    engine: Engine, server: Server, options: str = ""
) -> AsyncIterator[tuple[CuttingProxy, Store, str]]:
    """Open a store whose connections go through a proxy; yields both, and the URL of the store without it."""
    async with CuttingProxy(server.port, is_question=engine.is_question) as proxy:
        url = server.make_store(options)
        async with open_store(url.replace(f":{server.port}/", f":{proxy.port}/")) as store:
            yield proxy, store, url


# Connections


@each_engine
@pytest.mark.soak
@pytest.mark.parametrize("is_late", [False, True], ids=["lost", "late"])
async def test_a_write_whose_answer_is_lost_is_stored_once_or_refused_and_never_in_doubt(
    engine: Engine, server: Server, is_late: bool
) -> None:
    async with through_proxy(engine, server) as (proxy, store, _):
        await cut_answers(store, proxy, random.Random(SEED), is_late=is_late)


# NATS tells the write of an owner from those of the next one.
@only("postgres", "redis", soak=["mysql"])
async def test_a_write_is_in_doubt_only_if_the_server_cannot_be_asked(engine: Engine, server: Server) -> None:
    async with through_proxy(engine, server) as (proxy, store, url):
        writing = Writing(store, random.Random(1))
        await writing.begin()
        write = msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]])
        proxy.fuse, proxy.is_closed = engine.fuse, True
        lost = store.submit(write)
        await until(lambda: proxy.cuts == 1)
        async with open_store(url) as other:
            # Another process takes over before the store can ask.
            await other.claim(KEYS[0])
            proxy.is_closed = False
            assert await outcomes([lost, store.submit(write)]) == [Indeterminate, Indeterminate]
            assert await outcomes([store.submit(write)]) == [Fenced]


@only("postgres", soak=["mysql"])
async def test_a_server_that_hangs_after_the_login_is_not_waited_for(
    engine: Engine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.store.sql.hosts._CONNECT_TIMEOUT", 2.0)
    async with CuttingProxy(server.port) as proxy:
        proxy.swallows = {"postgres": b"pg_control_system", "mysql": b"VERSION()"}[engine.name]
        store = open_store(server.make_store().replace(f":{server.port}/", f":{proxy.port}/"))
        async with asyncio.timeout(30):
            with pytest.raises(StoreError, match="the server does not answer within 2 seconds"):
                await store.__aenter__()


# Servers


# Each start of Redis is another timeline.
@only("postgres", "nats", soak=["mysql"])
@pytest.mark.usefixtures("patient")
async def test_a_server_that_is_killed_and_started_again_loses_nothing_and_the_store_goes_on(
    own_server: Server,
) -> None:
    losses: list[None] = []
    async with open_store(own_server.make_store()) as store:
        store.watch_claims(lambda: losses.append(None))
        await survive_kills(store, own_server, 3 * TIMES)
    # It is the same server, on the same timeline.
    assert losses == []


@each_engine
@pytest.mark.usefixtures("impatient")
async def test_while_the_server_is_stopped_writes_are_refused_and_it_is_said(
    engine: Engine, own_server: Server
) -> None:
    async with open_store(own_server.make_store()) as store:
        writing = Writing(store, random.Random(4))
        await writing.begin()
        own_server.stop()
        for _ in range(2):  # The second one does not wait.
            with pytest.raises(StoreError, match="cannot be reached") as refused:
                await store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]]))
            assert refused.value.code == "unavailable"
        with pytest.raises(StoreError, match="cannot be") as checked:
            await store.check_writes()
        assert type(checked.value) is not Indeterminate
        for failing in (store.load(KEYS[0]), store.claim(ROOM), store.threads()):
            with pytest.raises(StoreError, match="cannot be") as caught:
                await failing
            assert type(caught.value) is not Indeterminate
            assert caught.value.code == "unavailable"
        own_server.start()
        await until(lambda: engine.find_line(store)._connecting is None)
        if engine.keeps:
            await writing.write(KEYS[0])
            assert writing.refused == 0
            await writing.check()
        fence, stored = await store.claim_and_load(KEYS[0])
        assert stored is not None
        assert stored.version == writing.versions[KEYS[0]]
        again = change(stored.version + 1, key=KEYS[0], epoch=stored.epoch)
        await store.submit(msgspec.structs.replace(again, fence=fence))
        await store.check_writes()


@each_engine
@pytest.mark.usefixtures("impatient")
async def test_a_server_that_hangs_does_not_hang_the_store(
    engine: Engine, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # Redis is told when it is connected.
        patch.setattr("plait.store.redis.engine._ANSWER_TIMEOUT", 3.0)
        store = open_store(own_server.make_store())
    async with store:
        writing = Writing(store, random.Random(5))
        await writing.begin()
        own_server.pause()
        try:
            with monkeypatch.context() as patch:
                patch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 1.0)
                patch.setattr("plait.store.nats.publishing.PATIENCE", 0.0)
                failing = store.submit(msgspec.structs.replace(change(1, key=KEYS[0]), fence=writing.fences[KEYS[0]]))
                # It depends on whether the round trip with the commit was sent.
                (found,) = await outcomes([failing])
                assert found is not None
                assert issubclass(found, StoreError)
                assert found is not Fenced
        finally:
            own_server.resume()
        await until(lambda: engine.find_line(store)._connecting is None)
        _, stored = await store.claim_and_load(KEYS[0])
        assert stored is not None
        assert stored.version in (0, 1)


@only("postgres", "redis", soak=["mysql"])
@pytest.mark.usefixtures("impatient")
async def test_of_many_reads_none_waits_for_all_others_while_the_server_hangs(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.store.redis.engine._ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr("plait.store.reconnecting._TURN", 1.0)
    async with open_store(own_server.make_store()) as store:
        own_server.pause()
        try:
            async with asyncio.timeout(30):
                found = await asyncio.gather(*(store.find(ROOM) for _ in range(300)), return_exceptions=True)
        finally:
            own_server.resume()
        assert {type(each) for each in found} == {Unreachable}
        assert await store.find(ROOM) is None


@only("postgres", soak=["mysql"])
async def test_a_view_fails_whose_server_hangs(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(own_server.make_store()) as store:
        await begin(store, ROOM)
        monkeypatch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 1.0)
        async with asyncio.timeout(30), store.view(ROOM) as view:
            assert view is not None
            own_server.pause()
            try:
                with pytest.raises(StoreError, match=f"{ROOM} cannot be read"):
                    await view.records()
            finally:
                own_server.resume()


@only("postgres", soak=["mysql"])
async def test_a_view_does_not_begin_whose_server_hangs(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(own_server.make_store()) as store:
        await begin(store, ROOM)
        monkeypatch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 1.0)
        own_server.pause()
        try:
            async with asyncio.timeout(30):
                with pytest.raises(Unreachable):
                    await store.view(ROOM).__aenter__()
        finally:
            own_server.resume()


@pytest.mark.soak
@only("postgres", soak=["mysql"])
async def test_a_transaction_that_does_not_go_on_loses_its_locks(
    engine: Engine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the server ends it.
    monkeypatch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 60.0)
    # A write to PostgreSQL takes several statements behind a pooler.
    async with through_proxy(engine, server, engine.in_steps) as (proxy, store, url):
        fence = (await begin(store, ROOM))[ROOM]
        proxy.swallows = b"COMMIT"
        stuck = store.submit(msgspec.structs.replace(change(1), fence=fence))
        await until(lambda: proxy.swallowed > 0)
        proxy.swallows = None
        async with open_store(url) as other, asyncio.timeout(30):
            later, stored = await other.claim_and_load(ROOM)
            assert stored is not None
            assert (stored.version, later > fence) == (0, True)
            assert await outcomes([stuck]) in ([Fenced], [Indeterminate])


# What may have been lost


@only("postgres", "nats", soak=["mysql"])
@pytest.mark.usefixtures("patient")
async def test_a_crash_that_may_have_lost_writes_is_noticed_and_gives_new_epochs(engine: Engine) -> None:
    losses: list[None] = []
    assert engine.unsynced is not None
    options, more, why = engine.unsynced
    with private_folder() as folder, engine.make(folder / "own", *options) as server:
        async with open_store(server.make_store(more)) as store:
            assert why in store.durability
            store.watch_claims(lambda: losses.append(None))
            await begin(store, ROOM)
            for end, is_loss in ((server.stop, engine.stop_loses), (server.crash, True)):
                _, before = await store.claim_and_load(ROOM)
                assert before is not None
                assert before.version == 0
                losses.clear()
                await asyncio.to_thread(end)
                await asyncio.to_thread(server.start)
                _, stored = await store.claim_and_load(ROOM)
                assert stored is not None
                assert (stored.epoch != before.epoch) is is_loss
                await until(lambda is_loss=is_loss: losses == [None] * is_loss)


@only("postgres", "redis", soak=["mysql"])
@pytest.mark.usefixtures("patient")
async def test_after_a_failover_that_lost_writes_no_number_is_given_out_twice_and_all_epochs_are_new(
    engine: Engine,
) -> None:
    losses: list[None] = []
    async with failover(engine.name) as servers, open_store(servers.url) as store:
        store.watch_claims(lambda: losses.append(None))
        fences = await begin(store, ROOM, *MANY)
        servers.wait()
        servers.cut_off()
        # The replica gets neither these changes nor this claim.
        lost = [store.submit(msgspec.structs.replace(change(1, key=key), fence=fences[key])) for key in (ROOM, *MANY)]
        lost.append(store.submit(msgspec.structs.replace(change(2), fence=fences[ROOM])))
        assert await outcomes(lost) == [None] * len(lost)
        fences[MANY[0]] = await store.claim(MANY[0])
        await asyncio.to_thread(servers.promote)
        # All at once, as the first that come after the failover: nothing has been noticed yet.
        late = store.submit(msgspec.structs.replace(change(3), fence=fences[ROOM]))
        found = await asyncio.gather(*(store.claim_and_load(key) for key in MANY))
        assert await outcomes([late]) in ([Fenced], [Indeterminate])
        await until(lambda: len(losses) == 1)
        epochs = [stored.epoch for _, stored in found if stored is not None and stored.version == 0]
        assert len(epochs) == len(MANY)
        # The clients of the lost changes must not resume.
        assert beginning().epoch not in epochs
        assert min(fence for fence, _ in found) > max(fences.values())
        # Nothing that was claimed before can be written.
        stale = store.submit(msgspec.structs.replace(change(1, key=MANY[0]), fence=fences[MANY[0]]))
        assert await outcomes([stale]) == [Fenced]
        again, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert (stored.version, stored.epoch != beginning().epoch, again > max(fences.values())) == (0, True, True)
        # They are new once.
        assert [(await store.claim_and_load(key))[1] for key in MANY] == [stored for _, stored in found]
        await store.submit(msgspec.structs.replace(change(1, epoch=stored.epoch), fence=again))
        assert len(losses) == 1


@only("postgres", "redis", soak=["mysql"])
@pytest.mark.usefixtures("patient")
async def test_a_former_owner_writes_nothing_after_a_failover_that_lost_the_claim_of_the_later_one(
    engine: Engine,
) -> None:
    async with failover(engine.name) as servers, open_store(servers.url) as store:
        fence = (await begin(store, ROOM))[ROOM]
        servers.wait()
        servers.cut_off()
        async with open_store(servers.url) as other:
            later = await other.claim(ROOM)
            await other.submit(msgspec.structs.replace(change(1), fence=later))
            # The new primary has the former owner. Its write finds the connection lost, and is sent on the next one.
            promoting = asyncio.create_task(asyncio.to_thread(servers.promote))
            await until(lambda: not servers.primary.is_running)
            late = store.submit(msgspec.structs.replace(change(1, snapshot=b"1"), fence=fence))
            await promoting
            assert await outcomes([late]) == [Fenced]
        _, stored = await store.claim_and_load(ROOM)
        assert stored is not None
        assert stored.version == 0
        assert stored.epoch != beginning().epoch


@pytest.mark.soak
@only("postgres", soak=["mysql"])
@pytest.mark.usefixtures("patient")
async def test_a_former_primary_that_goes_on_after_a_failover_is_not_used_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[None] = []
    monkeypatch.setattr("plait.store.sql.pool._ANSWER_TIMEOUT", 2.0)
    async with failover(engine.name) as servers, open_store(servers.url) as opened:
        store: Any = opened
        line: Any = engine.find_line(store)
        store.watch_claims(lambda: losses.append(None))
        await begin(store, ROOM)
        await asyncio.to_thread(servers.wait)
        former: Any = servers.primary
        former.pause()
        try:
            await asyncio.to_thread(servers.replica.promote)
            line.current.terminate()
            fence, stored = await store.claim_and_load(ROOM)
        finally:
            former.resume()
        await until(lambda: len(losses) == 1)
        assert stored is not None
        for version in (1, 2):
            await store.submit(msgspec.structs.replace(change(version, epoch=stored.epoch), fence=fence))
            # The former one is the first of the URL, and can be written again.
            line.current.terminate()
        await store.check_writes()
        assert len(losses) == 1
