"""The values of a thread in runs: what is read, what is staged, what is stored."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory, Lab, open_lab

from plait import Context, CorruptThread, Destroyed, StoreError, ThreadKey, TooLarge, Unavailable
from plait.store.thread_rows import Record, RecordRange

LIMIT = 1_048_576


async def test_a_run_that_uses_no_values_reads_and_writes_none(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    async def nothing(ctx: Context[Conversation]) -> bool:
        return bool(ctx.thread.values.loaded or ctx.thread.values.dirty)

    await lab.do(put)
    await lab.sleep()
    before = lab.store.reads
    assert await lab.do(nothing) is False
    assert lab.store.reads == before


async def test_values_are_not_loaded_as_a_run_begins_also_if_an_earlier_one_has_read_them(lab: Lab) -> None:
    async def read(ctx: Context[Conversation]) -> tuple[bool, bool]:
        before = ctx.thread.values.loaded
        await ctx.thread.values.get("a")
        return before, ctx.thread.values.loaded

    for _ in range(3):
        assert await lab.do(read) == (False, True)
    assert (await lab.thread()).values.loaded


async def test_runs_that_only_write_read_nothing_also_after_a_waking(lab: Lab) -> None:
    async def write(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("last", ctx.run_id)

    await lab.do(write)
    await lab.sleep()
    before = lab.store.reads
    for _ in range(20):
        await lab.do(write)
    assert lab.store.reads == before


async def test_what_only_writes_is_dirty_and_not_loaded_and_reads_nothing(lab: Lab) -> None:
    async def write(ctx: Context[Conversation]) -> tuple[bool, bool, int]:
        values = ctx.thread.values
        await values.set("a", 1)
        await values.delete("b")
        await values.push("list", 1)
        await values.clear()
        await values.push("list", 2)
        return values.loaded, values.dirty, lab.store.reads

    assert await lab.do(write) == (False, True, 0)
    await lab.do(write)
    assert lab.store.reads == 0
    assert await lab.values() == {"list": [2]}


async def test_a_push_after_a_waking_reads_nothing(lab: Lab) -> None:
    async def write(ctx: Context[Conversation]) -> int:
        await ctx.thread.values.push("list", 1)
        return lab.store.reads

    await lab.do(write)
    await lab.sleep()
    assert await lab.do(write) == 0
    await lab.do(write)
    assert lab.store.reads == 0
    assert await lab.values() == {"list": [1, 1, 1]}


async def test_a_cleared_thread_that_has_woken_reads_nothing(lab: Lab) -> None:
    async def clear(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.clear()
        await ctx.thread.values.set("b", 2)

    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    await lab.do(put)
    await lab.sleep()
    await lab.do(clear)
    assert lab.store.reads == 0
    assert await lab.values() == {"b": 2}


async def test_clear_discards_what_was_queued_before(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    async def clear(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.push("a", "to what is no list")
        await ctx.thread.values.clear()
        await ctx.thread.values.set("b", 2)

    await lab.do(put)
    await lab.sleep()
    await lab.do(clear)
    assert lab.store.reads == 0
    assert await lab.values() == {"b": 2}


async def test_runs_that_only_read_or_use_no_values_write_nothing(lab: Lab) -> None:
    submit, writes = lab.store.submit, list[Any]()

    def watch(write: Any) -> Any:
        writes.append(write)
        return submit(write)

    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("list", [{"a": 1}])

    async def nothing(ctx: Context[Conversation]) -> None: ...

    async def read(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.get("list")
        await values.get("missing", [])
        await values.has("list")
        for method in (values.keys, values.values, values.items, values.size, values.metadata):
            await method()  # type: ignore[operator]

    await lab.do(put)
    for _ in range(2):
        lab.store.submit = watch  # type: ignore[method-assign]
        await lab.do(nothing)
        await lab.do(read)
        lab.store.submit = submit  # type: ignore[method-assign]
        await lab.sleep()
    assert writes == []


async def test_damaged_values_fail_the_run_and_are_never_overwritten(lab: Lab) -> None:
    damaged = Record("values", "value/000000000000", b'{"a":')

    async def stored() -> Any:
        return (await lab.store.records(ThreadKey("conversation", "one"), RecordRange("values")))[0].value

    async def read(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.get("a")

    async def write(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    async def catch(ctx: Context[Conversation]) -> None:
        with pytest.raises(CorruptThread):
            await ctx.thread.values.get("a")
        await ctx.thread.values.set("a", 1)

    await (await lab.thread())._actor.records.write([damaged])
    for work in (read, write, catch):
        await lab.sleep()
        with pytest.raises(CorruptThread, match="values"):
            await lab.do(work)
    with pytest.raises(CorruptThread, match="values"):
        await lab.app.thread(Conversation, "one").part(Conversation.values).set("a", 1)
    assert await stored() == damaged.value


@each_case("read", ["get", "has", "keys", "values", "items", "size"])
async def test_reading_reads_nothing_from_the_store_also_when_awaited_together(lab: Lab, read: str) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    async def look(ctx: Context[Conversation]) -> tuple[bool, list[Any]]:
        values = ctx.thread.values
        arguments = ("a",) if read in ("get", "has") else ()
        found = await asyncio.gather(*(getattr(values, read)(*arguments) for _ in range(3)))
        return values.loaded, found

    await lab.do(put)
    await lab.sleep()
    expected = {"get": 1, "has": True, "keys": ["a"], "values": [1], "items": [("a", 1)], "size": 1}[read]
    assert await lab.do(look) == (True, [expected] * 3)
    assert lab.store.reads == 0


async def test_reads_after_queued_writes_see_them_over_what_is_stored_in_order(lab: Lab) -> None:
    async def first(ctx: Context[Conversation]) -> None:
        for key in "abc":
            await ctx.thread.values.set(key, key)

    async def then(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        await values.set("d", "d")
        await values.delete("b")
        await values.set("a", "new")
        await values.push("list", 1)
        return await values.items()

    await lab.do(first)
    await lab.sleep()
    assert await lab.do(then) == [("a", "new"), ("c", "c"), ("d", "d"), ("list", [1])]
    assert list((await lab.values()).items()) == [("a", "new"), ("c", "c"), ("d", "d"), ("list", [1])]


async def test_a_missing_key_is_none_and_a_stored_none_is_told_apart_by_has(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> list[Any]:
        values = ctx.thread.values
        await values.set("there", None)
        return [
            await values.get("there", 5),
            await values.get("gone"),
            await values.get("gone", 5),
            await values.has("there"),
            await values.has("gone"),
        ]

    assert await lab.do(work) == [None, None, 5, True, False]


async def test_a_run_that_only_reads_stays_clean(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("list", [1])

    async def read(ctx: Context[Conversation]) -> bool:
        await ctx.thread.values.get("list")
        return ctx.thread.values.dirty

    await lab.do(put)
    assert await lab.do(read) is False


async def test_what_is_changed_in_place_is_dirty_and_stored(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("list", [1])
        await ctx.thread.values.set("deep", {"a": {"b": []}})

    async def change(ctx: Context[Conversation]) -> bool:
        values = ctx.thread.values
        (await values.get("list")).append(2)
        (await values.get("deep"))["a"]["b"].append(3)
        return values.dirty

    await lab.do(put)
    assert await lab.do(change) is True
    await lab.sleep()
    assert await lab.values() == {"list": [1, 2], "deep": {"a": {"b": [3]}}}


async def test_a_push_to_a_list_that_was_changed_in_place_keeps_both(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        await values.set("list", [1])
        found = await values.get("list")
        found.append(2)
        await values.push("list", 3)
        found.append(4)
        return found is await values.get("list"), found

    assert await lab.do(work) == (True, [1, 2, 3, 4])
    assert await lab.values() == {"list": [1, 2, 3, 4]}


@each_case("key", ["a.b", "a/b", "a b", "a:b", "🔑", "", "\n", "é", "values", "👩‍👩‍👧"])
async def test_any_key_comes_back(lab: Lab, key: str) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set(key, key)

    await lab.do(put)
    await lab.sleep()
    assert await lab.values() == {key: key}
    await lab.app.destroy(Conversation, "one")


async def test_a_thousand_keys_and_deep_json_come_back_in_order(lab: Lab) -> None:
    deep: Any = 1
    for _ in range(50):
        deep = {"in": [deep]}

    async def put(ctx: Context[Conversation]) -> None:
        for number in range(1000):
            await ctx.thread.values.set(str(999 - number), number)
        await ctx.thread.values.set("deep", deep)

    await lab.do(put)
    await lab.sleep()
    found = await lab.values()
    assert list(found) == [*(str(999 - number) for number in range(1000)), "deep"]
    assert found["deep"] == deep


@each_case("bad", [object(), {1, "a", object()}, float("nan"), "\ud800", lambda: 0])
async def test_what_is_no_json_is_refused_at_set_with_its_key(lab: Lab, bad: Any) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        await ctx.thread.values.set("name", "old")
        with pytest.raises((TypeError, ValueError), match="name"):
            await ctx.thread.values.set("name", bad)
        with pytest.raises((TypeError, ValueError), match="name"):
            await ctx.thread.values.push("name", bad)

    await lab.do(work)
    assert await lab.values() == {"name": "old"}


async def test_a_cycle_is_refused(lab: Lab) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)

    async def work(ctx: Context[Conversation]) -> Any:
        with pytest.raises(ValueError, match="name"):
            await ctx.thread.values.set("name", cycle)

    await lab.do(work)


@each_case("key", [1, None, b"a"])
async def test_a_key_is_a_str(lab: Lab, key: Any) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        with pytest.raises(TypeError, match="key"):
            await ctx.thread.values.set(key, 1)
        with pytest.raises(TypeError, match="key"):
            await ctx.thread.values.delete(key)

    await lab.do(work)


async def test_push_keeps_the_last_records(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        for number in range(5):
            await ctx.thread.values.push("log", number, 3)

    await lab.do(work)
    assert await lab.values() == {"log": [2, 3, 4]}


@pytest.mark.parametrize("most", [0, -1])
async def test_push_keeps_at_least_one(lab: Lab, most: int) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        with pytest.raises(ValueError, match="max_records"):
            await ctx.thread.values.push("log", 1, most)

    await lab.do(work)


async def test_a_push_to_what_is_no_list_fails_at_once_if_loaded(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("name", "Ada")
        await ctx.thread.values.get("name")
        with pytest.raises(TypeError, match="'name'"):
            await ctx.thread.values.push("name", 1)

    await lab.do(work)
    assert await lab.values() == {"name": "Ada"}


async def test_a_push_to_what_is_no_list_fails_the_run_if_not_loaded(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("name", "Ada")

    async def push(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("other", 1)
        await ctx.thread.values.push("name", 1)

    await lab.do(put)
    with pytest.raises(TypeError, match="'name'"):
        await lab.do(push)
    assert await lab.values() == {"name": "Ada"}


async def test_a_run_is_one_write(lab: Lab) -> None:
    sizes: list[int] = []
    submit = lab.store.submit

    def watch(write: Any) -> Any:
        sizes.append(len(write.records))
        return submit(write)

    async def work(ctx: Context[Conversation]) -> None:
        for key in "abc":
            await ctx.thread.values.set(key, key)
        await ctx.thread.values.set_metadata({"a": 1})

    lab.store.submit = watch  # type: ignore[method-assign]
    await lab.do(work)
    assert [size for size in sizes if size] == [4]


async def test_a_hundred_pushes_at_once_are_all_there_in_order_of_arrival(lab: Lab) -> None:
    async def push(number: int) -> None:
        async def work(ctx: Context[Conversation]) -> None:
            await ctx.thread.values.push("log", number)

        await lab.do(work)

    await asyncio.gather(*map(push, range(100)))
    assert await lab.values() == {"log": list(range(100))}


async def test_a_hundred_increments_at_once_all_count(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        count = await ctx.thread.values.get("count", 0)
        await asyncio.sleep(0)
        await ctx.thread.values.set("count", count + 1)

    await asyncio.gather(*(lab.do(work) for _ in range(100)))
    assert await lab.values() == {"count": 100}


async def test_metadata_is_replaced_whole_without_loading_values(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        await ctx.thread.values.set_metadata({"user": "ada", "tags": [1]})

    async def change(ctx: Context[Conversation]) -> tuple[Any, bool]:
        before = await ctx.thread.values.metadata()
        await ctx.thread.values.set_metadata({"other": 1})
        return before, ctx.thread.values.loaded

    async def read(ctx: Context[Conversation]) -> Any:
        await ctx.thread.values.set("b", 2)
        return await ctx.thread.values.metadata()

    async def empty(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set_metadata({})

    await lab.do(put)
    await lab.sleep()
    assert await lab.do(change) == ({"user": "ada", "tags": [1]}, False)
    assert await lab.do(read) == {"other": 1}
    assert await lab.do(read) == {"other": 1}
    await lab.do(empty)
    await lab.sleep()
    assert await lab.do(read) == {}
    assert await lab.values() == {"a": 1, "b": 2}


async def test_a_run_that_raises_drops_what_it_did_not_flush(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("kept", 1)
        await ctx.flush()
        await ctx.thread.values.set("kept", 2)
        await ctx.thread.values.set("dropped", 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    assert await lab.values() == {"kept": 1}


@each_case("way", ["set", "push", "in place", "at once"])
async def test_a_mebibyte_is_kept_and_one_more_byte_is_refused_whole(lab: Lab, way: str) -> None:
    room = LIMIT - len('{"a":[""]}')

    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", ["x" * room])

    async def grow(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.set_metadata({"grown": True})
        if way == "set":
            await values.set("a", ["x" * (room + 1)])
        elif way == "push":
            await values.push("b", 1)
        else:
            (await values.get("a"))[0] += "x"

    await lab.do(put)
    thread = await lab.thread()
    with pytest.raises(TooLarge):
        await (thread.values.set("b", 1) if way == "at once" else lab.do(grow))
    await lab.sleep()
    found = await lab.values()
    assert found == {"a": ["x" * room]}


@each_case("key", ["new", "old", "é\n"])
async def test_what_fits_into_the_room_is_stored_and_one_more_byte_is_not(lab: Lab, key: str) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("old", ["x" * 1000])
        await ctx.thread.values.set("other", {"a": 1})

    async def fill(ctx: Context[Conversation], more: int) -> None:
        values = ctx.thread.values
        (await values.get("other"))["b"] = "changed in place"
        await values.set(key, "x" * (await values.room(key) - 2 + more))

    await lab.do(put)
    await lab.do(lambda ctx: fill(ctx, 0))
    with pytest.raises(TooLarge):
        await lab.do(lambda ctx: fill(ctx, 1))
    assert await lab.app.thread(Conversation, "one").part(Conversation.values).room("another") == 0
    await lab.app.destroy(Conversation, "one")


async def test_no_thread_begins_because_something_of_it_is_removed(lab: Lab) -> None:
    for values in (lab.app.thread(Conversation, "gone").part(Conversation.values), lab.app.user("eve")):
        await values.delete("x")
        await values.clear()
    assert await lab.store.threads() == []


@pytest.mark.parametrize("end", ["sleep", "destroy"])
async def test_what_has_ended_takes_no_value_not_even_one_that_it_had(lab: Lab, end: str) -> None:
    handle, error = lab.app.thread(Conversation, "one"), Unavailable if end == "sleep" else Destroyed
    await handle.part(Conversation.values).set("plan", "free")
    ended, unused = await lab.thread(), await lab.thread("unused")
    await (lab.sleep() if end == "sleep" else handle.destroy())
    await handle.part(Conversation.values).set("plan", "pro")
    for write in (lambda: ended.values.set("plan", "free"), lambda: ended.values.delete("x")):
        with pytest.raises(error):
            write()
    if end == "sleep":
        with pytest.raises(Unavailable):
            await unused.values.delete("x")
    assert await handle.part(Conversation.values).get("plan") == "pro"


async def test_what_is_written_as_it_is_already_is_stored_when_that_is(lab: Lab) -> None:
    values, submit = lab.app.thread(Conversation, "one").part(Conversation.values), lab.store.submit
    held: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await values.set("plan", "free")
    lab.store.submit = lambda write: held  # type: ignore[method-assign]
    setting = [asyncio.ensure_future(values.set("plan", "pro")) for _ in range(2)]
    done, _ = await asyncio.wait(setting, timeout=0.05)
    assert not done
    held.set_exception(StoreError("the disk is full"))
    lab.store.submit = submit  # type: ignore[method-assign]
    assert [type(each) for each in await asyncio.gather(*setting, return_exceptions=True)] == [StoreError] * 2
    assert await values.get("plan") == "free"


async def test_outside_of_runs_values_are_stored_at_once_and_a_run_keeps_them(lab: Lab) -> None:
    thread, is_there, may_go_on = await lab.thread(), asyncio.Event(), asyncio.Event()

    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.set("mine", await values.get("mine", 0) + 1)
        is_there.set()
        await may_go_on.wait()
        await values.set("mine", 5)

    running = asyncio.create_task(lab.do(work))
    await is_there.wait()
    await thread.values.set("theirs", 1)
    assert await thread.values.items() == [("theirs", 1)]
    may_go_on.set()
    await running
    assert await lab.values() == {"theirs": 1, "mine": 5}


Step = tuple[str, str, int, bool, str]

steps = st.tuples(
    st.sampled_from("sdpcx"),
    st.sampled_from("ab"),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["", "end", "sleep"]),
)


@given(st.lists(steps, max_size=12))
async def test_runs_do_what_a_dict_does(steps: list[Step]) -> None:
    """Whether the values are loaded before a step or not, and however the steps are cut into runs."""
    expected: dict[str, Any] = {}
    async with open_lab(CountingMemory()) as lab:
        left = iter(steps)

        async def work(ctx: Context[Conversation]) -> str:
            values = ctx.thread.values
            for what, key, number, is_loaded, end in left:
                if is_loaded:
                    assert list(await values.items()) == list(expected.items())
                await _step(values, expected, what, key, number)
                if end:
                    return end
            return "over"

        while (end := await lab.do(work)) != "over":
            if end == "sleep":
                await lab.sleep()
        assert list((await lab.values()).items()) == list(expected.items())


async def _step(values: Any, expected: dict[str, Any], what: str, key: str, number: int) -> None:
    match what:
        case "s":
            await values.set(key, number)
            expected[key] = number
        case "d":
            await values.delete(key)
            expected.pop(key, None)
        case "p" if isinstance(expected.get(key, []), list):
            await values.push(key, number, 2)
            expected[key] = [*expected.get(key, []), number][-2:]
        case "c":
            await values.clear()
            expected.clear()
        case "x" if isinstance(expected.get(key), list):
            (await values.get(key)).append(number)
            expected[key] = [*expected[key], number]
