"""What belongs to a person, in whichever thread."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import in_soak
from tests.server.fakes import TroubledStore

from plait import (
    Context,
    Interruption,
    MemoryStore,
    NotFound,
    Plait,
    SqliteStore,
    Store,
    StoreError,
    Thread,
    TooLarge,
    Values,
)


class Room(Thread[Any]):
    values = Values()


class Hall(Thread[Any]):
    values = Values()


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a closed store."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "users.db")


async def test_values_of_a_user_span_threads_of_all_kinds_and_a_restart_and_are_nobody_elses(store: Store) -> None:
    for expected in (1, 3):
        app = Plait(Room, Hall, store=store)

        @app.agent("room", thread=Room)
        async def room(ctx: Context) -> int:
            assert ctx.user is not None
            return await ctx.user.update("visits", lambda n: n + 1, 0)

        @app.agent("hall", thread=Hall)
        async def hall(ctx: Context) -> int:
            assert ctx.user is not None
            assert ctx.user.id == "ada"
            return await ctx.user.update("visits", lambda n: n + 1, 0)

        async with app:
            assert await app.run("room", user_id="ada", session_id=f"s{expected}") == expected
            assert await app.run("hall", user_id="ada") == expected + 1
            assert await app.user("ada").get("visits") == expected + 1
            assert await app.user("grace").get("visits") is None


async def test_a_run_without_a_user_has_none(store: Store) -> None:
    app = Plait(Room, store=store)

    @app.agent("who", thread=Room)
    async def who(ctx: Context) -> bool:
        return ctx.user is None

    async with app:
        assert await app.run("who", session_id="s1")


async def test_any_id_has_values_of_its_own(store: Store) -> None:
    ids = ["a", "a:", "a%3A", ":", "*", "a/b", "ü", "\ud83d", "\x00", "..", "x" * 121, "x" * 120, "x" * 122, "é" * 300]
    async with Plait(Room, store=store) as app:
        for number, id in enumerate(ids):
            await app.user(id).set("n", number)
        assert [await app.user(id).get("n") for id in ids] == list(range(len(ids)))
        with pytest.raises(NotFound, match="empty"):
            app.user("")


async def test_what_is_written_is_durable_at_once_and_stays_when_the_run_raises(store: Store) -> None:
    app = Plait(Room, store=store)

    @app.agent("fail", thread=Room)
    async def fail(ctx: Context) -> None:
        assert ctx.user is not None
        await ctx.user.set("n", 1)
        await ctx.thread.values.set("n", 1)
        raise LookupError("after that")

    async with app:
        with pytest.raises(LookupError):
            await app.run("fail", thread="one", user_id="ada")
        assert await app.user("ada").get("n") == 1
        assert await app.thread(Room, "one").part(Room.values).get("n") is None


async def test_changes_at_the_same_time_from_many_threads_all_count(store: Store) -> None:
    app = Plait(Room, store=store)

    @app.agent("count", thread=Room)
    async def count(ctx: Context, n: int) -> None:
        assert ctx.user is not None
        await ctx.user.update("n", lambda found: found + 1, 0)
        await ctx.user.push("log", n, 10)

    async with app:
        await asyncio.gather(*(app.run("count", n, user_id="ada", session_id=str(n % 20)) for n in range(100)))
        assert await app.user("ada").get("n") == 100
        assert len(await app.user("ada").get("log")) == 10


async def test_a_user_has_what_values_have(store: Store) -> None:
    async with Plait(Room, store=store) as app:
        user = app.user("ada")
        await user.set("b", {"x": [1]})
        await user.set("a", None)
        await user.push("log", 1)
        assert await user.keys() == ["b", "a", "log"]
        assert await user.values() == [{"x": [1]}, None, [1]]
        assert await user.items() == [("b", {"x": [1]}), ("a", None), ("log", [1])]
        assert (await user.has("a"), await user.has("c"), await user.size()) == (True, False, 3)
        await user.delete("b")
        await user.set_metadata({"plan": "pro"})
        await user.clear()
        assert (await user.size(), await user.metadata()) == (0, {"plan": "pro"})
        assert await user.get("a", "nothing") == "nothing"
        with pytest.raises(TypeError, match="'spam'"):
            await user.set("spam", object())
        await user.set("k", "x" * (2**20 - len('{"k":""}')))
        with pytest.raises(TooLarge):
            await user.set("k", "x" * (2**20 - len('{"k":""}') + 1))
        assert len(await user.get("k")) == 2**20 - len('{"k":""}')


async def test_changing_what_was_read_changes_nothing(store: Store) -> None:
    async with Plait(Room, store=store) as app:
        user = app.user("ada")
        await user.set("list", [1])
        (await user.get("list")).append(2)
        (await user.items())[0][1].append(3)
        assert await user.get("list") == [1]


async def test_what_is_read_is_durable() -> None:
    store = TroubledStore()
    async with Plait(Room, store=store) as app:
        user = app.user("ada")
        await user.set("n", 1)
        store.is_held = True
        writing = asyncio.ensure_future(user.set("n", 2))
        while not store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reading = asyncio.gather(*(user.get("n"), user.items(), user.has("m"), user.size()), return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
        store.fail_next()
        store.resume()
        with pytest.raises(StoreError):
            await writing
        assert [type(each) for each in await reading] == [StoreError] * 4
        assert await user.get("n") == 1


async def test_a_write_that_is_durable_is_told_though_a_later_one_fails() -> None:
    store = TroubledStore()
    async with Plait(Room, store=store) as app:
        user = app.user("ada")
        await user.set("n", 0)
        store.is_held = True
        first = asyncio.ensure_future(user.update("n", lambda n: n + 1))
        while not store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = asyncio.ensure_future(user.update("n", lambda n: n + 1))
        for _ in range(5):
            await asyncio.sleep(0)
        store.resume(1)
        for _ in range(20):
            await asyncio.sleep(0)
        store.fail_next()
        store.resume()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert (outcomes[0], type(outcomes[1])) == (1, StoreError)
        assert await user.get("n") == 1


async def test_each_use_in_a_run_is_a_checkpoint() -> None:
    app = Plait(Room, store="memory:")
    started = asyncio.Event()

    @app.agent("loop", thread=Room)
    async def loop(ctx: Context) -> None:
        assert ctx.user is not None
        while True:
            started.set()
            await asyncio.sleep(0)
            await ctx.user.get("key")

    async with app:
        running = asyncio.create_task(app.run("loop", thread="one", user_id="ada"))
        await started.wait()
        assert await app.interrupt(app.thread(Room, "one"))
        assert await running == Interruption()
