"""Stopping an execution from outside: at once, in each phase, until a user writes or it is told to go on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.server.agents.execution.lab import Desk, Lab, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import (
    Agent,
    CallFailed,
    InvalidArguments,
    Messages,
    Plait,
    PromptTool,
    Side,
    SqliteStore,
    Step,
    StoreError,
    Tasks,
    Thread,
    task,
)
from plait.agents.execution.definitions import Model
from plait.agents.execution.tools import tool
from plait.parts.tasks import waits
from plait.store.protocol import Write

STOPPED = "tool Execution stopped by user"


class Talker(Script):
    """A model that says some words and then waits until it is cancelled; it answers when `is_done`."""

    def __init__(self, *, ignores: bool = False) -> None:
        super().__init__("The answer.")
        self.model = Model("script", FunctionModel(stream_function=self._talk, model_name="talker"), attempts=1)
        self.is_done = self.is_cancelled = self.is_over = False
        self._ignores = ignores

    async def _talk(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if self.is_done:
            async for each in self._stream(messages, info):
                yield each
            return
        yield "Half of it"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            if not self._ignores:
                raise
        yield ", and what came too late"
        self.is_over = True


@tool()
async def slow(desk: Desk) -> str:
    """Take long."""
    desk.values.set("slow", "begun")
    begun.set()
    await asyncio.Event().wait()
    return "never"


@tool()
async def quick(desk: Desk) -> str:
    """Take no time."""
    return "quick"


@tool(needs_approval=True)
async def refund(desk: Desk) -> str:
    """Pay back."""
    return "paid back"


@tool()
async def halt(desk: Desk) -> str:
    """Stop the run that calls this."""
    await desk.messages.stop()
    return "halted"


class Office(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    tasks = Tasks()
    messages = Messages(agent="desk")

    @task
    async def go_on(self, step: Step) -> None:
        async def work() -> None:
            assert await self.messages.resume()
            assert not self.messages.is_stopped
            await self.tasks.run("desk")

        await step.do("work", work)


# Set when `slow` has begun.
begun = asyncio.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    begun.clear()


async def check_stopped(lab: Lab) -> None:
    """Check that nothing runs, streams or is open, and that nothing begins."""
    await until(lambda: has_no_runs(lab))
    assert not await lab.texts("streaming")
    assert not await lab.handle.messages.open_calls()
    count = len(await lab.statuses())
    await lab.handle.messages.queue("A notice.", "system")
    await asyncio.gather(*(lab.handle.call(Desk.nothing) for _ in range(20)))
    assert len(await lab.statuses()) == count
    assert [each.content for each in await lab.handle.messages.pending()][-1] == "A notice."


async def has_no_runs(lab: Lab) -> bool:
    return {*await lab.statuses()} <= {"done", "cancelled", "failed"}


async def shows(lab: Lab, *statuses: str) -> bool:
    return bool(await lab.texts(*statuses))


async def begin(lab: Lab, talker: Talker) -> None:
    """Ask, and wait until clients see some words of the answer."""
    await lab.ask("one")
    await until(lambda: shows(lab, "streaming"))


async def test_a_stop_cancels_the_call_of_the_model_and_what_it_has_said_is_failed(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        assert await lab.handle.messages.stop()
        await until(lambda: talker.is_cancelled)
        await until(lambda: shows(lab, "failed"))
        assert await lab.texts("failed") == ["assistant Half of it"]
        assert await lab.texts() == ["user one"]
        assert await lab.statuses() == ["cancelled"]
        await check_stopped(lab)


async def test_what_a_model_says_after_a_stop_is_not_stored(tmp_path: Path) -> None:
    talker = Talker(ignores=True)
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.handle.messages.stop()
        await until(lambda: shows(lab, "failed"))
        assert talker.is_over
        assert await lab.texts() == ["user one"]
        await check_stopped(lab)


async def test_a_failed_message_is_never_shown_to_a_model(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.handle.messages.stop()
        talker.is_done = True
        await lab.ask("two")
        await lab.rest("cancelled", "done")
        assert not any("Half" in text for text in talker.texts())
        assert await lab.texts() == ["user one", "user two", "assistant The answer."]


async def test_a_stop_in_a_tool_answers_all_open_calls_and_drops_what_it_wrote(tmp_path: Path) -> None:
    script = Script([("slow", {}), ("quick", {})], "Well.")
    async with open_lab(tmp_path, script, tools=[slow, quick]) as lab:
        await lab.ask("one")
        await begun.wait()
        assert await lab.handle.messages.stop()
        assert await lab.texts() == ["user one", "assistant ['slow', 'quick']", STOPPED, STOPPED]
        results = [each for each in await lab.history() if each.role == "tool"]
        assert [(each.name, each.metadata) for each in results] == [
            (name, {"plait": {"tool_status": "error"}}) for name in ("slow", "quick")
        ]
        assert await lab.handle.values.get("slow") is None
        await check_stopped(lab)
        assert len(script.seen) == 1


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_stop_ends_a_run_that_waits_for_an_approval(
    has_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_SOON", 0.0), ("_REST", 0.0 if has_left else 60.0)):
        monkeypatch.setattr(waits, name, seconds)
    script = Script(call("refund"), "Well.")
    async with open_lab(tmp_path, script, tools=[refund]) as lab:
        await lab.ask("one")
        await until(lambda: has_status(lab, "sleeping" if has_left else "running"))
        await until(lambda: shows(lab, "completed"))
        await until(lambda: has_calls(lab))
        (run,), (found,) = await lab.handle.tasks.list(), await lab.handle.messages.open_calls()
        assert await lab.handle.messages.stop()
        assert not await lab.handle.tasks.send(run.id, f"approval:{found['id']}", {"approved": True})
        assert await lab.texts() == ["user one", "assistant ['refund']", STOPPED]
        await check_stopped(lab)


async def has_status(lab: Lab, status: str) -> bool:
    return (await lab.statuses())[-1:] == [status]


async def has_calls(lab: Lab) -> bool:
    return bool(await lab.handle.messages.open_calls())


async def test_a_stop_ends_a_run_that_sleeps_until_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SOON", "_REST"):
        monkeypatch.setattr(waits, name, 0.0)
    script = Script(ModelHTTPError(503, "script", headers={"retry-after": "60"}), "Well.", attempts=2)
    async with open_lab(tmp_path, script) as lab:
        await lab.ask("one")
        await until(lambda: has_status(lab, "sleeping"))
        assert await lab.handle.messages.stop()
        assert await lab.texts() == ["user one"]
        await check_stopped(lab)
        assert len(script.seen) == 1


async def test_a_tool_that_stops_its_run_skips_the_calls_after_it_and_the_model(tmp_path: Path) -> None:
    script = Script([("halt", {}), ("quick", {})], "Well.")
    async with open_lab(tmp_path, script, tools=[halt, quick]) as lab:
        await lab.ask("one")
        await until(lambda: has_status(lab, "done"))
        assert await lab.texts() == ["user one", "assistant ['halt', 'quick']", "tool halted", STOPPED]
        await check_stopped(lab)
        assert len(script.seen) == 1


async def test_what_is_queued_stays_after_a_stop_by_the_execution_itself(tmp_path: Path) -> None:
    @tool()
    async def end(desk: Desk) -> str:
        """Stop."""
        desk.messages.queue("two")
        desk.execution.stop()
        return "ended"

    script = Script(call("end"), "Well.")
    async with open_lab(tmp_path, script, tools=[end]) as lab:
        await lab.ask("one")
        await until(lambda: has_status(lab, "done"))
        await check_stopped(lab)
        assert await lab.texts("pending") == ["user two", "system A notice."]
        assert await lab.handle.messages.resume()
        await lab.rest("done", "done")
        assert (await lab.texts())[-1] == "assistant Well."


async def test_what_is_queued_stays_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.ask("two")
        await lab.handle.messages.stop()
        await check_stopped(lab)
        assert await lab.texts("pending") == ["user two", "system A notice."]
        talker.is_done = True
        assert await lab.handle.messages.resume()
        await lab.rest("cancelled", "done")
        assert await lab.texts() == ["user one", "user two", "system A notice.", "assistant The answer."]
        assert not await lab.handle.messages.resume()


async def test_to_go_on_with_nothing_queued_asks_the_model_again(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.handle.messages.stop()
        talker.is_done = True
        assert await lab.handle.messages.resume()
        await lab.rest("cancelled", "done")
        assert await lab.texts() == ["user one", "assistant The answer."]


async def test_a_stopped_agent_answers_a_question_again(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.handle.messages.stop()
        talker.is_done = True
        assert await lab.handle.messages.regenerate()
        await lab.rest("cancelled", "done")
        assert await lab.texts() == ["user one", "assistant The answer."]


async def test_a_message_that_comes_while_the_branch_is_changed_ends_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.handle.messages.stop()
        messages = (await lab.app._node.actor(lab.handle._key)).thread.messages  # type: ignore[attr-defined]
        first = (await messages.list()).messages[0]
        talker.is_done = True
        read = messages._writer.history.outlines

        def queue_and_read(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            messages.queue("more")
            return read(*args, **options)

        await messages.edit(first.id, "other")
        await messages.stop()
        monkeypatch.setattr(messages._writer.history, "outlines", queue_and_read)
        await messages.switch(first.id)
        assert not messages.is_stopped


async def test_a_second_stop_and_one_at_rest_cancel_nothing(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        assert sorted(await asyncio.gather(lab.handle.messages.stop(), lab.handle.messages.stop())) == [False, True]
        assert not await lab.handle.messages.stop()
        talker.is_done = True
        await lab.ask("two")
        await lab.rest("cancelled", "done")
        assert not await lab.handle.messages.stop()
        await check_stopped(lab)
        assert await lab.texts() == ["user one", "user two", "assistant The answer."]
        assert await lab.handle.messages.resume()
        await lab.rest("cancelled", "done", "done")
        assert (await lab.texts())[-2:] == ["system A notice.", "assistant The answer."]


async def test_a_stop_is_durable(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await begin(lab, talker)
        await lab.ask("two")
        await lab.handle.messages.stop()
    talker.is_done = True
    async with open_lab(tmp_path, talker) as lab:
        await check_stopped(lab)
        assert await lab.texts("failed") == ["assistant Half of it"]
        await lab.handle.messages.resume()
        await lab.rest("cancelled", "done")
        assert (await lab.texts())[-1] == "assistant The answer."


async def test_a_run_of_a_caller_is_stopped_too(tmp_path: Path) -> None:
    talker = Talker()
    async with open_lab(tmp_path, talker) as lab:
        await lab.handle.messages.inject("user", "one")
        running = asyncio.create_task(lab.app.run("desk", thread=lab.handle))
        await until(lambda: shows(lab, "streaming"))
        assert await lab.handle.messages.stop()
        with pytest.raises(CallFailed, match="cancelled"):
            await running
        await check_stopped(lab)


async def test_a_run_by_name_of_a_stopped_agent_is_refused_and_not_stored(tmp_path: Path) -> None:
    script = Script("Yes.")
    async with open_lab(tmp_path, script) as lab:
        await lab.handle.messages.inject("user", "one")
        await lab.handle.messages.stop()
        begins: list[Callable[[], Awaitable[Any]]] = [
            lambda: lab.app.run("desk", thread=lab.handle),
            lambda: lab.handle.tasks.run("desk"),
            lambda: lab.handle.tasks.run("desk", key="mine"),
        ]
        for begin in begins:
            with pytest.raises(InvalidArguments, match=r"'desk' was stopped in desk/one: `messages\.resume"):
                await begin()
        assert await lab.statuses() == []
        assert await lab.handle.call(Desk.is_at_rest)
        await lab.handle.messages.resume()
        await lab.rest()
        await lab.handle.messages.inject("user", "two")
        assert await lab.app.run("desk", thread=lab.handle) == "Yes."


async def test_a_step_that_has_the_agent_go_on_may_run_it_by_its_name(tmp_path: Path) -> None:
    script = Script("Yes.")
    app = Plait(Office, store=f"sqlite:///{tmp_path / 'plait.db'}")
    app.execution(Office, agents=[Agent("desk", Side("clerk"))], prompts=[make_prompt("clerk")], models=[script.model])
    async with app:
        lab = Lab(app, Office)
        await lab.handle.messages.inject("user", "one")
        await lab.handle.messages.stop()
        await lab.handle.tasks.run("go_on")
        await lab.rest("done", "done")
        assert await lab.texts() == ["user one", "assistant Yes."]


@pytest.mark.parametrize("name", ["slow", "refund"])
async def test_a_stop_answers_the_open_calls_of_prompts_that_are_tools_too(tmp_path: Path, name: str) -> None:
    outer = Script(call("helper", message="Do it."), "Never.")
    inner = Script([(name, {}), ("quick", {})], name="inner")
    prompts = [make_prompt("clerk", PromptTool("helper")), make_prompt("helper", slow, refund, quick, model="inner")]
    async with open_lab(tmp_path, outer, inner, prompts=prompts) as lab:
        await lab.ask("Hello?")
        await until(lambda: has_asked(inner))
        if name == "slow":
            await until(has_begun)
        else:
            await until(lambda: is_sleeping(lab))
        assert await lab.handle.messages.stop()
        found = (await lab.handle.messages.list(1000, include_silent=True, max_depth=9)).messages
        results = [(each.depth, each.name, each.content) for each in found if each.role == "tool"]
        text = "Execution stopped by user"
        assert results == [(1, name, text), (1, "quick", text), (0, "helper", text)]
        (asked,) = [each for each in found if each.depth and each.tool_calls]
        assert {each.parent_id for each in found if each.depth} == {asked.parent_id}
        await check_stopped(lab)


async def test_a_tool_of_a_prompt_that_stops_the_run_ends_the_later_calls_of_the_prompt(tmp_path: Path) -> None:
    outer = Script(call("helper", message="Do it."), "Never.")
    inner = Script([("halt", {}), ("quick", {})], name="inner")
    prompts = [make_prompt("clerk", PromptTool("helper")), make_prompt("helper", halt, quick, model="inner")]
    async with open_lab(tmp_path, outer, inner, prompts=prompts) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        found = (await lab.handle.messages.list(1000, include_silent=True, max_depth=9)).messages
        results = [(each.name, each.content) for each in found if each.role == "tool" and each.depth]
        assert results == [("halt", "halted"), ("quick", "Execution stopped by user")]
    assert len(outer.seen) == 1


async def has_begun() -> bool:
    return begun.is_set()


async def has_asked(script: Script) -> bool:
    return bool(script.seen)


async def is_sleeping(lab: Lab) -> bool:
    return await lab.statuses() == ["sleeping"]


async def test_a_queued_tool_waits_for_the_end_of_a_stop(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script("Yes."), tools=[quick]) as lab:
        await lab.ask("Hi.")
        await lab.rest()
        await lab.handle.messages.stop()
        await lab.handle.call(Desk.queue, "quick", {})
        assert await lab.handle.messages.resume()
        await lab.rest("done", "done")
        assert (await lab.texts())[3:] == ["assistant ['quick']", "tool quick", "assistant Yes."]


async def test_a_tool_stops_its_run_also_after_the_calls_of_an_earlier_one_were_answered(tmp_path: Path) -> None:
    script = Script(call("refund"), [("halt", {}), ("quick", {})])
    async with open_lab(tmp_path, script, tools=[refund, halt, quick]) as lab:
        await lab.ask("one")
        await lab.rest("sleeping")
        (run,) = await lab.handle.tasks.list()
        await lab.handle.tasks.cancel(run.id)
        await lab.ask("two")
        await lab.rest("cancelled", "done")
        assert (await lab.texts("completed", "failed"))[-2:] == ["tool halted", STOPPED]


TERMINATED = "tool The thread was terminated before this call had a result."


class FullDisk(SqliteStore):
    """A store that does not store the results of calls that a terminated thread has left."""

    is_full, refusals = True, 0

    def submit(self, write: Write) -> asyncio.Future[int]:
        if self.is_full and any(b"was terminated before" in (each.value or b"") for each in write.records):
            self.refusals += 1
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreError("the disk is full"))
            return failed
        return super().submit(write)


@pytest.mark.parametrize("work", [slow, refund])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_termination_answers_open_calls_also_after_a_restart(
    tmp_path: Path, work: Any, is_restarted: bool
) -> None:
    store = FullDisk(tmp_path / "plait.db")
    store.is_full = is_restarted
    script = Script([(work.name, {}), ("quick", {})])
    async with open_lab(tmp_path, script, tools=[work, quick], store=store) as lab:
        await lab.ask("Go.")
        await until(has_begun if work is slow else lambda: is_waiting(lab))
        await lab.handle.terminate()
        await until((lambda: store.refusals > 0) if is_restarted else lambda: has_results(lab))
    async with open_lab(tmp_path, script, tools=[work, quick]) as lab:
        await until(lambda: has_results(lab))
        assert (await lab.texts())[2:] == [TERMINATED, TERMINATED]
        assert await lab.handle.messages.open_calls() == []
        assert len(script.seen) == 1


async def is_waiting(lab: Lab) -> bool:
    return await lab.statuses() == ["sleeping"]


async def has_results(lab: Lab) -> bool:
    return len(await lab.texts()) == 4
