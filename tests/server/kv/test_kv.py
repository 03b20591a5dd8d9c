"""Durable namespaces of entries that may expire."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.clocks import Clock
from tests.schedules import in_soak
from tests.server.fakes import TroubledStore

from plait import Context, Interruption, Limits, MemoryStore, Plait, SqliteStore, StoreError, Thread, TooLarge, Values
from plait.kv.kv import KV, KVStats
from plait.kv.namespace import Namespace
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.store.protocol import Store
from plait.store.thread_rows import Record, RecordRange, ThreadKey

ODD_KEYS = [
    "a b",
    "a/b",
    "a%20b",
    "a*b",
    "a:b",
    "ü",
    "😀",
    "\ud83d\ude00",
    "\ud83d",
    "\x00",
    "\n",
    "\x85",
    "%",
    " ",
    "x" * 1024,
    "x" * 1023 + "y",
    "é" * 1024,
    "😀" * 1024,
]


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a closed store."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "kv.db")


@asynccontextmanager
async def open_kv(store: Store, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[KV]:
    """Run a node that has nothing but `kv`."""
    async with store:
        node = Node([], store, limits, inner_kinds=[Namespace._kind])
        node.start()
        try:
            yield KV(store, node.actor, node.everywhere, limits=limits)
        finally:
            await node.stop(5)


async def count_records(store: Store, namespace: str) -> int:
    """Return how many records a namespace has in the store."""
    parts = ("entries", "index", "due")
    return sum(
        [len(await store.records(ThreadKey("plait-kv", namespace), RecordRange(part, limit=10_000))) for part in parts]
    )


# Entries


@each_case(
    "value",
    ["", "text", "é😀\n\x00", "\ud83d", 0, -1.5, True, None, [1, "a", None], {"a": {"b": [1]}}, b"", b"\x00\xff\n{}"],
)
async def test_what_was_set_is_found_with_its_type_also_after_a_restart(
    store: Store, tmp_path: Path, value: Any
) -> None:
    for _ in range(2):
        async with open_kv(store) as kv:
            await kv.set("ns", "key", value)
            found = await kv.get("ns", "key")
            assert (found.exists, found.data, found.expires_at) == (True, value, None)
            assert type(found.data) is type(value)
    if isinstance(store, SqliteStore):
        async with open_kv(SqliteStore(tmp_path / "kv.db")) as kv:
            assert (await kv.get("ns", "key")).data == value


async def test_the_content_type_is_that_of_the_value_unless_another_is_given(store: Store) -> None:
    async with open_kv(store) as kv:
        for value, expected in (("a", "text/plain; charset=utf-8"), (1, "application/json")):
            await kv.set("ns", "key", value)
            assert (await kv.get("ns", "key")).content_type == expected
        await kv.set("ns", "key", b"png", content_type="image/png")
        found = await kv.get("ns", "key")
        assert (found.data, found.content_type) == (b"png", "image/png")


async def test_what_is_not_there_does_not_exist_and_reading_begins_nothing(store: Store) -> None:
    async with open_kv(store) as kv:
        missing = await kv.get("ns", "key")
        assert (missing.exists, missing.data, missing.content_type, missing.expires_at) == (False, None, None, None)
        assert await kv.keys("ns") == []
        assert await kv.stats("ns") == KVStats(0, 0)
        await kv.delete("ns", "key")
        await kv.delete_namespace("ns")
        assert await kv.namespaces() == []
        await kv.set("ns", "other", 1)
        assert not (await kv.get("ns", "key")).exists


async def test_any_key_and_any_namespace_has_an_entry_of_its_own(store: Store) -> None:
    names = [key for key in ODD_KEYS if len(key) < 100]
    async with open_kv(store) as kv:
        for number, key in enumerate(ODD_KEYS):
            await kv.set("ns", key, number)
        for number, name in enumerate(names):
            await kv.set(name, "key", number)
        assert [(await kv.get("ns", key)).data for key in ODD_KEYS] == list(range(len(ODD_KEYS)))
        assert [(await kv.get(name, "key")).data for name in names] == list(range(len(names)))
        assert await kv.keys("ns") == sorted(ODD_KEYS)
        assert await kv.namespaces() == sorted(["ns", *names])
        for key in ODD_KEYS:
            assert key in await kv.keys("ns", prefix=key)
            await kv.delete("ns", key)
            assert not (await kv.get("ns", key)).exists
        assert await kv.keys("ns") == []


async def test_keys_are_those_with_the_prefix_however_many_there_are(store: Store) -> None:
    async with open_kv(store) as kv:
        names = [f"{kind}/{number}" for kind in ("a", "b c", "b%20c") for number in range(700)]
        await asyncio.gather(*(kv.set("ns", name, "1234") for name in names))
        assert await kv.keys("ns", "b c/") == sorted(f"b c/{number}" for number in range(700))
        assert len(await kv.keys("ns")) == 2100
        assert await kv.stats("ns") == KVStats(2100, 8400)
        long = "x" * 600
        await kv.set("ns", f"{long}1", 1)
        await kv.set("ns", f"{long}2", 1)
        assert await kv.keys("ns", f"{long}1") == [f"{long}1"]


async def test_the_last_of_many_writes_stays_in_the_order_of_the_calls(store: Store) -> None:
    async with open_kv(store) as kv:
        for _ in range(20):
            await asyncio.gather(*(kv.set("ns", "key", number) for number in range(20)))
            assert (await kv.get("ns", "key")).data == 19
        await asyncio.gather(kv.delete("ns", "key"), kv.set("ns", "key", "again"))
        assert (await kv.get("ns", "key")).data == "again"


async def test_a_reader_sees_an_entry_whole_while_it_is_written(store: Store) -> None:
    async with open_kv(store) as kv:

        async def write() -> None:
            for number in range(100):
                await kv.set("ns", "key", str(number) * 50, content_type=f"type/{number}")

        writing = asyncio.create_task(write())
        while not writing.done():
            await asyncio.sleep(0)  # A read need not wait for anything.
            found = await kv.get("ns", "key")
            if found.exists:
                assert found.content_type is not None
                assert found.data == found.content_type.removeprefix("type/") * 50
        await writing


async def test_namespaces_do_not_share_entries_and_are_deleted_whole(store: Store) -> None:
    async with open_kv(store) as kv:
        await kv.set("one", "key", 1, ttl=50)
        await kv.set("two", "key", 2)
        assert await kv.namespaces() == ["one", "two"]
        await kv.delete_namespace("one")
        assert await kv.namespaces() == ["two"]
        assert not (await kv.get("one", "key")).exists
        assert await count_records(store, "one") == 0
        assert (await kv.get("two", "key")).data == 2
        await kv.set("one", "other", 3)
        assert await kv.keys("one") == ["other"]


# Expiry


async def test_an_entry_expires_after_its_ttl_and_leaves_the_store_when_met(store: Store, clock: Clock) -> None:
    async with open_kv(store) as kv:
        await kv.set("ns", "short", 1, ttl=10)
        await kv.set("ns", "long", 2, ttl=3600.5)
        await kv.set("ns", "never", 3, ttl=None)
        begin = datetime.fromtimestamp(clock.now / 1e6, UTC)
        assert (await kv.get("ns", "short")).expires_at == begin + timedelta(seconds=10)
        assert (await kv.get("ns", "long")).expires_at == begin + timedelta(seconds=3600.5)
        clock.move(9.9)
        assert (await kv.get("ns", "short")).data == 1
        clock.move(0.1)
        assert not (await kv.get("ns", "short")).exists
        assert await kv.keys("ns") == ["long", "never"]
        assert len(await store.records(ThreadKey("plait-kv", "ns"), RecordRange("entries"))) == 4
        clock.move(3600)
        assert await kv.stats("ns") == KVStats(1, 1)
        await kv.get("ns", "never")
        assert len(await store.records(ThreadKey("plait-kv", "ns"), RecordRange("entries"))) == 2
        clock.move(10**9)
        assert (await kv.get("ns", "never")).data == 3


async def test_the_ttl_of_the_namespace_holds_where_none_is_given_also_after_a_restart(
    store: Store, clock: Clock
) -> None:
    async with open_kv(store) as kv:
        await kv.create_namespace("ns", ttl=100)
        assert await kv.namespaces() == ["ns"]
    async with open_kv(store) as kv:
        await kv.set("ns", "default", 1)
        await kv.set("ns", "own", 1, ttl=200)
        await kv.set("ns", "never", 1, ttl=None)
        await kv.create_namespace("ns")
        await kv.set("ns", "later", 1)
        clock.move(100)
        assert await kv.keys("ns") == ["later", "never", "own"]
        clock.move(100)
        assert await kv.keys("ns") == ["later", "never"]


@each_case("ttl", [0, -1, float("nan"), float("inf"), 1e300, True, "60", b""])
async def test_any_other_ttl_is_refused(store: Store, ttl: Any) -> None:
    async with open_kv(store) as kv:
        with pytest.raises(ValueError, match="ttl"):
            await kv.set("ns", "key", 1, ttl=ttl)
        with pytest.raises(ValueError, match="ttl"):
            await kv.create_namespace("ns", ttl=ttl)
        assert await kv.namespaces() == []


async def test_what_is_set_again_has_the_new_ttl(store: Store, clock: Clock) -> None:
    async with open_kv(store) as kv:
        await kv.set("ns", "key", 1, ttl=10)
        await kv.set("ns", "key", 2, ttl=None)
        await kv.set("ns", "other", 1, ttl=10)
        await kv.set("ns", "other", 2, ttl=100)
        clock.move(50)
        await kv.sweep()
        assert (await kv.get("ns", "key")).data == 2
        assert (await kv.get("ns", "other")).data == 2


async def test_a_sweep_removes_what_has_expired_and_what_nobody_asks_for(store: Store, clock: Clock) -> None:
    async with open_kv(store) as kv:
        for name in ("one", "two"):
            await asyncio.gather(*(kv.set(name, str(number), number, ttl=1 + number) for number in range(50)))
            await kv.set(name, "stays", 1)
        clock.move(26)
        await kv.sweep()
        assert len(await kv.keys("one")) == 25
        clock.move(100)
    async with open_kv(store) as kv:
        await kv.sweep()
        for name in ("one", "two"):
            assert await count_records(store, name) == 3
            assert await kv.keys(name) == ["stays"]


async def test_a_sweep_removes_all_that_has_expired_however_much_that_is(clock: Clock) -> None:
    store = MemoryStore()
    async with open_kv(store) as kv:
        await asyncio.gather(*(kv.set("ns", str(number), number, ttl=5) for number in range(2500)))
        await kv.set("ns", "stays", 1)
        clock.move(100)
        await kv.sweep()
        assert await count_records(store, "ns") == 3


async def test_an_entry_that_is_set_often_leaves_few_records(store: Store, clock: Clock) -> None:
    async with open_kv(store) as kv:
        for _ in range(500):
            await kv.set("ns", "key", 1, ttl=1000)
            clock.move(1)
        assert await count_records(store, "ns") < 20


class DelayedStore(MemoryStore):
    """A store that calls `after_read` once, after it has read a record and before the reader gets it."""

    after_read: Callable[[], Awaitable[None]] | None = None

    async def record(self, *args: Any, **kwargs: Any) -> bytes | None:
        found = await super().record(*args, **kwargs)
        await self._delay(found is not None)
        return found

    async def records(self, *args: Any, **kwargs: Any) -> list[Record]:
        found = await super().records(*args, **kwargs)
        await self._delay(len(found) > 0)
        return found

    async def _delay(self, has_found: bool) -> None:
        if has_found and (hook := self.after_read) is not None:
            self.after_read = None
            await hook()


@pytest.mark.parametrize("reader", ["get", "keys", "stats"])
async def test_an_expired_entry_that_is_set_while_it_is_read_is_not_removed(clock: Clock, reader: str) -> None:
    store = DelayedStore()
    async with open_kv(store) as kv:
        await kv.set("ns", "key", "old", ttl=10)
        clock.move(1000)
        store.after_read = partial(kv.set, "ns", "key", "new", ttl=10)
        await getattr(kv, reader)("ns", *(["key"] if reader == "get" else []))
        assert store.after_read is None
        assert (await kv.get("ns", "key")).data == "new"


async def test_an_expired_entry_that_is_set_during_a_sweep_is_not_removed(clock: Clock) -> None:
    store = DelayedStore()
    async with open_kv(store) as kv:
        await kv.set("ns", "key", "old", ttl=10)
        clock.move(1000)

        async def wait_for_the_entry() -> None:  # After its time was read, but not yet the entry.
            store.after_read = second

        async def second() -> None:
            store.after_read = third

        third = partial(kv.set, "ns", "key", "new", ttl=10)
        store.after_read = wait_for_the_entry
        await kv.sweep()
        assert store.after_read is None
        assert (await kv.get("ns", "key")).data == "new"
        assert len(await store.records(ThreadKey("plait-kv", "ns"), RecordRange("due"))) == 1


# Limits and errors


async def test_a_value_of_the_limit_is_kept_and_one_more_byte_is_refused(store: Store) -> None:
    async with open_kv(store) as kv:
        for value in (b"x" * 2**20, "x" * 2**20, ["x" * (2**20 - 4)]):
            await kv.set("ns", "key", value)
            assert (await kv.get("ns", "key")).data == value
        for large in (b"x" * (2**20 + 1), "é" * 2**19 + "x", ["x" * (2**20 - 3)]):
            with pytest.raises(TooLarge, match="1048576"):
                await kv.set("ns", "key", large)
        assert (await kv.get("ns", "key")).data == ["x" * (2**20 - 4)]


@each_case("name", ["", "x" * 257, 1, None])
async def test_a_namespace_that_cannot_be_one_is_refused(name: Any) -> None:
    async with open_kv(MemoryStore()) as kv:
        for call in (kv.get, kv.delete, kv.keys, partial(kv.set, value=1)):
            with pytest.raises(ValueError, match="namespace"):
                await call(name, "key")
        with pytest.raises(ValueError, match="namespace"):
            await kv.delete_namespace(name)


@each_case("key", ["", "x" * 1025, 1, None])
async def test_a_key_that_cannot_be_one_is_refused(key: Any) -> None:
    async with open_kv(MemoryStore()) as kv:
        for call in (kv.get, kv.delete, partial(kv.set, value=1)):
            with pytest.raises(ValueError, match="a key"):
                await call("ns", key)


async def test_a_value_that_is_no_json_is_refused_and_the_key_is_named(store: Store) -> None:
    async with open_kv(store) as kv:
        with pytest.raises(TypeError, match="'spam'"):
            await kv.set("ns", "spam", object())
        for number in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(ValueError, match=r"'spam'.*infinite or not a number"):
                await kv.set("ns", "spam", {"a": [number, None]})
        assert await kv.namespaces() == []
        await kv.set("ns", "null", {"a": [1.5, None]})
        assert (await kv.get("ns", "null")).data == {"a": [1.5, None]}


async def test_a_failed_write_is_raised_and_the_old_entry_stays() -> None:
    store = TroubledStore()
    async with open_kv(store) as kv:
        await kv.set("ns", "key", "old")
        store.fail_next()
        with pytest.raises(StoreError):
            await kv.set("ns", "key", "new")
        assert (await kv.get("ns", "key")).data == "old"


async def test_a_ttl_that_could_not_be_stored_does_not_hold(clock: Clock) -> None:
    store = TroubledStore()
    async with open_kv(store) as kv:
        await kv.set("ns", "old", 1)
        store.fail_next()
        with pytest.raises(StoreError):
            await kv.create_namespace("ns", ttl=60)
        await kv.set("ns", "new", 1)
        clock.move(61)
        assert (await kv.get("ns", "new")).exists


# In runs


class Room(Thread[Any]):
    values = Values()


async def test_a_conversation_is_loaded_once_cached_and_saved_in_the_background_across_a_restart(store: Store) -> None:
    for expected in (["a"], ["a", "b"]):
        app = Plait(Room, store=store)

        @app.agent("chat", thread=Room)
        async def chat(ctx: Context, message: str) -> list[str]:
            cached = await ctx.thread.values.get("messages")
            if cached is None:
                found = await ctx.kv.get("conversations", ctx.thread.name)
                cached = found.data if found.exists else []
            messages = [*cached, message]
            await ctx.thread.values.set("messages", messages)
            ctx.wait_until(ctx.kv.set("conversations", ctx.thread.name, messages, ttl=86_400))
            return messages

        async with app:
            assert await app.run("chat", expected[-1], thread="one") == expected
            await app.thread(Room, "one").destroy()
            assert (await app.kv.get("conversations", "one")).data == expected


async def test_what_a_run_sets_is_durable_at_once_and_stays_when_the_run_raises(store: Store) -> None:
    app = Plait(Room, store=store)

    @app.agent("fail", thread=Room)
    async def fail(ctx: Context) -> None:
        await ctx.kv.set("ns", "key", 1)
        assert await store.record(ThreadKey("plait-kv", "ns"), "entries", "key 1") == b"1"
        raise LookupError("after that")

    async with app:
        with pytest.raises(LookupError):
            await app.run("fail", thread="one")
        assert (await app.kv.get("ns", "key")).data == 1


async def test_each_use_in_a_run_is_a_checkpoint() -> None:
    app = Plait(Room, store="memory:")
    started = asyncio.Event()

    @app.agent("loop", thread=Room)
    async def loop(ctx: Context) -> None:
        while True:
            started.set()
            await asyncio.sleep(0)
            await ctx.kv.get("ns", "key")

    async with app:
        for _ in range(2):
            running = asyncio.create_task(app.run("loop", thread="one"))
            await started.wait()
            assert await app.interrupt(app.thread(Room, "one"), "enough")
            assert await running == Interruption("enough")
            started.clear()
            assert not (await app.kv.get("ns", "key")).exists


async def test_a_run_that_may_end_as_the_server_shuts_down_can_use_it(store: Store) -> None:
    app = Plait(Room, store=store)
    started, ending = asyncio.Event(), asyncio.Event()

    @app.agent("last", thread=Room)
    async def last(ctx: Context) -> bool:
        started.set()
        await ending.wait()
        await ctx.kv.set("ns", "key", "saved")
        return (await ctx.kv.get("ns", "key")).exists

    async with app:
        running = asyncio.create_task(app.run("last", thread="one"))
        await started.wait()
        app.drain()
        ending.set()
        assert await running
    async with app:
        assert (await app.kv.get("ns", "key")).data == "saved"
