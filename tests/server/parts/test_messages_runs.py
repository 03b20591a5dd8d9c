"""What runs do to messages while others do something to the same ones."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import Chat, MessagesLab, Viewer, contents, open_lab

from plait import Context, Limits, MemoryStore, NotFound, StoreError, TooLarge, TooMany
from plait.limits import DEFAULT_LIMITS
from plait.parts.messages.queue import MOST_QUEUED
from plait.parts.messages.thread_messages import ThreadMessages


async def during(lab: MessagesLab, work: Callable[[ThreadMessages], Awaitable[object]]) -> None:
    """Do something outside of the run in which the calling code is, as another client does."""

    async def other(thread: Chat) -> None:
        await work(thread.messages)

    actor = await lab.app._node.actor(lab.app.thread(Chat, "one")._key)
    future = actor.loop.create_future()
    actor.begin("other", lambda: other(actor.thread), lambda _, error: future.set_result(error))  # type: ignore[arg-type]
    error = await future
    if error is not None:
        raise error


async def test_nothing_of_a_run_is_seen_before_it_ends_or_after_it_has_raised(chats: MessagesLab) -> None:
    first = await chats.handle.inject("user", "a")
    second = await chats.handle.inject("user", "b")

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        messages.inject("assistant", "c")
        await messages.update(first.id, "A", metadata={"x": 1})
        await messages.delete(second.id)
        assert contents((await messages.list()).messages) == ["A", "c"]
        assert await messages.get(second.id) is None
        with pytest.raises(NotFound):
            await messages.update(second.id, "B")

        async def look(others: ThreadMessages) -> None:
            page = await others.list()
            assert (contents(page.messages), page.total) == (["a", "b"], 2)
            assert await others.get(second.id) == second

        await during(chats, look)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await chats.do(work)
    assert await chats.all() == [first, second]


async def test_a_message_stands_where_it_was_written_whenever_its_run_ends(chats: MessagesLab) -> None:
    viewer = Viewer(await chats.messages())
    await viewer.open()

    async def work(ctx: Context[Chat]) -> None:
        ctx.thread.messages.inject("assistant", "a")
        await during(chats, lambda others: others.inject("user", "b"))
        ctx.thread.messages.inject("assistant", "c")

    await chats.do(work)
    assert contents(await chats.all()) == contents(viewer.shown) == ["a", "b", "c"]
    late = Viewer(await chats.messages())
    late.revision = 1
    await late.open()
    assert contents(late.shown) == ["a", "c"]


async def test_changes_of_a_run_and_of_others_all_count(chats: MessagesLab) -> None:
    message = await chats.handle.inject("user", "a", metadata={"x": 0})

    async def work(ctx: Context[Chat]) -> None:
        for number in ("0", "1"):
            await ctx.thread.messages.update(message.id, metadata={f"run {number}": 1})
            await during(chats, partial(update, number=number))
            await ctx.flush()

    async def update(others: ThreadMessages, number: str) -> None:
        await others.update(message.id, "b", metadata={f"other {number}": 1})

    await chats.do(work)
    found = await chats.handle.get(message.id)
    assert found.content == "b"
    assert found.metadata == {"x": 0, "run 0": 1, "other 0": 1, "run 1": 1, "other 1": 1}


async def test_a_message_that_others_have_removed_is_not_made_again_by_a_run(chats: MessagesLab) -> None:
    message = await chats.handle.inject("user", "a")

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.update(message.id, "b")
        await during(chats, lambda others: others.delete(message.id))

    await chats.do(work)
    assert await chats.all() == []
    assert (await chats.handle.list()).total == 0


async def test_a_run_may_change_what_it_has_taken_and_what_is_pending(chats: MessagesLab) -> None:
    (await chats.messages()).caller._is_missing = True  # type: ignore[union-attr]

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        own = messages.queue("own").value
        await during(chats, lambda others: others.queue("other"))
        other = (await messages.pending())[1]
        await messages.update(own.id, "own, changed")
        await messages.update(other.id, "other, changed")
        assert contents(await messages.pending()) == ["own, changed", "other, changed"]
        taken = await messages.take()
        assert contents(taken) == ["own, changed", "other, changed"]
        await messages.update(taken[0].id, metadata={"x": 1})
        assert await messages.delete(taken[1].id) is True
        assert await messages.pending() == []

    await chats.do(work)
    found = await chats.all()
    assert [(each.content, each.metadata) for each in found] == [("own, changed", {"x": 1})]


async def test_a_run_may_store_a_part_of_what_it_does(chats: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        message = ctx.thread.messages.inject("assistant", "kept").value
        await ctx.flush()
        assert contents((await ctx.thread.messages.list()).messages) == ["kept"]
        await ctx.thread.messages.update(message.id, "lost")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await chats.do(work)
    assert contents(await chats.all()) == ["kept"]


async def test_what_a_run_could_not_store_is_not_there(troubled: MessagesLab) -> None:
    await troubled.handle.inject("user", "a")

    async def work(ctx: Context[Chat]) -> None:
        ctx.thread.messages.inject("assistant", "b")
        ctx.thread.values.set("b", 1)
        troubled.store.fail_next()

    with pytest.raises(StoreError):
        await troubled.do(work)
    assert contents(await troubled.all()) == ["a"]
    assert await (await troubled.thread()).values.get("b") is None


async def test_a_run_goes_on_with_what_a_failed_flush_could_not_store(troubled: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        messages.inject("assistant", "a")
        troubled.store.fail_next()
        later = asyncio.create_task(inject_later(messages))
        with pytest.raises(StoreError):
            await ctx.flush()
        await later
        page = await messages.list()
        assert (contents(page.messages), page.total) == (["a", "b"], 2)

    async def inject_later(messages: ThreadMessages) -> None:
        messages.inject("assistant", "b")  # While "a" is being stored.

    await troubled.do(work)
    assert contents(await troubled.all()) == ["a", "b"]


async def test_a_run_may_queue_with_a_key_again_after_a_message_that_was_too_large(chats: MessagesLab) -> None:
    (await chats.messages()).caller._is_missing = True  # type: ignore[union-attr]

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        with pytest.raises(TooLarge):
            messages.queue("x" * DEFAULT_LIMITS.record, key="k")
        messages.queue("small", key="k")
        assert contents(await messages.pending()) == ["small"]

    await chats.do(work)
    assert contents(await chats.all()) == ["small"]


async def test_a_key_that_a_run_has_used_adds_no_other_message_even_if_the_run_has_taken_the_first(
    chats: MessagesLab,
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        first = messages.queue("a", key="k").value
        assert contents(await messages.take()) == ["a"]
        assert messages.queue("b", key="k").value.id == first.id
        assert await messages.take() == []

    await chats.do(work)
    assert contents(await chats.all()) == ["a"]


@each_case("others", ["queue", "queue with keys", "cancel", "nothing"])
async def test_a_run_encodes_each_message_as_often_whatever_it_has_done_before(others: str) -> None:
    async def encode(many: int) -> int:
        """Return how many values are encoded by the writes of a run; each second one is too large."""
        encoded = 0

        def note(frame: Any, event: str, arg: Any) -> None:
            nonlocal encoded
            encoded += event == "c_call" and arg.__name__ == "encode"

        async def do_as_others(messages: ThreadMessages, number: int) -> None:
            if others != "nothing":
                queued = messages.queue("x", key=f"{number}" if others == "queue with keys" else None).value
                if others == "cancel":
                    await messages.delete(queued.id)

        async def work(ctx: Context[Chat]) -> None:
            messages = ctx.thread.messages
            messages.queue("own", key="own")
            for number in range(many):
                await during(lab, partial(do_as_others, number=number))
                sys.setprofile(note)
                try:
                    messages.inject("assistant", "a")
                    with pytest.raises(TooLarge):
                        messages.inject("assistant", "x" * 2000)
                    await messages.list(1)
                finally:
                    sys.setprofile(None)

        async with open_lab(MemoryStore(), limits=Limits(record=2000)) as lab:
            (await lab.messages()).caller._is_missing = True  # type: ignore[union-attr]
            await lab.do(work)
        return encoded

    assert await encode(20) == 2 * await encode(10) > 0


async def test_what_a_run_has_queued_taken_and_removed_is_not_counted_when_others_have_sent_it(
    chats: MessagesLab,
) -> None:
    (await chats.messages()).caller._is_missing = True  # type: ignore[union-attr]

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        sent = messages.queue("a", key="k", sender="x").value
        messages.take()
        await messages.delete(sent.id)
        await during(chats, lambda others: others.queue("a", key="k", sender="x"))
        assert (await messages.list()).total == 0
        await during(chats, lambda others: others.delete(sent.id))
        assert (await messages.list()).total == 0

    await chats.do(work)


async def test_a_run_sees_what_it_has_queued_with_a_key_when_the_same_message_of_others_is_lost(
    troubled: MessagesLab,
) -> None:
    (await troubled.messages()).caller._is_missing = True  # type: ignore[union-attr]

    async def send_at_once(thread: Chat) -> None:
        async with thread.transaction():
            thread.messages.queue("others", key="k")
            assert contents((await thread.messages.list()).messages) == ["others"]

    async def work(ctx: Context[Chat]) -> None:
        ctx.thread.messages.queue("own", key="k")
        troubled.store.fail_next()
        with pytest.raises(StoreError):
            await send_at_once(ctx.thread)
        assert contents(await ctx.thread.messages.pending()) == ["own"]

    await troubled.do(work)
    assert contents(await troubled.all()) == ["own"]


@play_seeds(5)
async def test_what_a_run_sees_at_its_end_is_what_it_leaves_whatever_others_have_done_to_the_queue(seed: int) -> None:
    chance, store = random.Random(seed), TroubledStore()

    async def queue(messages: ThreadMessages) -> None:
        messages.queue("x", key=chance.choice([None, None, "a", "b", "c"]), sender="x")

    async def change(messages: ThreadMessages, found: list[str]) -> None:
        if found:
            await messages.update(chance.choice(found), f"{chance.random()}")

    async def remove(messages: ThreadMessages, found: list[str]) -> None:
        if found:
            await messages.delete(chance.choice(found))

    async def store_at_once(thread: Chat) -> None:
        async with thread.transaction():
            thread.messages.inject("assistant", "lost")
            await queue(thread.messages)

    async def lose(thread: Chat) -> None:
        store.fail_next()
        with pytest.raises(StoreError):
            await store_at_once(thread)

    async def step_as_others(messages: ThreadMessages) -> None:
        pending = [each.id for each in await messages.pending()]
        match chance.choice(["queue", "queue", "change", "remove"]):
            case "queue":
                await queue(messages)
            case "change":
                await change(messages, pending)
            case "remove":
                await remove(messages, pending)

    async def step(messages: ThreadMessages) -> None:
        seen = [each.id for each in (*(await messages.list(1000)).messages, *await messages.pending())]
        match chance.choice(["inject", "queue", "take", "take one", "change", "remove"]):
            case "inject":
                messages.inject("assistant", "a")
            case "queue":
                await queue(messages)
            case "take":
                messages.take()
            case "take one":
                messages.take(1)
            case "change":
                await change(messages, seen)
            case "remove":
                await remove(messages, seen)

    async def work(ctx: Context[Chat]) -> list[Any]:
        messages = ctx.thread.messages
        for _ in range(30):
            match chance.choice(["run", "run", "run", "others", "others", "lose"]):
                case "run":
                    await step(messages)
                case "others":
                    await during(lab, step_as_others)
                case "lose":
                    await lose(ctx.thread)
            await messages.pending()
        page = await messages.list(1000)
        assert page.total == len(page.messages)
        return [(each.id, each.content) for each in (*page.messages, *await messages.pending())]

    async with open_lab(store) as lab:
        (await lab.messages()).caller._is_missing = True  # type: ignore[union-attr]
        for _ in range(5):
            found = await lab.do(work)
            assert found == [(each.id, each.content) for each in await lab.all()]


@each_case(("many", "size"), [(MOST_QUEUED, 1), (8, 99_000)])
async def test_what_a_run_has_taken_leaves_no_room_in_the_queue_until_that_is_stored(many: int, size: int) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        assert len(await messages.take()) == many
        with pytest.raises(TooMany):
            messages.queue("x" * size)
        await ctx.flush()
        messages.queue("x" * size)
        messages.take()
        for _ in range(many):
            messages.queue("x" * size)
        with pytest.raises(TooMany):
            messages.queue("x" * size)

    async with open_lab(MemoryStore(), limits=Limits(record=100_000)) as lab:
        messages = await lab.messages()
        messages.caller._is_missing = True  # type: ignore[union-attr]
        for _ in range(many):
            messages.queue("x" * size)
        await lab.do(work)
        assert len(await messages.pending()) == many


async def test_a_transaction_in_a_run_is_stored_at_once(chats: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        thread = ctx.thread
        thread.messages.inject("assistant", "staged")
        async with thread.transaction():
            thread.set_state({"count": 1})
            thread.messages.inject("assistant", "stored")

        async def look(others: ThreadMessages) -> None:
            assert contents((await others.list()).messages) == ["stored"]

        await during(chats, look)
        assert contents((await thread.messages.list()).messages) == ["staged", "stored"]

    await chats.do(work)
    assert contents(await chats.all()) == ["staged", "stored"]


@pytest.mark.parametrize("held", ["record", "submit"])
async def test_a_run_that_is_cancelled_while_it_is_stored_is_stored_and_not_repeated(
    chats: MessagesLab, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited, store = await chats.handle.inject("user", "edited"), chats.store
    has_returned, is_reached, may_go = False, asyncio.Event(), asyncio.Event()
    original = getattr(store, held)

    async def wait_and_do(*args: Any) -> Any:
        is_reached.set()
        await may_go.wait()
        return await original(*args)

    def hold(*args: Any) -> Any:
        must_wait = has_returned and not is_reached.is_set()
        return asyncio.ensure_future(wait_and_do(*args)) if must_wait else original(*args)

    async def work(ctx: Context[Chat]) -> None:
        nonlocal has_returned
        for message in await ctx.thread.messages.take():
            ctx.thread.messages.inject("assistant", f"re {message.content}")
        await ctx.thread.messages.update(edited.id, "changed")  # It is read again before the run is stored.
        has_returned = True

    chats.work = work
    actor = await chats.actor()
    monkeypatch.setattr(store, held, hold)
    await chats.handle.queue("a")
    async with asyncio.timeout(10):
        await is_reached.wait()
        actor.turns.cancel()
        await asyncio.sleep(0)
        may_go.set()
        while await store.due_threads(until=1 << 62):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert contents(await chats.all()) == ["changed", "a", "re a"]
    assert chats.calls == 1


async def test_a_listing_counts_what_it_shows_though_a_run_is_stored_during_the_read(
    chats: MessagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, may_end, is_read, may_read = (asyncio.Event() for _ in range(4))
    original = chats.store.records

    async def hold(*args: Any) -> Any:
        is_read.set()
        await may_read.wait()
        return await original(*args)

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.inject("assistant", "new")
        staged.set()
        await may_end.wait()

    await chats.handle.inject("user", "old")
    messages = await chats.messages()
    async with asyncio.timeout(10):
        running = asyncio.create_task(chats.do(work))
        await staged.wait()
        monkeypatch.setattr(chats.store, "records", hold)
        reading = asyncio.create_task(messages.list())
        await is_read.wait()
        may_end.set()
        await running
        may_read.set()
        page = await reading
    assert (contents(page.messages), page.total) == (["old"], 1)
    monkeypatch.undo()
    assert contents(await chats.all()) == ["old", "new"]
