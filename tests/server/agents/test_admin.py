"""Listing threads by user and metadata, and reading and writing them from outside."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import in_soak
from tests.server.fakes import TroubledStore

from plait import (
    Context,
    InvalidArguments,
    MemoryStore,
    Messages,
    NotFound,
    Plait,
    SqliteStore,
    Store,
    StoreError,
    Thread,
    ThreadRow,
    TooMany,
    Values,
)

LONG = "x" * 200


class Room(Thread[Any]):
    values = Values()


class Hall(Thread[Any]):
    initial_state = 0
    notes = Values()


class Bare(Thread[Any]):
    initial_state = 0


class Points(msgspec.Struct, frozen=True):
    n: int


DEFAULT_POINTS = Points(10)


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a closed store."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "admin.db")


def make_app(store: Store) -> Plait:
    """Return an app with an agent `note` in rooms and `hall` in halls, which write down what they are given."""
    app = Plait(Room, Hall, Bare, store=store)

    @app.agent("note", thread=Room)
    async def note(ctx: Context, metadata: dict[str, Any]) -> None:
        await ctx.thread.values.set_metadata(metadata)
        await ctx.kv.set("some", "key", 1)

    @app.agent("hall", thread=Hall)
    async def hall(ctx: Context, metadata: dict[str, Any]) -> None:
        await ctx.thread.notes.set_metadata(metadata)

    return app


async def names(app: Plait, **query: Any) -> list[str]:
    return [row.key.name async for row in app.threads(**query)]


# Listing


async def test_the_sessions_of_a_user_are_exactly_that_users_with_the_original_ids(store: Store) -> None:
    users = ["a", "a:", "a:b", ":", "ab", "*", "%", "a%3A", "ü/😀", "\ud83d", LONG, LONG + "y", None]
    ids = ["s", "b:c", ":", "/..%_* ", "😀", "\ud83d", LONG, "é" * 100]
    async with make_app(store) as app:
        await asyncio.gather(
            *(app.run("note", {}, user_id=user, session_id=id) for user in users for id in ids),
            *(app.run("hall", {}, user_id=user, session_id="elsewhere") for user in users),
        )
        for user in users:
            found = [pair async for pair in app.sessions(Room, user)]
            assert sorted(found, key=repr) == sorted([(user, id) for id in ids], key=repr)
            assert len(await names(app, user_id=user)) == len(ids) + 1
            assert len(await names(app, user_id=user, kind=Room)) == len(ids)
            assert len(await names(app, user_id=user, limit=3)) == 3
        assert [pair async for pair in app.sessions("room", "stranger")] == []
        with pytest.raises(NotFound, match="empty"):
            await names(app, user_id="")


async def test_names_that_no_session_has_are_not_among_the_sessions(store: Store) -> None:
    others = ["", "%73%31", "a:b", "s ", "%ff", "%c3", "é", "%2a", "%ED%A0%BDa%", "s" * 200]
    async with make_app(store) as app:
        for user, prefix in (("ada", "ada:"), (None, ":")):
            await app.run("note", {}, user_id=user, session_id="s1")
            for rest in others:
                await app.run("note", {}, thread=prefix + rest)
            assert [pair async for pair in app.sessions(Room, user)] == [(user, "s1")]
            assert len(await names(app, user_id=user)) == len(others) + 1


async def test_long_ids_are_known_after_a_restart_and_after_a_run_that_failed(store: Store) -> None:
    app = make_app(store)

    @app.agent("fail", thread=Room)
    async def fail(ctx: Context) -> None:
        raise LookupError

    async with app:
        with pytest.raises(LookupError):
            await app.run("fail", user_id=LONG, session_id="s")
        await app.run("note", {}, thread=f"*:{LONG}", user_id=LONG, session_id="other")
    async with make_app(store) as app:
        assert [pair async for pair in app.sessions(Room, LONG)] == [(LONG, "s")]


async def test_a_prefix_and_a_user_must_both_fit(store: Store) -> None:
    async with make_app(store) as app:
        for id in ("one", "two"):
            await app.run("note", {}, user_id="ada", session_id=id)
        assert await names(app, user_id="ada", prefix="ada:t") == ["ada:two"]
        assert await names(app, user_id="ada", prefix="ad") == ["ada:one", "ada:two"]
        assert await names(app, user_id="ada", prefix="b") == []


async def test_threads_are_found_by_members_of_their_metadata(store: Store) -> None:
    async with make_app(store) as app:
        await app.run("note", {"topic": "tea", "n": 1, "deep": {"b": 1, "a": [1]}}, thread="one")
        await app.run("note", {"topic": "tea", "n": True}, thread="two")
        await app.run("hall", {"topic": "tea"}, thread="three")
        await app.run("note", {"topic": None}, thread="four")
        await app.run("note", {}, thread="five")
        await app.thread(Bare, "six").set_state(1)
        await app.thread(Room, "seven").part(Room.values).set("topic", "tea")
        assert await names(app, metadata={"topic": "tea"}) == ["three", "one", "two"]
        assert await names(app, metadata={"topic": "tea"}, limit=2) == ["three", "one"]
        (after,) = [row async for row in app.threads() if row.key.name == "three"]
        assert await names(app, metadata={"topic": "tea"}, after=after, limit=1) == ["one"]
        assert await names(app, metadata={"topic": "tea", "n": 1}) == ["one"]
        assert await names(app, metadata={"n": True}) == ["two"]
        assert await names(app, metadata={"deep": {"a": [1], "b": 1}}) == ["one"]
        assert await names(app, metadata={"topic": None}) == ["four"]
        assert await names(app, metadata={"none": None}) == []
        assert len(await names(app, metadata={})) == 7


async def test_a_listing_goes_on_after_the_last_thread_of_an_earlier_one(store: Store) -> None:
    async with make_app(store) as app:
        await asyncio.gather(*(app.run("note", {}, user_id="ada", session_id=f"{n:03}") for n in range(50)))
        await app.run("note", {}, user_id="grace", session_id="s")
        found: list[ThreadRow] = []
        while page := [row async for row in app.threads(user_id="ada", after=found[-1] if found else None, limit=7)]:
            found += page
        assert [row.key.name for row in found] == [f"ada:{n:03}" for n in range(50)]


async def test_threads_are_listed_with_their_users_and_times_in_the_order_of_these(store: Store) -> None:
    async with make_app(store) as app:
        before = time.time_ns() // 1000
        # A session, a shared room, and a thread that the run creates.
        await app.run("note", {}, user_id="a/é", session_id="s")
        await app.run("note", {}, thread="lobby", user_id="a/é")
        await app.run("note", {}, user_id="a/é")
        await app.session(Room, "s", user_id="grace").part(Room.values).set("n", 1)
        await app.session(Room, "t", user_id="\ud83d").part(Room.values).set("n", 1)
        rows = [row async for row in app.threads(kind=Room, order="created")]
        assert [row.user for row in rows] == [None, "grace", "a/é", None, "a/é"]
        created = [row.created_at for row in rows]
        assert created == sorted(created, reverse=True)
        assert before <= created[-1] <= created[0] <= time.time_ns() // 1000
        assert all(row.created_at <= row.changed_at for row in rows)
        ada = [row async for row in app.threads(user_id="a/é", order="created")]
        assert ada == [rows[2], rows[4]]
        assert await names(app, user_id="\ud83d") == [rows[0].key.name]
        await app.session(Room, "s", user_id="a/é").part(Room.values).set("n", 2)
        latest = [row async for row in app.threads(kind=Room, order="changed")]
        assert latest[0].key == rows[4].key
        assert latest[0].created_at == rows[4].created_at
        assert latest[0].changed_at > rows[4].changed_at
        pages = [row async for row in app.threads(kind=Room, order="changed", limit=2)]
        pages += [row async for row in app.threads(kind=Room, order="changed", after=pages[-1])]
        assert pages == latest


# Inner kinds


async def test_nobody_sees_or_reaches_what_plait_keeps_for_itself(store: Store) -> None:
    app = make_app(store)
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web:
        await app.run("note", {}, thread="one", user_id="ada")
        await app.user("ada").set("n", 1)
        assert await names(app) == ["one"]
        assert await names(app, kind="plait-user") == []
        for kind, name in (("plait-kv", "some"), ("plait-user", "ada:")):
            for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/changes"), ("POST", "/rpc/get")):
                answer = await web.request(method, f"/threads/{kind}/{name}{path}", json=[])
                assert answer.status_code == 404, (method, path)
        assert (await app.kv.get("some", "key")).data == 1
        assert await app.user("ada").get("n") == 1


@each_case("name", ["plait-kv", "plait-user"])
def test_a_class_cannot_have_a_kind_of_plaits_own(name: str) -> None:
    mine = type("Mine", (Thread,), {"kind": name})
    with pytest.raises(ValueError, match=name):
        Plait(mine, store="memory:")


# From outside


async def test_values_are_read_and_written_from_outside_and_reading_begins_no_thread(store: Store) -> None:
    async with make_app(store) as app:
        room = app.thread(Room, "one")
        assert await room.part(Room.values).get("n") is None
        assert await room.part(Room.values).metadata() == {}
        assert await names(app) == []
        await room.part(Room.values).set("n", 1)
        await room.part(Room.values).push("log", "x", max_records=3)
        assert await room.part(Room.values).update("n", lambda n: n + 1) == 2
        await room.part(Room.values).set_metadata({"topic": "tea"})
        await app.thread(Hall, "one").part(Hall.notes).set("k", "v")
    async with make_app(store) as app:
        assert await app.thread(Room, "one").part(Room.values).items() == [("n", 2), ("log", ["x"])]
        assert await app.thread(Room, "one").part(Room.values).metadata() == {"topic": "tea"}
        assert await app.thread(Hall, "one").part(Hall.notes).get("k") == "v"
        with pytest.raises(AttributeError, match="values"):
            app.thread(Hall, "one").part(Room.values)


async def test_what_is_read_from_outside_is_durable() -> None:
    store = TroubledStore()
    async with make_app(store) as app:
        values = app.thread(Room, "one").part(Room.values)
        await values.set("n", 1)
        store.is_held = True
        writing = asyncio.ensure_future(values.set("n", 2))
        while not store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reading = asyncio.gather(
            *(values.get("n"), values.items(), values.keys(), values.values()),
            *(values.has("m"), values.size()),
            return_exceptions=True,
        )
        for _ in range(20):
            await asyncio.sleep(0)
        store.fail_next()
        store.resume()
        with pytest.raises(StoreError):
            await writing
        assert [type(each) for each in await reading] == [StoreError] * 6
        assert await values.get("n") == 1


async def test_a_handle_runs_an_agent_by_its_name() -> None:
    app = make_app(MemoryStore())

    @app.agent("add", thread=Room)
    async def add(ctx: Context, points: Points = DEFAULT_POINTS) -> int:
        total: int = await ctx.thread.values.update("n", lambda n: n + points.n, 0)
        return total

    @app.agent("count", thread=Room)
    async def count(ctx: Context, most: int) -> AsyncIterator[int]:
        for n in range(most):
            yield n

    async with app:
        room = app.thread(Room, "one")
        assert await room.call("run:add", {"n": 2}) == 2
        assert await room.call("run:add", points=Points(3)) == 5
        assert await room.call("run:add") == 15
        assert await room.call("run:count", 3) == [0, 1, 2]
        assert await room.call("run:interrupt", "stop") is False
        for args, path in (([{"n": "x"}], "/n"), ([1, 2], None)):
            with pytest.raises(InvalidArguments) as caught:
                await room.call("run:add", *args)
            assert caught.value.path == path


async def test_a_call_by_a_handle_that_is_cancelled_takes_its_waiting_run_out_of_the_queue() -> None:
    app = make_app(MemoryStore())
    started, ending, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @app.agent("slow", thread=Room, max_waiting=1)
    async def slow(ctx: Context, name: str) -> None:
        started.set()
        await ending.wait()
        ran.append(name)

    async with app:
        room = app.thread(Room, "one")
        first = asyncio.create_task(room.call("run:slow", "first"))
        await started.wait()
        second = asyncio.create_task(room.call("run:slow", "second"))
        with pytest.raises(TooMany):
            await asyncio.create_task(room.call("run:slow", "more"))  # Comes after the second one.
        second.cancel()
        await asyncio.wait([second])
        third = asyncio.create_task(room.call("run:slow", "third"))
        await asyncio.sleep(0)
        ending.set()
        await asyncio.gather(first, third)
        assert ran == ["first", "third"]


async def test_what_is_written_from_outside_during_a_run_stays_and_the_run_is_not_seen_before_its_end(
    store: Store,
) -> None:
    app = make_app(store)
    started, ending = asyncio.Event(), asyncio.Event()

    @app.agent("slow", thread=Room)
    async def slow(ctx: Context) -> None:
        await ctx.thread.values.set("a", "of the run")
        await ctx.thread.values.push("log", "of the run")
        assert await ctx.thread.values.get("a") == "of the run"
        started.set()
        await ending.wait()

    async with app:
        room = app.thread(Room, "one")
        running = asyncio.create_task(app.run("slow", thread="one"))
        await started.wait()
        await room.part(Room.values).set("b", "from outside")
        await room.part(Room.values).push("log", "from outside")
        assert await room.part(Room.values).items() == [("b", "from outside"), ("log", ["from outside"])]
        ending.set()
        await running
        assert dict(await room.part(Room.values).items()) == {
            "a": "of the run",
            "b": "from outside",
            "log": ["from outside", "of the run"],
        }


async def test_what_a_run_does_to_its_own_thread_by_a_handle_is_committed_with_the_run(store: Store) -> None:
    app = make_app(store)

    @app.agent("own", thread=Room)
    async def own(ctx: Context, fails: bool) -> None:
        await app.thread(Room, ctx.thread.name).part(Room.values).set("n", 1)
        if fails:
            raise LookupError

    async with app:
        with pytest.raises(LookupError):
            await app.run("own", True, thread="one")
        assert await app.thread(Room, "one").part(Room.values).get("n") is None
        await app.run("own", False, thread="one")
        assert await app.thread(Room, "one").part(Room.values).get("n") == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("suport", "there is no agent 'suport'; did you mean 'support'?"),
        ("nobody", "there is no agent 'nobody'; there are: support, asking"),
        ("asking", "asking: the input: "),
        ("support", None),
    ],
)
async def test_messages_whose_agent_cannot_be_called_are_told_of_at_the_start(
    caplog: pytest.LogCaptureFixture, name: str, told: str | None
) -> None:
    class Desk(Thread[None]):
        messages = Messages(agent=name)

    app = Plait(Desk, store="memory:", secret="s")

    @app.agent("support", thread=Desk)
    async def support(ctx: Context[Desk]) -> None: ...

    @app.agent("asking", thread=Desk)
    async def asking(ctx: Context[Desk], text: str) -> None: ...

    async with app:
        pass
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == (told is not None)
    assert told is None or f"messages queued in Desk.messages will not be handled: {told}" in warnings[0]
