"""What a Redis server must promise, how it is reached, and what a store asks of it."""

import asyncio
import logging
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.certificates import make_certificate
from tests.ports import hold_port
from tests.redis import Redis, new_store
from tests.server.cluster.contract import make_node
from tests.server.store.contract import ROOM, beginning, change, outcomes
from tests.server.store.contract_records import delete, put_records
from tests.server.store.writing import until

from plait.cluster.cell_directory import CellDirectory, find_directory
from plait.errors import CorruptThread, StoreError
from plait.store.redis import engine
from plait.store.redis.cells import RedisCells
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl
from plait.store.thread_rows import RecordRange, ThreadKey

ROOT = Path(__file__).parents[3]
log = logging.getLogger(__name__)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A server of the test's own, with settings of its own."""
    with Redis(tmp_path / "data") as server:
        yield server


def make(server: Redis, options: str = "") -> RedisStore:
    return RedisStore(RedisUrl.parse(new_store(server.url, options)))


SETTINGS = (
    *(("appendfsync", "everysec"), ("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")),
    ("save", "3600 1"),  # A snapshot that fails has Redis refuse all writes.
)


@pytest.mark.parametrize(("setting", "value"), SETTINGS)
async def test_a_server_that_may_lose_changes_is_refused_unless_the_url_says_that_it_may(
    own_redis: Redis, setting: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.execute("CONFIG", "SET", setting, value)
    for options in ("", "&durable=yes"):
        with pytest.raises(StoreError, match=f"its {setting} is {value}: change that, or add durable=no to the URL"):
            await make(own_redis, options).__aenter__()
    async with make(own_redis, "&durable=no") as store:
        assert f"its {setting} is {value}" in store.durability
        assert store.durability in caplog.text


@pytest.mark.parametrize(("setting", "value"), SETTINGS)
async def test_a_setting_that_changes_while_the_server_runs_is_found_by_the_next_beat(
    own_redis: Redis, setting: str, value: str
) -> None:
    async with make(own_redis) as store, make(own_redis, "&durable=no") as other:
        directories = [find_directory(each) for each in (store, other)]
        for directory in directories:
            assert directory is not None
            async with directory:
                await directory.join(make_node("a"))
                assert await directory.beat("a-0")
                _, before = own_redis.execute("CONFIG", "GET", setting)
                own_redis.execute("CONFIG", "SET", setting, value)
                if directory is directories[0]:
                    with pytest.raises(StoreError, match=f"its {setting} is {value}"):
                        await directory.beat("a-0")
                else:
                    assert await directory.beat("a-0")
                    assert f"its {setting} is {value}" in other.durability
                own_redis.execute("CONFIG", "SET", setting, before)
                assert await directory.beat("a-0")
        assert "may lose the last ones" not in other.durability


async def test_a_server_that_does_not_tell_its_settings_needs_a_url_that_does(own_redis: Redis) -> None:
    own_redis.execute("ACL", "SETUSER", "app", "on", ">s3cret", "allkeys", "+@all", "-config")
    url = new_store(own_redis.url).replace("127.0.0.1", "app:s3cret@127.0.0.1")
    with pytest.raises(StoreError, match="does not tell its settings: add durable=yes or durable=no"):
        await RedisStore(RedisUrl.parse(url)).__aenter__()
    async with RedisStore(RedisUrl.parse(f"{url}&durable=yes")) as store:
        assert "may lose the last ones" in store.durability
        await store.claim(ROOM)
    async with RedisStore(RedisUrl.parse(f"{url}&durable=no")) as store:
        assert "its settings are not known" in store.durability


async def test_a_user_with_the_rights_of_the_page_is_enough(own_redis: Redis) -> None:
    url = new_store(own_redis.url)
    prefix = url.rpartition("=")[2]
    page = (ROOT / "docs" / "operations.md").read_text()
    rights = re.search(r"the keys `(~?\{game\}:\*)`, and the commands `([^`]+)`", page)
    assert rights is not None
    keys = rights[1].replace("game", prefix)
    own_redis.execute("ACL", "SETUSER", "app", "on", ">s3cret", f"~{keys}", *rights[2].split())
    async with RedisStore(RedisUrl.parse(url.replace("127.0.0.1", "app:s3cret@127.0.0.1"))) as store:
        fence = await store.claim(ROOM)
        write = msgspec.structs.replace(beginning(), fence=fence, due=5, user="ada")
        await store.submit(write)
        await store.submit(msgspec.structs.replace(put_records(("a", b"1"), ("b", None)), fence=fence))
        await store.submit(msgspec.structs.replace(change(1, snapshot=b"1", prune=1), fence=fence))
        await store.threads()
        async with store.view(ROOM) as view:
            assert view is not None
        await store.add_schema("room", "h", b"{}")
        await store.submit(msgspec.structs.replace(delete(1), fence=fence))
    async with CellDirectory(RedisCells, store.url) as directory:
        assert not (await directory.read()).nodes


async def test_a_server_that_is_too_old_is_refused(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_OLDEST", (99, 1))
    with pytest.raises(StoreError, match=r"Redis \d+\.\d+ is too old: 99\.1 or newer is needed"):
        async with make(redis_server):
            pass


async def test_a_server_of_a_redis_cluster_is_refused(tmp_path: Path) -> None:
    with hold_port() as first, hold_port() as second:
        buses = [str(held.getsockname()[1]) for held in (first, second)]
        one, two = (
            Redis(tmp_path / bus, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "60000")
            for bus in buses
        )
        with one, two:
            two.execute("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            one.execute("CLUSTER", "MEET", "127.0.0.1", two.port, buses[1])
            await until(lambda: "cluster_state:ok" in one.execute("CLUSTER", "INFO"))
            with pytest.raises(StoreError, match="of a Redis Cluster, which a store cannot be in"):
                async with make(one):
                    pass


async def test_a_replica_is_refused(own_redis: Redis, tmp_path: Path) -> None:
    with (
        own_redis.replica(tmp_path / "replica") as replica,
        pytest.raises(StoreError, match="the server is a replica, which cannot be written"),
    ):
        await make(replica).__aenter__()


async def test_no_error_and_no_log_tells_the_password(own_redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    own_redis.execute("ACL", "SETUSER", "app", "on", ">right", "allkeys", "+@all")
    caplog.set_level(logging.DEBUG)
    url = new_store(own_redis.url).replace("127.0.0.1", "app:wr0ng@127.0.0.1")
    with pytest.raises(StoreError, match="cannot open the store redis://app:") as caught:
        await RedisStore(RedisUrl.parse(url)).__aenter__()
    async with RedisStore(RedisUrl.parse(url.replace("wr0ng", "right"))) as store:
        await store.claim(ROOM)
    for password in ("wr0ng", "right@"):
        assert password not in str(caught.value)
        assert password not in caplog.text


async def test_a_server_is_reached_over_tls_and_its_certificate_is_checked(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with hold_port() as held, Redis(tmp_path / "data", "--tls-port", str(held.getsockname()[1]), *tls):
        url = new_store(f"rediss://localhost:{held.getsockname()[1]}/0")
        with pytest.raises(StoreError, match="certificate"):
            await RedisStore(RedisUrl.parse(url)).__aenter__()
        async with RedisStore(RedisUrl.parse(f"{url}&ssl_ca_certs={certificate}")) as store:
            assert await store.claim(ROOM) > 0


async def test_a_command_that_is_cancelled_at_any_step_is_cancelled(redis_server: Redis) -> None:
    async with make(redis_server) as store:
        for steps in range(100):
            line = await store.engine.connect()
            work = asyncio.create_task(line.run(("PING",)))
            for _ in range(steps):
                await asyncio.sleep(0)
            is_done = work.done()
            work.cancel()
            await asyncio.wait([work])
            assert work.cancelled() is not is_done
            await line.close()
            if is_done:
                break
        assert steps > 2


# Owners


@pytest.mark.parametrize("found", [0, 999])
async def test_keys_of_another_build_are_refused_and_left_as_they_are(redis_server: Redis, found: int) -> None:
    store = make(redis_server)
    key = f"{{{store.url.prefix}}}:format"
    redis_server.execute("SET", key, found)
    which = "an earlier build" if found == 0 else "a newer plait"
    for other in (store, store.reader()):
        with pytest.raises(StoreError, match=rf"cannot open the store .*: it was written by {which}"):
            await other.__aenter__()
    assert redis_server.execute("GET", key) == str(found)


async def test_a_reader_needs_a_store_and_writes_nothing(redis_server: Redis) -> None:
    store = make(redis_server)
    with pytest.raises(StoreError, match="there is no store with the prefix"):
        await store.reader().__aenter__()
    assert redis_server.execute("KEYS", f"*{store.url.prefix}*") == []
    async with store, store.reader() as reader:
        with pytest.raises(StoreError, match="read-only"):
            await reader.claim(ROOM)


async def test_a_thread_whose_log_has_a_gap_is_corrupt(redis_server: Redis) -> None:
    async with make(redis_server) as store:
        fence = await store.claim(ROOM)
        for write in (beginning(), change(1), change(2), change(3)):
            await store.submit(msgspec.structs.replace(write, fence=fence))
        await store.threads()  # The row of the thread has its version.
        (key,) = redis_server.execute("KEYS", f"{{{store.url.prefix}}}:c:*")
        changes = redis_server.execute("LRANGE", key, 0, -1)
        redis_server.execute("LREM", key, 1, changes[1])
        with pytest.raises(CorruptThread, match="changes are missing between versions 0 and 3"):
            await store.load(ROOM)
        redis_server.execute("RPOP", key)
        with pytest.raises(CorruptThread, match="changes are missing after version 1, up to 3"):
            await store.load(ROOM)
        for damaged in ("x", "3:x"):
            redis_server.execute("RPUSH", key, damaged)
            with pytest.raises(CorruptThread, match="cannot be read"):
                await store.load(ROOM)
            redis_server.execute("RPOP", key)


# What it costs


async def count_calls(server: Redis) -> dict[str, int]:
    """Return how often each command was called since they were counted last."""
    found = server.execute("INFO", "commandstats")
    server.execute("CONFIG", "RESETSTAT")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}
    return {name: count for name, count in calls.items() if name not in ("info", "config|resetstat", "hello")}


async def test_a_batch_is_one_script_and_a_change_two_commands(own_redis: Redis) -> None:
    async with make(own_redis) as store:
        keys = [ThreadKey("room", str(number)) for number in range(50)]
        fences = {key: await store.claim(key) for key in keys}
        begin = [msgspec.structs.replace(beginning(key=key), fence=fences[key]) for key in keys]
        assert await outcomes([store.submit(write) for write in begin]) == [None] * len(keys)
        await store.threads()
        await count_calls(own_redis)
        writes = [msgspec.structs.replace(change(1, key=key), fence=fences[key]) for key in keys]
        assert await outcomes([store.submit(write) for write in writes]) == [None] * len(keys)
        calls = await count_calls(own_redis)
        assert calls == {"eval": 1, "hget": 50, "rpush": 50, "hset": 50}
        # When they have changed is stored later.
        await store.threads()
        assert (await count_calls(own_redis))["zadd"] == 50


async def test_a_claim_with_its_load_is_two_round_trips(own_redis: Redis) -> None:
    async with make(own_redis) as store:
        await store.claim_and_load(ROOM)
        reads = [own_redis.execute("INFO", "stats")["total_reads_processed"] for _ in range(2)]
        await store.claim_and_load(ROOM, records=[RecordRange("values")])
        reads.append(own_redis.execute("INFO", "stats")["total_reads_processed"])
        # The question itself costs some, too.
        assert (reads[2] - reads[1]) - (reads[1] - reads[0]) == 2


async def test_a_view_begins_again_when_records_are_written_while_it_is_read(redis_server: Redis) -> None:
    names = [f"{number:04}" for number in range(3000)]
    async with make(redis_server) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        await store.submit(msgspec.structs.replace(put_records(*((name, b"0") for name in names)), fence=fence))

        async def write() -> None:
            for count in range(1, 16):
                rows = put_records((names[0], b"%d" % count), (names[-1], b"%d" % count))
                await store.submit(msgspec.structs.replace(rows, fence=fence))

        for _ in range(5):
            work = asyncio.create_task(write())
            async with store.view(ROOM) as view:
                assert view is not None
                found = await view.records(limit=10**4, size=10**9)
            await work
            assert [record.key for record in found] == names
            assert found[0].value == found[-1].value


async def test_a_view_holds_a_small_part_of_the_records_in_memory(redis_server: Redis) -> None:
    async with make(redis_server) as store:
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        for number in range(32):
            row = put_records((f"{number:02}", b"%02d" % number * 512 * 1024))
            await store.submit(msgspec.structs.replace(row, fence=fence))
        tracemalloc.start()
        try:
            async with store.view(ROOM) as view:
                assert view is not None
                found, after = list[bytes](), ("", "")
                while page := await view.records(after=after):
                    found += [(each.value or b"")[:2] for each in page]
                    after = page[-1].part, page[-1].key
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == [b"%02d" % number for number in range(32)]
        assert peak < 16 * 1024 * 1024
