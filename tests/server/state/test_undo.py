"""Taking back what one source has changed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.clocks import Clock
from tests.schedules import play_seeds
from tests.server.fakes import FakeTransport, TroubledStore
from tests.server.rooms import open_house

from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Conflict, Readonly, Reject, StoreError
from plait.limits import DEFAULT_LIMITS
from plait.state.change_log import ChangeLog
from plait.state.permissions import Rules
from plait.state.pipeline import Pipeline
from plait.state.retention import Retention
from plait.state.state_history import StateHistory
from plait.state.types import StateType
from plait.state.undo import redo, undo
from plait.store.protocol import StoredThread
from plait.store.thread_rows import ChangeRow, RecordRange, ThreadKey
from plait_schemas.diff import diff
from plait_schemas.patch import Op, splice

KEY = ThreadKey("room", "one")
PATIENCE = 10.0


class SlowStore(TroubledStore):
    """A store that yields to other tasks before it answers, and counts the changes that it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        rows = await super().changes_before(key, version, limit=limit, size=size)
        self.rows += len(rows)
        return rows

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        await asyncio.sleep(0)
        return await super().load(key, version=version, records=records)


class Table:
    """A thread that several people change, by their ids."""

    def __init__(self, store: SlowStore, type_: StateType, history: StateHistory) -> None:
        self.store = store
        self._type = type_
        self.refuses: Callable[[Any], None] = lambda _: None
        self._begin(history)

    @property
    def state(self) -> Any:
        return self.pipeline.history.current.document

    def change(self, who: str, *ops: Op) -> None:
        """Change the state as a client does."""
        self.pipeline.change(ops, Connection(who, FakeTransport(), self.pipeline.after))

    def become(self, who: str, value: Any) -> None:
        """Make the state another one, by what is different."""
        self.change(who, *diff(self.state, value))

    async def undo(self, who: str) -> int | None:
        async with asyncio.timeout(PATIENCE):
            commit = await undo(self.pipeline, self.change_log, who)
            return None if commit is None else await commit

    async def redo(self, who: str) -> int | None:
        async with asyncio.timeout(PATIENCE):
            commit = await redo(self.pipeline, self.change_log, who)
            return None if commit is None else await commit

    async def sources(self) -> list[str]:
        """Return the source of each change in the log."""
        await self.pipeline.wait_until_durable()
        rows = await self.change_log.changes(0)
        assert rows is not None
        return [row.source for row in rows]

    async def wake(self, type_: Any = Any) -> None:
        """Put the thread to sleep, and wake it with another type for its state."""
        await self.pipeline.wait_until_durable()
        self._type = StateType(type_)
        self._begin(StateHistory(KEY, self._type, await self.store.load(KEY), fence=await self.store.claim(KEY)))

    def _begin(self, history: StateHistory) -> None:
        self.pipeline = Pipeline(
            history,
            self._type,
            self.store,
            DEFAULT_LIMITS,
            Rules(self._validate),
            on_commit=lambda _: None,
            on_lost=lambda _: None,
        )
        self.change_log = ChangeLog(KEY, self.store, history)

    def _validate(self, state: Any, source: Source) -> None:
        self.refuses(state)


@asynccontextmanager
async def table(initial: Any, *, retention: Retention = Retention()) -> AsyncIterator[Table]:  # noqa: B008
    async with SlowStore() as store:
        made = Table(store, ANY, StateHistory(KEY, ANY, None, retention=retention, fence=await store.claim(KEY)))
        made.pipeline.start(initial)
        await made.pipeline.store_thread()
        yield made


ANY = StateType(Any)


def insert(index: int | str, value: Any) -> Op:
    return Op("add", f"/list/{index}", value)


def put(key: str, value: Any) -> Op:
    return Op("add", f"/{key}", value)


class Two(msgspec.Struct):
    a: int = 0
    b: int = 0


class One(msgspec.Struct):
    a: int = 0


# One source


async def test_the_last_change_is_taken_back_by_a_change() -> None:
    async with table({"n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1), put("m", [1]))
        assert await t.undo("ada") == 2
        assert t.state == {"n": 0}
        assert await t.sources() == ["ada", "undo 1 ada"]


async def test_a_change_of_a_field_that_the_type_has_no_more_does_not_fit() -> None:
    async with table({"a": 1, "b": 2}) as t:
        t.change("ada", Op("replace", "/b", 3))
        await t.wake(One)
        with pytest.raises(Conflict):
            await t.undo("ada")
        await t.wake(Two)
        assert await t.undo("ada") == 2
        assert t.state == {"a": 1, "b": 2}


async def test_several_changes_are_taken_back_one_by_one_the_last_one_first() -> None:
    async with table({"n": 0}) as t:
        for n in (1, 2, 3):
            t.change("ada", Op("replace", "/n", n))
        states = []
        while await t.undo("ada") is not None:
            states.append(t.state["n"])
        assert states == [2, 1, 0]
        assert await t.sources() == ["ada"] * 3 + ["undo 3 ada", "undo 2 ada", "undo 1 ada"]


async def test_when_nothing_is_left_there_is_no_change() -> None:
    async with table({"n": 0}) as t:
        assert await t.undo("ada") is None
        t.change("ada", Op("replace", "/n", 1))
        t.change("bob", put("m", 1))
        assert await t.undo("eve") is None
        assert await t.undo("ada") == 3
        assert await t.undo("ada") is None
        assert t.state == {"n": 0, "m": 1}
        assert len(await t.sources()) == 3


async def test_a_change_after_those_taken_back_is_the_next_to_be_taken_back() -> None:
    async with table({"n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        t.change("ada", Op("replace", "/n", 2))
        await t.undo("ada")
        t.change("ada", put("m", 5))
        assert await t.undo("ada") == 5
        assert t.state == {"n": 1}
        assert await t.undo("ada") == 6
        assert t.state == {"n": 0}
        assert await t.undo("ada") is None


@each_case(
    "steps",
    [
        [[put("a", 1)], [Op("remove", "/a")]],
        [[put("a", {})], [put("a/b", 1)], [Op("remove", "/a")]],
        [[put("a", {})], [put("a/b", 1)], [Op("replace", "/a", 5)], [Op("remove", "/a")]],
        [[insert(0, "x")], [Op("remove", "/list/0")]],
        [[insert(0, "x")], [insert(0, "y")], [Op("remove", "/list/1")]],
        [[insert("-", "x")], [insert("-", "y")], [Op("replace", "/list/3", "z")]],
        [[insert(1, {})], [put("list/1/n", 1)], [Op("remove", "/list/1")], [insert(1, {})], [put("list/1/n", 2)]],
        [[Op("replace", "", [1])], [Op("add", "/0", 0)], [Op("replace", "", {"n": 0})]],
        [[Op("replace", "/list", [])], [insert(0, 1), insert(0, 2)], [Op("replace", "/list", 5)]],
    ],
)
async def test_everything_is_as_it_was_when_all_is_taken_back(steps: list[list[Op]]) -> None:
    async with table({"list": [1, 2]}) as t:
        states = []
        for ops in steps:
            states.append(t.state)
            t.change("ada", *ops)
        for state in reversed(states):
            assert await t.undo("ada") is not None
            assert t.state == state
        assert await t.undo("ada") is None


def some(chance: random.Random, depth: int = 3) -> Any:
    match chance.randrange(6 if depth else 3):
        case 3 | 4:
            return {key: some(chance, depth - 1) for key in "abc" if chance.random() < 0.6}
        case 5:
            return [some(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return chance.choice([None, 1, "x"])


@play_seeds(6)
async def test_whatever_one_source_changed_and_took_back_in_between_can_all_be_taken_back(seed: int) -> None:
    chance = random.Random(seed)
    async with table({"a": some(chance), "b": some(chance)}) as t:
        states: list[Any] = []
        for _ in range(30):
            if chance.random() < 0.35:
                if not states:
                    assert await t.undo("ada") is None
                    continue
                assert await t.undo("ada") is not None
                assert t.state == states.pop()
            else:
                before, version = t.state, t.pipeline.history.current.version
                t.become("ada", {"a": some(chance), "b": some(chance)})
                if t.pipeline.history.current.version > version:
                    states.append(before)
            if chance.random() < 0.1:
                await t.wake()
        while states:
            assert await t.undo("ada") is not None
            assert t.state == states.pop()
        assert await t.undo("ada") is None


async def test_what_is_taken_back_after_waking_is_the_same() -> None:
    async with table({"list": []}) as t:
        for n in range(3):
            t.change("ada", insert(0, n))
        await t.undo("ada")
        await t.wake()
        assert await t.undo("ada") == 5
        assert t.state == {"list": [0]}


# Others


async def test_two_take_back_their_own_in_turns() -> None:
    async with table({"a": 0, "b": 0, "list": []}) as t:
        for n in (1, 2):
            t.change("ada", Op("replace", "/a", n))
            t.change("bob", Op("replace", "/b", n))
            t.change("ada", insert("-", f"ada {n}"))
            t.change("bob", insert("-", f"bob {n}"))
        assert t.state == {"a": 2, "b": 2, "list": ["ada 1", "bob 1", "ada 2", "bob 2"]}
        shown = []
        for who in ("ada", "bob", "bob", "ada", "ada", "bob", "ada", "bob"):
            assert await t.undo(who) is not None
            shown.append((t.state["a"], t.state["b"], " ".join(t.state["list"])))
        assert shown == [
            (2, 2, "ada 1 bob 1 bob 2"),
            (2, 2, "ada 1 bob 1"),
            (2, 1, "ada 1 bob 1"),
            (1, 1, "ada 1 bob 1"),
            (1, 1, "bob 1"),
            (1, 1, ""),
            (0, 1, ""),
            (0, 0, ""),
        ]
        assert await t.undo("ada") is await t.undo("bob") is None


async def test_what_was_put_into_a_list_is_taken_out_where_others_have_moved_it() -> None:
    async with table({"list": ["a", "b"]}) as t:
        t.change("ada", insert(1, "mine"))
        t.change("bob", insert(0, "x"), insert(0, "y"))
        t.change("bob", Op("remove", "/list/2"))
        t.change("eve", insert("-", "z"))
        assert t.state == {"list": ["y", "x", "mine", "b", "z"]}
        await t.undo("ada")
        assert t.state == {"list": ["y", "x", "b", "z"]}


async def test_what_was_taken_out_of_a_list_comes_back_where_it_was_among_the_others() -> None:
    async with table({"list": ["a", "b", "c"]}) as t:
        t.change("ada", Op("remove", "/list/1"))
        t.change("bob", insert(0, "x"))
        t.change("bob", insert(3, "y"))
        await t.undo("ada")
        assert t.state == {"list": ["x", "a", "b", "c", "y"]}


async def test_an_element_that_was_changed_is_changed_back_where_it_is() -> None:
    async with table({"list": [{"n": 0}, {"n": 1}]}) as t:
        t.change("ada", Op("replace", "/list/1/n", 5))
        t.change("bob", insert(0, {"n": 9}))
        t.change("bob", Op("replace", "/list/1/n", 7))
        await t.undo("ada")
        assert t.state == {"list": [{"n": 9}, {"n": 7}, {"n": 1}]}


@each_case(
    ("mine", "theirs"),
    [
        ([Op("replace", "/n", 1)], [Op("replace", "/n", 2)]),
        ([put("new", {})], [put("new/inner", 1)]),
        ([put("new", {"inner": 0})], [Op("replace", "/new/inner", 1)]),
        ([Op("replace", "/o/p", 1)], [Op("replace", "/o", {})]),
        ([Op("replace", "/o/p", 1)], [Op("remove", "/o")]),
        ([Op("remove", "/n")], [put("n", 7)]),
        ([insert(0, {})], [put("list/0/n", 1)]),
        ([Op("replace", "/list/0", "x")], [Op("remove", "/list/0")]),
        ([Op("replace", "/list/0", "x")], [insert(0, 5), Op("replace", "/list/1", "y")]),
        ([Op("replace", "/n", 1)], [Op("replace", "", {"n": 5, "list": [], "o": {"p": 0}})]),
        ([Op("replace", "/n", 1), put("m", 1)], [Op("replace", "/m", 2)]),
    ],
)
async def test_what_somebody_else_has_changed_since_is_a_conflict_and_left_as_it_is(
    mine: list[Op], theirs: list[Op]
) -> None:
    async with table({"n": 0, "o": {"p": 0}, "list": [1, 2]}) as t:
        t.change("ada", *mine)
        t.change("bob", *theirs)
        before = t.state
        with pytest.raises(Conflict, match="others have changed") as caught:
            await t.undo("ada")
        assert caught.value.path is not None
        assert t.state == before
        assert await t.sources() == ["ada", "bob"]


async def test_a_conflict_is_seen_among_what_was_changed_and_taken_back_in_between() -> None:
    async with table({"list": []}) as t:
        t.change("ada", insert(0, {"n": "first"}))
        t.change("ada", insert(0, {"n": "second"}))
        t.change("bob", Op("replace", "/list/1/n", "bob's"))
        assert await t.undo("ada") == 4
        with pytest.raises(Conflict):
            await t.undo("ada")
        assert t.state == {"list": [{"n": "bob's"}]}


async def test_no_conflict_is_seen_where_only_the_indices_are_the_same() -> None:
    async with table({"list": []}) as t:
        t.change("ada", insert(0, {"n": "first"}))
        t.change("ada", insert(0, {"n": "second"}), insert(2, {"n": "third"}))
        t.change("bob", insert(1, {"n": "bob's"}))
        t.change("bob", Op("replace", "/list/1/n", "bob's own"))
        await t.undo("ada")
        await t.undo("ada")
        assert t.state == {"list": [{"n": "bob's own"}]}


async def test_what_somebody_else_changed_and_took_back_again_is_in_nobodys_way() -> None:
    async with table({"n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        t.change("bob", Op("replace", "/n", 2))
        with pytest.raises(Conflict):
            await t.undo("ada")
        await t.undo("bob")
        assert t.state == {"n": 1}
        assert await t.undo("ada") == 4
        assert t.state == {"n": 0}


async def test_what_both_have_taken_out_stays_out() -> None:
    async with table({"list": ["a", "b"], "n": 0}) as t:
        t.change("ada", insert(0, "mine"))
        t.change("bob", Op("remove", "/list/0"))
        before = t.state
        assert await t.undo("ada") is None
        assert t.state == before == {"list": ["a", "b"], "n": 0}
        t.change("ada", Op("replace", "/n", 1))
        t.change("ada", insert(0, "again"))
        t.change("bob", Op("remove", "/list/0"))
        assert await t.undo("ada") == 6
        assert t.state == before


@play_seeds(4)
async def test_who_keeps_to_a_place_of_their_own_takes_back_all_of_it_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    # The text keeps operations shorter than the state, which is stored in the place of longer ones.
    async with table({"ada": None, "bob": None, "eve": None, "text": "x" * 5_000}) as t:
        states: dict[str, list[Any]] = {"ada": [], "bob": [], "eve": []}
        for _ in range(40):
            who = chance.choice(list(states))
            before = t.state
            if chance.random() < 0.4:
                found = await t.undo(who)
                assert (found is not None) == bool(states[who])
                expected = states[who].pop() if states[who] else before[who]
            else:
                expected = some(chance)
                version = t.pipeline.history.current.version
                t.become(who, {**before, who: expected})
                if t.pipeline.history.current.version > version:
                    states[who].append(before[who])
            assert t.state == {**before, who: expected}


@play_seeds(4)
async def test_elements_of_a_list_that_several_put_in_are_taken_out_by_those_who_put_them(seed: int) -> None:
    chance = random.Random(seed)
    async with table({"list": ["first"]}) as t:
        put_in: dict[str, list[str]] = {"ada": [], "bob": []}
        for n in range(40):
            who, before = chance.choice(list(put_in)), t.state["list"]
            if chance.random() < 0.4:
                assert (await t.undo(who) is not None) == bool(put_in[who])
                gone = put_in[who].pop() if put_in[who] else None
                assert t.state["list"] == [each for each in before if each != gone]
            else:
                name = f"{who} {n}"
                t.change(who, insert(chance.choice([*range(len(before) + 1), "-"]), name))
                put_in[who].append(name)
        for who, names in put_in.items():
            while names:
                before, gone = t.state["list"], names.pop()
                assert await t.undo(who) is not None
                assert t.state["list"] == [each for each in before if each != gone]
        assert t.state == {"list": ["first"]}


# What stands in the way


async def test_what_is_not_kept_cannot_be_taken_back() -> None:
    async with table({"n": 0, "text": ""}, retention=Retention(changes=50)) as t:
        t.change("ada", Op("replace", "/text", "x"))
        for n in range(1, 2_001):
            t.change("bob", Op("replace", "/n", n))
            if n % 100 == 0:
                await t.pipeline.wait_until_durable()
        await t.wake()
        assert await t.undo("ada") is None
        taken = 0
        while await t.undo("bob") is not None:
            taken += 1
            if taken == 20:
                break
        assert t.state == {"n": 1_980, "text": "x"}


async def test_where_nothing_of_the_log_is_kept_nothing_can_be_taken_back() -> None:
    async with table({"n": 0}, retention=Retention(changes=1, bytes=1)) as t:
        n = 0
        while n == 0 or t.store.submitted[-1].snapshots == ():
            n += 1
            t.change("ada", Op("replace", "/n", n))
            await t.pipeline.wait_until_durable()
        await t.wake()
        assert await t.change_log.start() == n
        assert await t.undo("ada") is None
        t.change("ada", Op("replace", "/n", -1))
        assert await t.undo("ada") is not None
        assert t.state == {"n": n}


async def test_changes_that_are_on_their_way_to_the_disk_count() -> None:
    async with table({"n": 0, "list": []}) as t:
        t.change("ada", insert(0, "ada's"))
        t.change("ada", Op("replace", "/n", 1))
        await t.pipeline.wait_until_durable()
        t.store.is_held = True
        t.change("bob", Op("replace", "/n", 2), insert(0, "bob's"))
        with pytest.raises(Conflict):
            await t.undo("ada")
        t.change("bob", Op("replace", "/n", 1))
        undoing = asyncio.create_task(t.undo("bob"))
        t.change("eve", insert(0, "eve's"))
        t.store.resume()
        assert await undoing == 6
        assert t.state == {"n": 2, "list": ["eve's", "bob's", "ada's"]}


async def test_what_two_take_back_at_once_is_taken_back_once() -> None:
    async with table({"n": 0}) as t:
        for n in (1, 2, 3):
            t.change("ada", Op("replace", "/n", n))
        found = await asyncio.gather(*(t.undo("ada") for _ in range(5)))
        assert [each is not None for each in found].count(True) == 3
        assert t.state == {"n": 0}
        assert sorted(await t.sources()) == ["ada"] * 3 + [f"undo {n} ada" for n in (1, 2, 3)]


async def test_the_author_may_refuse_it() -> None:
    async with table({"n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        await t.pipeline.wait_until_durable()

        def refuses(state: Any) -> None:
            raise Reject("no way back")

        t.refuses = refuses
        with pytest.raises(Reject, match="no way back"):
            await t.undo("ada")
        assert t.state == {"n": 1}


async def test_what_was_taken_back_but_not_stored_can_be_taken_back_again() -> None:
    async with table({"n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        await t.pipeline.wait_until_durable()
        t.store.fail_next()
        with pytest.raises(StoreError):
            await t.undo("ada")
        assert t.state == {"n": 1}
        assert await t.undo("ada") == 2
        assert t.state == {"n": 0}


# How much it may cost


async def test_the_log_is_read_back_to_the_change_and_no_further() -> None:
    async with table({"n": 0, "text": "x" * 200_000}) as t:
        t.change("ada", put("first", 1))
        for n in range(1, 2_001):
            t.change("bob", Op("replace", "/n", n))
        await t.pipeline.wait_until_durable()
        assert await t.undo("bob") == 2_002
        assert t.store.rows == 0
        await t.wake()
        assert await t.undo("bob") == 2_003
        assert t.store.rows <= 500
        assert await t.undo("ada") == 2_004
        assert 2_000 < t.store.rows <= 3_500


async def test_who_takes_back_one_change_after_the_other_is_not_stopped_by_having_taken_back_many() -> None:
    async with table({"n": 0, "text": "x" * 200_000}) as t:
        for n in range(1, 601):
            t.change("ada", Op("replace", "/n", n))
        await t.wake()
        for n in range(599, -1, -1):
            t.store.rows = 0
            assert await t.undo("ada") is not None
            assert t.state["n"] == n
            assert t.store.rows <= 2 * (600 - n) + 500
        assert await t.undo("ada") is None


async def test_large_changes_are_taken_back_one_after_the_other() -> None:
    async with table({"text": ""}) as t:
        for n in range(1, 31):
            t.change("ada", Op("replace", "/text", str(n % 10) * 500_000))
            await t.pipeline.wait_until_durable()
        for n in range(29, 0, -1):
            assert await t.undo("ada") is not None
            assert t.state["text"][0] == str(n % 10)


async def test_it_is_not_looked_back_over_more_bytes_than_may_be_in_memory() -> None:
    async with table({"text": "", "n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        for n in range(70):
            t.change("bob", Op("replace", "/text", str(n % 10) * 500_000))
            await t.pipeline.wait_until_durable()
        assert await t.undo("ada") is None
        assert t.store.rows < 70


async def test_many_changes_among_those_of_others_are_taken_back() -> None:
    async with table({"list": [], "text": "x" * 50_000}) as t:
        for n in range(70):
            t.change("ada", insert(0, f"ada {n}"))
            t.change("bob", insert(0, f"bob {n}"))
        for _ in range(70):
            assert await t.undo("ada") is not None
        assert t.state["list"] == [f"bob {n}" for n in range(69, -1, -1)]


async def test_two_who_take_back_in_turns_what_they_have_put_into_one_list() -> None:
    async with table({"list": [], "text": "x" * 50_000}) as t:
        for n in range(20):
            for who in ("ada", "bob", "eve"):
                t.change(who, insert(0, f"{who} {n}"))
        for _ in range(20):
            assert await t.undo("ada") is not None
            assert await t.undo("bob") is not None
        assert t.state["list"] == [f"eve {n}" for n in range(19, -1, -1)]


async def test_what_would_be_rebased_over_too_much_is_a_conflict() -> None:
    async with table({"mine": {}, "theirs": {}, "text": "x" * 200_000}) as t:
        t.change("ada", *(put(f"mine/{n}", n) for n in range(1_000)))
        t.change("bob", *(put(f"theirs/{n}", n) for n in range(1_000)))
        with pytest.raises(Conflict, match="too many changes"):
            await t.undo("ada")
        assert await t.undo("bob") == 3
        assert await t.undo("ada") == 4
        assert (t.state["mine"], t.state["theirs"]) == ({}, {})


async def test_no_more_is_passed_over_than_can_be_done_in_one_go() -> None:
    for count, error in ((15, None), (400, Conflict)):
        async with table({"n": {}, "text": "x" * 50_000}) as t:
            for n in range(count):
                t.change("bob", put(f"n/{n}", n))
            for n in range(count):
                t.change("eve", Op("remove", f"/n/{n}"))
            if error is None:
                assert await t.undo("bob") is None
            else:
                with pytest.raises(error, match="too many changes"):
                    await t.undo("bob")


async def test_a_change_of_many_operations_is_taken_back_when_nothing_has_been_changed_since() -> None:
    async with table({"list": [0] * 10_000, "text": "x" * 800_000}) as t:
        t.change("ada", *(insert(0, 1) for _ in range(7_000)))
        assert await t.undo("ada") == 2
        assert t.state["list"] == [0] * 10_000


@each_case(("length", "error"), [(10, None), (10_000, None), (200_000, Conflict)])
async def test_how_much_can_be_passed_over_depends_on_how_long_the_list_is(
    length: int, error: type[Exception] | None
) -> None:
    async with table({"list": [0] * length, "n": 0}) as t:
        t.change("ada", Op("replace", "/n", 1))
        for n in range(200):
            t.change("bob", insert(0, n))
        if error is None:
            assert await t.undo("ada") == 202
        else:
            with pytest.raises(error, match="too many changes"):
                await t.undo("ada")


# Threads


class Room(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0})

    def should_be_readonly(self, connection: Connection, request: Any) -> bool:
        return connection.id == "reader"

    @rpc
    async def take_back(self, who: str) -> int | None:
        return await self.undo(who)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def test_a_source_is_a_connection_its_id_or_the_server() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "ada")
        thread: Any = (await house.actor(Room)).thread
        client.push({"n": 1})
        client.push({"n": 2})
        await outcome(thread.set_state({"n": 2, "m": 1}))
        assert await outcome(thread.undo(client.connection)) == 4
        assert thread.state == {"n": 1, "m": 1}
        assert await outcome(thread.undo("ada")) == 5
        assert await outcome(thread.undo("server")) == 6
        assert thread.state == {"n": 0}
        assert await outcome(thread.undo("server")) is None
        assert await outcome(thread.undo(client.connection)) is None


async def test_everybody_is_told_of_what_was_taken_back() -> None:
    async with open_house(Room) as house:
        ada, bob = await house.join(Room, "ada"), await house.join(Room, "bob")
        ada.push({"n": 1})
        assert await bob.next() == {"type": "cf_agent_state", "state": {"n": 1}}
        assert await outcome(house.handle(Room).call("take_back", "ada")) == 2
        for client in (ada, bob):
            assert await client.next() == {"type": "cf_agent_state", "state": {"n": 0}}


async def test_who_may_only_read_may_not_take_back() -> None:
    async with open_house(Room) as house:
        reader = await house.join(Room, "reader")
        await outcome(house.handle(Room).set_state({"n": 1}))
        assert (await reader.next())["type"] == "cf_agent_state"
        reader.call("1", "take_back", "server")
        answer = await reader.next()
        assert (answer["success"], answer["error"]) == (False, str(Readonly("Connection is readonly")))
        assert await house.handle(Room).state() == {"n": 1}


# Texts


def typed(at: int, insert: str = "", remove: int = 0, path: str = "/note") -> Op:
    return splice(path, at, remove, insert)


@asynccontextmanager
async def pad(note: str = "", **more: Any) -> AsyncIterator[Table]:
    """Return a table with a text, on which time passes as it is told to."""
    async with table({"note": note, "n": 0, **more}) as made:
        yield made


def type_letters(made: Table, who: str, letters: str, at: int = 0, path: str = "/note") -> None:
    for index, letter in enumerate(letters):
        made.change(who, typed(at + index, letter, path=path))


async def test_what_was_typed_without_a_pause_is_undone_at_once(clock: Clock) -> None:
    async with pad() as made:
        type_letters(made, "ada", "hello")
        clock.move(1.1)
        type_letters(made, "ada", " world", 5)
        made.change("ada", typed(10, remove=1))
        assert made.state["note"] == "hello worl"
        assert await made.undo("ada") == 13
        assert made.state["note"] == "hello"
        assert await made.undo("ada") == 14
        assert made.state["note"] == ""
        assert await made.undo("ada") is None
        assert (await made.sources())[12:] == ["undo 6-12 ada", "undo 1-5 ada"]


async def test_undo_takes_back_only_ones_own_letters_while_others_type_in_the_same_text(
    clock: Clock,
) -> None:
    async with pad("some text") as made:
        for index, (mine, other) in enumerate(zip("ABC", "XYZ", strict=True)):
            made.change("ada", typed(4 + 2 * index, mine))
            made.change("bob", typed(4 + 2 * index, other))
        assert made.state["note"] == "someXAYBZC text"
        await made.undo("ada")
        assert made.state["note"] == "someXYZ text"
        await made.undo("bob")
        assert made.state["note"] == "some text"


@pytest.mark.parametrize("between", ["another text", "another place", "large", "undo"])
async def test_what_is_between_ends_what_is_undone_at_once(between: str, clock: Clock) -> None:
    async with pad(other="") as made:
        type_letters(made, "ada", "ab")
        match between:
            case "another text":
                type_letters(made, "ada", "c", path="/other")
            case "another place":
                made.change("ada", put("n", 1))
            case "large":
                made.change("ada", typed(2, "x" * 1000))
            case _:
                clock.move(2)
                type_letters(made, "ada", "d", 2)
                await made.undo("ada")
        note = made.state["note"]
        type_letters(made, "ada", "e", len(note))
        await made.undo("ada")
        assert made.state["note"] == note


async def test_a_deletion_is_undone_where_it_was_though_others_have_typed_around_it(
    clock: Clock,
) -> None:
    async with pad("one two three") as made:
        for at in (6, 5, 4):
            made.change("ada", typed(at, remove=1))
        made.change("bob", typed(0, ">> "))
        made.change("bob", typed(len("one  three") + 3, "!"))
        await made.undo("ada")
        assert made.state["note"] == ">> one two three!"


async def test_a_text_that_somebody_has_replaced_since_cannot_be_taken_back(clock: Clock) -> None:
    async with pad("one") as made:
        type_letters(made, "ada", "ab")
        made.change("bob", Op("replace", "/note", "another"))
        with pytest.raises(Conflict):
            await made.undo("ada")
        assert made.state["note"] == "another"


# Redo


async def test_redo_takes_back_the_last_undo_and_then_the_one_before(clock: Clock) -> None:
    async with pad() as made:
        type_letters(made, "ada", "ab")
        clock.move(2)
        type_letters(made, "ada", "cd", 2)
        made.change("ada", put("n", 1))
        states = [{"note": "", "n": 0}, {"note": "ab", "n": 0}, {"note": "abcd", "n": 0}, {"note": "abcd", "n": 1}]
        for _ in range(3):
            for state in states[2::-1]:
                assert await made.undo("ada") is not None
                assert made.state == state
            assert await made.undo("ada") is None
            for state in states[1:]:
                assert await made.redo("ada") is not None
                assert made.state == state
            assert await made.redo("ada") is None
        assert (await made.sources())[5:11] == [
            "undo 5 ada",
            "undo 3-4 ada",
            "undo 1-2 ada",
            "redo 8 ada",
            "redo 7 ada",
            "redo 6 ada",
        ]


async def test_there_is_nothing_to_redo_after_another_change_of_the_source(clock: Clock) -> None:
    async with pad() as made:
        assert await made.redo("ada") is None
        type_letters(made, "ada", "ab")
        await made.undo("ada")
        made.change("bob", typed(0, "x"))
        assert await made.redo("bob") is None
        assert await made.redo("ada") is not None
        assert sorted(made.state["note"]) == ["a", "b", "x"]
        await made.undo("ada")
        assert made.state["note"] == "x"
        made.change("ada", put("n", 1))
        assert await made.redo("ada") is None


async def test_redo_where_others_have_changed_the_same_is_refused(clock: Clock) -> None:
    async with pad() as made:
        made.change("ada", put("n", 1))
        await made.undo("ada")
        made.change("bob", put("n", 2))
        with pytest.raises(Conflict):
            await made.redo("ada")
        assert made.state["n"] == 2


async def test_what_was_deleted_comes_back_before_what_others_typed_after_it_and_can_be_undone_further(
    clock: Clock,
) -> None:
    async with pad() as made:
        type_letters(made, "ada", "abc")
        await made.undo("ada")
        await made.redo("ada")
        made.change("ada", typed(2, remove=1))
        made.change("ada", typed(2, "d"))
        made.change("bob", typed(3, "X"))
        for note in ["abcX", "X"]:
            assert await made.undo("ada") is not None
            assert made.state["note"] == note
        assert await made.undo("ada") is None
        for note in ["abcX", "abdX"]:
            assert await made.redo("ada") is not None
            assert made.state["note"] == note


# A user's action in a text, and its place: type a letter, delete one, undo or redo.
TextMove = tuple[str, str, int]

# A deleted letter comes back next to one that another user has typed.
DELETED_AND_BACK: list[TextMove] = [
    *[("ada", "t", 0)] * 3,
    ("ada", "u", 0),
    ("ada", "r", 0),
    ("ada", "d", 2),
    ("ada", "t", 2),
    ("bob", "t", 3),
]
# At the place of a deleted letter, another user takes back an undo: nothing tells which of the two was first.
REDONE_WHERE_DELETED: list[TextMove] = [
    *[("ada", "t", 0)] * 2,
    ("ada", "u", 0),
    ("ada", "r", 0),
    ("bob", "t", 2),
    ("ada", "t", 0),
    ("bob", "u", 0),
    ("ada", "d", 2),
    ("bob", "r", 0),
]


@given(moves=st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.sampled_from("tttduur"), st.integers(0, 9))))
@example(DELETED_AND_BACK)
@example(REDONE_WHERE_DELETED)
def test_undo_and_redo_take_only_ones_own_letters(moves: list[TextMove]) -> None:
    """Each letter is there once; all that a source has typed goes when it undoes all, and comes back with redo.

    An undo may be refused only where both have taken back, and one of them has redone.
    """
    asyncio.run(take_back_and_forth(moves))


def may_be_refused(moves: list[TextMove]) -> bool:
    """Tell whether both have taken back, in another order, what is at one place."""
    return {who for who, move, _ in moves if move in "ur"} == {"ada", "bob"} and "r" in {move for _, move, _ in moves}


async def take_back_and_forth(moves: list[TextMove]) -> None:
    async with pad() as made:
        owners: dict[str, str] = {}
        deletes = False
        for who, move, number in moves:
            note = made.state["note"]
            if move == "t":
                letter = chr(0x1F600 + len(owners))
                owners[letter] = who
                made.change(who, typed(min(number, len(note)), letter))
            elif move == "d" and number < len(note) and owners[note[number]] == who:
                deletes = True
                made.change(who, typed(number, remove=1))
            elif move in "ur":
                others = [letter for letter in note if owners[letter] != who]
                try:
                    await (made.undo if move == "u" else made.redo)(who)
                except Conflict:
                    assert may_be_refused(moves)
                    assert made.state["note"] == note
                    return
                assert [letter for letter in made.state["note"] if owners[letter] != who] == others
            assert len(made.state["note"]) == len(set(made.state["note"]))
        before = made.state["note"]
        count = 0
        try:
            while await made.undo("ada") is not None:
                count += 1
        except Conflict:
            assert may_be_refused([*moves, ("ada", "u", 0)])
            return
        assert [letter for letter in made.state["note"] if owners[letter] == "ada"] == []
        for _ in range(count):
            assert await made.redo("ada") is not None
        assert sorted(made.state["note"]) == sorted(before)
        assert deletes or made.state["note"] == before
