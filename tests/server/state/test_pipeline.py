"""The path of a change: validated, applied, made durable, then sent."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypedDict

import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.fakes import FakeTransport, TroubledStore
from tests.server.owning import claim_now, submit

from plait.actor.connection import Connection, Source
from plait.errors import Conflict, Fenced, Indeterminate, InvalidState, Reject, StoreError, TooLarge, Unavailable
from plait.limits import DEFAULT_LIMITS, Limits
from plait.state.commit import Commit
from plait.state.permissions import Rules
from plait.state.pipeline import Pipeline
from plait.state.revision import Revision
from plait.state.state_history import StateHistory
from plait.state.timer import Timed, Timer
from plait.state.transaction import Transaction
from plait.state.types import StateType
from plait.state.update import update
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange, Snapshot, ThreadKey
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply, decode_ops

KEY = ThreadKey("room", "one")
PATIENCE = 10.0


class Bench:
    """A pipeline on a store that can be held up, and what it told of its changes, in order."""

    def __init__(self, store: TroubledStore, state_type: StateType, limits: Limits, *, validates: bool = True) -> None:
        self.store = store
        self.told: list[Any] = []
        self.lost: list[type[StoreError]] = []
        self.lose: Callable[[], None] = lambda: None
        self.refuses: Callable[[Any, Source], None] = lambda *_: None
        self.pipeline = Pipeline(
            StateHistory(KEY, state_type, None, fence=claim_now(store, KEY)),
            state_type,
            store,
            limits,
            Rules(self._validate if validates else None),
            on_commit=lambda commit: self.told.append(("committed", commit.version)),
            on_lost=self._lose,
        )

    def set(self, value: object) -> Commit:
        """Change the state, and record when the change is released."""
        commit = self.pipeline.set(value, "server")
        commit.then(lambda error: self.told.append((type(error).__name__ if error else "durable", commit.version)))
        return commit

    async def stored(self) -> Any:
        """Return the state that the thread has after a restart."""
        found = await self.store.load(KEY)
        return None if found is None else StateHistory(KEY, StateType(Any), found).current.state

    def _validate(self, state: Any, source: Source) -> None:
        self.refuses(state, source)

    def _lose(self, error: StoreError) -> None:
        self.lost.append(type(error))
        self.lose()


@asynccontextmanager
async def bench(
    type_: Any = Any, *, limits: Limits = DEFAULT_LIMITS, initial: Any = 0, validates: bool = True
) -> AsyncIterator[Bench]:
    """Give a pipeline whose thread began with `initial`, and whose author is asked about changes, or not."""
    async with TroubledStore() as store:
        found = Bench(store, StateType(type_), limits, validates=validates)
        found.pipeline.start(initial)
        await outcome(found.pipeline.store_thread())
        found.told.clear()
        yield found


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def make_connection(pipeline: Pipeline) -> Connection:
    return Connection("client-1", FakeTransport(), pipeline.after)


# One change


async def test_a_change_is_there_at_once_and_durable_when_it_was_awaited() -> None:
    async with bench() as b:
        b.store.is_held = True
        commit = b.pipeline.set({"n": 1}, "server")
        assert b.pipeline.current.state == {"n": 1}
        assert not b.pipeline.is_durable
        assert await b.stored() == 0
        b.store.resume()
        assert await outcome(commit) == 1
        assert b.pipeline.is_durable
        assert await b.stored() == {"n": 1}


async def test_awaiting_a_change_twice_or_late_gives_its_version_again() -> None:
    async with bench() as b:
        commit = b.pipeline.set(5, "server")
        assert [await outcome(commit), await outcome(commit), commit.version] == [1, 1, 1]


async def test_a_change_need_not_be_awaited() -> None:
    async with bench() as b:
        for n in range(1, 11):
            b.pipeline.set(n, "server")
        assert await outcome(b.pipeline.set(11, "server")) == 11
        assert await b.stored() == 11


async def test_a_function_gets_the_state_with_all_changes_so_far() -> None:
    async with bench() as b:
        b.store.is_held = True
        commits = [b.pipeline.set(lambda n: n + 1, "server") for _ in range(10)]
        assert b.pipeline.current.state == 10
        b.store.resume()
        assert await outcome(asyncio.gather(*commits)) == list(range(1, 11))


async def test_changes_of_many_tasks_lose_none() -> None:
    async with bench() as b:

        async def count() -> None:
            for _ in range(20):
                await b.pipeline.set(lambda n: n + 1, "server")

        await outcome(asyncio.gather(*(count() for _ in range(10))))
        assert b.pipeline.current.state == await b.stored() == 200


async def test_a_change_to_the_same_makes_no_version_and_has_the_current_one() -> None:
    async with bench(initial={"a": 1, "b": 2}) as b:
        assert await outcome(b.pipeline.set({"b": 2, "a": 1}, "server")) == 0
        assert await outcome(b.pipeline.set(lambda state: state, "server")) == 0
        assert len(b.store.submitted) == 1
        assert b.told == []


async def test_a_change_to_the_same_waits_for_what_it_is_the_same_as() -> None:
    async with bench() as b:
        b.store.is_held = True
        b.set(1)
        again = b.set(1)
        assert b.told == []
        b.store.fail_next()
        b.store.resume()
        with pytest.raises(StoreError):
            await outcome(again)
        assert b.told == [("StoreError", 1), ("StoreError", 1)]


async def test_a_client_pushes_a_state_as_json_and_is_its_source() -> None:
    async with bench(dict, initial={}) as b:
        connection = make_connection(b.pipeline)
        commit = b.pipeline.put(b'{"n": 1}', connection)
        assert commit.source is connection
        assert await outcome(commit) == 1
        assert b.pipeline.current.state == {"n": 1}
        (written,) = b.store.submitted[-1].changes
        assert written.source == "client-1"
        b.pipeline.set({}, "server")
        (written,) = b.store.submitted[-1].changes
        assert written.source == "server"


# What is refused


class Game(msgspec.Struct, frozen=True):
    score: int = 0


async def refused(b: Bench, error: type[Exception], change: Callable[[], object]) -> None:
    """Find that a change is refused and leaves everything as it was."""
    before, writes = msgspec.json.encode(b.pipeline.current.state), len(b.store.submitted)
    with pytest.raises(error):
        change()
    assert msgspec.json.encode(b.pipeline.current.state) == before
    assert len(b.store.submitted) == writes
    assert b.pipeline.is_durable


async def test_what_is_no_state_of_the_type_is_refused() -> None:
    async with bench(Game, initial=Game()) as b:
        connection = make_connection(b.pipeline)
        for data in (b"5", b'{"score":"x"}', b"{", b"", b'{"score":1}}'):
            await refused(b, InvalidState, partial(b.pipeline.put, data, connection))
        for value in (5, {"score": "x"}, object(), float("nan")):
            await refused(b, InvalidState, partial(b.pipeline.set, value, "server"))


async def test_what_is_too_large_or_too_deep_is_refused() -> None:
    async with bench(limits=Limits(state=100, depth=3), initial={"a": []}) as b:
        connection = make_connection(b.pipeline)
        await refused(b, TooLarge, lambda: b.pipeline.set("x" * 99, "server"))
        await refused(b, TooLarge, lambda: b.pipeline.put(b'"%b"' % (b"x" * 99), connection))
        for deep in (b"[[[[]]]]", b'{"a":[[[]]]}', b'{"a":[],"b":[[[]]]}', b'{"a":[1,[{}]]}'):
            await refused(b, TooLarge, partial(b.pipeline.put, deep, connection))
            await refused(b, TooLarge, partial(b.pipeline.set, msgspec.json.decode(deep), "server"))
        await outcome(b.pipeline.put(b'{"a":[[]],"b":[[1]]}', connection))


@each_case("value", ["x" * 99, [[[[]]]], {"a": [[[None]]]}, float("nan"), object()])
async def test_a_beginning_is_held_to_the_same_limits(value: Any) -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), Limits(state=100, depth=3))
        with pytest.raises((InvalidState, TooLarge)):
            b.pipeline.start(value)
        assert store.submitted == []


async def test_what_the_author_refuses_is_not_made() -> None:
    async with bench(dict, initial={"n": 0}) as b:
        asked: list[Any] = []

        def refuses(state: Any, source: Source) -> None:
            asked.append((state, source))
            if state["n"] < 0:
                raise Reject("negative", path="/n")

        b.refuses = refuses
        connection = make_connection(b.pipeline)
        await refused(b, Reject, lambda: b.pipeline.set({"n": -1}, "server"))
        await refused(b, Reject, lambda: b.pipeline.put(b'{"n":-2}', connection))
        await outcome(b.pipeline.put(b'{"n":3}', connection))
        assert asked == [({"n": -1}, "server"), ({"n": -2}, connection), ({"n": 3}, connection)]


async def test_the_author_is_asked_while_the_old_state_still_holds() -> None:
    async with bench() as b:
        seen: list[Any] = []
        b.refuses = lambda state, source: seen.append((b.pipeline.current.state, state))
        await outcome(b.pipeline.set(5, "server"))
        assert seen == [(0, 5)]


async def test_what_the_author_does_to_the_state_while_deciding_is_not_stored() -> None:
    async with bench(dict, initial={}) as b:
        b.refuses = lambda state, source: state.update(n="changed")
        await outcome(b.pipeline.set({"n": 1}, "server"))
        assert b.pipeline.current.state == await b.stored() == {"n": 1}


@each_case("change", ["set", "function", "change", "update", "push"])
async def test_the_author_cannot_make_a_change_while_deciding_on_one(change: str) -> None:
    async with bench(dict, initial={"n": 0}) as b:
        pipeline = b.pipeline
        made: dict[str, Callable[[], Commit]] = {
            "set": lambda: pipeline.set({"n": 5}, "server"),
            "function": lambda: pipeline.set(lambda state: {**state, "n": 5}, "server"),
            "change": lambda: pipeline.change([Op("replace", "/n", 5)], "server"),
            "update": lambda: update(pipeline, "/n", 5, DEFAULT_LIMITS),
            "push": lambda: pipeline.put(b'{"n":5}', make_connection(pipeline)),
        }

        def decide(*_: object) -> None:
            b.refuses = lambda *_: None
            made[change]()

        b.refuses = decide
        await refused(b, RuntimeError, lambda: b.set({"n": 1}))
        assert await outcome(b.set({"n": 1})) == 1
        assert await b.stored() == {"n": 1}


async def test_a_function_of_the_state_cannot_make_another_change() -> None:
    async with bench(dict, initial={"n": 0}) as b:

        def add(state: Any) -> Any:
            b.set({"n": 5})
            return {"n": state["n"] + 1}

        await refused(b, RuntimeError, lambda: b.set(add))
        assert await outcome(b.set({"n": 1})) == 1
        assert await b.stored() == {"n": 1}


async def test_a_function_that_raises_changes_nothing() -> None:
    async with bench() as b:
        await refused(b, ZeroDivisionError, lambda: b.pipeline.set(lambda n: 1 / n, "server"))


async def test_a_change_in_place_that_was_refused_is_undone() -> None:
    async with bench(dict, initial={"n": 0}) as b:

        def refuses(state: Any, source: Source) -> None:
            if state["n"]:
                raise Reject("no")

        def count(state: Any) -> Any:
            state["n"] += 1
            return state

        b.refuses = refuses
        await refused(b, Reject, lambda: b.pipeline.set(count, "server"))
        await outcome(b.pipeline.set(lambda state: {**state, "m": 1}, "server"))
        assert await b.stored() == {"n": 0, "m": 1}


async def test_a_state_that_was_changed_in_place_is_recorded() -> None:
    async with bench(dict, initial={"cards": []}) as b:
        b.pipeline.current.state["cards"].append("one")
        assert await outcome(b.pipeline.set(b.pipeline.current.state, "server")) == 1

        def add(state: Any) -> Any:
            state["cards"].append("two")
            return state

        assert await outcome(b.pipeline.set(add, "server")) == 2
        assert b.pipeline.current.state == await b.stored() == {"cards": ["one", "two"]}


# Texts of clients


def mutilate(chance: random.Random, text: bytes) -> bytes:
    """Return JSON text with some bytes cut, doubled or put in."""
    for _ in range(chance.randrange(1, 4)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(6))
        piece = chance.choice([b"", b"", text[start:end] * 2, *TOKENS])
        text = text[:start] + piece + text[end:]
    return text


TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"1", b"1e999", b"NaN", b"null", b"\x00", b"\xff"]
TOKENS += [
    b'"a":1e999,',
    b'"a":[[[[[[]]]]]],',
    b'"a":"\\ud800",',
    b'"a":1,',
    b'"a":1e999,"a":1,',
    b'"b":[[[[[[]]]]]],"b":[],',
    b'{"a":{"a":{"a":{"a":{}}}}}',
    b"[[[[[]]]]]",
]


def some_json(chance: random.Random, depth: int) -> Any:
    match chance.randrange(8 if depth else 5):
        case 5 | 6:
            return {chance.choice("ab~/é"): some_json(chance, depth - 1) for _ in range(chance.randrange(4))}
        case 7:
            return [some_json(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return chance.choice([None, True, 1, 1.5, "", "a\n", 'quote"', "\\", "{[", 2**70])


@each_case("validates", [True, False])
@play_seeds(2)
async def test_whatever_clients_push_is_refused_or_is_read_back_and_never_breaks_the_thread(
    seed: int, validates: bool
) -> None:
    chance = random.Random(seed)
    limits = Limits(depth=4, state=2_000)
    async with bench(limits=limits, initial={"a": {"b": [1, {"a": 2}]}}, validates=validates) as b:
        connection = make_connection(b.pipeline)
        accepted = 0
        for _ in range(200):
            data = msgspec.json.encode(some_json(chance, 4))
            if chance.random() < 0.7:
                data = mutilate(chance, b.pipeline.history.current.json or b"{}")
            fresh = fate(data, limits)
            try:
                await outcome(b.pipeline.put(data, connection))
            except (InvalidState, TooLarge):
                assert fresh is None, data
            else:
                accepted += 1
                assert fresh == (msgspec.json.encode(b.pipeline.current.state),), data
            assert await b.stored() == b.pipeline.current.state, data
            revision = b.pipeline.history.current
            assert revision.json is not None
            assert msgspec.json.decode(revision.json) == b.pipeline.current.state, data
        assert accepted > 20


def fate(data: bytes, limits: Limits) -> tuple[bytes] | None:
    """Return the JSON of a state that is pushed to a thread without one, None if it is refused."""
    state_type = StateType(Any)
    history = StateHistory(KEY, state_type, None)
    try:
        state, data = state_type.from_json(data, limits)
        ops = history.diff(history.current, state, data, limits)
        history.append(ops, "client", Revision(state_type, json=data, tree=state))
    except (InvalidState, TooLarge):
        return None
    return (msgspec.json.encode(history.current.state),)


@each_case(
    "data",
    [
        b'{"a":1e999,"a":1}',
        b'{"a":[[[[[[[[]]]]]]]],"a":1}',
        b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b',"a":2}',
        b'{"b":"\\ud800","b":1}',
        b'{"a":01,"a":1}',
    ],
)
@each_case("validates", [True, False])
async def test_a_member_that_is_there_twice_hides_nothing(data: bytes, validates: bool) -> None:
    async with bench(dict, limits=Limits(depth=4), initial={"a": 0}, validates=validates) as b:
        connection = make_connection(b.pipeline)
        await refused(b, (InvalidState, TooLarge), lambda: b.pipeline.put(data, connection))  # type: ignore[arg-type]


# Operations


# So long that operations are shorter than the state.
TEXT = "x" * 500


async def test_operations_are_carried_out_and_are_what_is_stored() -> None:
    async with bench(dict, initial={"n": 0, "list": [1, 2], "text": TEXT}) as b:
        connection = make_connection(b.pipeline)
        ops = [
            Op("replace", "/n", 1),
            Op("add", "/list/-", {"a": [1]}),
            Op("remove", "/list/0"),
            Op("add", "/b~1c", None),
        ]
        commit = b.pipeline.change(ops, connection)
        assert b.pipeline.current.state == {"n": 1, "list": [2, {"a": [1]}], "text": TEXT, "b/c": None}
        assert await outcome(commit) == 1
        (row,) = b.store.submitted[-1].changes
        assert (row.ops, row.source) == (msgspec.json.encode(ops), "client-1")
        assert await b.stored() == b.pipeline.current.state
        assert b.told == [("committed", 1)]


async def test_the_log_may_have_another_name_for_who_changed() -> None:
    async with bench(dict, initial={}) as b:
        commit = b.pipeline.change([Op("add", "/a", 1)], "server", name="undo 1 client-1")
        assert commit.source == "server"
        (row,) = b.store.submitted[-1].changes
        assert row.source == "undo 1 client-1"
        await outcome(commit)


async def test_operations_that_do_not_fit_are_a_conflict() -> None:
    async with bench(dict, initial={"list": [1]}) as b:
        for op in (
            Op("replace", "/a", 1),
            Op("remove", "/a"),
            Op("add", "/a/b", 1),
            Op("add", "/list/2", 1),
            Op("remove", "/list/1"),
            Op("replace", "/list/-", 1),
            Op("replace", "/list/01", 1),
            Op("add", "a", 1),
            Op("remove", ""),
            Op("replace", "/list"),
        ):
            await refused(b, Conflict, partial(b.pipeline.change, [Op("replace", "/list/0", 2), op], "server"))
        await outcome(b.pipeline.change([Op("replace", "/list/0", 2)], "server"))


async def test_operations_are_held_to_what_states_are_held_to() -> None:
    limits = Limits(state=100, depth=3)
    async with bench(dict, limits=limits, initial={"a": {}}) as b:
        for op, error in (
            (Op("add", "/a/b", "x" * 99), TooLarge),
            (Op("add", "/a/b", [[]]), TooLarge),
            (Op("replace", "/a", [[[]]]), TooLarge),
            (Op("add", "/a/b", float("inf")), InvalidState),
            (Op("add", "/a/b", [float("nan")]), InvalidState),
            (Op("add", "/a/b", object()), InvalidState),
            (Op("add", "/a/b", "\ud800"), InvalidState),
            (Op("replace", "", 5), InvalidState),
        ):
            await refused(b, error, partial(b.pipeline.change, [op], "server"))
        await outcome(b.pipeline.change([Op("add", "/a/b", [1])], "server"))
    async with bench(Game, initial=Game()) as b:
        for op in (Op("replace", "/score", "x"), Op("replace", "", []), Op("replace", "/score", None)):
            await refused(b, InvalidState, partial(b.pipeline.change, [op], "server"))


async def test_a_state_that_grows_by_operations_is_refused_where_it_has_outgrown_the_limit() -> None:
    async with bench(dict, limits=Limits(state=1_000), initial={"list": []}) as b:
        fitted = 0
        with pytest.raises(TooLarge):  # noqa: PT012
            for _ in range(1_000):
                b.pipeline.change([Op("add", "/list/-", "x" * 10)], "server")
                fitted += 1
        assert fitted == (1_000 - len('{"list":[]}') + 1) // len('"xxxxxxxxxx",')
        for _ in range(fitted * 3):
            b.pipeline.change([Op("remove", "/list/0")], "server")
            b.pipeline.change([Op("add", "/list/-", "y" * 10)], "server")
        assert await outcome(b.pipeline.change([Op("remove", "/list/0")], "server")) == fitted * 7 + 1
        assert len(await b.stored()) == len(b.pipeline.current.state["list"]) - fitted + 2


async def test_the_author_is_asked_about_operations_by_the_state_that_they_lead_to() -> None:
    async with bench(dict, initial={"n": 0}) as b:
        asked: list[Any] = []

        def refuses(state: Any, source: Source) -> None:
            asked.append((dict(state), source))
            state["touched"] = True
            if state["n"] < 0:
                raise Reject("negative", path="/n")

        b.refuses = refuses
        connection = make_connection(b.pipeline)
        await refused(b, Reject, lambda: b.pipeline.change([Op("replace", "/n", -1)], connection))
        await outcome(b.pipeline.change([Op("replace", "/n", 3)], "server"))
        assert asked == [({"n": -1}, connection), ({"n": 3}, "server")]
        assert b.pipeline.current.state == await b.stored() == {"n": 3}


async def test_operations_that_change_nothing_make_no_version() -> None:
    async with bench(dict, initial={"n": 0}) as b:
        assert await outcome(b.pipeline.change([], "server")) == 0
        assert len(b.store.submitted) == 1
    async with bench(Game, initial=Game(3)) as b:
        assert await outcome(b.pipeline.change([], "server")) == 0
        assert len(b.store.submitted) == 1


async def test_a_client_is_taken_note_of_when_nothing_can_refuse_its_change_any_more() -> None:
    async with bench(dict, initial={"n": 0}) as b:
        connection = make_connection(b.pipeline)
        accepted: list[int] = []
        row = ClientRow("client", 1, b"[]", time.time_ns() // 1000)

        def accept() -> ClientRow:
            accepted.append(b.pipeline.current.state["n"])
            return row

        def refuses(state: Any, source: Source) -> None:
            if state["n"] < 0:
                raise Reject("negative")

        b.refuses = refuses
        for op, error in ((Op("replace", "/n", -1), Reject), (Op("replace", "/m", 1), Conflict)):
            await refused(b, error, partial(b.pipeline.change, [op], connection, accept=accept))
        assert accepted == []
        await outcome(b.pipeline.change([Op("replace", "/n", 1)], connection, accept=accept))
        assert accepted == [0]
        assert await b.store.client(KEY, "client") == row


async def test_a_failed_change_takes_its_client_with_it() -> None:
    async with bench(dict, initial={"n": 0}) as b:
        row = ClientRow("client", 1, b"[]", time.time_ns() // 1000)
        b.store.fail_next()
        commit = b.pipeline.change([Op("replace", "/n", 1)], make_connection(b.pipeline), accept=lambda: row)
        with pytest.raises(StoreError):
            await outcome(commit)
        assert await b.store.client(KEY, "client") is None
        assert b.pipeline.current.state == {"n": 0}


@each_case(
    ("pointer", "value", "state"),
    [
        ("/n", 1, {"n": 1, "list": [1, 2], "o": {}}),
        ("/o/new", {"a": (1,)}, {"n": 0, "list": [1, 2], "o": {"new": {"a": [1]}}}),
        ("/list/0", "x", {"n": 0, "list": ["x", 2], "o": {}}),
        ("/list/-", 3, {"n": 0, "list": [1, 2, 3], "o": {}}),
        ("/a~1b", None, {"n": 0, "list": [1, 2], "o": {}, "a/b": None}),
        ("", {"m": 1}, {"m": 1}),
    ],
)
async def test_an_update_sets_what_is_at_a_place(pointer: str, value: Any, state: Any) -> None:
    async with bench(dict, initial={"n": 0, "list": [1, 2], "o": {}}) as b:
        assert await outcome(update(b.pipeline, pointer, value, DEFAULT_LIMITS)) == 1
        assert b.pipeline.current.state == await b.stored() == state


@each_case(
    ("pointer", "value", "error"),
    [
        ("/x/y", 1, Conflict),
        ("/list/2", 1, Conflict),
        ("/list/x", 1, Conflict),
        ("n", 1, Conflict),
        ("/n", object(), InvalidState),
        ("/n/deeper", 1, Conflict),
        ("/n", float("nan"), InvalidState),
        ("/n", [float("inf")], InvalidState),
    ],
)
async def test_an_update_of_what_is_no_place_or_no_json_is_refused(pointer: str, value: Any, error: Any) -> None:
    async with bench(dict, initial={"n": 0, "list": [1, 2]}) as b:
        await refused(b, error, lambda: update(b.pipeline, pointer, value, DEFAULT_LIMITS))


async def test_those_who_wait_for_a_change_do_not_wait_for_one_another(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as b:
        b.store.is_held = True
        commit = b.set(1)
        told: list[str] = []

        def fail(_: object) -> None:
            raise ZeroDivisionError("in a callback")

        commit.then(fail)
        commit.then(lambda _: told.append("told"))
        b.store.resume()
        assert await outcome(commit) == 1
        assert told == ["told"]
        assert "in a callback" in caplog.text


class Lean(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    n: int = 0
    more: dict[str, int] = {}


class Holder(msgspec.Struct, frozen=True):
    inner: Lean = Lean()


@each_case("pointer", ["/m", "/m/x", "/inner/m", "/-"])
async def test_an_update_of_a_field_that_the_type_does_not_have_is_refused(pointer: str) -> None:
    async with bench(Holder, initial=Holder()) as b:
        await refused(b, InvalidState, lambda: update(b.pipeline, pointer, 1, DEFAULT_LIMITS))


class Member(msgspec.Struct, frozen=True):
    name: str = ""
    score: int = 0


class Contest(msgspec.Struct, frozen=True):
    players: dict[str, Member] = {}
    first: Member | None = None
    status: str = "waiting"


class LeanContest(Contest, frozen=True, omit_defaults=True):
    """Is changed as a whole only."""


class ContestDict(TypedDict, total=False):
    players: dict[str, Member]
    first: Member | None
    status: str


@dataclasses.dataclass
class ContestClass:
    players: dict[str, Member] = dataclasses.field(default_factory=dict)
    first: Member | None = None
    status: str = "waiting"


MISSPELT: list[tuple[Op, str, str]] = [
    (Op("add", "/stauts", "over"), "/stauts", "did you mean /status?"),
    (Op("add", "", {"stauts": "over"}), "/stauts", "did you mean /status?"),
    (Op("add", "/players/a", {"name": "A", "scroe": 1}), "/players/a/scroe", "did you mean /players/a/score?"),
    (Op("replace", "/players", {"x": {}, "b": {"nam": "B"}}), "/players/b/nam", "did you mean /players/b/name?"),
    (Op("add", "/players/x/scroe", 1), "/players/x/scroe", "did you mean /players/x/score?"),
    (Op("add", "/first", {"id": 7}), "/first/id", "the fields are name, score"),
]


@each_case(("op", "path", "advice"), MISSPELT)
@each_case("type_", [Contest, LeanContest, ContestDict, ContestClass])
async def test_a_misspelt_field_is_refused_with_its_place_and_the_nearest_name(
    type_: Any, op: Op, path: str, advice: str
) -> None:
    async with bench(type_, initial={"players": {"x": {"score": 3}}, "status": "open"}) as b:
        before = b.pipeline.history.current.require_json()
        whole = apply(decode_json(before), [op])
        connection = make_connection(b.pipeline)
        for change in (
            lambda: b.pipeline.change([op], connection),
            lambda: update(b.pipeline, op.path, op.value, DEFAULT_LIMITS),
            lambda: b.pipeline.set(whole, "server"),
            lambda: b.pipeline.set(lambda _: whole, "server"),
            lambda: b.pipeline.put(encode_json(whole), connection),
        ):
            with pytest.raises(InvalidState) as raised:
                change()
            assert raised.value.path == path
            assert str(raised.value).endswith(advice)
        assert b.pipeline.history.current.require_json() == before
        read = StateType(type_).from_json(encode_json(whole), DEFAULT_LIMITS, drops_unknown=True)
        dropped = b.pipeline.replace(*read, connection)
        assert f'"{path.rpartition("/")[2]}"' not in dropped.revision.require_json().decode()


@each_case("op", [Op("replace", "/stauts", 1), Op("remove", "/stauts"), Op("replace", "/plyers/x/score", 1)])
async def test_what_is_to_be_in_the_place_of_a_misspelt_field_is_refused_too(op: Op) -> None:
    async with bench(Contest, initial=Contest()) as b:
        with pytest.raises(InvalidState, match="; did you mean"):
            b.pipeline.change([op], "server")


async def test_a_part_of_a_state_that_is_given_as_a_dict_has_no_other_fields_either() -> None:
    async with bench(Contest, initial=Contest()) as b:
        for wrong in ({"a": {"scroe": 1}}, {"a": Member(), "b": {"scroe": 1}}):
            changed = msgspec.structs.replace(Contest(), players=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidState, match="did you mean"):
                b.pipeline.set(changed, "server")
        await outcome(b.pipeline.set(msgspec.structs.replace(Contest(), players={"a": {"score": 1}}), "server"))  # type: ignore[arg-type]
        assert b.pipeline.current.state == Contest({"a": Member(score=1)})


async def test_a_misspelt_field_says_more_than_that_the_right_one_is_missing() -> None:
    class Needy(msgspec.Struct):
        score: int

    async with bench(Needy, initial=Needy(1)) as b:
        with pytest.raises(InvalidState, match="did you mean /score"):
            b.pipeline.set({"scroe": 2}, "server")
        with pytest.raises(InvalidState, match="missing required field `score`"):
            b.pipeline.set({}, "server")
        with pytest.raises(InvalidState, match="truncated"):
            b.pipeline.put(b'{"scroe":', "server")  # type: ignore[arg-type]


async def test_the_field_of_another_type_of_a_union_is_no_field() -> None:
    class Circle(msgspec.Struct, frozen=True, tag=True):
        radius: int = 0

    class Square(msgspec.Struct, frozen=True, tag=True):
        side: int = 0

    class Drawing(msgspec.Struct, frozen=True):
        shape: Circle | Square = Circle()

    async with bench(Drawing, initial=Drawing()) as b:
        with pytest.raises(InvalidState, match="there is no field 'side'; the fields are radius"):
            update(b.pipeline, "/shape/side", 3, DEFAULT_LIMITS)
        await outcome(update(b.pipeline, "/shape", {"type": "Square", "side": 3}, DEFAULT_LIMITS))
        await outcome(update(b.pipeline, "/shape/side", 4, DEFAULT_LIMITS))
        await outcome(update(b.pipeline, "/shape/type", "Square", DEFAULT_LIMITS))
        assert b.pipeline.current.state == Drawing(Square(4))


async def test_what_is_stored_may_have_fields_that_the_type_does_not_have_any_more() -> None:
    async with TroubledStore() as store:
        data = b'{"status":"over","old":1,"players":{"x":{"age":3}}}'
        write = Write(KEY, "epoch", None, 0, snapshots=(Snapshot(0, data),))
        await submit(store, write)
        stored = await store.load(KEY)
        assert stored is not None
        assert StateHistory(KEY, StateType(Contest), stored).current.state == Contest({"x": Member()}, None, "over")


@each_case(
    ("pointer", "value", "state"),
    [
        ("/n", 0, Lean()),
        ("/n", 1, Lean(1)),
        ("/more", {}, Lean()),
        ("/more", {"a": 1}, Lean(more={"a": 1})),
        ("/type", "Lean", Lean()),
        ("", {"type": "Lean"}, Lean()),
    ],
)
async def test_an_update_of_a_field_that_its_json_leaves_out_is_made(pointer: str, value: Any, state: Lean) -> None:
    async with bench(Lean, initial=Lean()) as b:
        for _ in range(2):
            await outcome(update(b.pipeline, pointer, value, DEFAULT_LIMITS))
            assert b.pipeline.current.state == state


class Row(msgspec.Struct, frozen=True, array_like=True):
    """An array in JSON."""

    name: str
    notes: tuple[int, ...] = (1, 2)


class Table(msgspec.Struct, frozen=True):
    row: Row = Row("a")
    rows: dict[str, Row] = {}
    tags: frozenset[str] = frozenset({"old"})


@each_case(
    ("pointer", "value", "state"),
    [
        ("/row/0", "new", Table(row=Row("new"))),
        ("/row/1/0", 7, Table(row=Row("a", (7, 2)))),
        ("/row/1/-", 7, Table(row=Row("a", (1, 2, 7)))),
        ("/rows/0", ["new"], Table(rows={"0": Row("new")})),
        ("/tags/0", "new", Table(tags=frozenset({"new"}))),
    ],
)
async def test_an_update_replaces_an_element_of_what_is_an_array_in_json(
    pointer: str, value: Any, state: Table
) -> None:
    async with bench(Table, initial=Table()) as b:
        await outcome(update(b.pipeline, pointer, value, DEFAULT_LIMITS))
        assert b.pipeline.current.state == state


async def test_a_value_that_is_updated_is_not_shared_with_who_gave_it() -> None:
    async with bench(dict, initial={}) as b:
        value = {"a": [1]}
        update(b.pipeline, "/v", value, DEFAULT_LIMITS)
        value["a"].append(2)
        assert await outcome(b.pipeline.set(lambda state: {**state, "n": 1}, "server")) == 2
        assert b.pipeline.current.state == await b.stored() == {"v": {"a": [1]}, "n": 1}


# Values and operations


class Player(msgspec.Struct, frozen=True):
    name: str
    score: int = 0


class Match(msgspec.Struct, frozen=True, rename="camel"):
    title: str = ""
    all_players: tuple[Player, ...] = ()
    by_name: dict[str, Player] = {}
    best: Player | None = None


class Item(msgspec.Struct, frozen=True):
    name: str
    n: int


class Wide(msgspec.Struct, frozen=True):
    title: str
    items: tuple[Item, ...]
    tags: dict[str, int]


class Sheet(msgspec.Struct):
    rows: list[list[int | None]] = []
    names: dict[str, str] = {}


class Sparse(msgspec.Struct, frozen=True, omit_defaults=True):
    tags: tuple[str, ...] = ()
    score: float = 0.0


def some_player(chance: random.Random) -> Player:
    return Player(chance.choice(["Ada", "Bob", "é/~"]), chance.randrange(3))


def some_match(chance: random.Random) -> Match:
    return Match(
        chance.choice(["", "a", "b" * 50]),
        tuple(some_player(chance) for _ in range(chance.randrange(5))),
        {name: some_player(chance) for name in "ab/~" if chance.random() < 0.5},
        chance.choice([None, some_player(chance)]),
    )


def some_sheet(chance: random.Random) -> Sheet:
    return Sheet(
        [[chance.choice([None, 1, 2]) for _ in range(chance.randrange(3))] for _ in range(chance.randrange(4))],
        {name: chance.choice("xy") for name in "abc" if chance.random() < 0.5},
    )


def some_sparse(chance: random.Random) -> Sparse:
    return Sparse(tuple(chance.choices("ab", k=chance.randrange(3))), chance.choice([0.0, 0.5, 1.0]))


TYPES: list[tuple[Any, Callable[[random.Random], Any]]] = [
    (Any, lambda chance: some_json(chance, 3)),
    (dict, lambda chance: {key: some_json(chance, 2) for key in "abc" if chance.random() < 0.7}),
    (Match, some_match),
    (Sheet, some_sheet),
    (Sparse, some_sparse),
]


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def text(value: Any) -> bytes:
    """Return the JSON of a value with the keys of objects in order."""
    return msgspec.json.encode(plain(value), order="deterministic")


@each_case(("type_", "some"), TYPES)
@play_seeds(1)
async def test_a_change_by_operations_and_the_same_by_value_or_as_json_are_stored_alike(
    type_: Any, some: Callable[[random.Random], Any], seed: int
) -> None:
    chance = random.Random(seed)
    initial = some(chance)
    async with (
        bench(type_, initial=initial) as by_value,
        bench(type_, initial=initial) as by_json,
        bench(type_, initial=initial) as by_ops,
    ):
        benches, value = (by_value, by_json, by_ops), initial
        for _ in range(40):
            before, value = plain(by_value.pipeline.current.state), some(chance)
            by_value.pipeline.set(value, "server")
            by_json.pipeline.put(msgspec.json.encode(value), make_connection(by_json.pipeline))
            by_ops.pipeline.change(diff(before, plain(value)), "server")
            assert {text(b.pipeline.history.current.document) for b in benches} == {text(value)}
            assert {text(b.pipeline.current.state) for b in benches} == {text(value)}
        told = []
        for b in benches:
            await outcome(b.pipeline.wait_until_durable())
            assert text(await b.stored()) == text(value)
            told.append(told_states(plain(initial), b.store.submitted))
        assert told[0] == told[1] == told[2]
        assert told[0][-1] == text(value)


def told_states(document: Any, writes: list[Write]) -> list[bytes]:
    """Return the states that a client shows who is told of the changes."""
    found = []
    for write in writes:
        if write.changes:
            document = apply(document, decode_ops(write.changes[0].ops))
            found.append(text(document))
    return found


@each_case("type_", [dict, Wide])
async def test_the_same_change_is_stored_as_the_same_bytes_however_it_was_made(type_: Any) -> None:
    initial = {"title": TEXT, "items": [{"name": "a", "n": 1}, {"name": "b", "n": 2}], "tags": {"x": 1}}
    made = {"title": TEXT, "items": [{"name": "a", "n": 5}, {"name": "c", "n": 3}], "tags": {"x": 1, "y": 2}}
    rows = []
    changes: list[Callable[[Bench], Commit]] = [
        lambda b: b.pipeline.set(made, "server"),
        lambda b: b.pipeline.set(lambda _: made, "server"),
        lambda b: b.pipeline.put(msgspec.json.encode(made), make_connection(b.pipeline)),
        lambda b: b.pipeline.change(diff(initial, made), "server"),
    ]
    for change in changes:
        async with bench(type_, initial=initial) as b:
            assert await outcome(change(b)) == 1
            (row,) = b.store.submitted[-1].changes
            rows.append((row.ops, b.pipeline.history.current.json))
    assert rows == [rows[0]] * 4
    assert rows[0][1] == msgspec.json.encode(made)


@each_case(("type_", "some"), TYPES)
@play_seeds(2)
async def test_a_mix_of_all_that_changes_a_state_does_what_it_does_to_a_plain_value(
    type_: Any, some: Callable[[random.Random], Any], seed: int
) -> None:
    chance = random.Random(seed)
    async with bench(type_, initial=some(chance), validates=bool(seed % 2)) as b:
        connection = make_connection(b.pipeline)
        # What is durable, and the states after it, each with its change.
        model = plain(b.pipeline.current.state)
        tentative: list[tuple[Commit, Any]] = []
        for _ in range(80):
            current = tentative[-1][1] if tentative else model
            value = some(chance)
            match chance.randrange(9):
                case 0 | 1:
                    tentative.append((b.pipeline.set(value, "server"), plain(value)))
                case 2:
                    tentative.append((b.pipeline.set(lambda _, value=value: value, "server"), plain(value)))
                case 3 | 4:
                    tentative.append((b.pipeline.put(msgspec.json.encode(value), connection), plain(value)))
                case 5 | 6:
                    commit = b.pipeline.change(diff(current, plain(value)), connection)
                    tentative.append((commit, plain(value)))
                case 7:
                    b.store.is_held = not b.store.is_held
                    if not b.store.is_held:
                        b.store.resume()
                case 8:
                    b.store.fail_next()
            if chance.random() < 0.5:
                b.store.resume()
                good = [state for commit, state in tentative if await outcome(settle(commit))]
                assert good == [state for _, state in tentative[: len(good)]]
                model = good[-1] if good else model
                tentative.clear()
                assert text(await b.stored()) == text(model)
            revision = b.pipeline.history.current
            expected = tentative[-1][1] if tentative else model
            assert text(revision.document) == text(revision.state) == text(expected)
            if chance.random() < 0.3:
                assert text(msgspec.json.decode(revision.require_json())) == text(expected)
        assert b.lost == []


async def settle(commit: Commit) -> bool:
    """Wait for a change and tell whether it was stored."""
    try:
        await commit
    except StoreError:
        return False
    return True


# The gate


async def test_nothing_is_let_out_before_it_is_durable() -> None:
    async with bench() as b:
        b.store.is_held = True
        commit = b.set(1)
        b.pipeline.after(lambda error: b.told.append(("after", error)))
        waiter = asyncio.create_task(outcome(commit))
        await asyncio.sleep(0)
        assert b.told == []
        assert not waiter.done()
        b.store.resume()
        await waiter
        assert b.told == [("committed", 1), ("durable", 1), ("after", None)]


async def test_what_waits_is_let_out_in_order_with_each_change_first() -> None:
    async with bench() as b:

        def told(n: int, _: object) -> None:
            b.told.append(("after", n))

        b.store.is_held = True
        for n in (1, 2, 3):
            b.set(n)
            b.pipeline.after(partial(told, n))
        b.store.resume(1)
        await until(lambda: len(b.told) >= 3)
        assert b.told == [("committed", 1), ("durable", 1), ("after", 1)]
        b.store.resume()
        await outcome(b.set(4))
        assert b.told[3:9] == [
            ("committed", 2),
            ("durable", 2),
            ("after", 2),
            ("committed", 3),
            ("durable", 3),
            ("after", 3),
        ]


def count(n: int) -> int:
    return n + 1


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_when_all_is_durable_nothing_waits() -> None:
    async with bench() as b:
        await outcome(b.set(1))
        called: list[object] = []
        b.pipeline.after(called.append)
        assert called == [None]


async def test_what_a_change_lets_out_may_make_another() -> None:
    async with bench() as b:
        b.store.is_held = True
        again: list[Commit] = []
        b.pipeline.set(1, "server").then(lambda _: again.append(b.pipeline.set(lambda n: n + 1, "server")))
        b.store.resume()
        await until(lambda: bool(again))
        assert await outcome(again[0]) == 2
        assert await b.stored() == 2


async def test_the_durable_state_is_never_ahead_of_the_disk() -> None:
    async with bench() as b:
        b.store.is_held = True
        b.set(1)
        b.set(2)
        assert b.pipeline.history.durable.state == 0
        b.store.resume(1)
        await until(lambda: len(b.told) == 2)
        assert b.pipeline.history.durable.state == 1 == await b.stored()
        b.store.resume()


# Failures


async def test_a_failed_commit_takes_the_thread_back_to_what_is_durable() -> None:
    async with bench(initial={"n": 0}) as b:
        await outcome(b.pipeline.set({"n": 1}, "server"))
        b.store.fail_next()
        commit = b.set({"n": 2})
        assert b.pipeline.current.state == {"n": 2}
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(commit)
        assert b.pipeline.current.state == await b.stored() == {"n": 1}
        assert b.pipeline.is_durable
        assert b.told == [("committed", 1), ("StoreError", 2)]


async def test_a_failed_change_in_place_is_undone() -> None:
    async with bench(dict, initial={"n": 0, "list": []}) as b:
        b.store.fail_next()
        state = b.pipeline.current.state
        state["n"] = 1
        state["list"].append(1)
        with pytest.raises(StoreError):
            await outcome(b.pipeline.set(state, "server"))
        assert b.pipeline.current.state == await b.stored() == {"n": 0, "list": []}


async def test_changes_that_leaned_on_a_failed_one_fail_with_it() -> None:
    async with bench() as b:
        b.store.is_held = True
        commits = [b.set(n) for n in (1, 2, 3)]
        b.pipeline.after(lambda error: b.told.append(("after", type(error).__name__)))
        b.store.fail_next()
        b.store.resume()
        results = await outcome(asyncio.gather(*map(outcome, commits), return_exceptions=True))
        assert [str(each) for each in results] == ["the disk is full"] * 3
        assert b.told == [("StoreError", 1), ("StoreError", 2), ("StoreError", 3), ("after", "StoreError")]
        assert b.lost == []
        assert b.pipeline.current.state == await b.stored() == 0


async def test_changes_before_a_failed_one_are_not_lost() -> None:
    async with bench() as b:
        b.store.is_held = True
        first, second, third = (b.set(n) for n in (1, 2, 3))
        b.store.resume(1)
        await outcome(first)
        b.store.fail_next()
        b.store.resume()
        for commit in (second, third):
            with pytest.raises(StoreError):
                await outcome(commit)
        assert b.pipeline.current.state == await b.stored() == 1


async def test_a_thread_goes_on_after_a_failure_with_dense_versions() -> None:
    async with bench() as b:
        for n in range(1, 6):
            b.store.fail_next()
            with pytest.raises(StoreError):
                await outcome(b.pipeline.set(-n, "server"))
            assert await outcome(b.pipeline.set(n, "server")) == n
        stored = await b.store.load(KEY)
        assert stored is not None
        assert [row.version for row in stored.changes] == [1, 2, 3, 4, 5]
        assert b.lost == []


async def test_a_change_that_is_made_when_a_failure_is_told_is_on_firm_ground() -> None:
    async with bench() as b:
        b.store.is_held = True
        again: list[Commit] = []
        for n in (10, 20):
            b.pipeline.set(n, "server").then(lambda _: again.append(b.pipeline.set(count, "server")))
        b.store.fail_next()
        b.store.resume()
        await until(lambda: len(again) == 2)
        assert await outcome(asyncio.gather(*map(outcome, again))) == [1, 2]
        assert b.pipeline.current.state == await b.stored() == 2
        assert b.lost == []


@play_seeds(2)
async def test_random_failures_never_show_what_is_not_stored(seed: int) -> None:
    chance = random.Random(seed)
    async with bench(initial=[]) as b:
        kept: list[int] = []
        attempts: list[tuple[int, Commit]] = []
        for number in range(60):
            match chance.randrange(6):
                case 0:
                    b.store.fail_next()
                case 1:
                    b.store.is_held = True
                case 2:
                    b.store.resume()
                case _:
                    attempts.append((number, b.pipeline.set(lambda state, n=number: [*state, n], "server")))
            if not chance.randrange(3):
                await asyncio.sleep(0)
        b.store.resume()
        for number, commit in attempts:
            try:
                await outcome(commit)
                kept.append(number)
            except StoreError:
                pass
        assert b.pipeline.current.state == await b.stored() == kept
        assert b.lost == []


async def test_what_was_not_stored_is_told_to_nobody_who_was_told_of_what_was() -> None:
    async with bench() as b:
        b.store.fail_next()
        with pytest.raises(StoreError):
            await outcome(b.set(1))
        await outcome(b.set(2))
        assert [line for line in b.told if line[0] == "committed"] == [("committed", 1)]


async def test_a_thread_that_somebody_else_has_written_is_told_of() -> None:
    async with bench() as b:
        epoch = b.pipeline.history.epoch
        row = ChangeRow(1, b'[{"op":"replace","path":"","value":7}]', "server", 1)
        await submit(b.store.inner, Write(KEY, epoch, 0, 1, (row,)))
        with pytest.raises(Fenced):
            await outcome(b.set(1))
        assert b.lost == [Fenced]
        assert await b.stored() == 7


# Writes with an unknown outcome


async def test_after_a_write_in_doubt_nothing_is_rolled_back_or_answered_and_callers_are_told_last() -> None:
    async with bench() as b:
        b.store.is_held = True
        b.set(1)
        b.set(2)
        told = b.told
        b.pipeline.after(lambda error: told.append(("after", type(error).__name__)))
        b.lose = lambda: told.append(("lost", b.pipeline.current.state))
        b.store.fail_next(Indeterminate("room/one: it is not known whether the change was stored"))
        b.store.resume()
        await outcome(b.pipeline.wait_until_durable())
        assert told == [("lost", 2), ("Indeterminate", 1), ("Indeterminate", 2), ("after", "Indeterminate")]
        assert b.lost == [Indeterminate]
        with pytest.raises(Unavailable):
            b.pipeline.set(3, "server")
        with pytest.raises(Unavailable):
            b.pipeline.check_open()
        # What a turn answers that had begun before does not leave, either.
        b.pipeline.after(lambda error: told.append(("late", type(error).__name__)))
        assert told[-1] == ("late", "Indeterminate")


# Records


async def test_records_are_stored_after_the_changes_before_them_and_make_no_version() -> None:
    async with bench() as b:
        b.store.is_held = True
        commits = [b.set(1), b.pipeline.store([Record("values", "a", b"1")]), b.set(2)]
        assert not b.pipeline.is_durable
        b.store.resume()
        assert [await outcome(commit) for commit in commits] == [1, 1, 2]
        assert [line for line in b.told if line[0] == "committed"] == [("committed", 1), ("committed", 2)]
        assert await b.store.record(KEY, "values", "a") == b"1"
        assert b.pipeline.history.durable.version == 2
        assert await outcome(b.pipeline.store([Record("values", "a", None)])) == 2
        assert await b.store.records(KEY, RecordRange("values")) == []


@each_case("fails", [0, 1, 2])
async def test_records_fail_with_the_changes_before_them_and_those_after_fail_with_them(fails: int) -> None:
    async with bench() as b:
        b.store.is_held = True
        commits = [b.set(1), b.pipeline.store([Record("values", "a", b"1")]), b.set(2)]
        b.store.resume(fails)
        for commit in commits[:fails]:
            await outcome(commit)
        b.store.fail_next()
        b.store.resume()
        results = await asyncio.gather(*map(settled, commits))
        assert [result is None for result in results] == [index < fails for index in range(3)]
        assert b.pipeline.current.state == await b.stored() == (0, 1, 1)[fails]
        assert await b.store.record(KEY, "values", "a") == (b"1" if fails == 2 else None)
        # The thread goes on.
        await outcome(b.set(5))
        await outcome(b.pipeline.store([Record("values", "b", b"2")]))
        assert await b.stored() == 5
        assert b.lost == []


@play_seeds(3)
async def test_changes_and_records_that_fail_at_random_are_never_shown_or_stored_in_part(seed: int) -> None:
    chance = random.Random(seed)
    async with bench(initial=0) as b:
        attempts: list[tuple[str, Commit]] = []
        for number in range(80):
            match chance.randrange(8):
                case 0:
                    b.store.fail_next()
                case 1:
                    b.store.is_held = True
                case 2:
                    b.store.resume()
                case 3 | 4:
                    attempts.append(("", b.pipeline.set(number + 1, "server")))
                case _:
                    attempts.append((f"{number}", b.pipeline.store([Record("p", f"{number}", b"")])))
            if not chance.randrange(3):
                await asyncio.sleep(0)
        b.store.resume()
        kept = []
        for name, commit in attempts:
            if await settled(commit) is None:
                kept.append(name)
        stored = [record.key for record in await b.store.records(KEY, RecordRange("p"))]
        assert sorted(filter(None, kept)) == stored
        assert b.pipeline.history.durable.version == kept.count("")
        assert b.pipeline.current.state == await b.stored()
        assert b.lost == []


async def settled(commit: Commit) -> StoreError | None:
    """Wait for a commit and return its error."""
    try:
        await outcome(commit)
    except StoreError as error:
        return error
    return None


async def test_a_thread_without_a_state_can_have_records_and_get_a_state_later() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        store.fail_next()
        assert await settled(b.pipeline.store([Record("values", "a", b"1")])) is not None
        assert await outcome(b.pipeline.store([Record("values", "a", b"2")])) == 0
        assert not b.pipeline.history.durable.has_state
        stored = await store.load(KEY)
        assert stored is not None
        again = StateHistory(KEY, StateType(Any), stored)
        assert (again.epoch, again.secret) == (b.pipeline.history.epoch, b.pipeline.history.secret)
        assert not again.current.has_state
        assert await outcome(b.pipeline.set(7, "server")) == 1
        assert await b.stored() == 7
        assert await store.record(KEY, "values", "a") == b"2"


async def test_an_odd_or_too_large_record_is_refused_and_nothing_is_stored() -> None:
    async with bench(limits=Limits(record=10)) as b:
        with pytest.raises(ValueError, match="is empty"):
            b.pipeline.store([Record("values", "a", b"1"), Record("values", "", b"")])
        with pytest.raises(TooLarge):
            b.pipeline.store([Record("values", "a", b"x" * 11)])
        assert b.pipeline.is_durable
        assert len(b.store.submitted) == 1


async def test_a_beginning_that_could_not_be_stored_can_be_tried_again() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        store.fail_next()
        b.pipeline.start(5)
        with pytest.raises(StoreError):
            await outcome(b.pipeline.store_thread())
        assert b.pipeline.current.state == 5
        assert await b.store.find(KEY) is None
        await outcome(b.pipeline.store_thread())
        assert b.pipeline.current.state == await b.stored() == 5
        assert await outcome(b.pipeline.set(6, "server")) == 1


async def test_a_beginning_is_stored_with_the_first_change_or_not_at_all() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        b.pipeline.start(5)
        assert b.pipeline.current.state == 5
        assert store.submitted == []
        store.fail_next()
        with pytest.raises(StoreError):
            await outcome(b.pipeline.set(6, "server"))
        assert b.pipeline.current.state == 5
        assert await store.find(KEY) is None
        assert await outcome(b.pipeline.set(7, "server")) == 1
        (_, write) = store.submitted
        assert (write.after, write.version, len(write.changes)) == (None, 1, 1)
        assert write.snapshots[0] == Snapshot(0, b"5")
        await outcome(b.pipeline.store_thread())
        assert len(store.submitted) == 2
        began = await store.load(KEY, version=0)
        assert began is not None
        assert (began.snapshot, began.version) == (b"5", 0)


async def test_records_begin_a_thread_with_its_initial_state() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        b.pipeline.start(5)
        await outcome(b.pipeline.store([Record("values", "a", b"1")]))
        assert await b.stored() == 5
        assert await outcome(b.pipeline.set(6, "server")) == 1


@each_case("has_state", [True, False])
async def test_many_who_store_a_thread_at_once_store_it_once(*, has_state: bool) -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        if has_state:
            b.pipeline.start(5)
        store.is_held = True
        storing = [asyncio.create_task(b.pipeline.store_thread()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in storing)
        store.resume()
        await outcome(asyncio.gather(*storing))
        assert len(store.submitted) == 1
        found = await store.load(KEY)
        assert found is not None
        assert (found.has_state, found.version) == (has_state, 0)
        assert await outcome(b.pipeline.set(6, "server")) == 1


async def test_a_caller_that_was_cancelled_does_not_stop_its_change() -> None:
    async with bench() as b:
        b.store.is_held = True

        async def change() -> None:
            await b.pipeline.set(1, "server")

        task = asyncio.create_task(change())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        b.store.resume()
        await outcome(b.pipeline.set(lambda n: n + 1, "server"))
        assert await b.stored() == 2


async def test_a_pipeline_that_is_closed_takes_nothing_more() -> None:
    async with bench() as b:
        b.pipeline.close()
        with pytest.raises(Unavailable):
            b.pipeline.set(1, "server")
        with pytest.raises(Unavailable):
            b.pipeline.put(b"1", make_connection(b.pipeline))
        assert await b.stored() == 0


# Due times


async def due_of(b: Bench) -> int:
    found = await b.store.load(KEY)
    assert found is not None
    return found.due


class Alarm(Timed):
    """A part that is due when a test says so, and counts how often it is asked."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.time = 0
        self.asked = 0
        pipeline.timer = timer = Timer(asyncio.get_running_loop(), 60.0)
        timer.start()
        timer.add(self)

    @property
    def times(self) -> tuple[int, int]:
        self.asked += 1
        return self.time, 0


async def test_a_due_time_is_stored_with_the_next_write_and_not_again() -> None:
    async with bench() as b:
        alarm = Alarm(b.pipeline)
        await outcome(b.set(5))
        assert b.store.submitted[-1].due is None
        alarm.time = 6
        await outcome(b.pipeline.store([Record("values", "a", b"1")]))
        await outcome(b.set(1))
        assert [write.due for write in b.store.submitted[-2:]] == [6, None]
        assert await due_of(b) == 6
        alarm.time = 0
        await outcome(b.pipeline.store([Record("values", "a", None)]))
        assert await due_of(b) == 0
        assert alarm.asked == 3  # At first, and after each write of records.


async def test_the_due_time_at_the_end_of_a_transaction_is_in_its_one_write() -> None:
    async with bench() as b:
        alarm = Alarm(b.pipeline)
        submitted = len(b.store.submitted)
        with Transaction(b.pipeline, KEY) as transaction:
            alarm.time = 6
            b.pipeline.store([Record("values", "a", b"1")])
            b.set(1)
            alarm.time = 8
        assert transaction.commit is not None
        await outcome(transaction.commit)
        assert [(write.version, write.due) for write in b.store.submitted[submitted:]] == [(1, 8)]
        assert await due_of(b) == 8


async def test_a_due_time_that_was_lost_is_stored_with_the_next_write() -> None:
    async with bench() as b:
        alarm = Alarm(b.pipeline)
        alarm.time = 6
        b.store.fail_next()
        assert await settled(b.set(1)) is not None
        await outcome(b.set(2))
        assert await due_of(b) == 6


async def test_the_first_write_of_a_thread_has_the_time_and_the_user_also_after_one_that_failed() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        b.pipeline.start(0)
        b.pipeline.history.set_owner("ada")
        store.fail_next()
        assert await settled(b.set(1)) is not None
        before = time.time_ns() // 1000
        await outcome(b.set(1))
        await outcome(b.set(2))
        await outcome(b.pipeline.store([Record("values", "a", b"1")]))
        found = await store.load(KEY)
        assert found is not None
        assert before <= found.created_at <= time.time_ns() // 1000
        assert found.user == "ada"
        assert [(write.created_at > 0, write.user) for write in store.submitted[-2:]] == [(False, None)] * 2
        history = StateHistory(KEY, StateType(Any), found)
        assert (history.created_at, history.user) == (found.created_at, "ada")
