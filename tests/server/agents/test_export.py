"""A whole thread as JSON, and back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plait import (
    Conflict,
    Context,
    InvalidState,
    MemoryStore,
    MigrationFailed,
    NewerState,
    NotFound,
    Plait,
    Reject,
    SqliteStore,
    Store,
    StoreError,
    Thread,
    ThreadKey,
    TooLarge,
    Values,
    migrate,
)
from plait.cli.maintenance import describe_thread, export_thread

LONG = "x" * 200


class Talk(msgspec.Struct, frozen=True):
    topic: str = "none"
    turns: int = 0


class Room(Thread[Talk]):
    initial_state = Talk()
    state_version = 2
    values = Values()

    @staticmethod
    @migrate(from_=1)
    def the_topic_was_the_title(state: Any) -> Any:
        return {"topic": state["title"]}

    def validate_state_change(self, next_state: Talk, source: object) -> None:
        if next_state.turns < 0:
            raise Reject("turns cannot be negative", path="/turns")


class Plain(Thread[Any]):
    values = Values()
    notes = Values()


class Busy(Thread[Any]):
    initial_state = 0
    values = Values()

    async def on_start(self) -> None:
        await self.values.set("began", True)


@pytest.fixture(params=["sqlite", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """Return two closed stores."""
    if request.param == "memory":
        return MemoryStore(), MemoryStore()
    return SqliteStore(tmp_path / "one.db"), SqliteStore(tmp_path / "two.db")


def make_app(store: Store) -> Plait:
    return Plait(Room, Plain, Busy, store=store)


async def parts_of(app: Plait, kind: type[Thread[Any]], name: str) -> tuple[Any, ...]:
    """Return all that a thread has."""
    handle = app.thread(kind, name)
    return await handle.state(), await handle.values.items(), await handle.values.metadata()


async def test_a_thread_that_is_imported_elsewhere_is_equal_also_after_a_restart(stores: tuple[Store, Store]) -> None:
    first, second = stores
    async with make_app(first) as app:
        room, plain = app.thread(Room, "a/b:😀"), app.thread(Plain, "p")
        await room.set_state(Talk("tea", 3))
        await room.values.set("n", 1)
        await room.values.set("deep", {"a": [1, None, {"b": "é\n"}]})
        await room.values.set_metadata({"plan": "pro"})
        await plain.notes.set("k", [1])
        exported = [await room.to_json(), await plain.to_json()]
        expected = await parts_of(app, Room, "a/b:😀")
    async with make_app(second) as app:
        for data in exported:
            handle = await app.import_thread(data)
            assert await handle.to_json() == data
        assert await parts_of(app, Room, "a/b:😀") == expected
    async with make_app(second) as app:
        assert await parts_of(app, Room, "a/b:😀") == expected
        assert await app.thread(Plain, "p").notes.items() == [("k", [1])]
        assert await app.thread(Plain, "p").state() is None


async def test_an_export_has_what_is_committed_and_nothing_of_the_run(stores: tuple[Store, Store]) -> None:
    app = make_app(stores[0])
    started, ending = asyncio.Event(), asyncio.Event()

    @app.agent("slow", thread=Room)
    async def slow(ctx: Context) -> None:
        await ctx.thread.values.set("n", "staged")
        started.set()
        await ending.wait()
        await ctx.checkpoint()

    async with app:
        room = app.thread(Room, "one")
        await room.values.set("n", "committed")
        running = asyncio.create_task(app.run("slow", thread="one"))
        await started.wait()
        assert await app.interrupt(room, "a message")
        data = json.loads(await room.to_json())
        ending.set()
        await running
    assert data["parts"]["values"]["values"] == {"n": "committed"}
    assert sorted(data) == ["format", "kind", "name", "parts", "state", "state_version"]
    assert "message" not in json.dumps(data)


async def test_unknown_fields_are_kept_out_and_missing_ones_get_defaults(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        data = {
            "format": 1,
            "kind": "room",
            "name": "one",
            "state_version": 2,
            "more": 1,
            "interrupted": True,
            "state": {"turns": 7, "unknown": [1]},
            "parts": {"values": {"values": {"n": 1}, "marks": {"a": 1}}, "agents": {"cut-off": {"run": "r"}}},
        }
        room = await app.import_thread(json.dumps(data))
        assert await parts_of(app, Room, "one") == (Talk("none", 7), [("n", 1)], {})
        assert json.loads(await room.to_json())["state"] == {"topic": "none", "turns": 7}
        await app.import_thread(b'{"format":1,"kind":"room","name":"two"}')
        assert await parts_of(app, Room, "two") == (Talk(), [], {})
        assert [row.key.name async for row in app.threads()] == ["one", "two"]


async def test_an_older_state_is_migrated_and_a_newer_one_refused(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        old = '{"format":1,"kind":"room","name":"%s","state_version":%d,"state":{"title":"old"}}'
        assert await (await app.import_thread(old % ("one", 1))).state() == Talk("old")
        with pytest.raises(NewerState):
            await app.import_thread(old % ("two", 3))
        with pytest.raises(MigrationFailed):
            await app.import_thread('{"format":1,"kind":"room","name":"two","state_version":1,"state":{"x":1}}')
        assert [row.key.name async for row in app.threads()] == ["one"]


async def test_a_thread_that_is_there_is_replaced_only_when_that_is_asked_for(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        room = app.thread(Room, "one")
        await room.set_state(Talk("tea", 3))
        await room.values.set("n", 1)
        data = await room.to_json()
        await room.set_state(Talk("changed", 4))
        await room.values.set("n", 2)
        await room.values.set("more", 3)
        await room.values.set_metadata({"a": 1})
        with pytest.raises(Conflict, match="room/one"):
            await app.import_thread(data)
        assert (await parts_of(app, Room, "one"))[0] == Talk("changed", 4)
        await app.import_thread(data, replace=True)
        assert await parts_of(app, Room, "one") == (Talk("tea", 3), [("n", 1)], {})
        await app.import_thread(data, name="copy")
        assert await parts_of(app, Room, "copy") == (Talk("tea", 3), [("n", 1)], {})
        outcomes = await asyncio.gather(
            *(app.import_thread(data, name="three") for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 4


async def test_a_thread_with_a_state_is_not_replaced_by_one_that_has_none(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        one, two = app.thread(Plain, "one"), app.thread(Plain, "two")
        await one.values.set("n", 1)
        data = await one.to_json()
        await two.set_state({"old": 1})
        await two.values.set("n", 2)
        with pytest.raises(Conflict, match="plain/two has a state"):
            await app.import_thread(data, name="two", replace=True)
        assert await parts_of(app, Plain, "two") == ({"old": 1}, [("n", 2)], {})
        await two.destroy()
        await app.import_thread(data, name="two")
        assert await parts_of(app, Plain, "two") == (None, [("n", 1)], {})
        await app.import_thread(data, name="two", replace=True)


async def test_a_class_with_on_start_takes_an_import_too(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        data = '{"format":1,"kind":"busy","name":"one","state":5,"parts":{"values":{"values":{"n":1}}}}'
        await app.import_thread(data)
        assert await parts_of(app, Busy, "one") == (5, [("n", 1)], {})
        with pytest.raises(Conflict):
            await app.import_thread(data)


@pytest.mark.parametrize("user_id", [None, "é/" * 100])
async def test_long_ids_of_a_session_are_shown_as_they_are(tmp_path: Path, user_id: str | None) -> None:
    app, ids = make_app(SqliteStore(tmp_path / "one.db")), (user_id, "s %é" * 100)

    @app.agent("touch", thread=Plain)
    async def touch(ctx: Context) -> str:
        return ctx.thread.name

    async with app:
        name = await app.run("touch", user_id=ids[0], session_id=ids[1])
    assert json.loads(describe_thread(tmp_path / "one.db", ThreadKey("plain", name)))["session"] == [*ids]


async def test_an_export_waits_until_what_it_has_is_durable() -> None:
    store, submitted, writing = MemoryStore(), asyncio.Event(), list[asyncio.Task[Any]]()
    held: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    submit, record = store.submit, store.record

    def hold(write: Any) -> asyncio.Future[int]:
        submitted.set()
        return held

    async def read(key: ThreadKey, part: str, name: str) -> bytes | None:
        """Write a value while the export reads something else."""
        store.submit = hold  # type: ignore[method-assign]
        writing.append(asyncio.create_task(room.values.set("n", 1)))
        await submitted.wait()
        return await record(key, part, name)

    async with make_app(store) as app:
        room = app.thread(Room, "one")
        await room.set_state(Talk("tea"))
        assert (await room.values.items(), await room.values.metadata()) == ([], {})
        store.record = read  # type: ignore[method-assign]
        exporting = asyncio.create_task(room.to_json())
        await asyncio.wait_for(submitted.wait(), 10)
        await asyncio.wait([exporting], timeout=0.05)
        assert not exporting.done()
        held.set_exception(StoreError("the disk is full"))
        failed = await asyncio.wait_for(asyncio.gather(*[*writing, exporting], return_exceptions=True), 10)
        assert [type(each) for each in failed] == [StoreError, StoreError]
        store.submit = submit  # type: ignore[method-assign]


async def test_of_two_imports_at_once_one_is_refused_also_with_on_start(stores: tuple[Store, Store]) -> None:
    data = '{"format":1,"kind":"busy","name":"one","state":%d,"parts":{"values":{"values":{"n":1}}}}'
    async with make_app(stores[0]) as app:
        outcomes = await asyncio.gather(
            *(app.import_thread(data % number) for number in range(3)), return_exceptions=True
        )
        (number,) = [number for number, each in enumerate(outcomes) if not isinstance(each, Conflict)]
        assert await app.thread(Busy, "one").state() == number


@pytest.mark.parametrize("turns", range(9))
async def test_what_listeners_of_thread_created_write_refuses_no_import(
    stores: tuple[Store, Store], turns: int
) -> None:
    data = '{"format":1,"kind":"busy","name":"one","state":5}'
    app, told = make_app(stores[0]), asyncio.Event()

    @app.on("thread.created")
    async def tell(thread: Any) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.thread(Busy, thread.name).values.set("told", True)
        told.set()

    async with app:
        await app.import_thread(data)
        await asyncio.wait_for(told.wait(), 10)
        assert await app.thread(Busy, "one").state() == 5


async def test_an_import_replaces_nothing_that_began_meanwhile(stores: tuple[Store, Store]) -> None:
    data = '{"format":1,"kind":"busy","name":"one","state":5}'
    async with make_app(stores[0]) as app:
        busy = app.thread(Busy, "one")
        _, refused = await asyncio.gather(busy.set_state(7), app.import_thread(data), return_exceptions=True)
        assert isinstance(refused, Conflict)
        assert await busy.state() == 7


async def test_a_thread_that_was_cut_off_is_exported_from_its_file_with_a_part_named_as_the_mark_is(
    tmp_path: Path,
) -> None:
    class Team(Thread[Any]):
        agents = Values()

    path, begun = tmp_path / "team.db", asyncio.Event()
    app = Plait(Team, store=SqliteStore(path), shutdown_timeout=0.05)

    @app.agent("plan", thread=Team)
    async def plan(ctx: Context[Team]) -> None:
        await ctx.thread.agents.set("planner", [1, 2])
        begun.set()
        await asyncio.Event().wait()

    async with app:
        task = asyncio.create_task(app.run("plan", thread="one"))
        await asyncio.wait_for(begun.wait(), 10)
    await task
    exported = json.loads(export_thread(path, ThreadKey("team", "one")))
    assert exported["parts"] == {"agents": {"values": {"planner": [1, 2]}}}
    async with Plait(Team, store=SqliteStore(path)) as again:
        assert json.loads(await again.thread(Team, "one").to_json()) == exported


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ("", InvalidState, "exported thread"),
        ("[]", InvalidState, "exported thread"),
        ("{}", InvalidState, "exported thread"),
        (b"\xff", InvalidState, "exported thread"),
        ('{"format":2,"kind":"room","name":"x"}', InvalidState, "format 2"),
        ('{"format":1,"kind":"nope","name":"x"}', NotFound, "nope"),
        ('{"format":1,"kind":"plait-kv","name":"x"}', NotFound, "plait-kv"),
        ('{"format":1,"kind":"room","name":""}', NotFound, "name"),
        ('{"format":1,"kind":"room","name":"x","state_version":2,"state":{"turns":"a"}}', InvalidState, "int"),
        ('{"format":1,"kind":"room","name":"x","state_version":2,"state":{"turns":-1}}', Reject, "negative"),
        ('{"format":1,"kind":"room","name":"x","parts":{"values":{"values":[]}}}', InvalidState, "object"),
        ('{"format":1,"kind":"room","name":"x","parts":[]}', InvalidState, "exported thread"),
        (
            '{"format":1,"kind":"room","name":"x","parts":{"values":{"values":{"n":"%s"}}}}' % ("x" * 2**20),
            TooLarge,
            "l",
        ),
    ],
)
async def test_what_cannot_be_imported_is_refused_whole(
    stores: tuple[Store, Store], data: str | bytes, error: type[Exception], said: str
) -> None:
    async with make_app(stores[0]) as app:
        with pytest.raises(error, match=said):
            await app.import_thread(data)
        assert [key async for key in app.threads()] == []
        room = app.thread(Room, "x")
        await room.set_state(Talk("tea"))
        await room.values.set("n", 1)
        with pytest.raises(error, match=said):
            await app.import_thread(data, replace=True)
        assert await parts_of(app, Room, "x") == (Talk("tea"), [("n", 1)], {})


async def test_what_is_not_there_cannot_be_exported(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        with pytest.raises(NotFound, match="room/one"):
            await app.thread(Room, "one").to_json()
        assert [key async for key in app.threads()] == []


async def test_long_ids_of_a_session_go_along_under_the_same_name(stores: tuple[Store, Store]) -> None:
    app = make_app(stores[0])

    @app.agent("touch", thread=Plain)
    async def touch(ctx: Context) -> None:
        await ctx.thread.values.set("n", 1)

    async with app:
        await app.run("touch", user_id=LONG, session_id="s")
        data = await app.session(Plain, "s", user_id=LONG).to_json()
    async with make_app(stores[1]) as app:
        await app.import_thread(data)
        await app.import_thread(data, name="copy")
        assert [pair async for pair in app.sessions(Plain, LONG)] == [(LONG, "s")]
        assert "session" not in json.loads(await app.thread(Plain, "copy").to_json())
