"""What a query notes that it reads is enough: after each write, its result is that of a fresh run."""

import dataclasses
import json
from copy import copy, deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.parts.queries.readers import Following
from tests.server.rooms import open_house
from tests.server.session.guests import joined, until

from plait import Sql, Thread, Values, query
from plait.parts.queries.passes import QueryPasses

SCHEMA = """
CREATE TABLE parent (id INTEGER PRIMARY KEY, a, doubled AS (a * 2));
CREATE TABLE child (id INTEGER PRIMARY KEY, p REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, v);
CREATE TABLE Grand (id INTEGER PRIMARY KEY, c REFERENCES child ON DELETE SET NULL);
CREATE TABLE log (x);
CREATE TABLE once (k UNIQUE ON CONFLICT REPLACE, v);
CREATE TABLE bare (k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TRIGGER after_update AFTER UPDATE ON parent BEGIN INSERT INTO log VALUES (new.a); END;
CREATE VIEW joined AS SELECT parent.id, v FROM parent JOIN child ON p = parent.id;
CREATE TRIGGER instead INSTEAD OF INSERT ON joined BEGIN INSERT INTO log VALUES (new.v); END;
CREATE VIRTUAL TABLE docs USING fts5(body);
CREATE TABLE ext (id INTEGER PRIMARY KEY, body);
CREATE VIRTUAL TABLE extfts USING fts5(body, content='ext', content_rowid='id');
INSERT INTO parent (id, a) VALUES (1, 1), (2, 2);
INSERT INTO child VALUES (1, 1, 'x'), (2, 2, 'y');
INSERT INTO grand VALUES (1, 1), (2, 2);
INSERT INTO once VALUES (1, 'x'), (2, 'y');
INSERT INTO ext VALUES (1, 'tea'), (2, 'milk');
INSERT INTO docs VALUES ('tea');
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT)
"""

READS = [
    "SELECT count(*) AS n FROM PARENT",
    "SELECT doubled FROM parent ORDER BY id",
    "SELECT rowid AS r FROM parent ORDER BY 1",
    "SELECT id, p, v FROM child ORDER BY id",
    "SELECT c FROM grand ORDER BY id",
    "SELECT x FROM log ORDER BY rowid",
    "SELECT v FROM once ORDER BY v",
    "SELECT * FROM bare ORDER BY k",
    "SELECT * FROM joined ORDER BY id, v",
    "SELECT body FROM docs WHERE docs MATCH 'tea' ORDER BY rowid",
    "SELECT rowid AS r FROM extfts WHERE extfts MATCH 'tea' ORDER BY rowid",
    # The statements of a virtual table on other tables are compiled once, so a later statement tells nothing of them.
    "SELECT body FROM extfts WHERE extfts MATCH 'tea' ORDER BY rowid",
    "SELECT highlight(extfts, 0, '<', '>') AS h FROM extfts WHERE extfts MATCH 'tea' ORDER BY rowid",
    "SELECT count(*) AS n FROM docs_data",
    "SELECT sql FROM sqlite_schema WHERE name = 'log'",
    "SELECT name FROM pragma_table_info('log')",
    "PRAGMA table_info(bare)",
    "SELECT rowid AS r, body FROM extfts WHERE extfts MATCH 'tea' ORDER BY rowid",
    "SELECT seq FROM sqlite_sequence",
    "SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name",
    "PRAGMA table_info(log)",
    "SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM \"Child\" WHERE v = 'x')",
    "WITH RECURSIVE c(x) AS (SELECT min(id) FROM parent UNION ALL SELECT x + 1 FROM c WHERE x < 3) SELECT x FROM c",
    "SELECT max(a) AS m FROM (SELECT a FROM parent UNION SELECT x FROM log)",
]

WRITES = [
    "UPDATE parent SET id = id + 10 WHERE id = (SELECT max(id) FROM parent)",
    "UPDATE parent SET rowid = rowid + 20 WHERE id = (SELECT min(id) FROM parent)",
    "DELETE FROM parent WHERE id = (SELECT min(id) FROM parent)",
    "INSERT OR REPLACE INTO parent (id, a) VALUES (1, 3)",
    "UPDATE parent SET a = a + 1",
    "UPDATE OR REPLACE parent SET id = 1 WHERE id > 1",
    "INSERT INTO child (p, v) SELECT min(id), 'z' FROM parent",
    "INSERT INTO joined (v) VALUES ('z')",
    "INSERT INTO docs VALUES ('tea and coffee')",
    "UPDATE docs SET body = 'tea'",
    "DELETE FROM docs",
    "INSERT INTO extfts(extfts) VALUES ('rebuild')",
    "INSERT INTO ext VALUES (1, 'tea tea') ON CONFLICT (id) DO UPDATE SET body = excluded.body || 'x'",
    "UPDATE ext SET body = body || ' and tea'",
    'DELETE FROM "Ext" WHERE id = 2',
    "ALTER TABLE ext RENAME TO moved",
    "ALTER TABLE moved RENAME TO ext",
    "UPDATE once SET k = 2 WHERE k = 1",
    "INSERT INTO once VALUES (2, 'q')",
    "INSERT INTO BARE VALUES ('a', 1) ON CONFLICT DO UPDATE SET v = v + 1",
    "DELETE FROM log",
    "INSERT INTO counted DEFAULT VALUES",
    "ALTER TABLE parent ADD COLUMN more",
    "ALTER TABLE log RENAME COLUMN x TO y",
    "ALTER TABLE log RENAME COLUMN y TO x",
    "DROP VIEW joined",
    "CREATE VIEW joined AS SELECT id, a AS v FROM parent",
    "DROP TABLE bare",
    "CREATE TABLE bare (k TEXT PRIMARY KEY, v)",
]


class Tables(Thread[Any]):
    sql = Sql(migrations=[SCHEMA])
    values = Values()

    @query
    def read(self, statement: str) -> Any:
        return self.sql(statement).value

    @query
    def value(self, how: str, key: str) -> Any:
        match how:
            case "get":
                return self.values.get(key).value
            case "has":
                return self.values.has(key).value
            case "keys":
                return self.values.keys().value
            case _:
                return self.values.size().value


def run_fresh(thread: Any, statement: str) -> Any:
    """Return the result of a statement, or ABSENT if it fails."""
    try:
        return thread.sql(statement).value
    except Exception:
        return "failed"


async def settle(actor: Any) -> None:
    """Wait until everything is durable, and no query waits for a run."""
    passes = actor.use_service(QueryPasses)
    passes.interval = 0.0
    await until(lambda: actor.state.is_durable and not passes._waiting)


@given(st.permutations(WRITES))
@settings(max_examples=15, deadline=None)
async def test_tables(writes: list[str]) -> None:
    async with open_house(Tables) as house:
        actor = await house.actor(Tables)
        thread: Any = actor.thread
        guest = await joined(actor, "a")
        following = {statement: Following(guest, "read", statement) for statement in READS}
        await settle(actor)
        for write in writes:
            if run_fresh(thread, write) == "failed":
                continue
            await settle(actor)
            frames = guest.frames
            for statement, each in following.items():
                for frame in frames:
                    each.take(frame)
                expected = run_fresh(thread, statement)
                assert (each.rows if each.error is None else "failed") == expected, (write, statement)


@pytest.mark.parametrize(
    ("read", "write"),
    [
        ("SELECT id FROM parent ORDER BY id", "UPDATE parent SET rowid = 9 WHERE id = 2"),
        ("SELECT doubled FROM parent ORDER BY id", "UPDATE parent SET a = 7"),
        ("SELECT v FROM once ORDER BY v", "UPDATE once SET k = 2 WHERE k = 1"),
    ],
)
async def test_a_column_is_changed_by_writes_that_do_not_name_it(read: str, write: str) -> None:
    """So tables are noted, and not columns."""
    async with open_house(Tables) as house:
        actor = await house.actor(Tables)
        thread: Any = actor.thread
        reader = Following(await joined(actor, "a"), "read", read)
        before = await reader.next()
        thread.sql(write)
        assert await reader.next() == run_fresh(thread, read) != before


KEYS = st.sampled_from(["a", "b", "c"])
EDITS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("push"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("clear")),
)


@given(st.lists(EDITS, max_size=12))
@settings(max_examples=40, deadline=None)
async def test_values(edits: list[Any]) -> None:
    async with open_house(Tables) as house:
        actor = await house.actor(Tables)
        thread: Any = actor.thread
        guest = await joined(actor, "a")
        asked = [(how, key) for how in ("get", "has", "keys", "size") for key in ("a", "b")]
        following = {each: Following(guest, "value", *each) for each in asked}
        await settle(actor)
        for name, *args in edits:
            try:
                await getattr(thread.values, name)(*args)
            except TypeError:  # A number is no list.
                continue
            await settle(actor)
            frames = guest.frames
            for (how, key), reader in following.items():
                for frame in frames:
                    reader.take(frame)
                fresh = getattr(thread.values, how)(*([key] if how in ("get", "has") else [])).value
                assert reader.rows == fresh, (how, key)


class Inner(msgspec.Struct, frozen=True):
    x: int = 0


class Typed(msgspec.Struct, frozen=True, rename="camel"):
    first_one: int = 0
    second_one: tuple[int, ...] = ()
    inner: Inner = Inner()

    def total(self) -> int:
        return self.first_one + sum(self.second_one)


@dataclasses.dataclass(frozen=True)
class Plain:
    first_one: int = 0
    second_one: tuple[int, ...] = ()
    inner: Inner = dataclasses.field(default_factory=Inner)

    def total(self) -> int:
        return self.first_one + sum(self.second_one)


class Listed(msgspec.Struct, frozen=True, array_like=True):
    first_one: int = 0
    second_one: tuple[int, ...] = ()
    inner: Inner = Inner()

    def total(self) -> int:
        return self.first_one + sum(self.second_one)


def read_object(state: Any, how: str) -> Any:
    """Read a typed state in one of several ways."""
    match how:
        case "field":
            return state.first_one
        case "deep":
            return state.inner.x
        case "method":
            return state.total()
        case "match":
            match state:
                case Typed(first_one=found) | Plain(first_one=found) | Listed(first_one=found):
                    return found
            return "none"
        case "equal":
            return state == state.__class__()
        case "text":
            return repr(state)
        case "copy":
            return [copy(state), deepcopy(state)]
        case _:
            return state


def read_mapping(state: Any, how: str) -> Any:
    """Read a plain state in one of several ways."""
    match how:
        case "item":
            return state["a"]
        case "get":
            return state.get("b", "none")
        case "in":
            return "c" in state
        case "iterate":
            return sorted(state)
        case "length":
            return len(state)
        case "unpack":
            return {**state, "more": 1}
        case "items":
            return sorted(state.items(), key=str)
        case "json":
            return json.dumps(dict(state), sort_keys=True)
        case "merge":
            return state | {"z": 1}
        case "copy":
            return [state.copy(), copy(state), deepcopy(state)]
        case "equal":
            return state == {"a": 0}
        case _:
            return state


class Mapped(Thread[dict[str, Any]]):
    initial_state = {"a": 0}  # noqa: RUF012

    @query
    def read(self, how: str) -> Any:
        return read_mapping(self.state, how)


class InStruct(Thread[Typed]):
    initial_state = Typed()

    @query
    def read(self, how: str) -> Any:
        return read_object(self.state, how)


class InDataclass(Thread[Plain]):
    initial_state = Plain()

    @query
    def read(self, how: str) -> Any:
        return read_object(self.state, how)


class InArray(Thread[Listed]):
    initial_state = Listed()

    @query
    def read(self, how: str) -> Any:
        return read_object(self.state, how)


NUMBERS = st.integers(0, 2)
OBJECTS = st.tuples(NUMBERS, st.lists(NUMBERS, max_size=2).map(tuple), NUMBERS)


@pytest.mark.parametrize("cls", [InStruct, InDataclass, InArray])
@given(states=st.lists(OBJECTS, max_size=8))
@settings(max_examples=15, deadline=None)
async def test_typed_states(cls: type[Any], states: list[Any]) -> None:
    make = type(cls.initial_state)
    ways = ["field", "deep", "method", "match", "equal", "text", "copy", "whole"]
    await follow_states(cls, ways, [make(a, b, Inner(c)) for a, b, c in states], read_object)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), NUMBERS | st.lists(NUMBERS, max_size=2)), max_size=8))
@settings(max_examples=40, deadline=None)
async def test_plain_states(states: list[Any]) -> None:
    ways = ["item", "get", "in", "iterate", "length", "unpack", "items", "json", "merge", "copy", "equal", "whole"]
    await follow_states(Mapped, ways, states, read_mapping)


async def follow_states(cls: type[Any], ways: list[str], states: list[Any], read: Any) -> None:
    """Follow a state that is read in all ways, and compare the results after each change."""
    async with open_house(cls) as house:
        actor = await house.actor(cls)
        guest = await joined(actor, "a")
        following = {how: Following(guest, "read", how) for how in ways}
        await settle(actor)
        for state in states:
            await actor.thread.set_state(state)
            await settle(actor)
            frames = guest.frames
            for how, reader in following.items():
                for frame in frames:
                    reader.take(frame)
                try:
                    fresh = msgspec.json.decode(msgspec.json.encode(read(state, how)))
                except KeyError:
                    assert reader.error is not None
                else:
                    assert (reader.rows, reader.error) == (fresh, None), how
