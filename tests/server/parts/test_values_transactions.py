"""Values that are written in transactions, with the state: both are there, or neither."""

import asyncio
import copy
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.server.agents.lab import Conversation, Lab
from tests.server.agents.test_values_together import fail_writes, outside

from plait import Context, RolledBack, StoreError, TooLarge


async def found(thread: Conversation) -> tuple[Any, list[tuple[str, Any]]]:
    return thread.state["answer"], await thread.values.items()


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_block_stores_state_and_values_in_one_write(lab: Lab, is_awaited: bool) -> None:
    thread, writes, submit = await lab.thread(), list[Any](), lab.store.submit

    def watch(write: Any) -> Any:
        writes.append((len(write.changes), {record.key for record in write.records}))
        return submit(write)

    await thread.values.set("gone", 1)
    lab.store.submit = watch  # type: ignore[method-assign]
    async with thread.transaction():
        thread.update("/answer", "new")
        for write in (
            thread.values.set("a", [1]),
            thread.values.push("a", 2),
            thread.values.delete("gone"),
            thread.values.set_metadata({"m": 1}),
        ):
            if is_awaited:
                await write
        assert await thread.values.update("n", lambda n: n + 1, 4) == 5
        assert await thread.values.items() == [("a", [1, 2]), ("n", 5)]
    lab.store.submit = submit  # type: ignore[method-assign]
    assert [changes for changes, _ in writes] == [1]
    await lab.sleep()
    assert await found(await lab.thread()) == ("new", [("a", [1, 2]), ("n", 5)])


async def test_a_block_that_raises_leaves_values_as_they_were_at_once(lab: Lab) -> None:
    thread = await lab.thread()
    for key in "abc":
        await thread.values.set(key, [key])
    await thread.values.set_metadata({"m": 1})
    expected, lost = [(key, [key]) for key in "abc"], list[Awaitable[None]]()
    with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
        thread.update("/answer", "lost")
        thread.values.delete("a")
        thread.values.set("a", 1)
        thread.values.push("b", 2)
        thread.values.set_metadata({})
        lost.append(thread.values.clear())
        thread.values.set("d", 1)
        raise ZeroDivisionError
    assert await found(thread) == ("", expected)
    assert await thread.values.metadata() == {"m": 1}
    with pytest.raises(RolledBack):
        await lost[0]
    await thread.values.set("d", 2)
    await lab.sleep()
    assert await found(await lab.thread()) == ("", [*expected, ("d", 2)])


async def test_an_inner_block_that_raises_takes_back_only_what_it_did(lab: Lab) -> None:
    thread = await lab.thread()
    with thread.transaction():
        thread.values.set("a", 1)
        with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
            thread.values.set("a", 2)
            thread.values.push("log", 1)
            raise ZeroDivisionError
        thread.values.push("log", 2)
    await lab.sleep()
    assert await lab.values() == {"a": 1, "log": [2]}


async def test_a_block_that_awaits_is_rolled_back_before_others_read(lab: Lab) -> None:
    thread = await lab.thread()
    await thread.values.set("a", 1)
    with pytest.raises(RuntimeError, match="awaited"), thread.transaction():  # noqa: PT012
        thread.values.set("a", 2)
        assert await outside(thread.values.get, "a") == 1
    assert await thread.values.get("a") == 1


async def test_a_refused_state_takes_the_values_of_the_block_along(lab: Lab) -> None:
    thread = await lab.thread()
    with pytest.raises(TooLarge), thread.transaction():  # noqa: PT012
        thread.values.set("a", 1)
        thread.update("/answer", "x" * 2**20)
    with pytest.raises(TooLarge), thread.transaction():  # noqa: PT012
        thread.update("/answer", "lost")
        thread.values.set("a", "x" * 2**20)
    assert await found(thread) == ("", [])


async def test_when_the_write_fails_state_and_values_go_back_at_the_same_moment(lab: Lab) -> None:
    thread = await lab.thread()
    await thread.values.set("a", [1])
    fail_writes(lab)
    with thread.transaction() as transaction:
        thread.update("/answer", "lost")
        thread.values.push("a", 2)
        thread.values.clear()
        thread.values.set("b", [1])
    seen: list[Any] = []
    assert transaction.commit is not None
    later = thread.values.push("b", 2)
    transaction.commit.then(lambda _: seen.append(thread.state["answer"]))
    with pytest.raises(StoreError):
        await later
    assert seen == [""]
    assert await found(thread) == ("", [("a", [1])])
    await thread.values.push("a", 3)
    await lab.sleep()
    assert await found(await lab.thread()) == ("", [("a", [1, 3])])


async def test_what_a_failed_write_was_made_on_stays_and_what_was_made_on_it_goes(lab: Lab) -> None:
    thread = await lab.thread()
    await thread.values.set("log", ["x" * 9000])
    fail_writes(lab, 3)
    lost = [thread.values.push("log", "y" * 9000, 2), thread.values.delete("log"), thread.values.set("log", 1)]
    outcomes = await asyncio.gather(*lost, return_exceptions=True)
    assert [type(each) for each in outcomes] == [StoreError] * 3
    assert await thread.values.items() == [("log", ["x" * 9000])]


async def test_a_block_in_a_run_is_stored_also_if_the_run_raises_and_the_rest_is_not(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.set("staged", 1)
        await values.set("both", ["staged"])
        with ctx.thread.transaction():
            ctx.thread.update("/answer", "kept")
            await values.set("kept", 1)
            await values.push("both", "in the block")
        assert await values.items() == [("kept", 1), ("both", ["staged", "in the block"]), ("staged", 1)]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    await lab.sleep()
    assert await found(await lab.thread()) == ("kept", [("kept", 1), ("both", ["staged", "in the block"])])


async def test_a_block_in_a_run_that_raises_leaves_what_the_run_has_staged(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values, mine = ctx.thread.values, [1]
        await values.set("mine", mine)
        await values.set("other", 1)
        with pytest.raises(ZeroDivisionError), ctx.thread.transaction():  # noqa: PT012
            ctx.thread.update("/answer", "lost")
            values.push("mine", 2)
            values.clear()
            values.set("mine", 3)
            raise ZeroDivisionError
        shown = copy.deepcopy(await values.items())
        mine.append(4)
        return shown

    assert await lab.do(work) == [("mine", [1]), ("other", 1)]
    await lab.sleep()
    assert await found(await lab.thread()) == ("", [("mine", [1, 4]), ("other", 1)])


async def test_a_block_in_a_run_is_stored_after_what_it_follows_and_before_what_comes_later(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values = ctx.thread.values
        await values.clear()
        await values.set("a", 1)
        with ctx.thread.transaction():
            ctx.thread.update("/answer", "kept")
            values.set("b", 2)
        await values.update("b", lambda b: b + 1)
        (await values.get("list", [])).append(5)
        return await values.items()

    await (await lab.thread()).values.set("old", 1)
    expected = [("b", 3), ("a", 1), ("list", [5])]
    assert await lab.do(work) == expected
    await lab.sleep()
    assert await found(await lab.thread()) == ("kept", expected)


async def test_what_a_block_in_a_run_was_refused_is_not_staged(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        values = ctx.thread.values
        await values.set("a", 1)
        with pytest.raises(TypeError, match="not a list"), ctx.thread.transaction():
            values.push("a", 2)
        with ctx.thread.transaction(), pytest.raises(TooLarge):
            values.set("b", "x" * 2_000_000)
        assert await values.items() == [("a", 1)]

    await lab.do(work)
    await lab.sleep()
    assert await lab.values() == {"a": 1}


async def test_what_a_block_in_a_run_was_given_may_be_changed_in_place(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        values, mine = ctx.thread.values, [1]
        shown = await values.get("shown", [])
        with ctx.thread.transaction():
            ctx.thread.update("/answer", "kept")
            values.set("mine", mine)
            values.push("shown", 1)
        mine.append(2)
        shown.append(2)
        return shown

    assert await lab.do(work) == [1, 2]
    await lab.sleep()
    assert await lab.values() == {"mine": [1, 2], "shown": [1, 2]}
