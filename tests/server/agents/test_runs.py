"""Runs of agents: one at a time in a thread, in order, bounded; their scopes of state."""

import asyncio
import contextvars
import gc
import logging
import random
import re
import weakref
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory, Lab, open_lab

from plait import (
    Busy,
    Context,
    Indeterminate,
    Interruption,
    InvalidArguments,
    Plait,
    StoreError,
    TooMany,
    TurnTimeout,
    current_context,
)

PATIENCE = 10.0


class Gate:
    """Makes runs wait until a test releases them, and tells which are waiting."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self._has_arrived = asyncio.Condition()
        self._is_open = asyncio.Event()

    async def wait(self, who: Any = None) -> None:
        await self.arrive(who)
        await self._is_open.wait()

    async def arrive(self, who: Any = None) -> None:
        async with self._has_arrived:
            self.arrived.append(who)
            self._has_arrived.notify_all()

    async def somebody(self, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE), self._has_arrived:
            await self._has_arrived.wait_for(lambda: len(self.arrived) >= count)

    def open(self) -> None:
        self._is_open.set()


async def ended(task: "asyncio.Task[Any]") -> Any:
    async with asyncio.timeout(PATIENCE):
        return await task


async def test_a_run_is_freed_when_it_ends_without_the_garbage_collector(lab: Lab) -> None:
    runs: list[weakref.ref[object]] = []

    async def inner(ctx: Context[Conversation]) -> None:
        runs.append(weakref.ref(ctx._run))

    async def outer(ctx: Context[Conversation]) -> None:
        runs.append(weakref.ref(ctx._run))
        await ctx.thread.values.set("a", 1)
        await lab.do(inner)

    gc.collect()
    gc.disable()
    try:
        await lab.do(outer)
        await asyncio.sleep(0)
        assert [run() for run in runs] == [None, None]
    finally:
        gc.enable()


# Scopes of state


async def test_the_state_of_a_run_is_gone_in_the_next(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        ctx.state["a"] = ctx.session.state["a"] = 1

    async def look(ctx: Context[Conversation]) -> Any:
        return ctx.state, ctx.session.state

    await lab.do(put)
    assert await lab.do(look) == ({}, {})


async def test_runs_at_the_same_time_share_no_state_and_an_inner_agent_sees_its_callers() -> None:
    async with open_lab(CountingMemory()) as lab:
        gate = Gate()

        @lab.app.agent("inner", thread=Conversation)
        async def inner(ctx: Context[Conversation]) -> Any:
            ctx.state["inner"] = 1
            return ctx.state["mine"], ctx.session.id

        async def work(ctx: Context[Conversation]) -> Any:
            ctx.state["mine"] = ctx.thread.name
            await gate.wait()
            return await ctx.run("inner"), ctx.state, ctx.session.id

        tasks = [asyncio.create_task(lab.do(work, name)) for name in "ab"]
        await gate.somebody(2)
        gate.open()
        (first, state, session), (second, *_) = [await ended(task) for task in tasks]
        assert (first, second[0]) == (("a", session), "b")
        assert state == {"mine": "a", "inner": 1}


async def test_session_ids_are_new_unless_the_caller_gives_one(lab: Lab) -> None:
    async def look(ctx: Context[Conversation]) -> tuple[str, str]:
        return ctx.session.id, ctx.thread.name

    (one, thread), (two, same) = await lab.do(look), await lab.do(look)
    assert (one != two, thread, same) == (True, "one", "one")
    assert re.fullmatch("sess_[0-9a-f]{32}", one)
    assert await lab.do(look, session_id="mine") == ("mine", "one")


async def test_a_session_without_a_thread_has_one_of_its_own_by_its_user(lab: Lab) -> None:
    async def count(ctx: Context[Conversation]) -> int:
        return await ctx.thread.values.update("count", lambda n: n + 1, 0)

    async def run(user: str | None, session: str) -> int:
        found: int = await lab.app.run("do", count, user_id=user, session_id=session)
        return found

    pairs = [("alice", "s1"), ("bob", "s1"), (None, "s1"), ("None", "s1"), ("a", "b:c"), ("a:b", "c"), ("", "s1")]
    for user, session in pairs[:-1]:
        assert await run(user, session) == 1
    assert await run("alice", "s1") == 2
    with pytest.raises(Exception, match="empty"):
        await run("", "s1")
    with pytest.raises(ValueError, match="empty"):
        await run("alice", "")


async def test_attributes_reach_one_run_by_name_and_by_type_and_are_not_stored(lab: Lab) -> None:
    class Tenant(msgspec.Struct):
        id: str

    async def look(ctx: Context[Conversation]) -> Any:
        return ctx.get(Tenant), ctx.get("request", "none"), ctx.get("missing", 5)

    tenant = Tenant("t7")
    assert await lab.do(look, attributes=[tenant]) == (tenant, "none", 5)
    assert await lab.do(look, attributes={"request": "r1"}) == (None, "r1", 5)

    async def put(ctx: Context[Conversation]) -> Any:
        ctx.put("request", "r2")
        ctx.put(tenant)
        return ctx.get("request"), ctx.get(Tenant)

    assert await lab.do(put) == ("r2", tenant)
    assert await lab.do(look) == (None, "none", 5)
    assert await lab.values() == {}


async def test_the_context_is_found_anywhere_below(lab: Lab) -> None:
    async def deep() -> str:
        return current_context().run_id

    async def work(ctx: Context[Conversation]) -> bool:
        return await asyncio.create_task(deep()) == await deep() == ctx.run_id

    assert await lab.do(work)
    with pytest.raises(LookupError):
        current_context()


# Inputs and outputs


class Question(msgspec.Struct):
    text: str
    tags: list[int] = []


async def test_inputs_and_outputs_are_checked_against_the_annotations() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("ask", thread=Conversation)
        async def ask(ctx: Context[Conversation], input: Question) -> int:
            return len(input.tags) if input.text else "bad"  # type: ignore[return-value]

        assert await lab.app.run("ask", {"text": "a", "tags": [1]}) == 1
        assert await lab.app.run("ask", Question("a")) == 0
        with pytest.raises(InvalidArguments, match="Expected `int`") as refusal:
            await lab.app.run("ask", {"text": "a", "tags": ["x"]})
        assert refusal.value.path == "/tags/0"
        with pytest.raises(TypeError, match="annotation"):
            await lab.app.run("ask", {"text": ""})


@each_case("name", ["", "a b", "interrupt", "a/b", "x" * 129, "é"])
def test_a_name_that_no_agent_can_have_is_refused(name: str) -> None:
    app = Plait(Conversation, store="memory://")
    with pytest.raises(ValueError, match="name of an agent"):

        @app.agent(name, thread=Conversation)
        async def agent(ctx: Context[Conversation]) -> None: ...


def test_an_agent_must_be_an_async_function_and_its_options_make_sense() -> None:
    app = Plait(Conversation, store="memory://")
    with pytest.raises(TypeError, match="async def"):

        @app.agent("a", thread=Conversation)
        def plain(ctx: Context[Conversation]) -> None: ...

    async def agent(ctx: Context[Conversation]) -> None: ...

    with pytest.raises(ValueError, match="multitask"):
        app.agent("a", thread=Conversation, multitask="drop")(agent)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_waiting"):
        app.agent("a", thread=Conversation, max_waiting=-1)(agent)
    app.agent("a", thread=Conversation)(agent)
    with pytest.raises(ValueError, match="two agents"):
        app.agent("a", thread=Conversation)(agent)


# One at a time


async def test_runs_of_a_thread_keep_the_order_of_arrival_and_never_overlap(lab: Lab) -> None:
    running, seen = 0, []

    def make(number: int) -> Any:
        async def work(ctx: Context[Conversation]) -> None:
            nonlocal running
            running += 1
            assert running == 1
            seen.append(number)
            await asyncio.sleep(0)
            assert running == 1
            running -= 1

        return work

    await asyncio.gather(*(lab.do(make(number)) for number in range(24)))
    assert seen == list(range(24))


async def test_runs_of_different_threads_are_parallel(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> None:
        await gate.wait()

    tasks = [asyncio.create_task(lab.do(work, str(number))) for number in range(5)]
    await gate.somebody(5)
    gate.open()
    for task in tasks:
        await ended(task)


@each_case("how", ["fails", "times out", "is cancelled"])
async def test_a_run_that_ends_badly_frees_the_place(how: str) -> None:
    async with open_lab(CountingMemory()) as lab:
        gate = Gate()

        @lab.app.agent("bad", thread=Conversation, timeout=0.02 if how == "times out" else None)
        async def bad(ctx: Context[Conversation]) -> None:
            await gate.wait()
            raise ZeroDivisionError

        async def good(ctx: Context[Conversation]) -> str:
            return "good"

        first = asyncio.create_task(lab.app.run("bad", thread="one"))
        await gate.somebody()
        second = asyncio.create_task(lab.do(good))
        if how == "is cancelled":
            first.cancel()
        if how != "times out":
            gate.open()
        with pytest.raises((ZeroDivisionError, TurnTimeout, asyncio.CancelledError)) as failure:
            await ended(first)
        wanted = {"fails": ZeroDivisionError, "times out": TurnTimeout, "is cancelled": asyncio.CancelledError}
        assert failure.type is wanted[how]
        assert await ended(second) == "good"


async def test_cancelling_a_waiting_run_removes_only_that_one(lab: Lab) -> None:
    gate, seen = Gate(), list[int]()

    async def first(ctx: Context[Conversation]) -> None:
        await gate.wait()

    def make(number: int) -> Any:
        async def work(ctx: Context[Conversation]) -> None:
            seen.append(number)

        return work

    running = asyncio.create_task(lab.do(first))
    await gate.somebody()
    waiting = [asyncio.create_task(lab.do(make(number))) for number in range(3)]
    await asyncio.sleep(0.01)
    waiting[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(waiting[1])
    assert seen == []
    gate.open()
    await ended(running)
    await ended(waiting[0])
    await ended(waiting[2])
    assert seen == [0, 2]


async def test_too_many_waiting_runs_and_too_long_a_wait_are_refused() -> None:
    async with open_lab(CountingMemory()) as lab:
        gate = Gate()

        @lab.app.agent("few", thread=Conversation, max_waiting=1, wait_timeout=0.05)
        async def few(ctx: Context[Conversation]) -> str:
            await gate.wait()
            return "done"

        first = asyncio.create_task(lab.app.run("few", thread="one"))
        await gate.somebody()
        second = asyncio.create_task(lab.app.run("few", thread="one"))
        await asyncio.sleep(0)
        with pytest.raises(TooMany, match="no more") as refusal:
            await lab.app.run("few", thread="one")
        assert refusal.value.retry_after is not None
        with pytest.raises(TooMany, match="waited"):
            await ended(second)
        gate.open()
        assert await ended(first) == "done"


async def test_an_agent_may_reject_or_interrupt_instead_of_waiting() -> None:
    async with open_lab(CountingMemory()) as lab:
        gate = Gate()

        @lab.app.agent("reject", thread=Conversation, multitask="reject")
        async def reject(ctx: Context[Conversation]) -> str:
            return "ran"

        @lab.app.agent("interrupt-it", thread=Conversation, multitask="interrupt")
        async def interrupt(ctx: Context[Conversation]) -> str:
            return "ran"

        async def long(ctx: Context[Conversation]) -> None:
            await ctx.thread.values.set("kept", 1)
            await gate.wait()
            await ctx.checkpoint()

        task = asyncio.create_task(lab.do(long))
        await gate.somebody()
        with pytest.raises(Busy):
            await lab.app.run("reject", thread="one")
        other = asyncio.create_task(lab.app.run("interrupt-it", thread="one"))
        await asyncio.sleep(0)
        gate.open()
        assert await ended(task) == Interruption()
        assert await ended(other) == "ran"
        assert await lab.app.run("reject", thread="one") == "ran"
        assert await lab.values() == {"kept": 1}


async def test_an_agent_that_rejects_waits_for_background_work() -> None:
    async with open_lab(CountingMemory()) as lab:
        gate = Gate()

        @lab.app.agent("reject", thread=Conversation, multitask="reject")
        async def reject(ctx: Context[Conversation]) -> Any:
            return await ctx.thread.values.get("later")

        async def work(ctx: Context[Conversation]) -> None:
            async def later() -> None:
                await gate.wait()
                await ctx.thread.values.set("later", 1)

            ctx.wait_until(later)

        await lab.do(work)
        await gate.somebody()
        task = asyncio.create_task(lab.app.run("reject", thread="one"))
        await asyncio.sleep(0)
        gate.open()
        assert await ended(task) == 1


async def test_what_a_run_staged_is_dropped_when_it_times_out() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("slow", thread=Conversation, timeout=0.02)
        async def slow(ctx: Context[Conversation]) -> None:
            await ctx.thread.values.set("flushed", 1)
            await ctx.flush()
            await ctx.thread.values.set("staged", 1)
            await asyncio.Event().wait()

        with pytest.raises(TurnTimeout):
            await ended(asyncio.create_task(lab.app.run("slow", thread="one")))
        assert await lab.values() == {"flushed": 1}


async def test_what_an_agent_wrote_that_raised_stays_if_its_caller_goes_on(lab: Lab) -> None:
    async def inner(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("inner", 1)
        raise ZeroDivisionError

    async def outer(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("outer", 1)
        with pytest.raises(ZeroDivisionError):
            await ctx.run("do", inner)

    await lab.do(outer)
    assert await lab.values() == {"outer": 1, "inner": 1}


async def test_attributes_are_given_by_names_and_types_in_one_mapping(lab: Lab) -> None:
    """As AgentScope's RuntimeContext: `.put("request_id", …).put(MyTenantInfo.class, new MyTenantInfo("tenant-7"))`."""

    class MyTenantInfo(msgspec.Struct):
        id: str

    class Named(NamedTuple):
        id: str

    async def look(ctx: Context[Conversation]) -> Any:
        assert ctx.user is not None
        ids = ctx.user.id, ctx.session.id
        return *ids, ctx.get("request_id"), ctx.get(MyTenantInfo), ctx.get(Named), ctx.attributes

    found = await lab.app.run(
        "do",
        look,
        user_id="alice",
        session_id="s-001",
        attributes={"request_id": "req-2026-06-01-abc", MyTenantInfo: MyTenantInfo("tenant-7")},
    )
    request = "req-2026-06-01-abc"
    assert found == ("alice", "s-001", request, MyTenantInfo("tenant-7"), None, {"request_id": request})
    found = await lab.do(look, attributes=iter([Named("n")]), user_id="alice", session_id="s-002")
    assert found == ("alice", "s-002", None, None, Named("n"), {})

    async def put(ctx: Context[Conversation]) -> Any:
        ctx.put(object, tenant := MyTenantInfo("t"))
        return ctx.get(object) is tenant

    assert await lab.do(put)


@each_case(
    "attributes", [[("tenant", 7)], ("tenant", 7), {("tenant",): 7}, {1: 7}, {int: "7"}, "tenant", {"a": 1}.items()]
)
async def test_attributes_that_no_name_and_no_type_finds_are_refused(lab: Lab, attributes: Any) -> None:
    async def look(ctx: Context[Conversation]) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"name|type"):
        await lab.do(look, attributes=attributes)

    async def put(ctx: Context[Conversation]) -> None:
        for wrong in ((("tenant", 7),), (1, 7), ("tenant",), ()):
            with pytest.raises(TypeError, match=r"name|type"):
                ctx.put(*wrong)

    await lab.do(put)


@pytest.mark.parametrize("output", [float("nan"), [1.5, float("inf")], {"a": {"b": (float("-inf"),)}}])
@pytest.mark.parametrize("agent", ["do", "stream"])
async def test_an_output_that_is_no_number_is_an_error(lab: Lab, output: Any, agent: str) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        await ctx.thread.values.set("dropped", 1)
        return output

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[Any]:
        yield output

    given: Any = work if agent == "do" else stream
    with pytest.raises(ValueError, match=f"the agent {agent} .* not a number"):
        await lab.app.run(agent, given, thread="one")

    @lab.app.agent("typed", thread=Conversation)
    async def typed(ctx: Context[Conversation]) -> float:
        return float("nan")

    with pytest.raises(ValueError, match="not a number"):
        await lab.app.run("typed", thread="one")
    assert await lab.values() == {}


@each_case("output", [None, 1.5, [None, "null"], {"a": None}, object(), {1: object()}])
async def test_any_other_output_is_no_error(lab: Lab, output: Any) -> None:
    async def work(ctx: Context[Conversation]) -> Any:
        return output

    assert await lab.do(work) is output


async def test_an_agent_shares_the_attributes_of_its_caller(lab: Lab) -> None:
    async def inner(ctx: Context[Conversation]) -> Any:
        ctx.put("mine", 2)
        ctx.put(3.5)
        return ctx.get("plan"), ctx.get(int)

    async def outer(ctx: Context[Conversation]) -> Any:
        ctx.put(7)
        return await ctx.run("do", inner), ctx.get("mine"), ctx.get(float)

    assert await lab.do(outer, attributes={"plan": "pro"}) == (("pro", 7), 2, 3.5)


async def test_agents_that_call_each_other_through_threads_do_not_wait_for_themselves(lab: Lab) -> None:
    async def inner(ctx: Context[Conversation]) -> str:
        return ctx.thread.name

    async def middle(ctx: Context[Conversation]) -> Any:
        return await lab.do(inner, "a"), await lab.do(inner, "b")

    async def outer(ctx: Context[Conversation]) -> Any:
        return await lab.do(middle, "b"), await lab.do(inner, "a")

    async with asyncio.timeout(PATIENCE):
        assert await lab.do(outer, "a") == (("a", "b"), "a")


async def test_a_thousand_runs_with_cancellations_and_errors_leave_the_counts_of_those_that_succeeded(lab: Lab) -> None:
    chance = random.Random(7)
    succeeded: dict[str, int] = {}
    order: dict[str, list[int]] = {}

    def make(number: int, fails: bool) -> Any:
        async def work(ctx: Context[Conversation]) -> None:
            order.setdefault(ctx.thread.name, []).append(number)
            count = await ctx.thread.values.get("count", 0)
            await asyncio.sleep(0)
            await ctx.thread.values.set("count", count + 1)
            if fails:
                raise ZeroDivisionError
            succeeded[ctx.thread.name] = succeeded.get(ctx.thread.name, 0) + 1

        return work

    tasks = []
    for number in range(1000):
        fails, thread = chance.random() < 0.1, str(number % 20)
        tasks.append(asyncio.create_task(lab.do(make(number, fails), thread)))
        if chance.random() < 0.05:
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            chance.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in results if each is not None} <= {ZeroDivisionError, asyncio.CancelledError}
    for name in map(str, range(20)):
        assert await lab.values(name) == {"count": succeeded[name]}
        assert order[name] == sorted(order[name])


# Streams


async def test_a_stream_commits_when_it_ends_by_its_end_by_an_error_or_because_its_caller_left(lab: Lab) -> None:
    def make(key: str, fails: bool) -> Any:
        async def work(ctx: Context[Conversation]) -> AsyncIterator[int]:
            await ctx.thread.values.set(key, "begun")
            yield 1
            if fails:
                raise ZeroDivisionError
            yield 2

        return work

    assert await lab.app.run("stream", make("end", fails=False), thread="one") == [1, 2]
    with pytest.raises(ZeroDivisionError):
        await lab.app.run("stream", make("error", fails=True), thread="one")
    chunks = lab.app.stream("stream", make("left", fails=False), thread="one")
    assert await anext(chunks) == 1
    await chunks.aclose()
    assert await lab.values() == {"end": "begun", "error": "begun", "left": "begun"}


async def test_an_agent_streams_what_another_one_streams() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("numbers", thread=Conversation)
        async def numbers(ctx: Context[Conversation], most: int) -> AsyncIterator[int]:
            for number in range(most):
                yield number

        async def work(ctx: Context[Conversation]) -> AsyncIterator[int]:
            async for chunk in ctx.stream("numbers", 3):
                yield chunk * 2
            yield await ctx.run("numbers", 1)

        assert await lab.app.run("stream", work) == [0, 2, 4, [0]]


# Saving


async def test_what_a_run_saved_is_seen_by_any_request_after_its_answer(lab: Lab) -> None:
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    await lab.do(put)
    await lab.sleep()
    assert await lab.values() == {"a": 1}


async def test_a_failed_save_fails_the_run_and_is_told(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    lab.app.on("agent.errored", lambda ctx, error: told.append((ctx.agent, type(error))))
    lab.app.on("agent.completed", lambda ctx: told.append(ctx.agent))
    submit = lab.store.submit

    def fail(write: Any) -> Any:
        if not write.records:
            return submit(write)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("the disk is full"))
        return future

    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)

    lab.store.submit = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await lab.do(put)
    lab.store.submit = submit  # type: ignore[method-assign]
    assert await lab.values() == {}
    assert told[0] == ("do", StoreError)
    assert "the writes of do in conversation/one could not be stored: the disk is full" in caplog.text


def lose_next(lab: Lab) -> None:
    """Make the next write fail, a moment after it was made."""
    submit = lab.store.submit

    def fail(write: Any) -> Any:
        lab.store.submit = submit  # type: ignore[method-assign]
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, StoreError("the disk is full"))
        return future

    lab.store.submit = fail  # type: ignore[method-assign]


async def test_a_run_in_whose_thread_a_change_is_lost_saves_nothing_and_is_told_as_failed(lab: Lab) -> None:
    told: list[Any] = []
    lab.app.on("agent.errored", lambda ctx, error: told.append(type(error)))
    lab.app.on("agent.completed", lambda ctx: told.append(ctx.agent))

    async def work(ctx: Context[Conversation]) -> str:
        lose_next(lab)
        ctx.thread.set_state({"answer": "lost"})
        await ctx.thread.values.set("a", ctx.thread.state)
        while ctx.thread.state["answer"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return "done"

    with pytest.raises(StoreError, match="the disk is full"):
        await lab.do(work)
    assert await lab.values() == {}
    assert told[0] is StoreError


async def test_a_stream_in_whose_thread_a_change_is_lost_saves_nothing(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> AsyncIterator[str]:
        await ctx.thread.values.set("a", 1)
        lose_next(lab)
        ctx.thread.set_state({"answer": "lost"})
        while ctx.thread.state["answer"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield "done"

    with pytest.raises(StoreError, match="the disk is full"):
        await lab.app.run("stream", work, thread="one")
    assert await lab.values() == {}


async def test_a_run_whose_flush_fails_in_a_task_of_its_own_saves_nothing(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", 1)
        lose_next(lab)
        flushing = asyncio.create_task(ctx.flush())
        await asyncio.wait([flushing])
        return "done"

    with pytest.raises(StoreError, match="the disk is full"):
        await lab.do(work)
    assert await lab.values() == {}


async def test_a_run_is_told_that_its_flush_has_failed_and_goes_on(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", 1)
        lose_next(lab)
        with pytest.raises(StoreError, match="the disk is full"):
            await ctx.flush()
        return "done"

    assert await lab.do(work) == "done"
    assert await lab.values() == {"a": 1}


async def test_a_run_that_has_flushed_before_a_loss_is_in_doubt(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        await ctx.flush()
        await ctx.thread.values.set("b", 2)
        lose_next(lab)
        ctx.thread.set_state({"answer": "lost"})
        await asyncio.Event().wait()

    with pytest.raises(Indeterminate, match="the disk is full"):
        await lab.do(work)
    assert await lab.values() == {"a": 1}


async def test_a_run_that_waits_is_not_cut_short_by_a_loss(lab: Lab) -> None:
    gate = Gate()

    async def first(ctx: Context[Conversation]) -> None:
        await gate.wait()

    async def second(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", ctx.thread.state["answer"])
        return "done"

    cut = asyncio.create_task(lab.do(first))
    await gate.somebody()
    waiting = asyncio.create_task(lab.do(second))
    await asyncio.sleep(0)
    lose_next(lab)
    with pytest.raises(StoreError, match="the disk is full"):
        await (await lab.thread()).set_state({"answer": "lost"})
    with pytest.raises(StoreError, match="the disk is full"):
        await ended(cut)
    assert await ended(waiting) == "done"
    assert await lab.values() == {"a": ""}


async def test_background_work_is_cut_short_by_a_loss_and_changes_nothing_more(lab: Lab) -> None:
    gate, said = Gate(), list[str]()

    async def later(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            try:
                ctx.thread.set_state({"answer": "after the loss"})
            except StoreError:
                said.append("refused")

    async def work(ctx: Context[Conversation]) -> str:
        ctx.wait_until(lambda: later(ctx))
        return "done"

    assert await lab.do(work) == "done"
    await gate.somebody()
    lose_next(lab)
    with pytest.raises(StoreError, match="the disk is full"):
        await (await lab.thread()).set_state({"answer": "lost"})
    assert await lab.values() == {}
    assert said == ["refused"]
    assert (await lab.thread()).state == {"answer": ""}


# Afterwards


async def test_background_work_does_not_delay_the_answer_and_is_stored_also_when_nested(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> str:
        async def inner() -> None:
            await ctx.thread.values.push("log", "inner")

        async def outer() -> None:
            await gate.wait()
            await ctx.thread.values.push("log", "outer")
            ctx.wait_until(inner)

        ctx.wait_until(outer())
        await ctx.thread.values.push("log", "run")
        return "answer"

    assert await lab.do(work) == "answer"
    gate.open()
    assert await lab.values() == {"log": ["run", "outer", "inner"]}


async def test_the_next_run_begins_when_background_work_has_ended(lab: Lab) -> None:
    gate = Gate()

    async def count(ctx: Context[Conversation]) -> None:
        async def later() -> None:
            found = await ctx.thread.values.get("count", 0)
            await gate.wait()
            await ctx.thread.values.set("count", found + 1)

        ctx.wait_until(later)

    await lab.do(count)
    second = asyncio.create_task(lab.do(count))
    await gate.somebody()
    gate.open()
    await ended(second)
    assert await lab.values() == {"count": 2}


async def test_what_a_task_writes_while_the_run_commits_is_stored(lab: Lab) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def work(ctx: Context[Conversation]) -> None:
        async def late() -> None:
            await ctx.thread.values.set("late", 1)

        await ctx.thread.values.push("log", "run")
        tasks.append(asyncio.create_task(late()))

    assert await lab.values() == {}  # They are known from now on, so that the commit begins before the task.
    await lab.do(work)
    await lab.sleep()
    assert await lab.values() == {"log": ["run"], "late": 1}


async def test_what_tasks_write_while_what_followed_the_answer_is_stored_is_not_lost(lab: Lab) -> None:
    submit, variables = lab.store.submit, list[contextvars.Context]()
    tasks: list[asyncio.Task[None]] = []
    outcomes: list[asyncio.Future[int]] = []
    loop = asyncio.get_running_loop()

    async def push(number: int) -> None:
        await (await lab.thread()).values.push("log", number)

    async def finish(
        outcome: asyncio.Future[int], before: list[asyncio.Future[int]], later: asyncio.Future[int]
    ) -> None:
        await asyncio.gather(*before)
        later.set_result(await outcome)

    def watch(write: Any) -> Any:
        """Delay each write until a task of the run has also begun to write."""
        if not write.records:
            return submit(write)
        number, later = len(outcomes), loop.create_future()
        if number < 3:
            tasks.append(loop.create_task(push(number), context=variables[0]))
        tasks.append(loop.create_task(finish(submit(write), list(outcomes), later)))
        outcomes.append(later)
        return later

    async def work(ctx: Context[Conversation]) -> None:
        variables.append(contextvars.copy_context())
        await ctx.thread.values.push("log", "run")

    assert await lab.values() == {}
    lab.store.submit = watch  # type: ignore[method-assign]
    await lab.do(work)
    assert await lab.do(lambda ctx: ctx.thread.values.get("log")) == ["run", 0, 1, 2]
    await asyncio.gather(*tasks)
    await lab.sleep()
    assert await lab.values() == {"log": ["run", 0, 1, 2]}


async def test_a_task_that_outlives_its_run_stores_what_it_writes_at_once(lab: Lab) -> None:
    gate, tasks = Gate(), list[asyncio.Task[None]]()

    async def work(ctx: Context[Conversation]) -> None:
        async def late() -> None:
            await gate.wait()
            await ctx.thread.values.set("late", 1)

        tasks.append(asyncio.create_task(late()))
        await ctx.thread.values.set("run", 1)

    await lab.do(work)
    gate.open()
    await ended(tasks[0])
    assert await lab.app.thread(Conversation, "one").part(Conversation.values).items() == [("run", 1), ("late", 1)]


async def test_an_error_in_background_work_is_logged_and_fails_nothing(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(ctx: Context[Conversation]) -> str:
        async def bad() -> None:
            await ctx.thread.values.set("before", 1)
            raise ZeroDivisionError

        async def good() -> None:
            await ctx.thread.values.set("good", 1)

        ctx.wait_until(bad)
        ctx.wait_until(good)
        return "answer"

    assert await lab.do(work) == "answer"
    assert await lab.values() == {"before": 1, "good": 1}
    assert "ZeroDivisionError" in caplog.text


async def test_a_run_that_raises_still_does_its_background_work(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> None:
        async def later() -> None:
            await gate.wait()
            await ctx.thread.values.set("later", 1)

        ctx.wait_until(later)
        await ctx.thread.values.set("dropped", 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    gate.open()
    assert await lab.values() == {"later": 1}


async def test_listeners_of_completed_run_after_the_answer_in_order_and_what_they_write_is_stored(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    gate, seen = Gate(), list[Any]()

    async def work(ctx: Context[Conversation]) -> str:
        async def first(session: Any) -> None:
            await gate.wait()
            seen.append(session.state["kind"])

        def second(session: Any) -> None:
            raise ZeroDivisionError

        async def third(session: Any) -> None:
            seen.append("third")
            await session.thread.values.set("from", session.id)

        ctx.session.state["kind"] = "chat"
        for listener in (first, second, third):
            ctx.session.add_listener("completed", listener)
        return "answer"

    caplog.set_level(logging.ERROR)
    assert await lab.do(work, session_id="s1") == "answer"
    assert seen == []
    gate.open()
    assert await lab.values() == {"from": "s1"}
    assert seen == ["chat", "third"]
    assert "ZeroDivisionError" in caplog.text


class Tenant:
    """An attribute that is found by its type."""


@each_case(
    "options",
    [
        {"user_id": "bob"},
        {"session_id": "s2"},
        {"attributes": {"plan": "free"}},
        {"attributes": {"other": "pro"}},
        {"attributes": [Tenant()]},
    ],
)
async def test_a_run_in_a_run_of_its_thread_cannot_have_another_user_session_or_attribute(
    lab: Lab, options: dict[str, Any]
) -> None:
    tenant = Tenant()

    async def inner(ctx: Context[Conversation]) -> Any:
        return ctx.user and ctx.user.id, ctx.session.id, ctx.get("plan"), ctx.get(Tenant) is tenant

    async def outer(ctx: Context[Conversation]) -> Any:
        with pytest.raises(ValueError, match="inside of another run"):
            await lab.do(inner, **options)
        ctx.put(tenant)
        same: list[dict[str, Any]] = [
            {},
            {"user_id": "ada", "session_id": "s1", "attributes": {"plan": "pro"}},
            {"attributes": [tenant]},
        ]
        return [await lab.do(inner, **each) for each in same]

    found = await lab.do(outer, user_id="ada", session_id="s1", attributes={"plan": "pro"})
    assert found == [("ada", "s1", "pro", True)] * 3


@pytest.mark.parametrize("user_id", [None, "ada"])
async def test_a_run_in_a_run_of_a_thread_that_is_known_by_name_may_say_whose_session_that_is(
    lab: Lab, user_id: str | None
) -> None:
    async def inner(ctx: Context[Conversation]) -> Any:
        return ctx.thread.name, ctx.user and ctx.user.id

    async def outer(ctx: Context[Conversation]) -> Any:
        return await lab.app.run("do", inner, user_id="ada", session_id="s1")

    session = lab.app.session(Conversation, "s1", user_id="ada")
    assert await lab.app.run("do", outer, thread=session, user_id=user_id) == ("ada:s1", "ada")


async def test_a_run_that_changes_its_default_input_does_not_change_that_of_the_next() -> None:
    missing = object()
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("typed", thread=Conversation)
        async def typed(ctx: Context[Conversation], words: list[str] = []) -> list[str]:  # noqa: B006
            words.append("a")
            return words

        @lab.app.agent("untyped", thread=Conversation)
        async def untyped(ctx: Context[Conversation], words: Any = {"of": []}) -> Any:  # noqa: B006
            words["of"].append("a")
            return words

        @lab.app.agent("marked", thread=Conversation)
        async def marked(ctx: Context[Conversation], words: Any = missing) -> bool:
            return words is missing

        assert [await lab.app.run("typed") for _ in range(2)] == [["a"], ["a"]]
        assert [await lab.app.run("untyped") for _ in range(2)] == [{"of": ["a"]}, {"of": ["a"]}]
        assert await lab.app.run("marked")


async def test_an_input_that_is_not_given_is_its_default_or_none() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("maybe", thread=Conversation)
        async def maybe(ctx: Context[Conversation], number: int | None) -> int | None:
            return number

        @lab.app.agent("usual", thread=Conversation)
        async def usual(ctx: Context[Conversation], number: int = 7) -> int:
            return number

        @lab.app.agent("nothing", thread=Conversation)
        async def nothing(ctx: Context[Conversation]) -> None: ...

        handle = lab.app.thread(Conversation, "one")
        assert [await lab.app.run("maybe"), await lab.app.run("maybe", 1)] == [None, 1]
        assert [await lab.app.run("usual"), await lab.app.run("usual", 1)] == [7, 1]
        assert await lab.app.run("nothing") is None
        with pytest.raises(InvalidArguments, match="no input"):
            await lab.app.run("nothing", 1)
        with pytest.raises(InvalidArguments, match="Expected `int`"):
            await lab.app.run("usual", None)
        assert handle.name == "one"


async def test_clients_are_told_the_types_of_agents() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("ask", thread=Conversation)
        async def ask(ctx: Context[Conversation], question: Question) -> int:
            return len(question.tags)

        assert '"run:ask"(question: QuestionInput): number;' in lab.app.types()["plait-types.ts"]
