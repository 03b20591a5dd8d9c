"""The history of a thread goes along with it: its versions, their sources and times, and the ids of its clients."""

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schedules import schedules
from tests.server.node.test_export import end_of, export, make_file

from plait import Change, InvalidState, MemoryStore, Plait, Retention, Thread, Values, current, migrate, rpc
from plait.store.protocol import Store, Write
from plait.store.thread_rows import ChangeRow, Snapshot, ThreadKey
from plait.store.urls import open_store
from plait.testing import serve


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop, as one of them turns its clock."""
    return "asyncio", {"use_uvloop": False}


class Notes(Thread[Any]):
    initial_state: ClassVar = {"text": "", "list": []}
    values = Values()

    @rpc
    def whoami(self) -> str:
        connection = current().connection
        assert connection is not None
        return connection.id

    @rpc
    async def undo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.undo(connection)

    @rpc
    async def restore(self, version: int) -> int:
        return await self.revert(version)

    @rpc
    async def as_it_was(self, version: int) -> Any:
        return await self.at(version)


class Short(Notes):
    retention = Retention(changes=3)


class Listed(Notes):
    listed = True

    def card(self, state: Any) -> Any:
        return {"text": state["text"]}


class Later(Thread[Any]):
    """The notes of a later build."""

    kind = "notes"
    initial_state: ClassVar = {"body": ""}
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def the_text_is_the_body(state: Any) -> Any:
        return {"body": state["text"]}


Open = Callable[[str], Store]


@pytest.fixture(params=["sqlite", "file", "memory"])
def open_named(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that makes the store of a name."""
    kept: dict[str, Store] = {}

    def make(name: str) -> Store:
        if request.param == "memory":
            return kept.setdefault(name, open_store("memory://"))
        return open_store(f"{request.param}:///{tmp_path}/{name}")

    return make


async def fill(app: Plait, kind: type[Thread[Any]] = Notes, changes: int = 6) -> None:
    notes = app.thread(kind, "one")
    for number in range(changes):
        await notes.update("/text", "x" * number + "!")
    await notes.part(Notes.values).set("a", [1])


async def history_of(app: Plait, kind: type[Thread[Any]], name: str = "one") -> list[Change]:
    return await app.thread(kind, name).history()


async def test_an_imported_thread_has_its_history_also_after_a_restart(open_named: Open) -> None:
    async with Plait(Notes, store=open_named("one")) as app:
        await fill(app)
        expected, data = await history_of(app, Notes), await export(app, Notes)
        assert [change.version for change in expected] == [1, 2, 3, 4, 5, 6]
    async with Plait(Notes, store=open_named("two")) as app:
        notes = await app.import_thread(data)
        assert await history_of(app, Notes) == expected
    async with Plait(Notes, store=open_named("two")) as app:
        notes = app.thread(Notes, "one")
        assert await history_of(app, Notes) == expected
        assert await notes.call(Notes.as_it_was, 0) == {"text": "", "list": []}
        assert await notes.call(Notes.as_it_was, 3) == {"text": "xx!", "list": []}
        await app.fork_thread(Notes, "one", "earlier", at=4)
        assert await app.thread(Notes, "earlier").state() == {"text": "xxx!", "list": []}
        assert await notes.undo("server") == 7
        assert await notes.state() == {"text": "xxxx!", "list": []}
        assert await notes.call(Notes.restore, 2) == 8
        assert await notes.state() == {"text": "x!", "list": []}
        assert [change.version for change in await history_of(app, Notes)] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_log_that_was_shortened_begins_where_it_did(open_named: Open) -> None:
    async with Plait(Short, store=open_named("one")) as app:
        for number in range(200):
            await app.thread(Short, "one").set_state({"text": f"{number} " * 500})
        expected, data = await history_of(app, Short), await export(app, Short)
        assert 1 < expected[0].version < expected[-1].version == 200
    async with Plait(Short, store=open_named("two")) as app:
        notes = await app.import_thread(data, name="two")
        assert await history_of(app, Short, "two") == expected
        first = expected[0].version
        assert await notes.call(Notes.as_it_was, first) == {"text": f"{first - 1} " * 500}


async def test_a_client_has_its_id_again_and_not_its_epoch() -> None:
    async with serve(app := Plait(Notes, store=MemoryStore())) as t:
        async with t.connect(Notes, "one", client="ada") as notes:
            await notes.update("/text", "mine")
            before = await notes.call(Notes.whoami)
        data = await export(app, Notes)
    async with serve(app := Plait(Notes, store=MemoryStore())) as t:
        await app.import_thread(data)
        async with t.connect(Notes, "one", client="ada") as notes:
            assert notes.state["text"] == "mine"
            assert await notes.call(Notes.whoami) == before == (await history_of(app, Notes))[0].source
            await notes.call(Notes.undo_mine)
        assert (await app.thread(Notes, "one").state())["text"] == ""
        again = await export(app, Notes)
    first, second = (json.loads(each.splitlines()[0]) for each in (data, again))
    assert first["epoch"] != second["epoch"]
    assert first["secret"] == second["secret"]


async def test_a_listed_thread_keeps_the_time_of_its_last_change(open_named: Open) -> None:
    async with Plait(Listed, store=open_named("one")) as app:
        await fill(app, Listed)
        expected, data = [row async for row in app.threads()], await export(app, Listed)
    async with Plait(Listed, store=open_named("two")) as app:
        await app.import_thread(data)
        assert [row async for row in app.threads()] == expected


async def test_an_older_history_goes_on_with_a_migration(open_named: Open) -> None:
    async with Plait(Notes, store=open_named("one")) as app:
        await fill(app)
        expected, data = await history_of(app, Notes), await export(app, Notes)
    async with Plait(Later, store=open_named("two")) as app:
        notes = await app.import_thread(data)
        assert await notes.state() == {"body": "xxxxx!"}
        *before, last = await history_of(app, Later)
        assert before == expected
        assert (last.version, last.source) == (7, "migration")
        with pytest.raises(InvalidState, match="before a migration"):
            await app.fork_thread(Later, "one", "earlier", at=3)


async def test_a_file_of_the_format_before_is_imported(open_named: Open) -> None:
    lines = (
        b'{"format":2,"kind":"notes","name":"one","epoch":"e1","version":9,"created_at":5,"user":"ada"}\n'
        b'{"state":{"text":"a","list":[]}}\n'
        b'{"part":"values","key":"head/metadata","value":{"a":1}}\n'
    )
    async with Plait(Notes, store=open_named("one")) as app:
        notes = await app.import_thread(lines + end_of(lines, 1))
        assert await notes.state() == {"text": "a", "list": []}
        assert await notes.part(Notes.values).metadata() == {"a": 1}
        assert (await notes.created_at(), await notes.user_id()) == (5, "ada")
        assert await history_of(app, Notes) == []


STATE = {"version": 4, "state": 1}


def changed(version: int, ops: object = ({"op": "replace", "path": "", "value": 2},)) -> dict[str, object]:
    return {"version": version, "ops": ops, "source": "server", "at": 1}


@each_case(
    ("lines", "says"),
    [
        ([changed(5)], "the state of version 4 is missing"),
        ([], "the state of version 4 is missing"),
        ([STATE, changed(6)], "line 3: change 6 does not follow version 4"),
        ([STATE, changed(5), changed(5)], "line 4: change 5 does not follow version 5"),
        ([STATE, STATE], "line 3: the state of version 4 does not follow"),
        ([STATE, changed(5), {"version": 6, "state": 1}], "line 4: the state of version 6 does not follow version 5"),
        ([STATE, changed(5), {"version": 5, "state": 1}, {"version": 5, "state": 1}], "line 5: the state"),
        ([STATE, changed(5, [{"op": "remove", "path": "/a"}])], "version 5 cannot be read"),
        ([STATE, changed(5, {"op": 1})], "line 3: Expected `array`"),
        ([STATE, changed(5), changed(6, [{"op": "odd", "path": ""}])], "line 4: Invalid enum value 'odd'"),
        ([STATE, {**changed(5), "at": 2**60}], "line 3: Expected `int` <= 253402300799999999"),
        ([STATE, {"client": "c", "ref": 1, "refused": [], "at": -1}], "line 3: Expected `int` >= 0"),
        ([STATE, changed(2**70)], "line 3"),
        ([STATE, {"source": "server"}], "line 3: it is no record"),
    ],
)
async def test_a_history_with_gaps_or_false_changes_is_refused(lines: list[object], says: str) -> None:
    async with Plait(Notes, store=open_store("memory://")) as app:
        with pytest.raises(InvalidState, match=says):
            await app.import_thread(make_file("notes", "one", *lines, begins_at=4))
        assert [row async for row in app.threads()] == []


VALUE = st.recursive(
    st.none() | st.integers(-9, 9) | st.text("aé\n😀", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=schedules(10))
@given(
    begins_at=st.integers(0, 3),
    states=st.lists(st.tuples(VALUE, st.booleans(), st.sampled_from(["server", "c1", "é"])), min_size=1, max_size=12),
    values=st.dictionaries(st.text("abé😀", min_size=1, max_size=3), VALUE, max_size=4),
    engines=st.permutations(["sqlite", "file", "memory"]),
)
def test_a_file_that_is_imported_and_exported_has_the_same_lines_again(
    begins_at: int, states: list[tuple[Any, bool, str]], values: dict[str, Any], engines: list[str]
) -> None:
    """Only its epoch is new, and so the checksum."""

    async def play(folder: Path) -> None:
        key = ThreadKey("notes", "one")
        stores = [open_store("memory://" if each == "memory" else f"{each}:///{folder}/{each}") for each in engines]
        async with Plait(Notes, store=stores[0]) as app:
            fence = await stores[0].claim(key)
            for write in make_writes(key, begins_at, states):
                await stores[0].submit(msgspec.structs.replace(write, fence=fence))
            stores[0].release(key, fence)
            for name, value in values.items():
                await app.thread(Notes, "one").part(Notes.values).set(name, value)
            data = await export(app, Notes)
        for store in stores[1:]:
            async with Plait(Notes, store=store) as app:
                await app.import_thread(data)
                again = await export(app, Notes)
            assert known_lines(again) == known_lines(data)
            data = again

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


def make_writes(key: ThreadKey, begins_at: int, states: list[tuple[Any, bool, str]]) -> list[Write]:
    """Return the writes of a thread whose states follow each other, some with a snapshot."""
    made = [json.dumps({"s": state}).encode() for state, _, _ in states]
    first = Write(
        *(key, "e1", None, begins_at),
        snapshots=(Snapshot(begins_at, b"{}"),),
        secret=b"0123456789abcdef",
        begins_at=begins_at,
        created_at=7,
        user="ada",
    )
    writes = [first]
    for version, (state, (_, has_snapshot, source)) in enumerate(zip(made, states, strict=True), begins_at + 1):
        row = ChangeRow(version, b'[{"op":"replace","path":"","value":%b}]' % state, source, version * 10)
        snapshots = (Snapshot(version, state),) if has_snapshot else ()
        writes.append(Write(key, "e1", version - 1, version, (row,), snapshots))
    return writes


def known_lines(data: bytes) -> list[Any]:
    """Return the lines of a file without the epoch and the checksum."""
    first, *lines, last = (json.loads(line) for line in data.splitlines())
    return [{**first, "epoch": ""}, *lines, last["records"]]
