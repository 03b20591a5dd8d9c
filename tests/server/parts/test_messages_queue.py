"""What is queued for the agent of a thread, and how often that is called for it."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.fakes import FakeTransport
from tests.server.parts.messages_lab import Chat, MessagesLab, Shared, Work, answer, contents, open_lab
from tests.server.parts.workshop import until

from plait import Context, Limits, MemoryStore, Plait, Principal, StoreError, Thread, TooLarge, TooMany
from plait.actor.connection import Rights
from plait.actor.outcome import make_resolver
from plait.actor.turn import Turn
from plait.parts.attempts import CRASHES, PAUSES, RetryPolicy
from plait.parts.messages.message import Message
from plait.parts.messages.queue import MOST_QUEUED
from plait.parts.messages.state import QueueAttempts
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.store.thread_rows import RecordRange, ThreadKey
from plait_schemas.codec import decode_json


def statuses(messages: list[Message]) -> list[str]:
    return [each.status for each in messages]


class Gate:
    """Tells a test that an agent has come to a place, and holds the agent there."""

    def __init__(self) -> None:
        self.is_reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def wait(self) -> None:
        self.is_reached.set()
        await self._opened.wait()

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        async with asyncio.timeout(10):
            await self.is_reached.wait()


async def test_the_agent_is_called_for_what_is_queued(chats: MessagesLab) -> None:
    message = await chats.handle.queue("a", metadata={"x": 1}, name="Ada")
    assert (message.role, message.status, message.metadata, message.name) == ("user", "pending", {"x": 1}, "Ada")
    found = await chats.until(lambda found: contents(found) == ["a", "re a"])
    assert statuses(found) == ["completed", "completed"]
    assert found[0].id == message.id
    assert found[0].position > message.position
    assert chats.calls == 1


async def test_the_first_attempt_is_stored_with_its_message(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    await messages.inject("user", "a")
    troubled.store.is_held = True
    messages.queue("b")
    await asyncio.sleep(0)
    write = troubled.store.submitted[-1]
    head = next(decode_json(record.value) for record in write.records if record.key == "head")
    assert [record.key[:2] for record in write.records] == ["q/", "he"]
    assert head["attempts"]["process"] == troubled.app._node._host.process
    assert write.due == head["attempts"]["due"] & ~1 > 0  # An odd time is one at which the thread expires.
    assert troubled.calls == 0
    troubled.store.resume()
    await troubled.until(lambda found: contents(found) == ["a", "b", "re b"])


async def test_an_attempt_that_ends_well_is_stored_with_its_answer(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    await messages.inject("user", "a")
    before = len(troubled.store.submitted)
    await messages.queue("b")
    await troubled.until(lambda found: contents(found) == ["a", "b", "re b"])
    await until_idle(messages)
    _, answered = troubled.store.submitted[before:]
    head = next(decode_json(record.value) for record in answered.records if record.key == "head")
    assert head["attempts"] == {}
    assert answered.due & ~1 == 0


async def test_an_attempt_whose_last_write_fails_is_made_again(
    troubled: MessagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.attempt_runner.PAUSES", RetryPolicy(5, 0.001, 0.001, is_random=False))
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        await answer(ctx)
        if troubled.calls == 1:
            await gate.wait()

    troubled.work = work
    messages = await troubled.messages()
    await messages.queue("a")
    await gate.reached()
    troubled.store.fail_next()
    gate.open()
    await troubled.until(lambda found: contents(found) == ["a", "re a"])
    messages = await troubled.messages()
    await until_idle(messages)
    assert troubled.calls == 2
    assert messages._writer.state.head.attempts == QueueAttempts()


async def until_idle(messages: ThreadMessages) -> None:
    """Wait until the end of the last attempt is stored."""
    caller = messages.caller
    assert caller is not None
    await until(lambda: not caller._runner.running)


async def test_what_comes_while_the_agent_runs_stands_after_what_that_writes(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        await gate.wait()
        for message in taken:
            ctx.thread.messages.inject("assistant", f"re {message.content}")

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    for each in ("b", "c", "d"):
        await chats.handle.queue(each)
    found = await chats.all()
    assert (contents(found), statuses(found)) == (["a", "b", "c", "d"], ["pending"] * 4)
    gate.open()
    await chats.until(lambda found: contents(found) == ["a", "re a", "b", "c", "d", "re b", "re c", "re d"])
    assert chats.calls == 2


async def test_an_agent_takes_what_has_come_before_its_next_step(chats: MessagesLab) -> None:
    gate = Gate()
    seen: list[list[str | None]] = []

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        while taken := await messages.take():
            seen.append(contents(taken))
            await gate.wait()
            messages.inject("assistant", f"re {len(taken)}")
            assert contents(await messages.pending()) == ([] if len(seen) > 1 else ["b", "c"])

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    await chats.handle.queue("b")
    await chats.handle.queue("c")
    gate.open()
    await chats.until(lambda found: contents(found) == ["a", "re 1", "b", "c", "re 2"])
    assert seen == [["a"], ["b", "c"]]
    assert chats.calls == 1


async def test_a_pending_message_is_listed_and_can_be_changed_and_cancelled(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        await gate.wait()
        await answer(ctx)

    chats.work = work
    await chats.handle.inject("user", "history")
    first = await chats.handle.queue("first")
    await gate.reached()
    second = await chats.handle.queue("second")
    await chats.handle.queue("silent", silent=True)
    third = await chats.handle.queue("third")
    page = await chats.handle.list()
    assert contents(page.messages) == ["history", "first", "second", "third"]
    assert (page.total, page.messages[1]) == (4, first)
    assert contents((await chats.handle.list(limit=2)).messages) == ["second", "third"]
    assert contents((await chats.handle.list(limit=2, offset=2)).messages) == ["history", "first"]
    assert contents((await chats.handle.list(limit=2, order="asc")).messages) == ["history", "first"]
    assert contents((await chats.handle.list(order="asc", offset=2)).messages) == ["second", "third"]
    assert contents((await chats.handle.list(order="desc", limit=3)).messages) == ["third", "second", "first"]
    assert contents((await chats.handle.list(before=first.position)).messages) == ["history"]
    assert await chats.handle.get(second.id) == second
    assert contents(await chats.handle.pending()) == ["first", "second", "silent", "third"]
    changed = await chats.handle.update(third.id, "changed", metadata={"x": 1})
    assert (changed.status, changed.content) == ("pending", "changed")
    assert await chats.handle.delete(second.id) is True
    assert await chats.handle.delete(second.id) is False
    gate.open()
    found = await chats.until(lambda found: len(found) == 7)
    assert contents(found) == ["history", "first", "silent", "changed", "re first", "re silent", "re changed"]
    assert found[3].metadata == {"x": 1}


async def test_what_a_run_has_taken_cannot_be_cancelled(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        await gate.wait()
        if chats.calls == 1:
            raise RuntimeError("give it back")
        ctx.thread.messages.inject("assistant", f"re {len(taken)}")

    chats.work = work
    first, second = await chats.handle.queue("a"), await chats.handle.queue("b")
    await gate.reached()
    taken = [each for each in (first, second) if not await chats.handle.delete(each.id)]
    assert taken[0] == first
    gate.open()
    await chats.until(lambda found: any((each.content or "").startswith("re ") for each in found))
    assert contents(await chats.all())[0] == "a"
    assert await chats.handle.delete(first.id) is True


async def test_cancelling_all_leaves_nothing_to_do(chats: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        raise RuntimeError("never")

    chats.work = work
    message = await chats.handle.queue("a")
    actor = await chats.actor()
    while not actor.state.is_durable or not chats.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    while (await chats.handle.pending())[0] and actor.timer.wakes_at == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert await chats.handle.delete(message.id) is True
    assert actor.timer.due == 0
    assert await chats.all() == []


async def test_a_message_is_given_up_after_five_attempts_that_raised(chats: MessagesLab, clock: Clock) -> None:
    seen: list[list[str | None]] = []

    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        seen.append(contents(taken))
        ctx.thread.messages.inject("assistant", f"re {taken[0].content}")
        ctx.thread.values.set("answered", taken[0].content)
        if taken[0].content == "bad":
            raise RuntimeError("poison")

    chats.work = work
    await chats.handle.queue("bad")
    for number in range(1, PAUSES.attempts):
        await until_called(chats, number)
        assert Chat.told == []
        if number == 1:
            await chats.handle.queue("good")
        clock.move(2.0 ** (number - 1))
    found = await chats.until(lambda found: contents(found) == ["bad", "good", "re good"])
    assert statuses(found) == ["failed", "completed", "completed"]
    assert [str(error) for error in Chat.told] == ["poison"]
    assert seen == [*[["bad"]] * PAUSES.attempts, ["good"]]

    async def look(ctx: Context[Chat]) -> object:
        page = await ctx.thread.messages.list()
        return contents(page.messages), page.total, await ctx.thread.values.get("answered")

    # What was given up is no history for an agent.
    assert await chats.do(look) == (["good", "re good"], 2, "good")
    await chats.restart()
    assert statuses(await chats.all()) == ["failed", "completed", "completed"]


async def answer_by_steps(ctx: Context[Chat]) -> None:
    """Answer one message after the other, and store each."""
    messages = ctx.thread.messages
    while taken := await messages.take(limit=1):
        check_good(taken[0])
        messages.inject("assistant", f"re {taken[0].content}")
        await ctx.flush()


async def answer_together(ctx: Context[Chat]) -> None:
    """Answer all messages in one write."""
    messages = ctx.thread.messages
    while taken := await messages.take():
        for message in taken:
            check_good(message)
            messages.inject("assistant", f"re {message.content}")


def check_good(message: Message) -> None:
    if (message.content or "").startswith("poison"):
        raise RuntimeError("poison")


LOOPS = pytest.mark.parametrize("loop", [answer_by_steps, answer_together])


@LOOPS
async def test_one_bad_message_fails_alone(chats: MessagesLab, clock: Clock, loop: Work) -> None:
    chats.work = loop
    await queue_all(chats, ["good1", "good2", "good3", "poison", "good4"])
    found = await until_handled(chats, clock)
    assert [each.content for each in found if each.status == "failed"] == ["poison"]
    assert answers(found) == ["re good1", "re good2", "re good3", "re good4"]
    assert [str(error) for error in Chat.told] == ["poison"]


@LOOPS
async def test_many_messages_with_a_few_bad_ones_cost_about_a_call_each(
    chats: MessagesLab, clock: Clock, loop: Work
) -> None:
    chats.work = loop
    # 1 % of 545 messages.
    names = [f"poison{number}" if number % 100 == 50 else f"good{number}" for number in range(545)]
    await queue_all(chats, names)
    found = await until_handled(chats, clock)
    bad = [name for name in names if name.startswith("poison")]
    assert [each.content for each in found if each.status == "failed"] == bad
    assert answers(found) == [f"re {name}" for name in names if name not in bad]
    assert len(Chat.told) == len(bad)
    assert chats.calls <= 600


async def queue_all(lab: MessagesLab, names: list[str]) -> None:
    """Queue messages, before the agent sees any of them."""
    messages = await lab.messages()
    for name in names[:-1]:
        messages.queue(name)
    await messages.queue(names[-1])


async def until_handled(lab: MessagesLab, clock: Clock) -> list[Message]:
    """Wait until nothing is queued, and do not wait for pauses; return all messages."""
    actor, messages = await lab.actor(), await lab.messages()
    async with asyncio.timeout(60):
        while await messages.pending() or actor.timer.due:
            if actor.timer.wakes_at > clock.now:
                clock.move((actor.timer.wakes_at - clock.now) / 1e6 + 0.001)
            await asyncio.sleep(0.001)
    return await lab.all()


def answers(messages: list[Message]) -> list[str | None]:
    return [each.content for each in messages if each.role == "assistant"]


async def test_a_run_takes_as_many_messages_as_it_wants(chats: MessagesLab) -> None:
    seen: list[list[str | None]] = []

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        messages.queue("own")
        seen.extend([contents(await messages.take(limit=2)), contents(await messages.pending())])
        seen.append(contents(await messages.take()))

    chats.work = work
    await queue_all(chats, ["a", "b", "c"])
    await chats.until(lambda found: contents(found) == ["a", "b", "c", "own"] and "pending" not in statuses(found))
    assert seen == [["a", "b"], ["c", "own"], ["c", "own"]]
    thread = await chats.thread()
    messages = thread.messages
    with thread.transaction():
        messages.queue("d")
        messages.queue("e")
        assert contents(messages.take(limit=1).value) == ["d"]
        assert contents(messages.take().value) == ["e"]
    for limit in (0, -1, True, 1.0, "1"):
        with pytest.raises(ValueError, match="limit must be"):
            messages.take(limit)  # type: ignore[arg-type]


async def test_a_message_that_ends_its_process_is_given_up_alone(chats: MessagesLab) -> None:
    """Each app takes over the thread of the one before, whose attempt has then ended with its process."""
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        while taken := await messages.take():
            for message in taken:
                if message.content == "poison":
                    gate.is_reached.set()
                    await asyncio.Event().wait()
                messages.inject("assistant", f"re {message.content}")

    names = ["a", "b", "poison", "c"]
    async with AsyncExitStack() as apps:
        lab, deaths = chats, 0
        lab.work = work
        await queue_all(lab, names)
        while True:
            ended = asyncio.create_task(until_empty(lab))
            hung = asyncio.create_task(gate.is_reached.wait())
            async with asyncio.timeout(20):
                await asyncio.wait([ended, hung], return_when=asyncio.FIRST_COMPLETED)
            hung.cancel()
            ended.cancel()
            if not gate.is_reached.is_set():
                break
            deaths += 1
            gate.is_reached.clear()
            lab = await apps.enter_async_context(open_lab(Shared(chats.store)))
            lab.work = work
            await lab.thread()
        found = await lab.all()
    # The first one took all messages; it counts for the first of them.
    assert deaths == CRASHES + 1
    assert [each.content for each in found if each.status == "failed"] == ["poison"]
    assert answers(found) == ["re a", "re b", "re c"]


async def until_empty(lab: MessagesLab) -> None:
    messages = await lab.messages()
    while await messages.pending():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def until_called(lab: MessagesLab, calls: int) -> None:
    """Wait until the agent was called so often, and the end of that is stored."""
    actor = await lab.actor()
    async with asyncio.timeout(10):
        while lab.calls < calls or actor.timer.wakes_at == 0 or not actor.state.is_durable:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_the_next_attempt_waits_for_its_time(chats: MessagesLab, clock: Clock) -> None:
    async def work(ctx: Context[Chat]) -> None:
        raise RuntimeError("not now")

    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    timer = (await chats.actor()).timer
    waits = []
    for number in range(2, PAUSES.attempts):
        waits.append(round((timer.wakes_at - clock.now) / 1e6))
        clock.move(waits[-1])
        await until_called(chats, number)
    assert waits == [1, 2, 4]
    assert chats.calls == PAUSES.attempts - 1


async def test_an_agent_that_takes_nothing_is_a_failure_and_is_told(
    chats: MessagesLab, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        ctx.thread.messages.inject("assistant", "hello")

    chats.work = work
    await chats.handle.queue("a")
    for number in range(1, PAUSES.attempts):
        await until_called(chats, number)
        clock.move(2.0 ** (number - 1))
    await chats.until(lambda found: "failed" in statuses(found))
    assert chats.calls == PAUSES.attempts
    assert "must call `messages.take()`" in str(Chat.told[0])
    assert "attempt 1 of 5" in caplog.text


async def test_a_run_that_has_stored_what_it_took_is_repeated_until_it_ends_well(
    chats: MessagesLab, clock: Clock
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        await ctx.flush()
        if chats.calls == 1:
            raise RuntimeError("after the flush")
        ctx.thread.messages.inject("assistant", f"took {len(taken)}")

    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    assert statuses(await chats.all()) == ["completed"]
    clock.move(1)
    await chats.until(lambda found: contents(found) == ["a", "took 0"])


async def test_a_run_that_stores_what_it_took_and_always_raises_is_told_and_does_not_hold_up_others(
    chats: MessagesLab, clock: Clock
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        await ctx.flush()
        raise RuntimeError("after the flush")

    chats.work = work
    await chats.handle.queue("a")
    for number in range(1, PAUSES.attempts):
        await until_called(chats, number)
        clock.move(2.0 ** (number - 1))
    async with asyncio.timeout(10):
        while not Chat.told:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert [str(error) for error in Chat.told] == ["after the flush"]
    chats.work = answer
    await chats.handle.queue("b")
    await chats.until(lambda found: contents(found) == ["a", "b", "re b"])
    assert chats.calls == PAUSES.attempts + 1


async def test_a_transaction_that_is_rolled_back_does_not_delay_the_next_message(
    chats: MessagesLab, clock: Clock
) -> None:
    thread = await chats.thread()

    def raise_within() -> None:
        with thread.transaction():
            thread.messages.queue("a")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        raise_within()
    await thread.messages.queue("b")
    await chats.until(lambda found: contents(found) == ["b", "re b"])


async def test_an_outage_of_the_store_does_not_count(troubled: MessagesLab, clock: Clock) -> None:
    await troubled.handle.inject("user", "before")

    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        if troubled.calls <= 7:
            troubled.store.fail_next()
        for each in taken:
            ctx.thread.messages.inject("assistant", f"re {each.content}")

    troubled.work = work
    await troubled.handle.queue("a")
    for number in range(1, 8):
        await until_called(troubled, number)
        found = await troubled.all()
        assert (contents(found), statuses(found)) == (["before", "a"], ["completed", "pending"])
        clock.move(300)
    await troubled.until(lambda found: contents(found) == ["before", "a", "re a"])
    assert Chat.told == []


async def test_a_store_that_is_away_for_a_minute_costs_no_message(troubled: MessagesLab, clock: Clock) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        await gate.wait()
        await answer(ctx)

    troubled.work = work
    await troubled.handle.queue("a")
    await gate.reached()
    messages, lost = await troubled.messages(), 0
    for number in range(30):
        troubled.store.fail_next()
        try:
            await messages.queue(f"{number}")
        except StoreError:
            lost += 1
        clock.move(2)
    assert lost == 30
    gate.open()
    for _ in range(10):
        clock.move(300)
        await asyncio.sleep(0.02)
    await troubled.until(lambda found: contents(found) == ["a", "re a"])


async def test_a_failed_write_of_the_message_calls_nothing(troubled: MessagesLab) -> None:
    await troubled.handle.inject("user", "a")
    troubled.store.fail_next()
    messages = await troubled.messages()
    with pytest.raises(StoreError):
        await messages.queue("b")
    assert contents(await troubled.all()) == ["a"]
    await messages.queue("c")
    await troubled.until(lambda found: contents(found) == ["a", "c", "re c"])
    assert troubled.calls == 1


async def test_an_interrupt_does_not_count_and_what_was_taken_stays(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        ctx.thread.messages.inject("assistant", "begun")
        await gate.wait()
        await ctx.checkpoint()

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    assert await chats.app.interrupt(chats.app.thread(Chat, "one"))
    gate.open()
    await chats.until(lambda found: contents(found) == ["a", "begun"] and found[0].status == "completed")
    assert chats.calls == 1
    assert Chat.told == []


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("takes", [False, True])
async def test_what_an_interrupted_agent_does_without_handling_its_messages_does_not_count(
    chats: MessagesLab, clock: Clock, takes: bool, raises: bool
) -> None:
    gate, seen = Gate(), list[list[str | None]]()

    async def work(ctx: Context[Chat]) -> None:
        if chats.calls == 1:
            if takes:
                await ctx.thread.messages.take()
            await gate.wait()
            if raises:
                raise RuntimeError("interrupted")
            if takes:
                raise asyncio.CancelledError
            return
        seen.append(contents(await ctx.thread.messages.take()))

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    await chats.handle.queue("b")
    assert await chats.app.interrupt(chats.app.thread(Chat, "one"))
    gate.open()
    await until_called(chats, 1)
    attempts = (await chats.messages())._writer.state.head.attempts
    assert (attempts.failures, attempts.crashes, attempts.process) == (0, 0, "")
    clock.move(1)
    await chats.until(lambda found: statuses(found) == ["completed"] * 2)
    assert seen == [["a", "b"]]  # Not one by one, as nothing has failed.
    assert Chat.told == []


async def test_a_shutdown_gives_back_what_was_taken(chats: MessagesLab) -> None:
    gate = Gate()

    async def wait(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        ctx.thread.messages.inject("assistant", "begun")
        gate.is_reached.set()
        await asyncio.Event().wait()

    chats.work = wait
    message = await chats.handle.queue("a")
    await gate.reached()
    await chats.app.__aexit__(None, None, None)
    chats.work = answer
    await chats.app.__aenter__()
    found = await chats.until(lambda found: contents(found) == ["a", "re a"])
    assert found[0].id == message.id
    assert Chat.told == []


async def test_a_message_whose_thread_was_taken_over_three_times_is_given_up(chats: MessagesLab) -> None:
    gate = Gate()

    async def hang(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        gate.is_reached.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as apps:
        lab = chats
        for number in range(CRASHES):
            lab.work = hang
            await (lab.handle.queue("bad") if number == 0 else lab.thread())
            await gate.reached()
            gate.is_reached.clear()
            lab = await apps.enter_async_context(open_lab(Shared(chats.store)))
        found = await lab.until(lambda found: statuses(found) == ["failed"])
        assert contents(found) == ["bad"]
        assert lab.calls == 0
        assert ["has ended the process 3 times" in str(error) for error in Chat.told] == [True]
        await lab.handle.queue("good")
        await lab.until(lambda found: contents(found) == ["bad", "good", "re good"])


async def test_messages_with_two_crashes_begin_one_at_a_time(chats: MessagesLab) -> None:
    names, running, most = [f"{number}" for number in range(4)], set[str](), list[int]()
    reached: set[str] = set()

    async def hang(ctx: Context[Chat]) -> None:
        reached.add(ctx.thread.name)
        await asyncio.Event().wait()

    async def careful(ctx: Context[Chat]) -> None:
        running.add(ctx.thread.name)
        most.append(len(running))
        await asyncio.sleep(0.01)
        await answer(ctx)
        running.remove(ctx.thread.name)

    async with AsyncExitStack() as apps:
        lab = chats
        for number in range(CRASHES - 1):
            lab.work = hang
            for name in names:
                messages = await lab.messages(name)
                if number == 0:
                    await messages.queue("a")
            async with asyncio.timeout(10):
                while len(reached) < len(names):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            reached.clear()
            lab = await apps.enter_async_context(open_lab(Shared(chats.store)))
        lab.work = careful
        for name in names:
            await lab.thread(name)
        for name in names:
            await lab.until(lambda found: contents(found) == ["a", "re a"], name)
        assert most == [1] * len(names)


async def test_an_attempt_alone_that_ends_late_does_not_hold_up_the_others(troubled: MessagesLab, clock: Clock) -> None:
    reached, store = Gate(), troubled.store

    async def hang(ctx: Context[Chat]) -> None:
        reached.is_reached.set()
        await asyncio.Event().wait()

    async def fail(ctx: Context[Chat]) -> None:
        store.is_held = True
        raise RuntimeError("not now")

    async def until(check: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not check():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async with AsyncExitStack() as apps:
        lab = troubled
        for number in range(CRASHES - 1):
            lab.work = hang
            await (lab.handle.queue("a") if number == 0 else lab.thread())
            await reached.reached()
            reached.is_reached.clear()
            lab = await apps.enter_async_context(open_lab(Shared(store)))
        lab.work = fail
        actor, messages = await lab.actor(), await lab.messages()
        await until(lambda: len(store.waiting) == 1)
        # The end of the attempt is stored, but not a later write, for longer than the pause.
        messages.inject("user", "later")
        await until(lambda: len(store.waiting) == 2)
        store.resume(1)
        await until(lambda: len(store.waiting) == 1 and actor.timer.wakes_at > 0)
        lab.work = answer
        clock.move(1)
        await until(lambda: len(store.waiting) == 2)
        store.resume()
        await lab.until(lambda found: contents(found) == ["later", "a", "re a"])
        await until(lambda: not actor.host.suspects.locked())


async def test_a_message_that_is_sent_again_with_its_key_is_one(chats: MessagesLab) -> None:
    first = await chats.handle.queue("a", key="k")
    again = await chats.handle.queue("a", key="k")
    assert again.id == first.id
    await chats.until(lambda found: contents(found) == ["a", "re a"])
    assert (await chats.handle.queue("a", key="k")).id == first.id
    await chats.handle.delete(first.id)
    await chats.restart()
    assert (await chats.handle.queue("a", key="k")).id == first.id
    other = await chats.handle.queue("a", key="k", sender="someone else")
    assert other.id != first.id
    await chats.handle.queue("b", key="l")
    await chats.until(lambda found: contents(found)[-1:] == ["re b"] and len(found) == 5)


@pytest.mark.parametrize("id", ["short", "1f-0a", "a" * 24, "é" * 60])
async def test_a_message_with_an_id_of_its_own_is_queued_once(chats: MessagesLab, id: str) -> None:
    await chats.handle.queue("before", id=f"-{id}")
    await chats.until(lambda found: contents(found) == ["before", "re before"])
    first = await chats.handle.queue("a", id=id)
    assert first.id == id
    await chats.handle.queue("b", id=id, sender="someone else")
    await chats.until(lambda found: contents(found)[-3:] == ["re before", "a", "re a"])
    await chats.restart()
    await chats.handle.queue("b", id=id)
    found = await chats.handle.get(id)
    assert found is not None
    assert (found.content, found.status) == ("a", "completed")
    await chats.handle.queue("c", key=id)
    await chats.until(lambda found: contents(found)[-4:] == ["a", "re a", "c", "re c"])
    with pytest.raises(ValueError, match="surrogate"):
        await chats.handle.queue("x", id="\ud800")


async def test_the_last_ten_thousand_keys_are_remembered(chats: MessagesLab) -> None:
    chats.work = drop
    messages = await chats.messages()
    for number in range(10_000):
        messages.queue("x", key=f"{number}")
        if number % 500 == 499:
            await messages.take()
    await messages.queue("x", key="last")
    await chats.restart()
    messages = await chats.messages()
    await messages.take()
    for number in (1, 127, 128, 5000, 9999):
        await messages.queue("again", key=f"{number}")
    assert "again" not in contents(await chats.all())
    assert len(await chats.store.records(ThreadKey("chat", "one"), RecordRange("messages", prefix="k/"))) <= 80


async def drop(ctx: Context[Chat]) -> None:
    await ctx.thread.messages.take()


async def test_a_key_in_a_run_or_a_transaction_counts_once(chats: MessagesLab) -> None:
    chats.work = drop

    async def work(ctx: Context[Chat]) -> None:
        ctx.thread.messages.queue("a", key="k")
        ctx.thread.messages.queue("a", key="k")
        async with ctx.thread.transaction():
            ctx.thread.messages.queue("a", key="k")

    await chats.do(work)
    await chats.until(lambda found: contents(found) == ["a"])
    thread = await chats.thread()

    def raise_within() -> None:
        with thread.transaction():
            thread.messages.queue("b", key="l")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        raise_within()
    await thread.messages.queue("b", key="l")
    await chats.until(lambda found: contents(found) == ["a", "b"])


async def test_two_clients_may_use_the_same_key(chats: MessagesLab) -> None:
    chats.work = drop
    actor, messages = await chats.actor(), await chats.messages()
    found = []
    ada, bob = Principal("ada"), Principal("bob")
    for id, principal in (("a", None), ("b", bob), ("c", ada), ("d", ada), ("e", None)):
        rights = Rights(principal)
        connection = actor.sockets.make_connection(id, FakeTransport(), rights=rights)
        ended: asyncio.Future[Message] = actor.loop.create_future()
        turn = Turn("m", lambda: messages.queue("x", key="k"), actor=actor, connection=connection, by_client=True)
        actor.turns.begin(turn, make_resolver(ended))
        found.append((await ended).id)
    assert found[0] == found[4] != found[1]
    assert found[2] == found[3] != found[0]
    assert len(set(found)) == 3
    assert len(await chats.all()) == 3


async def test_no_more_than_a_thousand_messages_are_queued(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        await gate.wait()
        await drop(ctx)

    chats.work = work
    messages = await chats.messages()
    for _ in range(MOST_QUEUED):
        messages.queue("x")
    with pytest.raises(TooMany) as raised:
        messages.queue("x")
    assert raised.value.code == "rate_limited"
    await messages.inject("user", "still")
    gate.open()
    await chats.until(lambda found: len(found) == MOST_QUEUED + 1 and statuses(found)[-1] == "completed")
    await messages.queue("x")


async def test_what_is_queued_has_a_limit_in_bytes() -> None:
    class Small(Thread[dict[str, Any]]):
        messages = Messages()

    async with Plait(Small, store=MemoryStore(), limits=Limits(record=10_000)) as app:
        messages = app.thread(Small, "one").part(Small.messages)
        with pytest.raises(TooLarge):
            await messages.queue("x" * 10_000)
        for _ in range(8):
            await messages.queue("x" * 9_000)
        with pytest.raises(TooMany):
            await messages.queue("x" * 9_000)
        assert len(await messages.pending()) == 8
        assert len(await messages.take()) == 8
        await messages.queue("x" * 9_000)


async def test_without_an_agent_messages_wait_until_they_are_taken() -> None:
    class Plain(Thread[dict[str, Any]]):
        messages = Messages()

    async with Plait(Plain, store=MemoryStore()) as app:
        messages = app.thread(Plain, "one").part(Plain.messages)
        await messages.queue("a")
        await messages.queue("b", role="assistant")
        assert contents(await messages.pending()) == ["a", "b"]
        assert await app._store.due_threads(until=1 << 62) == []
        assert contents(await messages.take()) == ["a", "b"]
        assert await messages.take() == []
        assert contents((await messages.list()).messages) == ["a", "b"]


async def test_a_missing_agent_is_told_in_the_log_and_called_when_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Lost(Thread[dict[str, Any]]):
        messages = Messages(agent="helper")

    store = MemoryStore()
    async with Plait(Lost, store=store) as app:
        await app.thread(Lost, "one").part(Lost.messages).queue("a")
        async with asyncio.timeout(10):
            while await app._store.due_threads(until=1 << 62):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert "there is no agent 'helper'" in caplog.text
    app = Plait(Lost, store=store)

    @app.agent("helper", thread=Lost)
    async def helper(ctx: Context[Lost]) -> None:
        for message in await ctx.thread.messages.take():
            ctx.thread.messages.inject("assistant", f"re {message.content}")

    async with app:
        messages = app.thread(Lost, "one").part(Lost.messages)
        async with asyncio.timeout(10):
            while contents((await messages.list()).messages) != ["a", "re a"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.mark.parametrize(("content", "role", "error"), [(None, "user", TypeError), ("x", "tool", ValueError)])
async def test_what_cannot_be_queued_is_refused(
    chats: MessagesLab, content: Any, role: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await chats.handle.queue(content, role)
    assert await chats.all() == []


async def test_an_attempt_at_one_queue_does_not_end_that_at_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.parts.messages.caller.PAUSES", RetryPolicy(5, 3600, 3600, is_random=False))

    class Desk(Thread[dict[str, Any]]):
        first = Messages(agent="first")
        second = Messages(agent="second")

    app, gate, calls = Plait(Desk, store=MemoryStore()), Gate(), list[str]()

    @app.agent("first", thread=Desk)
    async def first(ctx: Context[Desk]) -> None:
        await ctx.thread.first.take()
        await gate.wait()
        await ctx.thread.second.inject("system", "seen by first")

    @app.agent("second", thread=Desk)
    async def second(ctx: Context[Desk]) -> None:
        await ctx.thread.second.take()
        await ctx.flush()
        calls.append("second")
        if len(calls) == 1:
            raise LookupError

    async with app:
        desk = (await app._node.actor(app.thread(Desk, "one")._key)).thread
        assert isinstance(desk, Desk)
        await desk.second.queue("a")  # It is taken, and that is stored, before the run raises: it is made again.
        await until(lambda: calls == ["second"] and not _find_attempts(desk.second).process)
        owed = _find_attempts(desk.second)
        assert owed.is_owed
        await desk.first.queue("b")
        await gate.reached()
        gate.open()
        await until(lambda: _find_attempts(desk.first) == QueueAttempts())
        assert _find_attempts(desk.second) == owed


def _find_attempts(messages: ThreadMessages) -> QueueAttempts:
    return messages._writer.state.head.attempts
