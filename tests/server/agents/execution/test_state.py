"""The execution and the agents of a thread, as its tools see them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.agents.execution.lab import Desk, HeldEnd, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import Agent, Handoff, Hooks, Message, NotFound, Plait, PromptTool, Side, Thread, rpc
from plait.agents.execution.tools import ToolResult, tool
from plait.parts.messages.message import read_own

notes = list[Any]()


@pytest.fixture(autouse=True)
def _forget() -> None:
    notes.clear()


@tool
async def look(desk: Desk) -> str:
    """Look at the execution."""
    found = desk.execution
    counts = (found.step_count, found.side_a_step_count, found.side_b_step_count)
    notes.append((found.side, counts, found.prompt_path, found.stopped, found.stopped_by))
    return "seen"


@tool
def remember(desk: Desk, value: int) -> str:
    """Remember a value."""
    desk.execution.context["value"] = value
    return "remembered"


@tool
def recall(desk: Desk) -> str:
    """Recall the value."""
    return str(desk.execution.context.get("value"))


@tool
def stop(desk: Desk) -> str:
    """Stop."""
    desk.execution.stop()
    notes.append((desk.execution.stopped, desk.execution.stopped_by))
    return "stopping"


def pair(**options: Any) -> list[Agent]:
    return [Agent("desk", Side("clerk"), Side("critic", session_stop="finish"), **options)]


@tool
def finish(desk: Desk) -> str:
    """End the session."""
    return "over"


async def test_the_steps_of_each_side_are_counted_and_the_prompt_is_named(tmp_path: Path) -> None:
    ours = Script(call("look"), "Yes.", call("look"), "Well.", name="ours")
    theirs = Script(call("look"), "Go on.", call("finish"), name="theirs")
    prompts = [make_prompt("clerk", look, model="ours"), make_prompt("critic", look, finish, model="theirs")]
    async with open_lab(tmp_path, ours, theirs, agents=pair(), prompts=prompts) as lab:
        await lab.ask("Hello?")
        await lab.rest()
    assert notes == [
        ("a", (1, 1, 0), ["clerk"], False, None),
        ("b", (3, 2, 1), ["critic"], False, None),
        ("a", (5, 3, 2), ["clerk"], False, None),
    ]


async def test_the_path_names_the_prompt_of_the_agent_after_a_handoff(tmp_path: Path) -> None:
    script = Script([("look", {}), ("billing", {})], call("look"), "Paid.")
    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("payer"))]
    prompts = [make_prompt("clerk", look, Handoff("billing")), make_prompt("payer", look)]
    async with open_lab(tmp_path, script, agents=agents, prompts=prompts) as lab:
        await lab.ask("Pay.")
        await lab.rest()
    assert [each[2] for each in notes] == [["clerk"], ["payer"]]


async def test_a_run_has_its_id_and_its_history(tmp_path: Path) -> None:
    @tool
    async def read(desk: Desk) -> str:
        """Read the history."""
        await desk.messages.inject("user", "an aside")
        history: list[Message] = await desk.execution.history()
        notes.extend([desk.execution.flow_id, *(each.content for each in history)])
        return "read"

    script = Script(call("read"), "Yes.")
    async with open_lab(tmp_path, script, tools=[read]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        (run,) = await lab.handle.tasks.list()
    assert notes == [run.id, "Hello?", "", "an aside"]
    assert script.texts()[-1] == "user-prompt an aside"


async def test_stop_ends_the_run_without_the_later_calls_and_without_another_answer(tmp_path: Path) -> None:
    script = Script([("stop", {}), ("look", {})], "Never.")
    async with open_lab(tmp_path, script, tools=[stop, look]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2:] == [
            "tool stopping",
            "tool The execution was stopped before this call.",
        ]
        assert [read_own(each)["tool_status"] for each in (await lab.history())[2:]] == ["success", "error"]
    assert notes == [(True, "a")]
    assert len(script.seen) == 1


async def test_a_hook_that_stops_prevents_the_call_of_the_model(tmp_path: Path) -> None:
    class Stopping(Hooks):
        def filter_messages(self, thread: Any, messages: Any) -> None:
            thread.execution.stop()

    script = Script("Never.")
    async with open_lab(tmp_path, script, agents=[Agent("desk", Side("clerk"), hooks=Stopping())]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == ["user Hello?"]
    assert script.seen == []


@pytest.mark.parametrize(("forced", "expected"), [("a", ["a", "a", "b"]), ("b", ["a", "b"])])
async def test_a_forced_turn_is_that_of_the_side_whatever_else_is_next(
    tmp_path: Path, forced: Any, expected: list[str]
) -> None:
    @tool
    def force(desk: Desk) -> str:
        """Force a turn."""
        desk.execution.force_turn(forced)
        return "forced"

    class Sides(Hooks):
        def after_system_message(self, thread: Any, text: str) -> None:
            notes.append(thread.execution.side)

    ours, theirs = Script(call("force"), "Yes.", name="ours"), Script(call("finish"), name="theirs")
    prompts = [make_prompt("clerk", force, model="ours"), make_prompt("critic", finish, model="theirs")]
    agents = [Agent("desk", Side("clerk", stop_tool="force"), Side("critic", session_stop="finish"), hooks=Sides())]
    async with open_lab(tmp_path, ours, theirs, agents=agents, prompts=prompts) as lab:
        await lab.ask("Hello?")
        await lab.rest()
    assert notes == expected


async def test_a_turn_of_a_side_that_there_is_not_cannot_be_forced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def force(desk: Desk) -> str:
        """Force a turn."""
        desk.execution.force_turn("b")
        return "forced"

    async with open_lab(tmp_path, Script(call("force"), "Yes."), tools=[force]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2] == "tool Failed to execute tool: ValueError"
    assert "the agent 'desk' has no turn of the side 'b'" in caplog.text


async def test_the_context_is_shared_by_the_tools_of_a_run_and_ends_with_it(tmp_path: Path) -> None:
    script = Script([("remember", {"value": 7}), ("recall", {})], call("recall"), "Yes.", call("recall"), "No.")
    async with open_lab(tmp_path, script, tools=[remember, recall]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        await lab.ask("Again?")
        await lab.rest("done", "done")
        assert [each for each in await lab.texts() if each.startswith("tool ")][1:] == ["tool 7", "tool 7", "tool None"]


async def test_the_context_survives_a_restart_between_two_calls_of_an_answer(tmp_path: Path) -> None:
    begun = asyncio.Event()
    hangs = True

    @tool(idempotent=True)
    async def wait(desk: Desk) -> str:
        """Wait."""
        begun.set()
        if hangs:
            await asyncio.Event().wait()
        return f"value {desk.execution.context['value']}"

    script = Script([("remember", {"value": 7}), ("wait", {})], "Yes.")
    async with open_lab(tmp_path, script, tools=[remember, wait]) as lab:
        await lab.ask("Hello?")
        async with asyncio.timeout(10):
            await begun.wait()
    hangs = False
    async with open_lab(tmp_path, Script("Yes."), tools=[remember, wait]) as lab:
        await lab.rest()
        assert (await lab.texts())[3] == "tool value 7"


async def test_what_a_tool_that_raises_has_put_into_the_context_is_dropped(tmp_path: Path) -> None:
    @tool
    def fail(desk: Desk) -> str:
        """Fail."""
        desk.execution.context["value"] = 8
        raise ValueError("no")

    script = Script([("remember", {"value": 7}), ("fail", {}), ("recall", {})], "Yes.")
    async with open_lab(tmp_path, script, tools=[remember, fail, recall]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[4] == "tool 7"


async def test_there_is_no_execution_at_rest_nor_for_others_during_a_run(tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(desk: Desk) -> str:
        """Wait."""
        begun.set()
        await release.wait()
        return "waited"

    async with open_lab(tmp_path, Script(call("wait"), "Yes."), tools=[wait]) as lab:
        assert await lab.handle.call(Desk.is_at_rest)
        await lab.ask("Hello?")
        async with asyncio.timeout(10):
            await begun.wait()
        assert await lab.handle.call(Desk.is_at_rest)
        release.set()
        await lab.rest()


async def test_a_thread_without_agents_has_no_execution() -> None:
    class Room(Thread[None]):
        @rpc
        def look(self) -> bool:
            with pytest.raises(RuntimeError, match=r"Room has no agents: give it some with `app.execution`"):
                _ = self.agents
            return self.execution is None

    async with Plait(Room, store="memory://") as app:
        assert await app.thread(Room, "one").call(Room.look)


# By name


async def test_definitions_are_found_by_name_and_all_names_are_listed(tmp_path: Path) -> None:
    @tool
    def names(desk: Desk) -> str:
        """Look at all names."""
        agents = desk.agents
        found = agents.load_model("script"), agents.load_prompt("clerk"), agents.load_agent("desk")
        notes.extend(each.name for each in found)
        notes.append((agents.get_model_names(), agents.get_prompt_names(), agents.get_agent_names()))
        for load in (agents.load_model, agents.load_prompt, agents.load_agent):
            with pytest.raises(NotFound, match=r"there is no .* named 'none'"):
                load("none")
        return "looked"

    async with open_lab(tmp_path, Script(call("names"), "Yes."), tools=[names]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2] == "tool looked"
    assert notes == ["script", "clerk", "desk", (["script"], ["clerk"], ["desk"])]


# Queued and invoked tools


@tool
async def note(desk: Desk, text: str) -> str:
    """Note a text."""
    notes.append((text, desk.execution is not None))
    return f"noted {text}"


def two(*tools: Any) -> list[Any]:
    """Return the prompt of the agent, and another one with tools that the first does not have."""
    return [make_prompt("clerk", *tools), make_prompt("other", note, Handoff("billing")), make_prompt("payer")]


AGENTS = [Agent("desk", Side("clerk")), Agent("billing", Side("payer"))]


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("note", "text", "TypeError: the arguments of note must be Mapping, not str"),
        ("note", {"text": float("nan")}, "ValueError: the value 'the arguments of note' is not JSON"),
        ("note", {}, "InvalidArguments: note: "),
        ("note", {"text": 7}, "InvalidArguments: note: "),
        ("ask", {"text": "Well?"}, "InvalidArguments: ask: the arguments do not fit"),
        ("billing", "now", "TypeError: the arguments of billing must be Mapping, not str"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_when_a_tool_is_queued(
    tmp_path: Path, name: str, args: Any, error: str
) -> None:
    @tool
    def plan(desk: Desk) -> str:
        """Queue a tool."""
        try:
            desk.agents.queue_tool(name, args)
        except Exception as refusal:
            return f"{type(refusal).__name__}: {refusal}"
        return "planned"

    script = Script(call("plan"), "Yes.")
    async with open_lab(tmp_path, script, agents=AGENTS, prompts=two(plan, PromptTool("payer", name="ask"))) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2].startswith(f"tool {error}")
        assert len(await lab.texts()) == 4


async def test_a_tool_that_is_queued_in_a_run_runs_in_it_though_the_prompt_has_no_such_tool(tmp_path: Path) -> None:
    @tool
    def plan(desk: Desk) -> str:
        """Queue a tool."""
        desk.agents.queue_tool("note", {"text": "later"})
        return "planned"

    script = Script(call("plan"), "Yes.", call("note", text="now"), "No.")
    async with open_lab(tmp_path, script, agents=AGENTS, prompts=two(plan)) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert [each for each in await lab.texts() if each != "system []"] == [
            "user Hello?",
            "assistant ['plan']",
            "tool planned",
            "assistant ['note']",
            "tool noted later",
            "assistant Yes.",
        ]
        assert script.texts()[-4:] == [
            "tool-call None",
            "tool-return planned",
            "tool-call None",
            "tool-return noted later",
        ]
        await lab.ask("Again?")
        await lab.rest("done", "done")
        assert "there is no tool 'note'" in (await lab.texts())[-2]
    assert notes == [("later", True)]


async def test_a_tool_that_is_queued_at_rest_begins_a_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script("Yes."), agents=AGENTS, prompts=two()) as lab:
        assert await lab.handle.call(Desk.queue, "note", {"text": "later"}) == []
        await lab.rest()
        assert (await lab.texts())[1:] == ["assistant ['note']", "tool noted later", "assistant Yes."]
        with pytest.raises(NotFound, match="there is no tool named 'notes'; did you mean 'note'"):
            await lab.handle.call(Desk.queue, "notes", {})


async def test_a_handoff_can_be_queued(tmp_path: Path) -> None:
    script = Script("Paid.")
    async with open_lab(tmp_path, script, agents=AGENTS, prompts=two()) as lab:
        await lab.handle.call(Desk.queue, "billing", {})
        await lab.rest()
        assert (await lab.texts())[-1] == "assistant Paid."
        assert (await lab.history())[-1].metadata["plait"]["execution"]["agent"] == "billing"
    assert script.texts(0)[0] == "system-prompt You are payer."


@pytest.mark.parametrize(
    ("name", "args", "text", "is_error"),
    [
        ("note", {"text": "now"}, "noted now", False),
        ("note", {"text": 7}, "Failed to execute tool: InvalidArguments: note: ", True),
        ("fail", {}, "Failed to execute tool: ValueError", True),
        ("none", {}, "Failed to execute tool: there is no tool 'none'", True),
    ],
)
async def test_invoked_tools_return_their_result_and_make_no_message(
    tmp_path: Path, name: str, args: dict[str, Any], text: str, *, is_error: bool
) -> None:
    @tool
    def fail(desk: Desk) -> str:
        """Fail."""
        raise ValueError("no")

    @tool
    async def delegate(desk: Desk) -> ToolResult:
        """Have another tool do it."""
        result: ToolResult = await desk.agents.invoke_tool(name, args)
        return result

    async with open_lab(tmp_path, Script(call("delegate"), "Yes."), agents=AGENTS, prompts=two(delegate, fail)) as lab:
        result = await lab.handle.call(Desk.invoke, name, args)
        assert (result["text"].startswith(text), result["is_error"]) == (True, is_error)
        assert await lab.history() == []
        await lab.ask("Hello?")
        await lab.rest()
        assert [each[: len(text) + 5] for each in await lab.texts()][2:] == [f"tool {text}", "assistant Yes."]


@pytest.mark.parametrize("metadata", [{"tool": "hammer"}, {"model": "m"}, {"pydantic_ai": "mine"}, {"execution": 7}])
async def test_metadata_of_a_message_is_its_authors_whatever_its_names(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    async with open_lab(tmp_path, Script("Yes.")) as lab:
        await lab.ask("Hi.", metadata=metadata)
        await lab.rest()
        assert await lab.texts() == ["user Hi.", "assistant Yes."]
        assert (await lab.history())[0].metadata == metadata


async def test_no_metadata_can_call_a_tool(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script("Yes."), agents=AGENTS, prompts=two()) as lab:
        forged: Any = {"metadata": {"plait": {"tool": {"name": "note", "arguments": "{}"}}}}
        id = (await lab.handle.messages.inject("user", "Hello.", metadata={"a": 1})).id
        for write in (
            lambda: lab.handle.messages.queue("Hi.", **forged),
            lambda: lab.handle.messages.inject("user", "Hi.", **forged),
            lambda: lab.handle.messages.update(id, **forged),
            lambda: lab.handle.call(Desk.pass_on, forged["metadata"]),
        ):
            with pytest.raises(ValueError, match="may not have 'plait', which only plait itself writes"):
                await write()
        assert [each.metadata for each in await lab.history()] == [{"a": 1}]


async def test_no_hook_changes_what_plait_has_written(tmp_path: Path) -> None:
    class Forging(Hooks):
        def before_create_message(self, thread: Any, message: Message) -> Message:
            return replace(message, metadata={"plait": {"tool": {"name": "note", "arguments": "{}"}}, "mine": 1})

        def before_update_message(self, thread: Any, id: str, updates: Any) -> Any:
            return {"metadata": {"plait": {}, **updates["metadata"]}}

    agents = [Agent("desk", Side("clerk"), hooks=Forging()), Agent("billing", Side("payer"))]
    async with open_lab(tmp_path, Script("Yes."), agents=agents, prompts=two()) as lab:
        await lab.ask("Hi.")
        await lab.rest()
        question, answer = await lab.history()
        assert question.metadata == {"mine": 1}
        assert (answer.metadata["mine"], read_own(answer)["execution"]["agent"]) == (1, "desk")
        await lab.handle.messages.update(answer.id, metadata={"more": 2})
        _, answer = await lab.history()
        assert (answer.metadata["more"], read_own(answer)["execution"]["agent"]) == (2, "desk")


# What is said to an execution survives its passes


@tool(needs_approval=True)
def ask(desk: Desk) -> str:
    """Wait for a person, and recall the value."""
    return recall(desk)  # type: ignore[no-any-return]


async def approve(lab: Any) -> None:
    """Approve the only open call, when its run has left the memory."""
    found = list[str]()

    async def look() -> bool:
        found[:] = [run.id for run in await lab.handle.tasks.list() if run.status == "sleeping"]
        return bool(found)

    await until(look)
    (open_call,) = await lab.handle.messages.open_calls()
    assert await lab.handle.tasks.send(found[0], f"approval:{open_call['id']}", {"approved": True})


class Remembering(Hooks):
    """Remembers the number of calls that have ended, and stops at a name."""

    def __init__(self, stops_at: str = "") -> None:
        self._stops_at = stops_at

    def note(self, thread: Any, call: Any, result: ToolResult) -> ToolResult:
        thread.execution.context["value"] = thread.execution.context.get("value", 0) + 1
        if call.name == self._stops_at:
            thread.execution.stop()
        return result

    after_tool_call_success = after_tool_call_failure = note


async def test_the_context_of_a_tool_of_a_prompt_survives_a_wait(tmp_path: Path) -> None:
    outer = Script([("helper", {"message": "Do it."}), ("ask", {})], "Yes.")
    prompts = [make_prompt("clerk", PromptTool("helper"), ask), make_prompt("helper", remember, model="inner")]
    inner = Script(call("remember", value=7), name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=prompts) as lab:
        await lab.ask("Hello?")
        await approve(lab)
        await lab.rest()
        assert (await lab.texts())[-2] == "tool 7"


@pytest.mark.parametrize(
    ("name", "args"), [("billing", {}), ("note", {"text": 7}), ("none", {}), ("note", {"text": "x"})]
)
async def test_what_the_hook_of_a_call_has_remembered_survives_a_wait(
    tmp_path: Path, name: str, args: dict[str, Any]
) -> None:
    agents = [Agent("desk", Side("clerk"), hooks=Remembering()), Agent("billing", Side("payer"))]
    prompts = [make_prompt("clerk", note, Handoff("billing"), ask), make_prompt("payer")]
    script = Script([(name, args), ("ask", {})], "Yes.")
    async with open_lab(tmp_path, script, agents=agents, prompts=prompts) as lab:
        await lab.ask("Hello?")
        await approve(lab)
        await lab.rest()
        assert (await lab.texts())[-2] == "tool 1"


async def test_a_prompt_that_has_begun_goes_on_after_a_wait_though_its_tool_has_stopped_the_run(tmp_path: Path) -> None:
    hangs, begun = True, asyncio.Event()

    class Waiting(Hooks):
        async def before_store_tool_result(self, thread: Any, call: Any, result: ToolResult) -> None:
            if call.name == "helper":
                begun.set()
                if hangs:
                    await asyncio.Event().wait()

    outer = Script([("helper", {"message": "Do it."}), ("look", {})], "Never.")
    prompts = [make_prompt("clerk", PromptTool("helper"), look), make_prompt("helper", stop, model="inner")]
    inner = Script(call("stop"), name="inner")
    agents = [Agent("desk", Side("clerk"), hooks=Waiting())]
    async with open_lab(tmp_path, outer, inner, prompts=prompts, agents=agents) as lab:
        await lab.ask("Hello?")
        async with asyncio.timeout(10):
            await begun.wait()
    hangs = False
    async with open_lab(tmp_path, outer, inner, prompts=prompts, agents=agents) as lab:
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool stop: stopping", "tool The execution was stopped before this call."]
    assert len(outer.seen) == 1


async def test_a_hook_that_stops_before_the_model_is_asked_has_stopped_the_run_in_a_replay_too(tmp_path: Path) -> None:
    class Stopping(Hooks):
        is_first = True

        def filter_messages(self, thread: Any, messages: Any) -> None:
            if Stopping.is_first:
                Stopping.is_first = False
                thread.execution.stop()

    script, store = Script("Never."), HeldEnd(tmp_path / "plait.db", step="hold")
    agents = [Agent("desk", Side("clerk"), hooks=Stopping())]
    async with open_lab(tmp_path, script, agents=agents, store=store) as lab:
        await lab.ask("Hello?")
        await store.hold.until_begun()
    async with open_lab(tmp_path, script, agents=agents) as lab:
        await lab.rest()
        assert await lab.texts() == ["user Hello?"]
    assert script.seen == []


async def test_an_invoked_prompt_answers_by_one_step_with_its_calls_and_makes_no_message(tmp_path: Path) -> None:
    @tool
    async def delegate(desk: Desk) -> ToolResult:
        """Have a prompt do it."""
        result: ToolResult = await desk.agents.invoke_tool("helper", {"message": "Do it."})
        return result

    inner = Script([("quote", {"text": "x"}), ("ask", {}), ("none", {})], name="inner")
    outer = Script(call("delegate"), "Yes.")

    @tool
    def quote(desk: Desk, text: str) -> str:
        """Quote a text."""
        return f"'{text}'"

    prompts = [
        make_prompt("clerk", delegate, PromptTool("helper")),
        make_prompt("helper", quote, ask, model="inner"),
    ]
    async with open_lab(tmp_path, outer, inner, prompts=prompts) as lab:
        failed = "Failed to execute tool:"
        refused = f"ask: {failed} it needs approval, for which only a run can wait"
        text = f"quote: 'x'\n\n{refused}\n\nnone: {failed} there is no tool 'none'"
        assert (await lab.handle.call(Desk.invoke, "helper", {"message": "Do it."}))["text"] == text
        wrong = await lab.handle.call(Desk.invoke, "helper", {})
        assert wrong["is_error"]
        assert wrong["text"].startswith("Failed to execute tool: helper: the arguments do not fit")
        assert await lab.history() == []
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2] == f"tool {text}"
    assert inner.texts(0) == ["system-prompt You are helper.", "user-prompt Do it."]
    assert len(inner.seen) == 2


async def test_prompts_that_invoke_themselves_end_and_their_failures_are_results(tmp_path: Path) -> None:
    inner = Script(call("helper", message="Deeper?"), name="inner")
    prompts = [make_prompt("clerk"), make_prompt("helper", PromptTool("helper"), model="inner")]
    async with open_lab(tmp_path, Script("Yes."), inner, prompts=prompts) as lab:
        found = await lab.handle.call(Desk.invoke, "helper", {"message": "Do it."})
        assert found["text"].endswith("prompts that are tools can be nested 5 deep")
        assert len(inner.seen) == 5
        inner._said = (RuntimeError("away"),)
        failed = await lab.handle.call(Desk.invoke, "helper", {"message": "Do it."})
        assert failed["is_error"]
