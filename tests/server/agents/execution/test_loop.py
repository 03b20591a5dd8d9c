"""Agents that execute: a question, calls of tools, their results and an answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from tests.cases import each_case
from tests.running import running
from tests.server.agents.execution.lab import Desk, HeldEnd, Hold, Said, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import Context, Hooks, Message, Messages, NotFound, Plait, Reject, SqliteStore, Step, Thread
from plait.agents.execution import model_attempts
from plait.agents.execution.definitions import Agent, Handoff, Model, Prompt, Side, Subagent
from plait.agents.execution.tools import tool
from plait.store.protocol import Write
from plait.store.thread_rows import RecordRange
from plait_client import connect


@tool(idempotent=True)
async def find_order(desk: Desk, number: int) -> str:
    """Find an order by its number."""
    return f"order {number}"


async def test_a_question_is_answered_after_the_calls_of_tools(tmp_path: Path) -> None:
    script = Script(call("find_order", number=7), "It is order 7.")
    async with open_lab(tmp_path, script, tools=[find_order]) as lab:
        await lab.ask("Where is it?")
        await lab.rest()
        assert await lab.texts() == [
            "user Where is it?",
            "assistant ['find_order']",
            "tool order 7",
            "assistant It is order 7.",
        ]
        (run,) = await lab.handle.tasks.list()
        assert run.result == "It is order 7."
        marks = [each.metadata["plait"]["execution"] for each in await lab.history() if each.role == "assistant"]
        assert marks == [{"run": run.id, "step": step, "side": "a", "agent": "desk"} for step in (0, 1)]
        assert script.texts(0) == ["system-prompt You are clerk.", "user-prompt Where is it?"]
        assert script.texts()[-1] == "tool-return order 7"
        assert len(script.seen) == 2


async def test_a_message_that_comes_during_a_call_steers_the_run_after_the_result(tmp_path: Path) -> None:
    hold = Hold()

    @tool
    async def work(desk: Desk) -> str:
        """Work."""
        return str(await hold.wait("worked"))

    script = Script(call("work"), "Done.")
    async with open_lab(tmp_path, script, tools=[work]) as lab:
        await lab.ask("Do it.")
        await hold.until_begun()
        await lab.ask("Faster!")
        assert await lab.texts("pending") == ["user Faster!"]
        hold.go.set()
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool worked", "user Faster!", "assistant Done."]
        assert script.texts()[-2:] == ["tool-return worked", "user-prompt Faster!"]


async def test_a_message_that_comes_during_the_answer_begins_the_next_run(tmp_path: Path) -> None:
    hold = Hold()

    async def say() -> Said:
        return await hold.wait("One.")

    async with open_lab(tmp_path, Script(say, "Two.")) as lab:
        await lab.ask("1?")
        await hold.until_begun()
        await lab.ask("2?")
        hold.go.set()
        await lab.rest("done", "done")
        assert await lab.texts() == ["user 1?", "assistant One.", "user 2?", "assistant Two."]


async def test_an_interrupt_is_for_other_agents_and_ends_no_execution(tmp_path: Path) -> None:
    hold = Hold()

    async def say() -> Said:
        return await hold.wait("One.")

    async with open_lab(tmp_path, Script(say)) as lab:
        await lab.ask("1?")
        await hold.until_begun()
        await lab.app.interrupt(lab.handle)
        hold.go.set()
        await lab.rest()
        (run,) = await lab.handle.tasks.list()
        assert run.result == "One."
        assert await lab.texts() == ["user 1?", "assistant One."]


async def test_an_execution_and_other_agents_of_a_thread_run_one_at_a_time(tmp_path: Path) -> None:
    hold, order = Hold(), list[str]()

    async def say() -> Said:
        await hold.wait()
        order.append("model")
        return "One."

    async with open_lab(tmp_path, Script(say)) as lab:

        @lab.app.agent("plain", thread=Desk)
        async def plain(ctx: Context[Desk]) -> None:
            order.append("plain")

        await lab.ask("1?")
        await hold.until_begun()
        other = asyncio.create_task(lab.app.run("plain", thread=lab.handle))
        await asyncio.gather(*(lab.handle.call(Desk.nothing) for _ in range(20)))
        hold.go.set()
        await other
        assert order == ["model", "plain"]


async def test_a_run_without_a_question_asks_no_model(tmp_path: Path) -> None:
    script = Script("Hello.")
    async with open_lab(tmp_path, script) as lab:
        assert await lab.app.run("desk", thread=lab.handle) is None
        await lab.ask("Hi")
        await lab.rest("done", "done")
        assert await lab.app.run("desk", thread=lab.handle) is None
        await lab.handle.messages.inject("user", "And now?")
        assert await lab.app.run("desk", thread=lab.handle) == "Hello."
        assert len(script.seen) == 2


async def test_a_model_that_fails_is_asked_again_later_and_then_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_attempts, "_PAUSE", 1_000)
    script, other = Script(RuntimeError("away")), Script("Yes.", name="other")
    script.model = msgspec.structs.replace(script.model, attempts=2, fallback=[other.model.model])
    async with open_lab(tmp_path, script) as lab:
        await lab.ask("Well?")
        await lab.rest()
        assert await lab.texts() == ["user Well?", "assistant Yes."]
        assert await lab.texts("failed") == ["assistant Half", "assistant Half"]
        assert (await lab.history())[-1].metadata["plait"]["model"] == "function:other"


async def say_too_much() -> AsyncIterator[Any]:
    for _ in range(17):
        yield "x" * 65_536


async def say_half_a_surrogate() -> AsyncIterator[Any]:
    yield "Half \ud83d"


async def call_too_much() -> AsyncIterator[Any]:
    yield "Half"
    yield {1: DeltaToolCall("nothing", json.dumps("x" * 1_100_000), tool_call_id="c")}


async def think_too_much() -> AsyncIterator[Any]:
    yield {0: DeltaThinkingPart(content="Hm.")}
    yield "Half"
    yield {2: DeltaThinkingPart(content="x" * 1_100_000)}


async def think_too_much_and_say_nothing() -> AsyncIterator[Any]:
    yield {0: DeltaThinkingPart(content="x" * 1_100_000)}
    yield {1: DeltaToolCall("nothing", "{}", tool_call_id="c")}


async def say_what_is_forbidden() -> AsyncIterator[Any]:
    yield "x" * 10_000


class Strict(Hooks):
    def before_create_message(self, thread: Desk, message: Message) -> Message:
        if len(message.content or "") > 9_000:
            raise Reject("too long")
        return message


@pytest.mark.parametrize(
    ("say", "times", "failed"),
    [
        (say_too_much, 1, [4_001]),
        (say_half_a_surrogate, 2, []),
        (call_too_much, 1, [4]),
        (think_too_much, 1, [4]),
        (think_too_much_and_say_nothing, 1, []),
        (say_what_is_forbidden, 2, [4_001, 4_001]),
    ],
)
async def test_whatever_ends_an_answer_is_a_failed_attempt_at_its_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[], AsyncIterator[Any]],
    times: int,
    failed: list[int],
) -> None:
    monkeypatch.setattr(model_attempts, "_PAUSE", 1_000)
    asked = list[int]()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        asked.append(1)
        async for each in say():
            yield each

    script = Script("Yes.", name="other")
    model = Model("script", FunctionModel(stream_function=stream), fallback=[script.model.model])
    script.model = model
    agents = [Agent("desk", Side("clerk"), hooks=Strict())]
    async with open_lab(tmp_path, script, agents=agents) as lab:
        await lab.ask("Well?")
        await lab.rest()
        assert await lab.texts() == ["user Well?", "assistant Yes."]
        assert [len(each.content or "") for each in await lab.history() if each.status == "failed"] == failed
        assert len(asked) == times


async def test_clients_see_the_same_part_of_a_failed_answer_as_the_history(tmp_path: Path) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield "x" * 10_000
        raise RuntimeError

    class Shown(Desk):
        kind = "desk"
        messages = Messages(agent="desk", live=True)

    app = Plait(Shown, store="memory:", secret="test")
    model = Model("script", FunctionModel(stream_function=stream), attempts=1)
    app.execution(Shown, agents=[Agent("desk", Side("clerk"))], prompts=[make_prompt("clerk")], models=[model])
    async with running(app) as address, connect(f"ws://{address}/threads/desk/one") as room, asyncio.timeout(20):
        await room.messages.open()
        await room.messages.send("Well?")
        async for items in room.messages:
            if len(items) == 3:
                break
        assert [len(each.content or "") for each in items][1] == 4_001


async def test_a_model_that_cannot_stream_is_asked_for_its_whole_answer(tmp_path: Path) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("find_order", {"number": 7})])
        return ModelResponse(parts=[TextPart("It is order 7.")])

    script = Script()
    script.model = Model("script", WrapperModel(FunctionModel(answer, model_name="fake")))
    async with open_lab(tmp_path, script, tools=[find_order]) as lab:
        await lab.ask("Where?")
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool order 7", "assistant It is order 7."]
        assert (await lab.history())[-1].metadata["plait"]["model"] == "function:fake"


async def test_the_log_has_what_a_model_has_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_lab(tmp_path, Script(KeyError("no such page"))) as lab:
        await lab.ask("Well?")
        await lab.rest("failed")
    (found,) = [each for each in caplog.records if each.message.startswith("the model script has failed")]
    assert "KeyError: 'no such page'" in str(caplog.handler.format(found))


async def test_a_run_fails_when_no_model_answers(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script(RuntimeError("sk-secret"))) as lab:
        await lab.ask("Well?")
        await lab.rest("failed")
        (run,) = await lab.handle.tasks.list()
        assert run.error == ("StepFailed: ModelFailed: the model script has failed: function:script: RuntimeError")


async def test_eight_equal_errors_end_the_run_with_an_explanation(tmp_path: Path) -> None:
    script = Script(call("nothing"))
    async with open_lab(tmp_path, script) as lab:
        await lab.ask("Well?")
        await lab.rest()
        assert len(script.seen) == 8
        assert (await lab.texts())[-1].startswith("assistant I stop here, as a tool has failed 8 times in the same way")


# Handing over

DESKS = (Agent("desk", Side("clerk")), Agent("billing", Side("cashier")))


def make_desks(*tools: Any) -> list[Prompt]:
    return [
        make_prompt("clerk", Handoff("billing"), *tools),
        make_prompt("cashier", Handoff("desk", description="Back."), *tools, model="other"),
    ]


async def test_a_handover_keeps_the_history_and_holds_for_later_runs(tmp_path: Path) -> None:
    both = [("billing", {}), ("find_order", {"number": 7})]
    script, other = Script(both), Script("I am billing.", name="other")
    prompts = make_desks(find_order)
    async with open_lab(tmp_path, script, other, agents=DESKS, prompts=prompts) as lab:
        await lab.ask("My invoice?")
        await lab.rest()
        texts = ["tool The conversation is handed over.", "tool order 7", "assistant I am billing."]
        assert (await lab.texts())[2:] == texts
        assert other.texts()[:2] == ["system-prompt You are cashier.", "user-prompt My invoice?"]
        answers = [each for each in await lab.history() if each.role == "assistant"]
        assert [each.metadata["plait"]["execution"]["agent"] for each in answers] == ["desk", "billing"]
    async with open_lab(tmp_path, script, other, agents=DESKS, prompts=prompts) as lab:
        await lab.ask("And?")
        await lab.rest("done", "done")
        assert (len(script.seen), len(other.seen)) == (1, 2)


@pytest.mark.parametrize("has_tool", [True, False])
async def test_a_pass_after_the_last_call_knows_of_the_handover(tmp_path: Path, has_tool: bool) -> None:
    hold = Hold()

    async def hang() -> Said:
        return await hold.wait()

    script, other = Script(call("billing")), Script(hang, name="other")
    async with open_lab(tmp_path, script, other, agents=DESKS, prompts=make_desks()) as lab:
        await lab.ask("My invoice?")
        await hold.until_begun()  # Nothing is stored after the result.
    again, other = Script("Desk again."), Script("I am billing.", name="other")
    prompts = make_desks() if has_tool else [make_prompt("clerk"), make_prompt("cashier", model="other")]
    async with open_lab(tmp_path, again, other, agents=DESKS, prompts=prompts) as lab:
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool The conversation is handed over.", "assistant I am billing."]
        assert again.seen == []
        answers = [each for each in await lab.history() if each.role == "assistant"]
        assert [each.metadata["plait"]["execution"]["step"] for each in answers] == [0, 1]


async def test_a_call_after_a_handover_is_one_of_the_agent_that_has_answered(tmp_path: Path) -> None:
    hold = Hold()

    @tool(idempotent=True)
    async def work(desk: Desk) -> str:
        """Work."""
        return str(await hold.wait("worked"))

    prompts = [make_prompt("clerk", Handoff("billing"), work), make_prompt("cashier", model="other")]
    script, other = Script([("billing", {}), ("work", {})]), Script("I am billing.", name="other")
    async with open_lab(tmp_path, script, other, agents=DESKS, prompts=prompts) as lab:
        await lab.ask("My invoice?")
        await hold.until_begun()
    hold.go.set()
    async with open_lab(tmp_path, script, other, agents=DESKS, prompts=prompts) as lab:
        await lab.rest()
        assert (await lab.texts())[-2:] == ["tool worked", "assistant I am billing."]


# Two sides

PAIR = Agent("desk", Side("finder"), Side("critic", session_stop="finish"))


@tool
async def finish(desk: Desk) -> str:
    """End the session."""
    return "found"


async def test_two_sides_speak_in_turn_until_one_ends_the_session(tmp_path: Path) -> None:
    one, two = Script("a1", "a2", "a3"), Script("b1", "b2", call("finish"), name="other")
    prompts = [make_prompt("finder"), make_prompt("critic", finish, model="other")]
    async with open_lab(tmp_path, one, two, agents=[PAIR], prompts=prompts) as lab:
        await lab.ask("go")
        await lab.rest()
        (run,) = await lab.handle.tasks.list()
        assert run.result == "found"
        assert (await lab.texts())[:-2] == [
            "user go",
            "assistant a1",
            "user b1",
            "assistant a2",
            "user b2",
            "assistant a3",
        ]
        assert two.texts(1) == [
            "system-prompt You are critic.",
            "text go",
            "user-prompt a1",
            "text b1",
            "user-prompt a2",
        ]


async def test_a_message_of_an_assistant_is_answered_by_side_b(tmp_path: Path) -> None:
    one, two = Script("a1"), Script(call("finish"), name="other")
    prompts = [make_prompt("finder"), make_prompt("critic", finish, model="other")]
    async with open_lab(tmp_path, one, two, agents=[PAIR], prompts=prompts) as lab:
        await lab.ask("Check this.", role="assistant")
        await lab.rest()
        assert (len(one.seen), len(two.seen)) == (0, 1)


# Passes that begin again


def rename_steps(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Give the steps of the loop other names, as another version of it may."""
    do = Step.do

    def call(step: Step, name: str, *args: Any, **options: Any) -> Any:
        return do(step, name if name.startswith(("call:", "error:")) else f"{prefix}{name}", *args, **options)

    monkeypatch.setattr(Step, "do", call)


async def test_a_pass_with_other_names_of_steps_asks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, store = Script(call("find_order", number=7), "Here."), HeldEnd(tmp_path / "plait.db")
    async with open_lab(tmp_path, script, tools=[find_order], store=store) as lab:
        await lab.ask("Where?")
        await store.hold.until_begun()  # The answer is stored, and the end of the run is not.
    rename_steps(monkeypatch, "v2-")
    async with open_lab(tmp_path, again := Script("Again."), tools=[find_order]) as lab:
        await lab.rest()
        texts = ["user Where?", "assistant ['find_order']", "tool order 7", "assistant Here."]
        assert await lab.texts() == texts
        assert again.seen == []


async def test_a_question_that_was_taken_is_answered_by_a_pass_with_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold()

    async def hang() -> Said:
        return await hold.wait()

    async with open_lab(tmp_path, Script(hang)) as lab:
        await lab.ask("Where?")
        await hold.until_begun()
    rename_steps(monkeypatch, "v2-")
    async with open_lab(tmp_path, Script("Here.")) as lab:
        await lab.rest()
        assert await lab.texts() == ["user Where?", "assistant Here."]


async def test_a_run_that_is_tried_again_calls_no_tool_again(tmp_path: Path) -> None:
    calls = list[int]()

    @tool
    def work(desk: Desk) -> str:
        """Work."""
        calls.append(1)
        raise ValueError("no")

    async with open_lab(tmp_path, Script(call("work"), RuntimeError("away"), "Done."), tools=[work]) as lab:
        await lab.ask("Do it.")
        await lab.rest("failed")
        (run,) = await lab.handle.tasks.list()
        assert await lab.handle.tasks.retry(run.id)
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool Failed to execute tool: ValueError", "assistant Done."]
        assert len(calls) == 1


async def test_an_answer_that_was_deleted_is_asked_for_again(tmp_path: Path) -> None:
    hold = Hold()

    @tool(idempotent=True)
    async def work(desk: Desk) -> str:
        """Work."""
        return str(await hold.wait())

    async with open_lab(tmp_path, Script(call("work")), tools=[work]) as lab:
        await lab.ask("Do it.")
        await hold.until_begun()
        await lab.handle.messages.delete((await lab.history())[-1].id)
    async with open_lab(tmp_path, script := Script("Done."), tools=[work]) as lab:
        await lab.rest()
        assert await lab.texts() == ["user Do it.", "assistant Done."]
        assert len(script.seen) == 1


async def test_a_run_of_many_steps_keeps_few_records(tmp_path: Path) -> None:
    script = Script(*[call("find_order", number=at) for at in range(40)], "Done.")
    async with open_lab(tmp_path, script, tools=[find_order]) as lab:
        await lab.ask("Find all.")

        async def has_many() -> bool:
            return len(script.seen) > 30

        await until(has_many)
        actor = await lab.app._node.actor(lab.handle._key)
        assert len(await actor.records.list(RecordRange("tasks", "j/"))) <= 6
        await lab.rest()
        assert len(await lab.texts()) == 82
        assert await actor.records.list(RecordRange("tasks", "j/")) == []


# What is checked at the start


@each_case(
    ("members", "message"),
    [
        ({}, "Bare needs `messages = Messages\\(agent='desk'\\)`"),
        ({"messages": Messages()}, "Bare needs `messages = Messages\\(agent='desk'\\)`"),
        ({"messages": Messages(agent="other")}, "Bare needs `messages = Messages\\(agent='desk'\\)`"),
        ({"messages": Messages(agent="desk")}, "Bare needs `tasks = Tasks\\(\\)`"),
    ],
)
def test_the_class_needs_tasks_and_messages_of_an_agent(members: dict[str, Any], message: str) -> None:
    cls = type("Bare", (Thread,), members)
    with pytest.raises(TypeError, match=message):
        Plait(cls).execution(cls, agents=[Agent("desk", Side("clerk"))], prompts=[make_prompt("clerk", model="test:x")])


def test_a_class_has_one_execution() -> None:
    app = Plait(Desk)
    parts: Any = {"agents": [Agent("desk", Side("clerk"))], "prompts": [make_prompt("clerk", model="test:x")]}
    app.execution(Desk, **parts)
    with pytest.raises(ValueError, match="Desk has an execution"):
        app.execution(Desk, **parts)


async def test_an_app_does_not_start_with_a_subagent_that_it_does_not_have() -> None:
    app = Plait(Desk)
    prompt = make_prompt("clerk", Subagent("finder", Desk), model="test:x")
    app.execution(Desk, agents=[Agent("desk", Side("clerk"))], prompts=[prompt])
    with pytest.raises(NotFound, match="there is no agent named 'finder'"):
        async with app:
            pass


async def test_the_text_of_a_prompt_may_be_a_function_of_the_thread(tmp_path: Path) -> None:
    async def describe(desk: Desk) -> str:
        return f"You answer in {desk.name}."

    script = Script("Yes.")
    async with open_lab(tmp_path, script, prompts=[Prompt("clerk", describe, "script")]) as lab:
        await lab.ask("Well?")
        await lab.rest()
        assert script.texts()[0] == "system-prompt You answer in one."


async def test_a_model_is_shown_as_many_messages_as_its_prompt_says(tmp_path: Path) -> None:
    script = Script("Yes.")
    async with open_lab(tmp_path, script, prompts=[make_prompt("clerk", history=2)]) as lab:
        for number in range(3):
            await lab.handle.messages.inject("user", f"{number}")
        await lab.ask("Well?")
        await lab.rest()
        assert script.texts() == ["system-prompt You are clerk.", "user-prompt 2", "user-prompt Well?"]


async def test_a_run_is_shown_all_since_its_question_however_short_its_history_is(tmp_path: Path) -> None:
    script = Script(*[call("find_order", number=at) for at in range(3)], "Done.")
    async with open_lab(tmp_path, script, prompts=[make_prompt("clerk", find_order, history=1)]) as lab:
        await lab.handle.messages.inject("user", "Long ago")
        await lab.ask("Find them.")
        await lab.rest()
        results = [text for at in range(3) for text in ("tool-call None", f"tool-return order {at}")]
        assert script.texts() == ["system-prompt You are clerk.", "user-prompt Find them.", *results]


@tool
async def flood(desk: Desk, count: int) -> str:
    """Add many messages before the result."""
    for _ in range(count):
        desk.messages.inject("user", "x")
    return "flooded"


async def test_a_tool_that_adds_many_messages_hides_neither_the_question_nor_its_result(tmp_path: Path) -> None:
    script = Script(call("flood", count=350), "Done.")
    async with open_lab(tmp_path, script, tools=[flood]) as lab:
        await lab.ask("Flood it.")
        await lab.rest()
        assert script.texts()[1:4] == ["user-prompt Flood it.", "tool-call None", "tool-return flooded"]
        assert len(script.seen) == 2


async def test_a_result_after_many_messages_ends_the_session(tmp_path: Path) -> None:
    script = Script(call("flood", count=250), "Never.")
    agents = [Agent("desk", Side("clerk", session_stop="flood"))]
    async with open_lab(tmp_path, script, agents=agents, tools=[flood]) as lab:
        await lab.ask("Flood it.")
        await lab.rest()
        (run,) = await lab.handle.tasks.list()
        assert (run.result, len(script.seen)) == ("flooded", 1)


async def test_a_run_sees_what_is_changed_and_removed_while_it_works(tmp_path: Path) -> None:
    @tool
    async def edit(desk: Desk) -> str:
        """Change one message, and remove another one."""
        first, second, *_ = await desk.execution.history()
        await desk.messages.update(first.id, "changed")
        await desk.messages.delete(second.id)
        return "edited"

    script = Script(call("edit"), "Done.")
    async with open_lab(tmp_path, script, tools=[edit]) as lab:
        for text in ("first", "second"):
            await lab.handle.messages.inject("user", text)
        await lab.ask("Edit.")
        await lab.rest()
        assert script.texts()[1:3] == ["user-prompt changed", "user-prompt Edit."]


async def test_ids_of_calls_that_a_model_gives_again_after_many_messages_are_told_apart(tmp_path: Path) -> None:
    script, history = Script(), []
    for number in range(2):
        script = Script(call("find_order", number=number), "Done.")
        async with open_lab(tmp_path, script, tools=[find_order]) as lab:
            await lab.ask("Find it.")
            await lab.rest(*["done"] * (number + 1))
            for _ in range(210):
                lab.handle.messages.inject("user", "x")
            await lab.handle.messages.inject("user", "x")
            history = await lab.history()
    calls = [call["id"] for each in history for call in each.tool_calls or ()]
    assert len({*calls}) == 2
    assert [each.tool_call_id for each in history if each.role == "tool"] == calls
    # A model sees the same id in a call and its result.
    parts = [part for message in script.seen[-1] for part in message.parts]
    assert {part.tool_call_id for part in parts if isinstance(part, ToolCallPart | ToolReturnPart)} <= {*calls}


class CountingStore(SqliteStore):
    writes = 0

    def submit(self, write: Write) -> asyncio.Future[int]:
        self.writes += 1
        return super().submit(write)


async def test_a_step_makes_five_commits_at_most(tmp_path: Path) -> None:
    steps, store = 20, CountingStore(tmp_path / "plait.db")
    script = Script(*[call("work", number=at) for at in range(steps - 1)], "Done.")

    @tool
    async def work(desk: Desk, number: int) -> str:
        """Work."""
        return f"{number}"

    async with open_lab(tmp_path, script, tools=[work], store=store) as lab:
        await lab.ask("Work.")
        await lab.rest()
    assert store.writes <= 5 * steps


async def test_the_history_says_that_a_run_has_failed_and_nothing_of_its_error(tmp_path: Path) -> None:
    script = Script(ValueError("postgres://app:hunter2@db"))
    async with open_lab(tmp_path, script) as lab:
        await lab.ask("Hello?")
        await lab.rest("failed")
        assert await lab.texts("failed") == ["assistant Half", "assistant Something went wrong, so there is no answer."]
        assert "hunter2" not in str(await lab.history())
    async with open_lab(tmp_path, script := Script("Hello.")) as lab:
        await lab.ask("Again?")
        await lab.rest("failed", "done")
        assert script.texts()[1:] == ["user-prompt Hello?", "user-prompt Again?"]


@pytest.mark.parametrize("is_healed", [True, False])
async def test_a_prompt_that_raises_has_the_attempts_of_a_step(tmp_path: Path, is_healed: bool) -> None:
    written = list[int]()

    async def write(desk: Desk) -> str:
        written.append(1)
        if not is_healed or len(written) < 3:
            raise ValueError("no prompt today")
        return "You help."

    async with open_lab(tmp_path, Script("Yes."), prompts=[Prompt("clerk", write, "script")]) as lab:
        await lab.ask("Hello?")
        await lab.rest("done" if is_healed else "failed")
        assert len(written) == 3
        failed = await lab.texts("failed")
        assert failed == ([] if is_healed else ["assistant Something went wrong, so there is no answer."])
