"""A whole thread as a file, and back."""

import asyncio
import hashlib
import json
import tracemalloc
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schedules import in_soak, schedules
from tests.server.owning import submit

from plait import (
    Conflict,
    Context,
    InvalidState,
    MemoryStore,
    Messages,
    MigrationFailed,
    NewerState,
    NotFound,
    Plait,
    Reject,
    Retention,
    Schedule,
    SqliteStore,
    Store,
    StoreError,
    Thread,
    ThreadKey,
    TooLarge,
    Unavailable,
    Values,
    effect,
    migrate,
    rpc,
)
from plait.cli.maintenance import describe_thread
from plait.store.protocol import Write
from plait.store.thread_rows import INCOMPLETE, Record, RecordRange, Snapshot

PATIENCE = 10.0

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


class Letters(Thread[Any]):
    letters = Messages()


class Desk(Thread[Any]):
    """Has everything that a thread can have."""

    initial_state: ClassVar = {"rung": 0}
    values = Values()
    messages = Messages(agent="answer")
    schedule = Schedule()

    @effect()
    def ring(self) -> None:
        self.set_state(lambda state: {"rung": state["rung"] + 1})


class Busy(Thread[Any]):
    initial_state = 0
    values = Values()

    async def on_start(self) -> None:
        await self.values.set("began", True)


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """Return two closed stores."""
    if request.param == "memory":
        return MemoryStore(), MemoryStore()
    return SqliteStore(tmp_path / "one.db"), SqliteStore(tmp_path / "two.db")


def make_app(store: Store) -> Plait:
    return Plait(Room, Plain, Letters, Desk, Busy, store=store)


async def parts_of(app: Plait, kind: type[Thread[Any]], name: str) -> tuple[Any, ...]:
    """Return all that a thread has."""
    handle: Any = app.thread(kind, name)
    return await handle.state(), await handle.values.items(), await handle.values.metadata()


async def export(app: Plait, kind: type[Thread[Any]], name: str = "one") -> bytes:
    return b"".join([lines async for lines in app.export_thread(kind, name)])


def body_of(data: bytes) -> list[Any]:
    """Return the lines of a file without the first and the last one, which tell of the thread it was made of."""
    return [json.loads(line) for line in data.splitlines()[1:-1]]


def make_file(kind: str, name: str, *lines: object, **header: object) -> bytes:
    """Return a file as the docs describe it."""
    first = {"format": 3, "kind": kind, "name": name} | header
    data = b"".join(json.dumps(line).encode() + b"\n" for line in (first, *lines))
    count = sum("part" in line for line in lines if isinstance(line, dict))
    return data + end_of(data, count)


def end_of(data: bytes, count: int) -> bytes:
    return json.dumps({"records": count, "sha256": hashlib.sha256(data).hexdigest()}).encode() + b"\n"


async def make_desk(app: Plait, name: str = "one") -> None:
    """Give a desk some of everything."""
    desk = app.thread(Desk, name)
    await desk.set_state({"rung": 5})
    await desk.part(Desk.values).set("deep", {"a": [1, None, {"b": "é\n"}]})
    await desk.part(Desk.values).push("log", "x")
    await desk.part(Desk.values).set_metadata({"plan": "pro"})
    for number in range(3):
        await desk.part(Desk.messages).inject("user", f"message {number}")
    await desk.part(Desk.schedule).at(datetime.now(UTC) + timedelta(days=9), "ring")


async def described(app: Plait, name: str) -> tuple[Any, ...]:
    """Return what code sees of a desk."""
    desk = app.thread(Desk, name)
    page = await desk.part(Desk.messages).list()
    return await parts_of(app, Desk, name), page.messages, page.total, await desk.part(Desk.schedule).list()


async def test_a_thread_that_is_imported_elsewhere_is_equal_also_after_a_restart(stores: tuple[Store, Store]) -> None:
    first, second = stores
    async with make_app(first) as app:
        room, plain = app.thread(Room, "a/b:😀"), app.thread(Plain, "p")
        await room.set_state(Talk("tea", 3))
        await room.part(Room.values).set("n", 1)
        await plain.part(Plain.notes).set("k", [1])
        await make_desk(app)
        named = [(Room, "a/b:😀"), (Plain, "p"), (Desk, "one")]
        exported = [await export(app, *each) for each in named]
        expected = await parts_of(app, Room, "a/b:😀"), await described(app, "one")
        rows = [(row.key, row.created_at, row.user) async for row in app.threads()]
    async with make_app(second) as app:
        for data, each in zip(exported, named, strict=True):
            assert (await app.import_thread(data)).name == each[1]
            assert body_of(await export(app, *each)) == body_of(data)
        assert (await parts_of(app, Room, "a/b:😀"), await described(app, "one")) == expected
    async with make_app(second) as app:
        assert (await parts_of(app, Room, "a/b:😀"), await described(app, "one")) == expected
        assert await app.thread(Plain, "p").part(Plain.notes).items() == [("k", [1])]
        assert await app.thread(Plain, "p").state() is None
        assert [(row.key, row.created_at, row.user) async for row in app.threads()] == rows


async def test_a_file_says_first_what_it_is_and_last_what_it_must_have(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        room = app.thread(Room, "ada:one")
        await room.set_state(Talk("tea", 3))
        await room.part(Room.values).set_metadata({"a": 1})
        data = await export(app, Room, "ada:one")
    first, state, change, *records, last = [json.loads(line) for line in data.splitlines()]
    assert (first["epoch"], first["created_at"]) > ("", 0)
    assert first["changed_at"] > 0
    assert change["at"] > 0
    assert len(b64decode(first["secret"])) == 16
    assert {**first, "epoch": "", "created_at": 0, "changed_at": 0, "secret": ""} == {
        **{"format": 3, "kind": "room", "name": "ada:one", "state_version": 2},
        **{"epoch": "", "created_at": 0, "changed_at": 0, "user": "ada", "secret": ""},
    }
    assert state == {"version": 0, "state": {"topic": "none", "turns": 0}}
    assert (change["version"], change["source"]) == (1, "server")
    assert change["ops"] == [
        {"op": "replace", "path": "/topic", "value": "tea"},
        {"op": "replace", "path": "/turns", "value": 3},
    ]
    assert records == [{"part": "values", "key": "head/metadata", "value": {"a": 1}}]
    assert last == json.loads(end_of(data[: data.rindex(b'{"records"')], 1))


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
        await room.part(Room.values).set("n", "committed")
        before = body_of(await export(app, Room))
        running = asyncio.create_task(app.run("slow", thread="one"))
        await started.wait()
        assert await app.interrupt(room, "a message")
        data = await export(app, Room)
        ending.set()
        await running
    assert body_of(data) == before
    assert b"committed" in data
    assert b"message" not in data


class Counter(Thread[Any]):
    """Counts in its state and in its last value at once, and keeps few changes."""

    initial_state = 0
    retention = Retention(changes=5)
    values = Values()

    @rpc
    def count(self) -> None:
        number = self.state + 1
        self.set_state(number)
        self.values.set("z", number)


async def test_an_export_is_of_one_moment_whatever_is_written_while_it_is_read(stores: tuple[Store, Store]) -> None:
    async with Plait(Counter, store=stores[0]) as app, Plait(Counter, store=stores[1]) as other:
        counter, is_done = app.thread(Counter, "one"), asyncio.Event()
        for number in range(9):
            await counter.part(Counter.values).set(f"{number}", "x" * 100_000)

        async def keep_counting() -> None:
            while not is_done.is_set():
                await counter.call(Counter.count)

        counting, states = asyncio.create_task(keep_counting()), list[int]()
        for number in range(20):
            copy = await other.import_thread(await export(app, Counter), name=str(number))
            states.append(await copy.state())
            assert await other.thread(Counter, str(number)).part(Counter.values).get("z", 0) == states[-1]
        is_done.set()
        await counting
        assert states == sorted(states)
        assert states[0] < states[-1] <= await counter.state()


async def test_unknown_fields_are_kept_out_and_missing_ones_get_defaults(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        data = make_file(
            *("room", "one"),
            {"state": {"turns": 7, "unknown": [1]}},
            {"part": "values", "key": "head/metadata", "value": {"a": 1}, "more": 1},
            {"part": "marks", "key": "a", "value": 1},
            {"part": "agents", "key": "cut-off", "value": {}},
            {"part": "agents", "key": "more", "value": {}},
            state_version=2,
            more=1,
            interrupted=True,
        )
        await app.import_thread(data)
        assert await parts_of(app, Room, "one") == (Talk("none", 7), [], {"a": 1})
        state, change, *others = body_of(await export(app, Room))
        assert state == {"version": 0, "state": {"turns": 7, "unknown": [1]}}
        assert (change["version"], change["source"]) == (1, "migration")
        assert change["ops"] == [
            {"op": "remove", "path": "/unknown"},
            {"op": "add", "path": "/topic", "value": "none"},
        ]
        assert others == [
            {"version": 1, "state": {"topic": "none", "turns": 7}},
            {"part": "values", "key": "head/metadata", "value": {"a": 1}},
        ]
        await app.import_thread(make_file("room", "two"))
        assert await parts_of(app, Room, "two") == (Talk(), [], {})
        assert [row.key.name async for row in app.threads()] == ["one", "two"]


async def test_an_older_state_is_migrated_and_a_newer_one_refused(stores: tuple[Store, Store]) -> None:
    def old(name: str, version: int, state: object) -> bytes:
        return make_file("room", name, {"state": state}, state_version=version)

    async with make_app(stores[0]) as app:
        assert await (await app.import_thread(old("one", 1, {"title": "old"}))).state() == Talk("old")
        with pytest.raises(NewerState):
            await app.import_thread(old("two", 3, {"title": "old"}))
        with pytest.raises(MigrationFailed):
            await app.import_thread(old("two", 1, {"x": 1}))
        assert [row.key.name async for row in app.threads()] == ["one"]


async def test_a_thread_that_is_there_is_replaced_only_when_that_is_asked_for(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        room = app.thread(Room, "one")
        await room.set_state(Talk("tea", 3))
        await room.part(Room.values).set("n", 1)
        data = await export(app, Room)
        await room.set_state(Talk("changed", 4))
        await room.part(Room.values).set("n", 2)
        await room.part(Room.values).set("more", 3)
        await room.part(Room.values).set_metadata({"a": 1})
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
    async with make_app(stores[0]) as app:  # One that is asleep.
        with pytest.raises(Conflict, match="room/one"):
            await app.import_thread(data)
        await app.import_thread(make_file("room", "one"), replace=True)
        assert await parts_of(app, Room, "one") == (Talk(), [], {})


async def test_what_was_only_looked_at_is_no_thread_that_an_import_would_replace(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        assert await app.thread(Plain, "one").state() is None
        await app.import_thread(make_file("plain", "one", {"state": 7}))
        assert await app.thread(Plain, "one").state() == 7


async def test_a_class_with_on_start_takes_an_import_too(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        data = make_file("busy", "one", {"state": 5}, {"part": "values", "key": "head/metadata", "value": {"a": 1}})
        await app.import_thread(data)
        assert await parts_of(app, Busy, "one") == (5, [("began", True)], {"a": 1})
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
    async with SqliteStore(tmp_path / "one.db", readonly=True) as store:
        assert json.loads(await describe_thread(store, ThreadKey("plain", name)))["session"] == [*ids]


async def test_an_export_has_the_changes_before_it_and_waits_until_they_are_durable(
    stores: tuple[Store, Store],
) -> None:
    async with make_app(stores[0]) as app:
        plain = app.thread(Plain, "one")
        await plain.set_state(0)
        writing = [asyncio.create_task(plain.set_state(number)) for number in range(1, 20)]
        await asyncio.sleep(0)
        changes = [line for line in body_of(await export(app, Plain)) if "ops" in line]
        assert [(line["version"], line["ops"][0]["value"]) for line in changes] == [(n + 1, n) for n in range(20)]
        await asyncio.gather(*writing)


async def test_of_two_imports_at_once_one_is_refused_also_with_on_start(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        imports = (app.import_thread(make_file("busy", "one", {"state": number})) for number in range(3))
        outcomes = await asyncio.gather(*imports, return_exceptions=True)
        (number,) = [number for number, each in enumerate(outcomes) if not isinstance(each, Conflict)]
        assert await app.thread(Busy, "one").state() == number


async def test_listeners_of_thread_created_are_told_of_an_import_once(stores: tuple[Store, Store]) -> None:
    app, told = make_app(stores[0]), asyncio.Queue[Any]()

    @app.on("thread.created")
    async def tell(thread: Any) -> None:
        await app.thread(Busy, thread.name).part(Busy.values).set("told", True)
        await told.put((thread.name, thread.state))

    async with app:
        await app.import_thread(make_file("busy", "one", {"state": 5}))
        assert await asyncio.wait_for(told.get(), PATIENCE) == ("one", 5)
        await app.thread(Busy, "two").set_state(1)
        assert await asyncio.wait_for(told.get(), PATIENCE) == ("two", 1)
        assert await app.thread(Busy, "one").part(Busy.values).get("told")


async def test_an_import_replaces_nothing_that_began_meanwhile(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        busy = app.thread(Busy, "one")
        importing = app.import_thread(make_file("busy", "one", {"state": 5}))
        outcomes = await asyncio.gather(busy.set_state(7), importing, return_exceptions=True)
        refused = [isinstance(each, Conflict | Unavailable) for each in outcomes]
        assert refused in ([False, True], [True, False], [False, False])
        assert await busy.state() == (5 if refused == [True, False] else 7)


async def test_what_a_cut_off_run_leaves_is_not_exported_and_a_part_named_as_its_mark_is(tmp_path: Path) -> None:
    class Team(Thread[Any]):
        agents = Values()  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    path, begun = tmp_path / "team.db", asyncio.Event()
    app = Plait(Team, store=SqliteStore(path), shutdown_timeout=0.05)

    @app.agent("plan", thread=Team)
    async def plan(ctx: Context[Team]) -> None:
        await ctx.thread.agents.set("planner", [1, 2])
        begun.set()
        await asyncio.Event().wait()

    async with app:
        task = asyncio.create_task(app.run("plan", thread="one"))
        await asyncio.wait_for(begun.wait(), PATIENCE)
    await task
    async with SqliteStore(path) as store:
        assert await store.record(ThreadKey("team", "one"), "agents", "cut-off") is not None
    async with Plait(Team, store=SqliteStore(path)) as again:
        data = await export(again, Team)
        await again.import_thread(data, name="two")
        part: Any = Team.agents
        assert await again.thread(Team, "two").part(part).items() == [("planner", [1, 2])]
        assert b"cut-off" not in data
        await again.import_thread(make_file("team", "three", {"part": "agents", "key": "cut-off", "value": {}}))
        assert await again._store.record(ThreadKey("team", "three"), "agents", "cut-off") is None


END = '{"records":0,"sha256":"%s"}\n'
FIRST = '{"format":2,"kind":"room","name":"x"}\n'


@each_case(
    ("data", "error", "said"),
    [
        (b"", InvalidState, "exported thread"),
        (b"[]\n", InvalidState, "exported thread"),
        (b"{}\n", InvalidState, "exported thread"),
        (b"\xff", InvalidState, "exported thread"),
        (b'{"format":1,"kind":"room","name":"x"}', InvalidState, "format 1; this plait reads 3"),
        (make_file("nope", "x"), NotFound, "nope"),
        (make_file("plait-kv", "x"), NotFound, "plait-kv"),
        (make_file("room", ""), NotFound, "name"),
        (make_file("room", "x", {"state": {"turns": "a"}}, state_version=2), InvalidState, "int"),
        (make_file("room", "x", {"state": {"turns": -1}}, state_version=2), Reject, "negative"),
        (make_file("room", "x", {"key": "k", "value": 1}), InvalidState, "line 2: it is no record"),
        (make_file("room", "x", {"part": "Values", "key": "k", "value": 1}), InvalidState, "line 2: the part"),
        (make_file("room", "x", {"part": "values", "key": "", "value": 1}), InvalidState, "line 2: the key"),
        (make_file("room", "x", {"part": "values", "key": "k", "base64": "?"}), InvalidState, "line 2"),
        (make_file("room", "x", {"part": "values", "key": "k", "value": "x" * 2**20}), TooLarge, "limit"),
        (make_file("desk", "x", {"part": "messages", "key": "head", "value": 7}), InvalidState, "parts of Desk"),
        (
            make_file("room", "x", {"part": "thread-life", "key": "terminated", "value": 7}),
            InvalidState,
            "parts of Room",
        ),
        (make_file("room", "x", created_at=2**60), InvalidState, "line 1: Expected `int` <= "),
        (make_file("room", "x", due=-1), InvalidState, "line 1: Expected `int` >= 0"),
        (make_file("room", "x") + b"\n", InvalidState, "after its last line"),
        (FIRST.encode() + end_of(FIRST.encode(), 1), InvalidState, "damaged"),
        (FIRST.encode() + end_of(b"", 0), InvalidState, "damaged"),
        (
            make_file("room", "x", {"part": "values", "key": "head/metadata", "value": {}}, {"state": 1}),
            InvalidState,
            "3",
        ),
    ],
)
async def test_what_cannot_be_imported_is_refused_whole(
    stores: tuple[Store, Store], data: bytes, error: type[Exception], said: str
) -> None:
    async with make_app(stores[0]) as app:
        with pytest.raises(error, match=said):
            await app.import_thread(data)
        assert [key async for key in app.threads()] == []
        assert await app.thread(Room, "x").state() == Talk()


async def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused_and_replaces_nothing(
    stores: tuple[Store, Store],
) -> None:
    async with make_app(stores[0]) as app:
        await make_desk(app)
        data = await export(app, Desk)
        before = await described(app, "one")
        for at in range(0, len(data), 7):
            with pytest.raises(InvalidState):
                await app.import_thread(data[:at], replace=True)
            damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            with pytest.raises((InvalidState, NotFound)):
                await app.import_thread(damaged, replace=True)
        assert await described(app, "one") == before


async def test_what_is_not_there_cannot_be_exported(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        with pytest.raises(NotFound, match="room/one"):
            await export(app, Room)
        assert [key async for key in app.threads()] == []


async def test_long_ids_of_a_session_go_along_under_the_same_name(stores: tuple[Store, Store]) -> None:
    app = make_app(stores[0])

    @app.agent("touch", thread=Plain)
    async def touch(ctx: Context) -> None:
        await ctx.thread.values.set("n", 1)

    async with app:
        await app.run("touch", user_id=LONG, session_id="s")
        data = await export(app, Plain, app.session(Plain, "s", user_id=LONG).name)
    async with make_app(stores[1]) as app:
        await app.import_thread(data)
        await app.import_thread(data, name="copy")
        assert [pair async for pair in app.sessions(Plain, LONG)] == [(LONG, "s")]
        assert b"session" not in await export(app, Plain, "copy")


async def test_values_that_are_no_json_and_those_with_line_breaks_go_along_as_they_are(
    stores: tuple[Store, Store],
) -> None:
    first, second = stores
    values = [b"", b"\x00\xff", b"{", b" 1", b'{\n"a": 1}', b"1\r", b"null", '"é😀"'.encode(), b"1e999", b"NaN"]
    records = [Record("notes", f"value/{number}", value) for number, value in enumerate(values)]
    async with first:
        await submit(first, Write(ThreadKey("plain", "one"), "e", None, 0, records=records))
    async with make_app(first) as app:
        data = await export(app, Plain)
    async with make_app(second) as app:
        await app.import_thread(data)
        assert await second.records(ThreadKey("plain", "one"), RecordRange("notes")) == records


async def test_what_is_queued_and_scheduled_is_due_again_where_it_is_imported(stores: tuple[Store, Store]) -> None:
    first, second = stores
    async with Plait(Desk, store=first) as app:  # There is no agent that could answer.
        desk = app.thread(Desk, "one")
        await desk.part(Desk.messages).queue("hello")
        await desk.part(Desk.schedule).after(0.3, "ring")
        data = await export(app, Desk)
    app, answered = make_app(second), asyncio.Queue[str]()

    @app.agent("answer", thread=Desk)
    async def answer(ctx: Context[Desk]) -> None:
        for message in await ctx.thread.messages.take():
            await answered.put(str(message.content))

    async with app:
        await app.import_thread(data)
        assert await asyncio.wait_for(answered.get(), PATIENCE) == "hello"
        async with asyncio.timeout(PATIENCE):
            while await app.thread(Desk, "one").state() != {"rung": 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert answered.empty()


async def test_a_thread_that_was_terminated_is_terminated_where_it_is_imported(stores: tuple[Store, Store]) -> None:
    async with make_app(stores[0]) as app:
        await make_desk(app)
        await app.thread(Desk, "one").terminate()
        data = await export(app, Desk)
    async with make_app(stores[1]) as app:
        await app.import_thread(data)
        with pytest.raises(Exception, match="terminated"):
            await app.thread(Desk, "one").part(Desk.messages).queue("more")


# While an import goes on


class Held:
    """Holds up the writes of a store after the first `count` ones of an import."""

    def __init__(self, store: Store, count: int) -> None:
        self.is_reached, self.release = asyncio.Event(), asyncio.Event()
        self.error: StoreError | None = None
        self._submit, self._left = store.submit, count
        store.submit = self.submit  # type: ignore[method-assign]

    def submit(self, write: Write) -> asyncio.Future[int]:
        if write.key.kind != "plain" or self._left > 0:
            self._left -= write.key.kind == "plain"
            return self._submit(write)
        self.is_reached.set()
        return asyncio.ensure_future(self._wait(write))

    async def _wait(self, write: Write) -> int:
        await self.release.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        return await self._submit(write)


def make_large(pages: int = 3) -> bytes:
    """Return a file that is stored in some pages."""
    records = ({"part": "notes", "key": f"value/{n}", "value": "x" * 1000} for n in range(pages * 1000))
    return make_file("plain", "one", {"state": 7}, *records)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_thread_cannot_be_used_before_its_import_is_complete(stores: tuple[Store, Store], count: int) -> None:
    async with make_app(stores[0]) as app:
        held = Held(stores[0], count)
        importing = asyncio.create_task(app.import_thread(make_large()))
        await asyncio.wait_for(held.is_reached.wait(), PATIENCE)
        plain = app.thread(Plain, "one")
        uses: Iterable[Callable[[], Awaitable[Any]]] = (
            *(plain.state, lambda: plain.set_state(1), lambda: plain.part(Plain.notes).get("n"), plain.destroy),
            lambda: app.destroy(Plain, "one"),
        )
        for use in uses:
            with pytest.raises(
                Unavailable, match="plain/one is being imported or forked: try again when that is complete"
            ):
                await asyncio.wait_for(use(), PATIENCE)
        with pytest.raises(Conflict, match="imported or forked already"):
            await app.import_thread(make_large(), replace=True)
        with pytest.raises(NotFound):
            await export(app, Plain)
        assert [row async for row in app.threads()] == []
        assert await app.thread(Plain, "two").state() is None  # Others can.
        held.release.set()
        await asyncio.wait_for(importing, PATIENCE)
        assert await plain.state() == 7
        assert len(body_of(await export(app, Plain))) == 3001


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_an_import_that_fails_or_is_cancelled_leaves_nothing(stores: tuple[Store, Store], count: int) -> None:
    key = ThreadKey("plain", "one")
    async with make_app(stores[0]) as app:
        for is_cancelled in (True, False):
            submit = stores[0].submit
            held = Held(stores[0], count)
            importing = asyncio.create_task(app.import_thread(make_large()))
            await asyncio.wait_for(held.is_reached.wait(), PATIENCE)
            if is_cancelled:
                importing.cancel()
            held.error = StoreError("the disk is full")
            held.release.set()
            with pytest.raises(asyncio.CancelledError if is_cancelled else StoreError):
                await importing
            stores[0].submit = submit  # type: ignore[method-assign]
            async with asyncio.timeout(PATIENCE):
                while await stores[0].find(key) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await app.import_thread(make_large())
        assert await app.thread(Plain, "one").state() == 7


async def leave_incomplete(store: Store, *names: str) -> None:
    """Store what an import leaves whose process is killed."""
    for name in names:
        records = [Record("notes", "head/metadata", b'{"a":1}')]
        key = ThreadKey("plain", name)
        await submit(store, Write(key, "e", None, 0, snapshots=[Snapshot(0, b"9")], records=records, due=INCOMPLETE))


async def test_what_an_import_left_that_was_killed_is_removed_at_the_next_start(stores: tuple[Store, Store]) -> None:
    names = [str(number) for number in range(250)]
    async with stores[0] as store:
        await leave_incomplete(store, *names)
        assert [row async for row in make_app(store).threads()] == []
    async with make_app(stores[0]):
        assert [await stores[0].find(ThreadKey("plain", name)) for name in names] == [None] * 250
        assert await stores[0].due_threads(until=2**62) == []


async def test_what_an_import_left_that_could_not_remove_it_is_removed_by_the_next_use(
    stores: tuple[Store, Store],
) -> None:
    async with make_app(stores[0]) as app:
        await leave_incomplete(stores[0], "one", "two", "three", "four")
        assert await app.thread(Plain, "one").state() is None
        assert await app.thread(Plain, "one").part(Plain.notes).metadata() == {}
        assert await stores[0].find(ThreadKey("plain", "one")) is None
        await app.import_thread(make_file("plain", "two", {"state": 1}))
        assert await app.thread(Plain, "two").state() == 1
        with pytest.raises(NotFound):
            await app.thread(Plain, "three").terminate()
        with pytest.raises(NotFound):
            await export(app, Plain, "four")


def _make_records(start: int) -> list[Record]:
    return [Record("letters", f"other/{n:06}", b'"%s"' % (b"x" * 900)) for n in range(start, start + 5000)]


async def test_neither_an_export_nor_an_import_holds_more_than_a_page(tmp_path: Path) -> None:
    count, path, key = 10_000, tmp_path / "large.jsonl", ThreadKey("letters", "one")
    async with SqliteStore(tmp_path / "one.db") as store:
        for start in range(0, count, 5000):
            await submit(store, Write(key, "e", 0 if start else None, 0, records=_make_records(start)))
    async with make_app(SqliteStore(tmp_path / "one.db")) as app:
        tracemalloc.start()
        try:
            with path.open("wb") as file:
                async for lines in app.export_thread(Letters, "one"):
                    file.write(lines)
            exported = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            await app.import_thread(path, name="two")
            imported = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        rows = await app._store.records(
            ThreadKey("letters", "two"), RecordRange("letters", after=f"other/{count - 10:06}")
        )
        assert len(rows) == 9
    assert path.stat().st_size > 9_000_000
    # A page is of 1,000 records.
    assert max(exported, imported) < 4_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc/~", max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)


@settings(max_examples=schedules(15))
@given(
    state=JSON,
    values=st.dictionaries(KEYS, JSON, max_size=5),
    metadata=st.dictionaries(KEYS, JSON, max_size=2),
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4),
    rings=st.lists(st.integers(1000, 10**6), max_size=3),
)
def test_whatever_a_thread_has_it_has_again_where_it_is_imported(
    state: Any, values: dict[str, Any], metadata: dict[str, Any], texts: list[str], rings: list[int]
) -> None:
    async def run() -> None:
        async with make_app(MemoryStore()) as app, make_app(MemoryStore()) as other:
            desk = app.thread(Desk, "one")
            await desk.set_state(state)
            for key, value in values.items():
                await desk.part(Desk.values).set(key, value)
            await desk.part(Desk.values).set_metadata(metadata)
            for text in texts:
                await desk.part(Desk.messages).inject("user", text)
            for seconds in rings:
                await desk.part(Desk.schedule).after(seconds, "ring")
            data = await export(app, Desk)
            await other.import_thread(data)
            assert await described(other, "one") == await described(app, "one")
            again = await export(other, Desk)
            assert again.splitlines()[1:-1] == data.splitlines()[1:-1]

    asyncio.run(run())
