"""What is special to two stores on one NATS stream: late copies, unfinished writes and deletions."""

import asyncio
import logging

import msgspec
from tests.nats import Nats, NatsCluster, new_stream
from tests.server.store.contract import ROOM, beginning, change, client_row
from tests.server.store.contract_records import delete, put_records
from tests.server.store.owners import take_over_many

from plait.errors import StoreError
from plait.store.nats.layout import Known
from plait.store.nats.planning import MOST_IN_HEAD
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl
from plait.store.protocol import DueThread
from plait.store.thread_rows import Prune, RecordRange, ThreadKey

log = logging.getLogger(__name__)


def make_stores(url: str, count: int = 2, *, most_in_head: int = MOST_IN_HEAD) -> list[NatsStore]:
    """Return stores on the same stream."""
    return [NatsStore(NatsUrl.parse(url), most_in_head=most_in_head) for _ in range(count)]


async def test_takeovers_on_three_servers_lose_and_repeat_nothing(nats_cluster: NatsCluster) -> None:
    stores = make_stores(new_stream(nats_cluster.url), most_in_head=0)
    async with stores[0], stores[1]:
        assert await take_over_many(stores, 200) > 40


async def test_a_copy_of_the_stream_that_is_late_shows_nothing_old(nats_cluster: NatsCluster) -> None:
    url = new_stream(nats_cluster.url)
    (first,) = make_stores(url, 1, most_in_head=0)
    async with first:
        fence = await first.claim(ROOM)
        await first.submit(msgspec.structs.replace(beginning(), fence=fence))
        leader = await asyncio.to_thread(nats_cluster.find_leader, first.url.stream)
        late = next(each for each in nats_cluster.servers if each is not leader)
        (second,) = make_stores(f"{late.url}/{first.url.stream}", 1)
        async with second:
            for number in range(1, 11):
                fence = await first.claim(ROOM)
                late.pause()
                for each in range(40):
                    write = put_records(("a", b"%d %d" % (number, each)), ("b", b"x" * 200_000))
                    await first.submit(msgspec.structs.replace(write, fence=fence, due=number * 1000 + each))
                late.resume()
                if number % 2:
                    assert await second.due_threads(until=10**9) == [DueThread(number * 1000 + 39, ROOM)]
                _, stored = await second.claim_and_load(ROOM, records=[RecordRange("values", "a")])
                assert stored is not None
                assert [row.value for row in stored.records[0]] == [b"%d 39" % number]


async def test_the_messages_of_deleted_threads_and_pruned_logs_are_removed(nats_server: Nats) -> None:
    (store,) = make_stores(new_stream(nats_server.url, "replicas=1"), 1, most_in_head=500)
    keys = [ThreadKey("room", str(number)) for number in range(3)]
    async with store:
        fences = {key: await store.claim(key) for key in keys}
        for key in keys:
            writes = [beginning(key=key), put_records(*((str(n), b"x") for n in range(2500)), key=key)]
            for write in writes:
                await store.submit(msgspec.structs.replace(write, fence=fences[key]))
        assert len(await store.records(keys[0], RecordRange("values", limit=10_000))) == 2500
        for version in range(1, 200):
            snapshot = b"1" if version % 20 == 0 else None
            each = change(version, key=keys[1], client=client_row(), snapshot=snapshot)
            await store.submit(msgspec.structs.replace(each, fence=fences[keys[1]]))
        for key, version in ((keys[0], 0), (keys[2], 0)):
            await store.submit(msgspec.structs.replace(delete(version, key=key), fence=fences[key]))
        last = change(200, key=keys[1], snapshot=b"1", prune=Prune(200))
        await store.submit(msgspec.structs.replace(last, fence=fences[keys[1]]))
        assert [row.key for row in await store.threads()] == [keys[1]]

        async def subjects() -> list[str]:
            prefix = f"{store.url.stream}.d."
            return [
                each
                for each in (await store._stream.info(f"{prefix}>")).subjects
                if not {"r", "p"} & set(each.split("."))
            ]

        async with asyncio.timeout(30):
            # The client is left; the head has the last snapshot.
            while len(await subjects()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [each.split(".")[4] for each in sorted(await subjects())] == ["k"]
        info = await store._stream.info(f"{store.url.stream}.d.>")
        assert len([each for each in info.subjects if ".r." in each]) == 2500


async def test_a_deletion_by_a_process_that_was_killed_is_finished_by_another(nats_server: Nats) -> None:
    first, second = make_stores(new_stream(nats_server.url, "replicas=1"), most_in_head=0)
    async with first, second:
        fence = await first.claim(ROOM)
        for write in (beginning(), put_records(("a", b"1")), delete(0)):
            first._upkeep._removed.clear()  # It never gets to it.
            await first.submit(msgspec.structs.replace(write, fence=fence))
        first._upkeep._removed.clear()
        rows = first._subjects.rows(ROOM, "*").removesuffix("*.") + ">"
        assert len((await second._stream.info(rows)).subjects) == 2
        assert await second.threads() == []
        async with asyncio.timeout(30):
            while (await second._stream.info(rows)).subjects:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_large_write_that_its_owner_did_not_finish_is_finished_by_the_next_one(nats_server: Nats) -> None:
    first, second = make_stores(new_stream(nats_server.url, "replicas=1"))
    async with first, second:
        fence = await first.claim(ROOM)
        await first.submit(msgspec.structs.replace(beginning(), fence=fence))
        await first.submit(msgspec.structs.replace(put_records(("0", b"old")), fence=fence))

        async def stop(known: object) -> None:
            raise StoreError("cut off")

        first._publisher.finish = stop  # type: ignore[assignment,method-assign]
        large = put_records(*((str(n), b"new") for n in range(2000)))
        await first.submit(msgspec.structs.replace(large, fence=fence))
        assert await second.claim(ROOM) > fence
        rows = await second.records(ROOM, RecordRange("values", limit=10_000))
        assert len(rows) == 2000
        assert {row.value for row in rows} == {b"new"}


async def test_a_large_write_that_its_owner_did_not_finish_is_finished_before_its_next_write(nats_server: Nats) -> None:
    (store,) = make_stores(new_stream(nats_server.url, "replicas=1"), 1)
    async with store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        publisher = store._publisher
        finish = publisher.finish

        async def stop(known: object) -> Known:
            publisher.finish = finish  # type: ignore[method-assign]
            raise StoreError("cut off")

        publisher.finish = stop  # type: ignore[method-assign]
        large = put_records(*((str(n), b"new") for n in range(2000)))
        await store.submit(msgspec.structs.replace(large, fence=fence))
        await store.submit(msgspec.structs.replace(put_records(("0", b"newer")), fence=fence))
        rows = await store.records(ROOM, RecordRange("values", limit=10_000))
        assert [len(rows), rows[0].value, rows[-1].value] == [2000, b"newer", b"new"]
