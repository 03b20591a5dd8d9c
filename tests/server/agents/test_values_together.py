"""The values of a thread in runs, while others store at the same time or the store fails."""

import asyncio
import contextvars
from typing import Any

import pytest
from tests.server.agents.lab import Conversation, Lab

from plait import Context, StoreError


def fail_writes(lab: Lab, failures: int = 1) -> None:
    """Make the next writes fail."""
    submit = lab.store.submit

    def fail(write: Any) -> Any:
        nonlocal failures
        if not failures:
            return submit(write)
        failures -= 1
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        outcome.set_exception(StoreError("the disk is broken"))
        return outcome

    lab.store.submit = fail  # type: ignore[method-assign]


def hold_write(lab: Lab) -> asyncio.Future[int]:
    """Hold the next write, which is not stored; return the future of its outcome."""
    submit = lab.store.submit
    outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    held: list[Any] = []

    def hold(write: Any) -> Any:
        if held:
            return submit(write)
        held.append(write)
        return outcome

    lab.store.submit = hold  # type: ignore[method-assign]
    return outcome


async def outside(method: Any, *args: Any) -> Any:
    """Call a method outside of the run that calls this."""

    async def call() -> Any:
        return await method(*args)

    return await asyncio.get_running_loop().create_task(call(), context=contextvars.Context())


async def let_others_go_on() -> None:
    """Run all other tasks until they wait for something that is held."""
    for _ in range(20):
        await asyncio.sleep(0)


async def bump_outside(thread: Conversation, key: str) -> int:
    """Add one to a value from outside of the run."""
    return await outside(thread.values.update, key, lambda n: n + 1, 0)


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_what_a_flush_could_not_store_is_stored_by_the_next_commit_in_order(lab: Lab, is_loaded: bool) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("gone", 1)

    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        if is_loaded:
            await values.items()
        await values.push("log", "first")
        await values.delete("gone")
        await values.set("n", 1)
        await values.set_metadata({"v": 1})
        fail_writes(lab)
        with pytest.raises(StoreError):
            await ctx.flush()
        assert values.dirty
        await values.push("log", "then")
        await values.set("n", 2)
        return await values.items(), await values.metadata()

    await lab.do(put)
    expected = {"log": ["first", "then"], "n": 2}
    assert await lab.do(work) == (list(expected.items()), {"v": 1})
    await lab.sleep()
    thread = await lab.thread()
    assert dict(await thread.values.items()) == expected
    assert await thread.values.metadata() == {"v": 1}


async def test_metadata_that_was_set_since_stays_when_a_flush_fails(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.set_metadata({"v": 1})
        fail_writes(lab)
        setting = asyncio.ensure_future(values.set_metadata({"v": 2}))
        with pytest.raises(StoreError):
            await ctx.flush()
        await setting

    await lab.do(work)
    assert await (await lab.thread()).values.metadata() == {"v": 2}


async def test_flushes_at_once_wait_for_each_other_and_a_failed_one_is_stored_first(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        may_fail = hold_write(lab)

        async def push(number: int) -> None:
            await values.push("log", number)
            await ctx.flush()

        async def fail() -> None:
            await let_others_go_on()
            assert not any(task.done() for task in flushes)
            may_fail.set_exception(StoreError("the disk is broken"))

        await values.push("log", 0)
        flushes = [asyncio.create_task(push(number)) for number in (1, 2)]
        failing = asyncio.create_task(fail())
        with pytest.raises(StoreError):
            await ctx.flush()
        await asyncio.gather(*flushes, failing)
        return values.dirty

    assert await lab.do(work) is False
    assert await lab.values() == {"log": [0, 1, 2]}


async def test_a_flush_with_nothing_more_waits_for_the_one_that_is_being_stored(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        may_fail = hold_write(lab)
        await ctx.thread.values.set("n", 1)

        async def fail() -> None:
            await let_others_go_on()
            assert not second.done()
            may_fail.set_exception(StoreError("the disk is broken"))

        second, failing = asyncio.create_task(ctx.flush()), asyncio.create_task(fail())
        with pytest.raises(StoreError):
            await ctx.flush()
        await asyncio.gather(second, failing)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    assert await lab.values() == {"n": 1}


async def test_what_is_changed_in_place_after_a_failed_flush_is_stored(lab: Lab) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> Any:
        log = await ctx.thread.values.get("log")
        await ctx.thread.values.push("log", "mine")
        fail_writes(lab)
        with pytest.raises(StoreError):
            await ctx.flush()
        await outside(thread.values.push, "log", "theirs")
        log.append("more")
        return await ctx.thread.values.get("log") is log

    await thread.values.set("log", ["first"])
    assert await lab.do(work)
    assert await lab.values() == {"log": ["first", "mine", "more"]}


async def test_a_write_that_changes_nothing_is_done_once_all_the_same(lab: Lab) -> None:
    thread = await lab.thread()
    await thread.values.set("log", [1, 1])

    async def push(ctx: Context[Conversation]) -> bool:
        values = ctx.thread.values
        await values.push("log", 1, 2)
        await ctx.flush()
        is_dirty = values.dirty
        await outside(values.set, "log", [2, 3])
        await values.set("a", 1)
        return is_dirty

    assert await lab.do(push) is False
    assert await lab.values() == {"log": [2, 3], "a": 1}


async def test_what_others_could_not_store_is_not_seen_after_a_failed_flush(lab: Lab) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> Any:
        log = await ctx.thread.values.get("log")
        log.append("mine")
        fail_writes(lab)
        setting = asyncio.create_task(bump_outside(thread, "theirs"))
        await asyncio.sleep(0)
        with pytest.raises(StoreError):
            await ctx.flush()
        with pytest.raises(StoreError):
            await setting
        log.append("more")
        return await ctx.thread.values.items()

    await thread.values.set("log", ["first"])
    expected = [("log", ["first", "mine", "more"])]
    assert await lab.do(work) == expected
    assert await thread.values.items() == expected


async def test_updates_in_a_run_and_outside_of_it_both_count(lab: Lab) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> Any:
        first = await ctx.thread.values.update("n", lambda n: n + 1, 0)
        await bump_outside(thread, "n")
        return first, await ctx.thread.values.update("n", lambda n: n + 10, 0)

    assert await lab.do(work) == (1, 11)
    assert await lab.values() == {"n": 12}


async def test_the_function_of_an_update_is_called_once_if_nobody_changes_the_value(lab: Lab) -> None:
    calls: list[Any] = []

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.update("n", lambda n: calls.append(n) or len(calls))
        await ctx.flush()

    await lab.do(work)
    assert (calls, await lab.values()) == ([None], {"n": 1})


async def test_an_update_that_changes_in_place_what_it_is_given_counts_once_each(lab: Lab) -> None:
    thread = await lab.thread()

    def add(log: list[str]) -> list[str]:
        log.append("mine")
        return log

    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        first = await values.update("log", add, [])
        await outside(thread.values.clear)
        await values.update("log", add, [])
        await outside(thread.values.set, "other", 1)
        found = await values.get("log")
        await values.update("log", add, [])
        return first, found

    assert await lab.do(work) == (["mine"], ["mine", "mine"])
    assert await lab.values() == {"other": 1, "log": ["mine"] * 3}


async def test_a_default_that_is_changed_in_place_is_given_anew_each_time(lab: Lab) -> None:
    thread, default = await lab.thread(), list[str]()

    def add(log: list[str]) -> list[str]:
        log.append("mine")
        return log

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.update("log", add, default)
        await outside(thread.values.clear)
        fail_writes(lab)
        with pytest.raises(StoreError):
            await ctx.flush()

    await thread.values.set("log", ["theirs"])
    await lab.do(work)
    assert (await lab.values(), default) == ({"log": ["mine"]}, [])


async def test_an_update_is_given_what_was_changed_in_place(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        (await values.get("log")).append(2)
        return await values.update("log", lambda log: [*log, 3])

    await (await lab.thread()).values.set("log", [1])
    assert await lab.do(work) == [1, 2, 3]
    assert await lab.values() == {"log": [1, 2, 3]}


async def test_what_an_update_raises_when_it_is_called_again_fails_the_run(lab: Lab) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.update("n", lambda n: 10 // n, 5)
        await outside(thread.values.set, "n", 0)

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    assert await lab.values() == {"n": 0}


@pytest.mark.parametrize(
    ("before", "theirs", "mine", "expected"),
    [
        (["first"], ["first", "theirs"], lambda log: log.append("mine"), ["first", "theirs", "mine"]),
        ({"a": 1, "b": 2}, {"a": 3}, lambda found: found.update(c=4), {"a": 3, "c": 4}),
        ([{"n": 1}], [{"n": 1}, 2], lambda log: log[0].update(n=5), [{"n": 5}, 2]),
        (["first"], {"a": 1}, lambda log: log.append("mine"), {"a": 1}),
    ],
)
async def test_what_was_handed_out_follows_others_and_is_still_stored(
    lab: Lab, before: Any, theirs: Any, mine: Any, expected: Any
) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> None:
        found = await ctx.thread.values.get("found")
        await outside(thread.values.set, "found", theirs)
        await ctx.thread.values.set("mine", 1)
        await ctx.flush()
        mine(found)

    await thread.values.set("found", before)
    await lab.do(work)
    assert await lab.values() == {"found": expected, "mine": 1}


async def test_an_element_that_was_handed_out_is_stored_after_a_push_and_a_flush(lab: Lab) -> None:
    thread = await lab.thread()

    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        log = await values.get("log")
        last = log[1]
        await values.push("log", {"n": 3}, 2)
        last["n"] = 20
        await ctx.flush()
        await outside(thread.values.push, "log", {"n": 4})
        await values.set("other", 1)
        await ctx.flush()
        log[0]["n"] += 1
        last["n"] += 1

    await thread.values.set("log", [{"n": 1}, {"n": 2}])
    await lab.do(work)
    assert await lab.values() == {"log": [{"n": 22}, {"n": 3}, {"n": 4}], "other": 1}


async def test_what_a_run_has_read_stays_as_it_was_until_it_commits_whatever_others_write(lab: Lab) -> None:
    thread, seen = await lab.thread(), list[Any]()

    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        seen.append(await values.items())
        await outside(thread.values.set, "a", 2)
        await outside(thread.values.set, "b", 3)
        await outside(thread.values.delete, "c")
        seen.append(await values.items())
        await values.set("mine", 1)
        await ctx.flush()
        seen.append(await values.items())

    await thread.values.set("a", 1)
    await thread.values.set("c", 1)
    await lab.do(work)
    before, after = [("a", 1), ("c", 1)], [("a", 2), ("b", 3), ("mine", 1)]
    assert seen == [before, before, after]
