"""The path of a change: validated, applied, made durable, then let out."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.server.fakes import FakeTransport, TroubledStore

from plait.connection import Connection, Source
from plait.errors import Fenced, InvalidState, Reject, StoreError, TooLarge, Unavailable
from plait.history import History
from plait.limits import DEFAULT_LIMITS, Limits
from plait.pipeline import Commit, Pipeline
from plait.state import StateType
from plait.store.protocol import ThreadKey, Write

KEY = ThreadKey("room", "one")
PATIENCE = 10.0


class Bench:
    """A pipeline on a store that can be held up, and what it told of its changes, in order."""

    def __init__(self, store: TroubledStore, state_type: StateType, limits: Limits) -> None:
        self.store = store
        self.told: list[Any] = []
        self.fences = 0
        self.refuses: Callable[[Any, Source], None] = lambda *_: None
        self.pipeline = Pipeline(
            History(KEY, state_type, None),
            state_type,
            store,
            limits,
            validate=self._validate,
            committed=lambda commit: self.told.append(("committed", commit.version)),
            fenced=self._fenced,
        )

    def set(self, value: object) -> Commit:
        """Change the state, and take note of when the change is let out."""
        commit = self.pipeline.set(value, "server")
        commit.then(lambda error: self.told.append((type(error).__name__ if error else "durable", commit.version)))
        return commit

    async def stored(self) -> Any:
        """Return the state that the thread has after a restart."""
        found = await self.store.load(KEY)
        return None if found is None else History(KEY, StateType(Any), found).current.state

    def _validate(self, state: Any, source: Source) -> None:
        self.refuses(state, source)

    def _fenced(self) -> None:
        self.fences += 1


@asynccontextmanager
async def bench(type_: Any = Any, *, limits: Limits = DEFAULT_LIMITS, initial: Any = 0) -> AsyncIterator[Bench]:
    """Give a pipeline whose thread began with `initial`."""
    async with TroubledStore() as store:
        found = Bench(store, StateType(type_), limits)
        await outcome(found.pipeline.start(initial))
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
        assert b.pipeline.state == {"n": 1}
        assert not b.pipeline.is_settled
        assert await b.stored() == 0
        b.store.release()
        assert await outcome(commit) == 1
        assert b.pipeline.is_settled
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
        assert b.pipeline.state == 10
        b.store.release()
        assert await outcome(asyncio.gather(*commits)) == list(range(1, 11))


async def test_changes_of_many_tasks_lose_none() -> None:
    async with bench() as b:

        async def count() -> None:
            for _ in range(20):
                await b.pipeline.set(lambda n: n + 1, "server")

        await outcome(asyncio.gather(*(count() for _ in range(10))))
        assert b.pipeline.state == await b.stored() == 200


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
        b.store.release()
        with pytest.raises(StoreError):
            await outcome(again)
        assert b.told == [("StoreError", 1), ("StoreError", 1)]


async def test_a_client_pushes_a_state_as_json_and_is_its_source() -> None:
    async with bench(dict, initial={}) as b:
        connection = make_connection(b.pipeline)
        commit = b.pipeline.push(b'{"n": 1}', connection)
        assert commit.source is connection
        assert await outcome(commit) == 1
        assert b.pipeline.state == {"n": 1}
        written = b.store.submitted[-1].change
        assert written is not None
        assert written.source == "client-1"
        b.pipeline.set({}, "server")
        written = b.store.submitted[-1].change
        assert written is not None
        assert written.source == "server"


# What is refused


class Game(msgspec.Struct, frozen=True):
    score: int = 0


async def refused(b: Bench, error: type[Exception], change: Callable[[], object]) -> None:
    """Find that a change is refused and leaves everything as it was."""
    before, writes = msgspec.json.encode(b.pipeline.state), len(b.store.submitted)
    with pytest.raises(error):
        change()
    assert msgspec.json.encode(b.pipeline.state) == before
    assert len(b.store.submitted) == writes
    assert b.pipeline.is_settled


async def test_what_is_no_state_of_the_type_is_refused() -> None:
    async with bench(Game, initial=Game()) as b:
        connection = make_connection(b.pipeline)
        for data in (b"5", b'{"score":"x"}', b"{", b"", b'{"score":1}}'):
            await refused(b, InvalidState, partial(b.pipeline.push, data, connection))
        for value in (5, {"score": "x"}, object(), float("nan")):
            await refused(b, InvalidState, partial(b.pipeline.set, value, "server"))


async def test_what_is_too_large_or_too_deep_is_refused() -> None:
    async with bench(limits=Limits(state=100, depth=3), initial={"a": []}) as b:
        connection = make_connection(b.pipeline)
        await refused(b, TooLarge, lambda: b.pipeline.set("x" * 99, "server"))
        await refused(b, TooLarge, lambda: b.pipeline.push(b'"%b"' % (b"x" * 99), connection))
        for deep in (b"[[[[]]]]", b'{"a":[[[]]]}', b'{"a":[],"b":[[[]]]}', b'{"a":[1,[{}]]}'):
            await refused(b, TooLarge, partial(b.pipeline.push, deep, connection))
            await refused(b, TooLarge, partial(b.pipeline.set, msgspec.json.decode(deep), "server"))
        await outcome(b.pipeline.push(b'{"a":[[]],"b":[[1]]}', connection))


@pytest.mark.parametrize("value", ["x" * 99, [[[[]]]], {"a": [[[None]]]}, float("nan"), object()])
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
        await refused(b, Reject, lambda: b.pipeline.push(b'{"n":-2}', connection))
        await outcome(b.pipeline.push(b'{"n":3}', connection))
        assert asked == [({"n": -1}, "server"), ({"n": -2}, connection), ({"n": 3}, connection)]


async def test_the_author_is_asked_while_the_old_state_still_holds() -> None:
    async with bench() as b:
        seen: list[Any] = []
        b.refuses = lambda state, source: seen.append((b.pipeline.state, state))
        await outcome(b.pipeline.set(5, "server"))
        assert seen == [(0, 5)]


async def test_what_the_author_does_to_the_state_while_deciding_is_not_stored() -> None:
    async with bench(dict, initial={}) as b:
        b.refuses = lambda state, source: state.update(n="changed")
        await outcome(b.pipeline.set({"n": 1}, "server"))
        assert b.pipeline.state == await b.stored() == {"n": 1}


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
        b.pipeline.state["cards"].append("one")
        assert await outcome(b.pipeline.set(b.pipeline.state, "server")) == 1

        def add(state: Any) -> Any:
            state["cards"].append("two")
            return state

        assert await outcome(b.pipeline.set(add, "server")) == 2
        assert b.pipeline.state == await b.stored() == {"cards": ["one", "two"]}


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


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_clients_push_is_refused_or_is_read_back_and_never_breaks_the_thread(seed: int) -> None:
    chance = random.Random(seed)
    limits = Limits(depth=4, state=2_000)
    async with bench(limits=limits, initial={"a": {"b": [1, {"a": 2}]}}) as b:
        connection = make_connection(b.pipeline)
        accepted = 0
        for _ in range(200):
            data = msgspec.json.encode(some_json(chance, 4))
            if chance.random() < 0.7:
                data = mutilate(chance, b.pipeline.history.current.json or b"{}")
            fresh = fate(data, limits)
            try:
                await outcome(b.pipeline.push(data, connection))
            except (InvalidState, TooLarge):
                assert fresh is None, data
            else:
                accepted += 1
                assert fresh == (msgspec.json.encode(b.pipeline.state),), data
            assert await b.stored() == b.pipeline.state, data
            revision = b.pipeline.history.current
            assert revision.json is not None
            assert msgspec.json.decode(revision.json) == b.pipeline.state, data
        assert accepted > 20


def fate(data: bytes, limits: Limits) -> tuple[bytes] | None:
    """Return the JSON of a state that is pushed to a thread without one, None if it is refused."""
    state_type = StateType(Any)
    history = History(KEY, state_type, None)
    try:
        state, data = state_type.from_json(data, limits)
        history.append(history.diff(state, data, limits), state, data, "client")
    except (InvalidState, TooLarge):
        return None
    return (msgspec.json.encode(history.current.state),)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1e999,"a":1}',
        b'{"a":[[[[[[[[]]]]]]]],"a":1}',
        b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b',"a":2}',
        b'{"b":"\\ud800","b":1}',
        b'{"a":01,"a":1}',
    ],
    ids=lambda data: data[:20].decode(),
)
async def test_a_member_that_is_there_twice_hides_nothing(data: bytes) -> None:
    async with bench(dict, limits=Limits(depth=4), initial={"a": 0}) as b:
        connection = make_connection(b.pipeline)
        await refused(b, (InvalidState, TooLarge), lambda: b.pipeline.push(data, connection))  # type: ignore[arg-type]


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
        b.store.release()
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
        b.store.release(1)
        await until(lambda: len(b.told) >= 3)
        assert b.told == [("committed", 1), ("durable", 1), ("after", 1)]
        b.store.release()
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
    """Let the loop run until something holds."""
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
        b.store.release()
        await until(lambda: bool(again))
        assert await outcome(again[0]) == 2
        assert await b.stored() == 2


async def test_the_durable_state_is_never_ahead_of_the_disk() -> None:
    async with bench() as b:
        b.store.is_held = True
        b.set(1)
        b.set(2)
        assert b.pipeline.history.durable.state == 0
        b.store.release(1)
        await until(lambda: len(b.told) == 2)
        assert b.pipeline.history.durable.state == 1 == await b.stored()
        b.store.release()


# Failures


async def test_a_failed_commit_takes_the_thread_back_to_what_is_durable() -> None:
    async with bench(initial={"n": 0}) as b:
        await outcome(b.pipeline.set({"n": 1}, "server"))
        b.store.fail_next()
        commit = b.set({"n": 2})
        assert b.pipeline.state == {"n": 2}
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(commit)
        assert b.pipeline.state == await b.stored() == {"n": 1}
        assert b.pipeline.is_settled
        assert b.told == [("committed", 1), ("StoreError", 2)]


async def test_a_failed_change_in_place_is_undone() -> None:
    async with bench(dict, initial={"n": 0, "list": []}) as b:
        b.store.fail_next()
        state = b.pipeline.state
        state["n"] = 1
        state["list"].append(1)
        with pytest.raises(StoreError):
            await outcome(b.pipeline.set(state, "server"))
        assert b.pipeline.state == await b.stored() == {"n": 0, "list": []}


async def test_changes_that_leaned_on_a_failed_one_fail_with_it() -> None:
    async with bench() as b:
        b.store.is_held = True
        commits = [b.set(n) for n in (1, 2, 3)]
        b.pipeline.after(lambda error: b.told.append(("after", type(error).__name__)))
        b.store.fail_next()
        b.store.release()
        results = await outcome(asyncio.gather(*map(outcome, commits), return_exceptions=True))
        assert [str(each) for each in results] == ["the disk is full"] * 3
        assert b.told == [("StoreError", 1), ("StoreError", 2), ("StoreError", 3), ("after", "StoreError")]
        assert b.fences == 0
        assert b.pipeline.state == await b.stored() == 0


async def test_changes_before_a_failed_one_are_not_lost() -> None:
    async with bench() as b:
        b.store.is_held = True
        first, second, third = (b.set(n) for n in (1, 2, 3))
        b.store.release(1)
        await outcome(first)
        b.store.fail_next()
        b.store.release()
        for commit in (second, third):
            with pytest.raises(StoreError):
                await outcome(commit)
        assert b.pipeline.state == await b.stored() == 1


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
        assert b.fences == 0


async def test_a_change_that_is_made_when_a_failure_is_told_is_on_firm_ground() -> None:
    async with bench() as b:
        b.store.is_held = True
        again: list[Commit] = []
        for n in (10, 20):
            b.pipeline.set(n, "server").then(lambda _: again.append(b.pipeline.set(count, "server")))
        b.store.fail_next()
        b.store.release()
        await until(lambda: len(again) == 2)
        assert await outcome(asyncio.gather(*map(outcome, again))) == [1, 2]
        assert b.pipeline.state == await b.stored() == 2
        assert b.fences == 0


@pytest.mark.parametrize("seed", range(15))
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
                    b.store.release()
                case _:
                    attempts.append((number, b.pipeline.set(lambda state, n=number: [*state, n], "server")))
            if not chance.randrange(3):
                await asyncio.sleep(0)
        b.store.release()
        for number, commit in attempts:
            try:
                await outcome(commit)
                kept.append(number)
            except StoreError:
                pass
        assert b.pipeline.state == await b.stored() == kept
        assert b.fences == 0


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
        await b.store.inner.submit(Write(KEY, epoch, 0, 1, snapshot=b"7"))
        with pytest.raises(Fenced):
            await outcome(b.set(1))
        assert b.fences == 1
        assert await b.stored() == 7


async def test_a_beginning_that_could_not_be_stored_can_be_tried_again() -> None:
    async with TroubledStore() as store:
        b = Bench(store, StateType(Any), DEFAULT_LIMITS)
        store.fail_next()
        with pytest.raises(StoreError):
            await outcome(b.pipeline.start(5))
        assert b.pipeline.state is None
        await outcome(b.pipeline.start(5))
        assert b.pipeline.state == await b.stored() == 5
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
        b.store.release()
        await outcome(b.pipeline.set(lambda n: n + 1, "server"))
        assert await b.stored() == 2


async def test_a_pipeline_that_is_closed_takes_nothing_more() -> None:
    async with bench() as b:
        b.pipeline.close()
        with pytest.raises(Unavailable):
            b.pipeline.set(1, "server")
        with pytest.raises(Unavailable):
            b.pipeline.push(b"1", make_connection(b.pipeline))
        assert await b.stored() == 0
