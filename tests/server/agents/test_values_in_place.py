"""Values that an agent changes in place: what it got, what it gave to `set`, and defaults."""

import asyncio
import copy
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory, Lab, open_lab

from plait import Context

Change = Callable[[Any], None]


class Note(msgspec.Struct):
    """What is no JSON by itself."""

    text: str


@each_case("is_loaded", [False, True])
@each_case(
    ("given", "change", "stored"),
    [
        ([1], lambda each: each.append(2), [1, 2]),
        ({"a": {"b": []}}, lambda each: each["a"]["b"].append(3), {"a": {"b": [3]}}),
        ([Note("one")], lambda each: each.append(Note("two")), [{"text": "one"}, {"text": "two"}]),
        ([Note("one")], lambda each: setattr(each[0], "text", "two"), [{"text": "two"}]),
        (Note("one"), lambda each: setattr(each, "text", "two"), {"text": "two"}),
        (([],), lambda each: each[0].append(1), [[1]]),
        ([1, 2], lambda each: each.clear(), []),
    ],
)
async def test_what_was_given_to_set_and_is_changed_then_is_stored(
    lab: Lab, given: Any, change: Change, stored: Any, is_loaded: bool
) -> None:
    async def work(ctx: Context[Conversation]) -> bool:
        values, mine = ctx.thread.values, copy.deepcopy(given)
        if is_loaded:
            await values.keys()
        await values.set("key", mine)
        await ctx.flush()
        assert not values.dirty
        change(mine)
        return values.dirty

    assert await lab.do(work) is True
    await lab.sleep()
    assert await lab.values() == {"key": stored}


async def test_the_list_that_a_run_built_and_set_first_is_stored_as_the_run_leaves_it(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> int:
        values = ctx.thread.values
        messages = await values.get("messages", [])
        messages.append("asked")
        await values.set("messages", messages)
        messages.append("answered")
        return len(messages)

    assert await lab.do(work) == 2
    assert await lab.do(work) == 4
    await lab.sleep()
    assert await lab.values() == {"messages": ["asked", "answered"] * 2}


async def test_get_returns_what_was_set_or_the_same_as_json_and_both_may_be_changed(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values, plain, notes = ctx.thread.values, [1], [Note("one")]
        await values.set("plain", plain)
        await values.set("notes", notes)
        found = await values.get("notes")
        assert await values.get("plain") is plain
        assert found == [{"text": "one"}]
        assert await values.get("notes") is found
        notes.append(Note("two"))
        assert await values.get("notes") == [{"text": "one"}, {"text": "two"}]
        found.append({"text": "three"})
        assert await values.get("notes") is found
        notes[0].text = "first"
        return await values.items()

    notes = [{"text": "first"}, {"text": "two"}, {"text": "three"}]
    assert await lab.do(work) == [("plain", [1]), ("notes", notes)]
    assert await lab.values() == {"plain": [1], "notes": notes}


@each_case("default", [[], {}, [1], {"a": [1]}])
async def test_a_default_that_is_changed_is_stored_and_a_default_that_is_not_is_no_value(
    lab: Lab, default: Any
) -> None:
    before = msgspec.json.encode(default)

    async def look(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        first, second = await values.get("key", default), await values.get("key", default)
        assert first is second
        return values.dirty, await values.has("key"), await values.items(), await values.size()

    async def change(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        found = await values.get("key", default)
        found.append(2) if isinstance(found, list) else found.update(b=2)
        assert await values.has("key")
        assert await values.keys() == ["key"]
        assert await values.get("key", "another") is found
        return values.dirty

    assert await lab.do(look) == (False, False, [], 0)
    assert await lab.values() == {}
    assert await lab.do(change) is True
    # The next thread has the default as it was written.
    assert msgspec.json.encode(default) == before
    await lab.sleep()
    assert await lab.values() == {"key": [*default, 2] if isinstance(default, list) else {**default, "b": 2}}
    await lab.app.destroy(Conversation, "one")


async def test_defaults_that_differ_and_such_as_are_no_json_are_returned_as_they_are(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        values, odd = ctx.thread.values, [object()]
        assert await values.get("key", [1]) == [1]
        assert await values.get("key", [2]) == [2]
        assert await values.get("key") is None
        assert await values.get("key", odd) is odd

    await lab.do(work)
    assert await lab.values() == {}


async def test_a_push_to_what_was_set_or_to_a_default_is_in_the_object_too(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values, mine = ctx.thread.values, [1]
        await values.set("mine", mine)
        await values.push("mine", 2, 2)
        mine.append(3)
        await values.push("mine", 4, 3)
        default = await values.get("default", [])
        await values.push("default", 1)
        default.append(2)
        other = await values.get("other", [5])
        await values.push("other", 1)  # A push makes a list of its own if there is none.
        other.append(2)
        return mine, default, other

    assert await lab.do(work) == ([2, 3, 4], [1, 2], [1, 2])
    assert await lab.values() == {"mine": [2, 3, 4], "default": [1, 2], "other": [1, 2]}


@each_case("how", ["deleted", "cleared", "set"])
async def test_what_is_no_longer_the_value_changes_nothing(lab: Lab, how: str) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        values, mine = ctx.thread.values, [1]
        await values.set("key", mine)
        match how:
            case "deleted":
                await values.delete("key")
            case "cleared":
                await values.clear()
            case _:
                await values.set("key", "other")
        mine.append(2)

    await lab.do(work)
    assert await lab.values() == ({"key": "other"} if how == "set" else {})


async def test_what_an_administrator_stores_is_in_the_object_that_the_run_has(lab: Lab) -> None:
    handle, mine = lab.app.thread(Conversation, "one").part(Conversation.values), [1]
    is_there, is_done = asyncio.Event(), asyncio.Event()

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("key", mine)
        await ctx.flush()
        is_there.set()
        await is_done.wait()
        assert await ctx.thread.values.get("key") == [1, 2]
        mine.append(3)

    running = asyncio.create_task(lab.do(work))
    await is_there.wait()
    await handle.push("key", 2)
    is_done.set()
    await running
    assert await lab.values() == {"key": [1, 2, 3]}


async def test_what_was_changed_to_what_is_no_json_fails_the_run(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        mine: list[Any] = []
        await ctx.thread.values.set("key", mine)
        mine.append(object())

    with pytest.raises(TypeError, match="'key'"):
        await lab.do(work)
    assert await lab.values() == {}


async def test_background_work_may_change_what_the_run_has_set(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        mine = ["in the run"]
        await ctx.thread.values.set("key", mine)

        async def later() -> None:
            mine.append("after it")

        ctx.wait_until(later)

    await lab.do(work)
    assert await lab.values() == {"key": ["in the run", "after it"]}


async def test_a_write_costs_no_more_because_many_values_were_handed_out() -> None:
    async def count(many: int) -> int:
        """Return the calls of functions that so many writes make, after so many reads."""
        calls = 0

        def note(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event == "call"

        async def put(ctx: Context[Conversation]) -> None:
            for number in range(many):
                await ctx.thread.values.set(str(number), [number])

        async def work(ctx: Context[Conversation]) -> None:
            values = ctx.thread.values
            for found in await values.values():
                found.append(1)
            sys.setprofile(note)
            try:
                for number in range(many):
                    await values.set(str(number), [number])
            finally:
                sys.setprofile(None)

        async with open_lab(CountingMemory()) as lab:
            await lab.do(put)
            await lab.do(work)
        return calls

    assert await count(400) < 3 * await count(200)


Step = tuple[str, str, int, bool]

steps = st.tuples(st.sampled_from("sogpdxe"), st.sampled_from("ab"), st.integers(0, 3), st.booleans())


@given(st.lists(steps, max_size=15))
async def test_lists_in_values_do_what_lists_in_a_dict_do(steps: list[Step]) -> None:
    """However they were come by, and however the steps are cut into runs."""
    expected: dict[str, list[Any]] = {}
    async with open_lab(CountingMemory()) as lab:
        left = iter(steps)

        async def work(ctx: Context[Conversation]) -> bool:
            values, held = ctx.thread.values, dict[str, list[Any]]()
            for what, key, number, is_last in left:
                match what:
                    case "s":
                        held[key] = [number]
                        expected[key] = [number]
                        await values.set(key, held[key])
                    case "o" if key in held and key in expected:
                        held[key].append(number)
                        expected[key].append(number)
                    case "g":
                        held[key] = await values.get(key, [])
                    case "p":
                        await values.push(key, number, 3)
                        expected[key] = [*expected.get(key, []), number][-3:]
                    case "d":
                        await values.delete(key)
                        expected.pop(key, None)
                        held.pop(key, None)
                    case "x":
                        (await values.get(key, [])).append(number)
                        expected.setdefault(key, []).append(number)
                    case "e":
                        await ctx.flush()
                if is_last:
                    return False
            return True

        while not await lab.do(work):
            pass
        assert await lab.values() == expected
