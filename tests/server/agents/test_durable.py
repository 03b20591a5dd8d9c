"""Durable agents: the queue begins them, and their steps survive a restart."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases import each_case
from tests.server.parts.workshop import until
from tests.told import INTERNAL

from plait import CallFailed, Context, Messages, NotFound, Plait, Tasks, Thread, Values, rpc, task
from plait.clock import read_due_clock
from plait.parts.attempts import RetryPolicy
from plait.parts.tasks import waits
from plait.store.thread_rows import ThreadKey

Script = Callable[[Context["Desk"]], Awaitable[Any]]


class Desk(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.05
    values = Values()
    tasks = Tasks()
    messages = Messages(agent="clerk")

    @task
    async def other(self, step: Any) -> None: ...

    @rpc
    async def ask(self, *, text: str) -> None:
        await self.messages.queue(text)


class Lab:
    def __init__(self, app: Plait, seen: list[Any]) -> None:
        self.app = app
        self.seen = seen
        self.handle: Any = app.thread(Desk, "one")

    async def texts(self, *statuses: str) -> list[str]:
        page = await self.handle.messages.list(include_silent=True)
        return [f"{m.role} {m.content}" for m in page.messages if m.status in (statuses or ("completed",))]

    async def statuses(self) -> list[str]:
        return [run.status for run in await self.handle.tasks.list()]


@asynccontextmanager
async def open_lab(folder: Path, script: Script, *, timeout: float | None = None) -> AsyncIterator[Lab]:
    app, seen = Plait(Desk, store=f"sqlite:///{folder / 'plait.db'}", shutdown_timeout=0.1), list[Any]()

    @app.agent("clerk", thread=Desk, durable=True, timeout=timeout)
    async def clerk(ctx: Context[Desk]) -> Any:
        seen.append(ctx.run_id)
        return await script(ctx)

    @app.agent("plain", thread=Desk)
    async def plain(ctx: Context[Desk]) -> str:
        return "plain"

    async with app:
        yield Lab(app, seen)


async def answer(ctx: Context[Desk]) -> None:
    messages = ctx.thread.messages

    async def take() -> list[str | None]:
        return [each.content for each in await messages.take()]

    taken = await ctx.step.do("take", take)

    async def say() -> None:
        await messages.inject("assistant", f"re {','.join(taken)}")

    await ctx.step.do("say", say)


async def test_the_queue_begins_a_run_that_takes_messages_in_its_steps(tmp_path: Path) -> None:
    async with open_lab(tmp_path, answer) as lab:
        await lab.handle.messages.queue("hello")
        await until_texts(lab, ["user hello", "assistant re hello"])
        assert await lab.statuses() == ["done"]
        await lab.handle.messages.queue("more")
        await until_texts(lab, ["user hello", "assistant re hello", "user more", "assistant re more"])
        assert len(lab.seen) == 2


async def until_texts(lab: Lab, texts: list[str]) -> None:
    """Wait until the history has these texts, and no run is under way."""

    async def look() -> bool:
        return await lab.texts() == texts and not set(await lab.statuses()) - {"done", "failed"}

    await until(look)


async def until_text(lab: Lab, text: str) -> None:
    async def look() -> bool:
        return text in await lab.texts()

    await until(look)


async def until_status(lab: Lab, status: str) -> None:
    async def look() -> bool:
        return await lab.statuses() == [status]

    await until(look)


async def test_messages_that_come_during_a_run_wait_for_it_and_begin_the_next_one(tmp_path: Path) -> None:
    async def wait_first(ctx: Context[Desk]) -> None:
        await answer(ctx)
        await ctx.step.event("go")

    async with open_lab(tmp_path, wait_first) as lab:
        await lab.handle.messages.queue("a")
        await until_text(lab, "assistant re a")
        await lab.handle.messages.queue("b")
        await lab.handle.messages.queue("c")
        assert await lab.texts("pending") == ["user b", "user c"]
        (run,) = await lab.handle.tasks.list()
        await lab.handle.tasks.send(run.id, "go")
        await until_text(lab, "assistant re b,c")


async def test_a_run_goes_on_after_a_restart_without_its_finished_steps(tmp_path: Path) -> None:
    async def wait_between(ctx: Context[Desk]) -> None:
        done: list[str] = []
        await ctx.step.do("first", lambda: done.append("first"))
        await ctx.step.event("go")
        await answer(ctx)
        assert done == []

    async with open_lab(tmp_path, wait_between) as lab:
        await lab.handle.messages.queue("hello")
        await until_status(lab, "running")
    async with open_lab(tmp_path, wait_between) as lab:
        (run,) = await lab.handle.tasks.list()
        assert await lab.handle.tasks.send(run.id, "go")
        await until_texts(lab, ["user hello", "assistant re hello"])


async def test_a_run_that_a_shutdown_cuts_off_goes_on_after_it(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def hang(ctx: Context[Desk]) -> None:
        begun.set()
        await ctx.step.do("hang", asyncio.Event().wait)

    async with open_lab(tmp_path, hang) as lab:
        await lab.handle.messages.queue("hello")
        async with asyncio.timeout(10):
            await begun.wait()
    async with open_lab(tmp_path, answer) as lab:
        await until_texts(lab, ["user hello", "assistant re hello"])
        assert await lab.statuses() == ["done"]


async def test_a_run_that_waits_leaves_the_run_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_REST", 0.0)

    async def wait(ctx: Context[Desk]) -> None:
        await ctx.step.event("go")
        await answer(ctx)

    async with open_lab(tmp_path, wait) as lab:
        await lab.handle.messages.queue("hello")
        await until_status(lab, "sleeping")
        async with asyncio.timeout(10):
            assert await lab.app.run("plain", thread=lab.handle) == "plain"


async def test_outside_of_steps_parts_cannot_be_written(tmp_path: Path) -> None:
    errors = list[str]()

    async def write(ctx: Context[Desk]) -> None:
        for write in (
            lambda: ctx.thread.values.set("a", 1),
            ctx.thread.messages.take,
            lambda: ctx.thread.messages.inject("assistant", "x"),
        ):
            with pytest.raises(RuntimeError, match="in its steps only") as caught:
                await write()
            errors.append(str(caught.value))
        await answer(ctx)

    async with open_lab(tmp_path, write) as lab:
        await lab.handle.messages.queue("hello")
        await until_texts(lab, ["user hello", "assistant re hello"])
        assert len(errors) == 3
        assert await lab.handle.values.get("a") is None


async def test_a_run_that_takes_nothing_is_tried_five_times_and_its_message_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.messages.caller.PAUSES", RetryPolicy(5, 0.001, 0.001, is_random=False))

    async def fail(ctx: Context[Desk]) -> None:
        if [each.content for each in await ctx.thread.messages.pending()][:1] == ["bad"]:
            raise ValueError("no")
        await answer(ctx)

    async with open_lab(tmp_path, fail) as lab:
        await lab.handle.messages.queue("bad")
        await lab.handle.messages.queue("good")
        await until_texts(lab, ["user good", "assistant re good"])
        assert await lab.texts("failed") == ["user bad"]
        assert (await lab.statuses()).count("failed") == 5


async def test_a_run_that_ends_well_without_its_message_is_tried_five_times_and_its_message_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plait.parts.messages.caller.PAUSES", RetryPolicy(5, 0.001, 0.001, is_random=False))

    async def ignore(ctx: Context[Desk]) -> None: ...

    async with open_lab(tmp_path, ignore) as lab:
        await lab.handle.messages.queue("hello")
        await until_no_message_waits(lab)
        assert await lab.texts("failed") == ["user hello"]
        assert await lab.statuses() == ["done"] * 5
    assert "the agent clerk has not taken a queued message in 5 runs" in caplog.text


async def test_on_error_gets_the_error_of_a_message_that_runs_have_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.messages.caller.PAUSES", RetryPolicy(2, 0.001, 0.001, is_random=False))
    errors = list[str]()

    async def ignore(ctx: Context[Desk]) -> None: ...

    async def on_error(self: Desk, error: BaseException, connection: Any) -> None:
        errors.append(f"{error}")

    monkeypatch.setattr(Desk, "on_error", on_error)
    async with open_lab(tmp_path, ignore) as lab:
        await lab.handle.messages.queue("hello")
        await until(lambda: errors != [])
        assert await lab.texts("failed") == ["user hello"]
    assert errors == ["the agent clerk has not taken a queued message in 2 runs: it must call `messages.take()`"]


async def test_runs_of_callers_are_no_attempts_at_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()

    async def wait_first(ctx: Context[Desk]) -> None:
        if await ctx.step.do("is first", lambda: not begun):
            begun.append("queue")
            await ctx.step.event("go")

    monkeypatch.setattr(waits, "_REST", 0.0)  # The run queue is free then.
    async with open_lab(tmp_path, wait_first) as lab:
        await lab.handle.messages.queue("hello")
        await until_status(lab, "sleeping")
        desk = await lab.app._node.actor(ThreadKey("desk", "one"))
        attempts = Desk.messages.of(desk)._writer.state.head.attempts
        await lab.app.run("clerk", thread=lab.handle)
        assert Desk.messages.of(desk)._writer.state.head.attempts == attempts


async def until_no_message_waits(lab: Lab) -> None:
    async def look() -> bool:
        return await lab.texts("pending") == []

    await until(look)


async def test_the_next_run_begins_after_a_pause_if_one_is_cancelled_before_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.attempt_runner.PAUSES", RetryPolicy(5, 3600, 3600, is_random=False))

    async def wait(ctx: Context[Desk]) -> None:
        await ctx.step.event("never")

    async with open_lab(tmp_path, wait) as lab:
        await lab.handle.messages.queue("hello")
        await until_status(lab, "running")
        begun = read_due_clock()
        await lab.handle.tasks.cancel((await lab.handle.tasks.list())[0].id)
        assert await lab.statuses() == ["cancelled"]
        assert await lab.texts("pending") == ["user hello"]
        desk = await lab.app._node.actor(ThreadKey("desk", "one"))
        assert Desk.messages.of(desk)._writer.state.head.attempts.due >= begun + 3600 * 1_000_000


@pytest.mark.parametrize("in_step", [False, True])
async def test_a_run_that_takes_too_long_fails_with_a_timeout(in_step: bool, tmp_path: Path) -> None:
    async def hang(ctx: Context[Desk]) -> None:
        if in_step:
            await ctx.step.do("hang", asyncio.Event().wait)
        await asyncio.Event().wait()

    async with open_lab(tmp_path, hang, timeout=0.05) as lab:
        with pytest.raises(RuntimeError, match="TurnTimeout: the run has taken longer"):
            await lab.app.run("clerk", thread=lab.handle)


async def test_a_run_that_fails_after_it_took_its_message_ends_with_it(tmp_path: Path) -> None:
    async def fail(ctx: Context[Desk]) -> None:
        await answer(ctx)
        raise ValueError("later")

    async with open_lab(tmp_path, fail) as lab:
        await lab.handle.messages.queue("hello")
        await until_texts(lab, ["user hello", "assistant re hello"])
        assert await lab.statuses() == ["failed"]
        await until(lambda: len(lab.seen) == 1)


async def test_a_durable_agent_needs_tasks_and_a_name_of_its_own() -> None:
    class Bare(Thread[None]):
        messages = Messages(agent="clerk")

    async def clerk(ctx: Context[Any]) -> None: ...

    async def stream(ctx: Context[Any]) -> AsyncIterator[str]:
        yield ""

    app = Plait(Bare, Desk)
    with pytest.raises(TypeError, match="Bare needs `tasks = Tasks\\(\\)`"):
        app.agent("clerk", thread=Bare, durable=True)(clerk)
    with pytest.raises(ValueError, match="Desk has a task named 'other'"):
        app.agent("other", thread=Desk, durable=True)(clerk)
    with pytest.raises(ValueError, match="Desk has messages named 'messages'"):  # Which are those of the clerk.
        app.agent("messages", thread=Desk, durable=True)(clerk)
    with pytest.raises(TypeError, match="must not stream"):
        app.agent("clerk", thread=Desk, durable=True)(stream)


async def test_only_a_durable_agent_has_steps(tmp_path: Path) -> None:
    async def nothing(ctx: Context[Desk]) -> None: ...

    async with open_lab(tmp_path, nothing) as lab:

        @lab.app.agent("asks", thread=Desk)
        async def asks(ctx: Context[Desk]) -> None:
            _ = ctx.step

        with pytest.raises(RuntimeError, match="add it with durable=True"):
            await lab.app.run("asks", thread=lab.handle)


async def test_a_caller_gets_the_output_of_a_run_of_its_own(tmp_path: Path) -> None:
    async def wait(ctx: Context[Desk]) -> str:
        await ctx.step.sleep("rest", 0.01)
        return str(await ctx.step.do("value", lambda: 7))

    async def fail(ctx: Context[Desk]) -> None:
        raise ValueError("no")

    async with open_lab(tmp_path, wait) as lab:
        assert await lab.app.run("clerk", thread=lab.handle) == "7"
    async with open_lab(tmp_path, fail) as lab:
        with pytest.raises(RuntimeError, match="the agent clerk has failed: ValueError: no"):
            await lab.app.run("clerk", thread=lab.handle)


async def test_clients_do_not_see_the_error_of_a_run(tmp_path: Path) -> None:
    async def fail(ctx: Context[Desk]) -> None:
        raise ValueError("the password is hunter2")

    async with open_lab(tmp_path, fail) as lab:
        transport = httpx.ASGITransport(lab.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
            answer = await web.post("/threads/desk/one/run/clerk")
        assert INTERNAL.search(answer.text)
        assert "hunter2" not in answer.text
        with pytest.raises(RuntimeError, match="hunter2"):
            await lab.app.run("clerk", thread=lab.handle)


async def test_the_caller_of_a_run_that_is_cancelled_gets_call_failed(tmp_path: Path) -> None:
    async def wait(ctx: Context[Desk]) -> None:
        await ctx.step.event("go")

    async with open_lab(tmp_path, wait) as lab:
        calling = asyncio.create_task(lab.app.run("clerk", thread=lab.handle))
        await until_status(lab, "running")
        await lab.handle.tasks.cancel((await lab.handle.tasks.list())[0].id)
        with pytest.raises(CallFailed, match="the agent clerk was cancelled"):
            await calling


async def test_a_stop_ends_a_step_and_the_agent_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    is_held, has_begun = True, asyncio.Event()

    async def hang(ctx: Context[Desk]) -> None:
        async def wait() -> None:
            ctx.thread.messages.inject("assistant", "begun")
            has_begun.set()
            await asyncio.Event().wait()

        if is_held:
            await ctx.step.do("wait", wait)
        await answer(ctx)

    async with open_lab(tmp_path, hang) as lab:
        await lab.handle.messages.queue("one")
        await has_begun.wait()
        assert await lab.handle.messages.stop()
        assert await lab.statuses() == ["cancelled"]
        assert await lab.texts("completed", "pending") == ["user one"]
        is_held = False
        assert await lab.handle.messages.resume()
        await until(lambda: _has_said(lab, "assistant re one"))


async def _has_said(lab: Lab, text: str) -> bool:
    return text in await lab.texts()


async def test_only_a_durable_agent_can_be_stopped(tmp_path: Path) -> None:
    class Plain(Thread[dict[str, Any]]):
        initial_state = {}  # noqa: RUF012
        messages = Messages()

    async with Plait(Plain, store="memory:") as app:
        handle: Any = app.thread(Plain, "one")
        for work in ("stop", "resume"):
            with pytest.raises(NotFound, match="only a durable agent can be stopped"):
                await getattr(handle.messages, work)()


@each_case("name", ["stop", "continue"])
def test_no_agent_has_the_name_of_a_method_that_stops(name: str) -> None:
    async def work(ctx: Context[Desk]) -> None: ...

    with pytest.raises(ValueError, match="cannot be the name of an agent"):
        Plait(Desk, store="memory:").agent(name, thread=Desk)(work)


async def test_the_queue_goes_on_if_its_agent_has_become_durable_after_it_ended_the_process(tmp_path: Path) -> None:
    before, begun = Plait(Desk, store=f"sqlite:///{tmp_path / 'before.db'}", shutdown_timeout=0.1), asyncio.Event()

    @before.agent("clerk", thread=Desk)
    async def clerk(ctx: Context[Desk]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with before:
        desk: Any = before.thread(Desk, "one")
        await desk.messages.queue("Hello")
        async with asyncio.timeout(10):
            await begun.wait()
        paths = [str(tmp_path / name) for name in ("before.db", "plait.db")]
        with closing(sqlite3.connect(paths[0])) as store, closing(sqlite3.connect(paths[1])) as copy:
            store.backup(copy)  # What a crash would leave.
    async with open_lab(tmp_path, answer) as lab:
        await lab.handle.messages.list()  # Wakes the thread.
        await until_texts(lab, ["user Hello", "assistant re Hello"])


async def test_a_run_that_waits_for_its_own_end_is_told_so(tmp_path: Path) -> None:
    async def wait(ctx: Context[Desk]) -> None:
        await answer(ctx)

        async def wait() -> None:
            await ctx.thread.tasks.wait(ctx.step.id)

        await ctx.step.do("wait", wait, attempts=1)

    async with open_lab(tmp_path, wait) as lab:
        await lab.handle.messages.queue("Hello")
        await until_status(lab, "failed")
        (run,) = await lab.handle.tasks.list()
        assert "waits for its own end" in run.error
