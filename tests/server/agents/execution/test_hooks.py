"""The hooks of prompts and agents."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.agents.execution.lab import Desk, Lab, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import Agent, Block, Handoff, Hooks, Message, MessageHooks, Messages, Plait, Reject, Side, Tasks, Thread
from plait.agents.execution.hooks import call_hooks
from plait.agents.execution.tools import ToolResult, tool


@tool(idempotent=True)
async def find_order(desk: Desk, number: int) -> str:
    """Find an order by its number."""
    if number < 0:
        raise ValueError("no such number")
    return f"order {number}"


class Noting(Hooks):
    """Notes which hooks were called, and with what."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.called: list[str] = []

    def note(self, hook: str, *what: object) -> None:
        self.called.append(" ".join(map(str, [*([self.name] if self.name else []), hook, *what])))

    async def after_thread_created(self, thread: Any) -> None:
        self.note("thread", thread.name, thread.execution)

    def after_system_message(self, thread: Any, text: str) -> None:
        self.note("system", text)

    async def after_tool_call_success(self, thread: Any, call: Any, result: ToolResult) -> ToolResult:
        self.note("success", call.name, result.text)
        return result

    def after_tool_call_failure(self, thread: Any, call: Any, result: ToolResult) -> ToolResult:
        self.note("failure", call.name, result.text)
        return result


def desk(**options: Any) -> list[Agent]:
    return [Agent("desk", Side("clerk"), **options)]


async def test_only_the_hooks_of_the_prompt_run_if_it_has_any_and_else_those_of_the_agent(tmp_path: Path) -> None:
    ours, theirs, others = Noting(), Noting(), Noting()
    prompts = [make_prompt("clerk", Handoff("billing"), hooks=ours), make_prompt("payer")]
    agents = [Agent("desk", Side("clerk"), hooks=theirs), Agent("billing", Side("payer"), hooks=others)]
    async with open_lab(tmp_path, Script(call("billing"), "Paid."), agents=agents, prompts=prompts) as lab:
        await lab.ask("Pay.")
        await lab.rest()
    assert ours.called[1:] == ["system You are clerk.", "success billing The conversation is handed over."]
    assert others.called == ["system You are payer."]
    assert theirs.called == []


async def test_hooks_run_in_order_each_with_what_the_one_before_has_returned(tmp_path: Path) -> None:
    class Adding(Hooks):
        def __init__(self, text: str) -> None:
            self.text = text

        def after_system_message(self, thread: Any, text: str) -> str:
            return text + self.text

    script = Script("Yes.")
    async with open_lab(
        tmp_path, script, prompts=[make_prompt("clerk", hooks=[Adding(" One."), Adding(" Two.")])]
    ) as lab:
        await lab.ask("Hello?")
        await lab.rest()
    assert script.texts(0)[0] == "system-prompt You are clerk. One. Two."


@pytest.mark.parametrize("wrong", ["raises", "returns"])
async def test_a_hook_that_raises_or_returns_something_else_is_logged_and_its_input_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    def fail() -> Any:
        if wrong == "raises":
            raise RuntimeError("away")
        return 7

    class Failing(Hooks):
        def after_system_message(self, thread: Any, text: str) -> Any:
            return fail()

        def filter_messages(self, thread: Any, messages: Any) -> Any:
            return fail()

        def prefilter_llm_history(self, thread: Any, messages: Any) -> Any:
            return fail()

        def before_store_tool_result(self, thread: Any, call: Any, result: ToolResult) -> Any:
            return fail()

        def after_tool_call_success(self, thread: Any, call: Any, result: ToolResult) -> Any:
            return fail()

    script = Script(call("find_order", number=7), "Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Failing()), tools=[find_order]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool order 7", "assistant Yes."]
    assert script.texts(0) == ["system-prompt You are clerk.", "user-prompt Hello?"]
    logged = {each.getMessage().split(" ")[0] for each in caplog.records if each.levelno == logging.ERROR}
    assert logged == {
        "after_system_message",
        "filter_messages",
        "prefilter_llm_history",
        "after_tool_call_success",
        "before_store_tool_result",
    }


async def test_filters_change_what_the_model_sees_and_not_what_is_stored(tmp_path: Path) -> None:
    class Filtering(Hooks):
        async def filter_messages(self, thread: Any, messages: Any) -> list[Message]:
            return [each for each in messages if each.content != "secret"]

        def prefilter_llm_history(self, thread: Any, messages: Any) -> list[Message]:
            assert [each.role for each in messages] == ["system", "user"]
            return [*messages[:-1], replace(messages[-1], content="Hi!")]

    script = Script("Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Filtering())) as lab:
        await lab.handle.messages.inject("user", "secret")
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == ["user secret", "user Hello?", "assistant Yes."]
    assert script.texts(0) == ["system-prompt You are clerk.", "user-prompt Hi!"]


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"plait": 7}},
        {"metadata": {"plait": {"pydantic_ai": {"parts": 7}}}},
        {"metadata": 7},
        {"content": 7},
        {"tool_calls": [7]},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["filter_messages", "prefilter_llm_history"])
async def test_a_filter_that_returns_messages_that_are_none_is_logged_and_its_input_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, changes: dict[str, Any]
) -> None:
    def spoil(hooks: Hooks, thread: Any, messages: Sequence[Message]) -> list[Message]:
        return [replace(each, **changes) for each in messages]

    script = Script("Yes.")
    hooks = type("Spoiling", (Hooks,), {name: spoil})()
    async with open_lab(tmp_path, script, agents=desk(hooks=hooks)) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == ["user Hello?", "assistant Yes."]
        await lab.ask("And now?")
        await lab.rest("done", "done")
    assert script.texts() == [
        "system-prompt You are clerk.",
        "user-prompt Hello?",
        "text Yes.",
        "user-prompt And now?",
    ]
    assert f"{name} has raised; its argument stays as it was" in [each.getMessage() for each in caplog.records]


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_message_with_another_id_is_new_and_has_nothing_that_only_plait_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keeps: bool
) -> None:
    class Copying(Hooks):
        def filter_messages(self, thread: Any, messages: Sequence[Message]) -> list[Message]:
            last = messages[-1]
            copies = [replace(each, id=f"{each.id}-copy") for each in messages[:-1] if keeps]
            return [Message(id="note", role="user", content="A note."), *copies, last]

    script = Script("Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Copying())) as lab:
        for number, text in enumerate(["Hello?", "And now?"]):
            await lab.ask(text)
            await lab.rest(*["done"] * (number + 1))
    seen = ["user-prompt Hello?", "text Yes."] if keeps else ["user-prompt A note."]
    assert script.texts() == ["system-prompt You are clerk.", *seen, "user-prompt And now?"]
    assert ("copied what only plait writes to a new message" in caplog.text) is keeps


@pytest.mark.parametrize("stops", [True, False])
async def test_block_ends_the_run_with_its_text_as_the_answer(tmp_path: Path, stops: bool) -> None:
    class Blocking(Hooks):
        def prefilter_llm_history(self, thread: Any, messages: Any) -> None:
            raise Block("I may not answer this.")

    script = Script("Yes.")
    agents = [Agent("desk", Side("clerk", stop_on_response=stops), hooks=Blocking())]
    async with open_lab(tmp_path, script, agents=agents) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == ["user Hello?", "assistant I may not answer this."]
        assert (await lab.history())[-1].metadata["plait"]["hook_blocked"] is True
    assert script.seen == []


async def test_messages_are_created_and_updated_as_the_hooks_want_in_runs_and_at_rest(tmp_path: Path) -> None:
    stored = list[str]()

    class Masking(Hooks):
        def before_create_message(self, thread: Any, message: Message) -> Message | None:
            if message.content == "refused":
                raise Reject("not this")
            return replace(message, content=(message.content or "").replace("secret", "***"))

        async def after_create_message(self, thread: Any, message: Message) -> None:
            stored.append(f"{message.role} {message.content}")

        def before_update_message(self, thread: Any, id: str, updates: Any) -> dict[str, Any]:
            return {"content": updates["content"].upper()}

        def after_update_message(self, thread: Any, message: Message) -> None:
            stored.append(f"updated {message.content}")

    script = Script("My secret.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Masking())) as lab:
        await lab.ask("Your secret?")
        await lab.rest()
        assert await lab.texts() == ["user Your ***?", "assistant My ***."]
        with pytest.raises(Reject):
            await lab.handle.messages.inject("user", "refused")
        added = await lab.handle.messages.inject("user", "a secret")
        await lab.handle.messages.update(added.id, "again")
        await until(lambda: stored[-1:] == ["updated AGAIN"])
        assert (await lab.texts())[2:] == ["user AGAIN"]
        assert {"user a ***", "assistant My ***."} <= {*stored}


async def test_a_stored_result_is_changed_after_the_hooks_of_its_call_have_seen_it(tmp_path: Path) -> None:
    class Storing(Noting):
        def before_store_tool_result(self, thread: Any, call: Any, result: ToolResult) -> ToolResult:
            self.note("store", call.arguments, result.text)
            return replace(result, text="stored")

    hooks = Storing()
    async with open_lab(
        tmp_path, Script(call("find_order", number=7), "Yes."), agents=desk(hooks=hooks), tools=[find_order]
    ) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2] == "tool stored"
    assert [each for each in hooks.called if "order" in each or "store" in each] == [
        "success find_order order 7",
        'store {"number": 7} order 7',
    ]


async def test_one_hook_is_called_for_each_call_for_its_success_or_its_failure(tmp_path: Path) -> None:
    hooks = Noting()
    calls = [
        ("find_order", {"number": 7}),
        ("find_order", {"number": -7}),
        ("find_order", {"number": "x"}),
        ("find", {}),
    ]
    async with open_lab(tmp_path, Script(calls, "Yes."), agents=desk(hooks=hooks), tools=[find_order]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
    outcomes = [each.split(" ")[0] for each in hooks.called if each.split(" ")[0] in ("success", "failure")]
    assert outcomes == ["success", "failure", "failure", "failure"]


@pytest.mark.parametrize("number", [7, -7])
async def test_a_call_that_a_hook_removes_leaves_neither_a_call_nor_a_result(tmp_path: Path, number: int) -> None:
    class Removing(Hooks):
        def after_tool_call_success(self, thread: Any, call: Any, result: ToolResult) -> None:
            return None

        after_tool_call_failure = after_tool_call_success

    script = Script(call("find_order", number=number), "Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Removing()), tools=[find_order]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert [each.tool_calls for each in await lab.history()] == [None] * 3
        assert [each.role for each in await lab.history()] == ["user", "assistant", "assistant"]
    assert script.texts() == ["system-prompt You are clerk.", "user-prompt Hello?"]


async def test_a_run_whose_calls_were_removed_goes_on_after_a_restart(tmp_path: Path) -> None:
    class Removing(Hooks):
        def after_tool_call_success(self, thread: Any, call: Any, result: ToolResult) -> None:
            return None

    asked = asyncio.Event()

    async def hang() -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    agents = desk(hooks=Removing())
    async with open_lab(tmp_path, Script(call("find_order", number=7), hang), agents=agents, tools=[find_order]) as lab:
        await lab.ask("Hello?")
        async with asyncio.timeout(10):
            await asked.wait()
    async with open_lab(tmp_path, Script("Yes."), agents=agents, tools=[find_order]) as lab:
        await lab.rest()
        assert (await lab.texts())[-1] == "assistant Yes."


async def test_only_the_removed_one_of_several_calls_goes(tmp_path: Path) -> None:
    class Removing(Hooks):
        def after_tool_call_failure(self, thread: Any, call: Any, result: ToolResult) -> None:
            return None

    script = Script([("find_order", {"number": -1}), ("find_order", {"number": 2})], "Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=Removing()), tools=[find_order]) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == ["user Hello?", "assistant ['find_order']", "tool order 2", "assistant Yes."]


async def test_the_hooks_of_a_new_thread_run_once_and_before_its_first_run(tmp_path: Path) -> None:
    release = asyncio.Event()

    class Creating(Noting):
        async def after_thread_created(self, thread: Any) -> None:
            self.note("thread", thread.name, thread.execution)
            await release.wait()
            self.note("released")

    hooks = Creating()
    for number in (1, 2):
        async with open_lab(tmp_path, Script("Yes."), agents=desk(hooks=hooks)) as lab:
            await lab.ask("Hello?")
            if number == 1:
                await until(lambda: hooks.called == ["thread one None"])
                await until(lab.is_running)
                for _ in range(50):
                    await lab.handle.call(Desk.nothing)
                release.set()
            await lab.rest(*["done"] * number)
    assert hooks.called == ["thread one None", "released", "system You are clerk.", "system You are clerk."]


async def test_the_hook_of_a_new_thread_that_is_cancelled_cleans_up_before_its_thread_leaves(tmp_path: Path) -> None:
    begun = asyncio.Event()

    class Cleaning(Hooks):
        async def after_thread_created(self, thread: Any) -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                for _ in range(50):
                    await asyncio.sleep(0)
                await thread.values.set("cleaned", True)

    async with open_lab(tmp_path, Script("Yes."), agents=desk(hooks=Cleaning())) as lab:
        await lab.ask("Hello?")
        await begun.wait()
    async with open_lab(tmp_path, Script("Yes.")) as lab:
        assert await lab.handle.values.get("cleaned")


async def test_the_hook_of_a_new_thread_that_stops_its_agent_goes_on(tmp_path: Path) -> None:
    async def has_begun(thread: Any) -> bool:
        return bool(await thread.tasks.list("desk"))

    class Closing(Hooks):
        async def after_thread_created(self, thread: Any) -> None:
            await until(lambda: has_begun(thread))
            await thread.messages.stop()
            await thread.values.set("closed", True)

    async with open_lab(tmp_path, Script("Yes."), agents=desk(hooks=Closing())) as lab:
        await lab.ask("Hello?")
        await until(lambda: lab.handle.values.get("closed"))
        assert await lab.statuses() == ["cancelled"]


def test_a_hook_that_does_not_exist_or_cannot_be_async_is_an_error_of_its_class() -> None:
    with pytest.raises(
        TypeError, match=r"Wrong.after_tool_call_sucess is no hook; did you mean 'after_tool_call_success'"
    ):
        type("Wrong", (Hooks,), {"after_tool_call_sucess": lambda *_: None})

    async def before(self: Any, thread: Any, message: Message) -> None: ...

    with pytest.raises(TypeError, match=r"Wrong.before_create_message must be a function without async"):
        type("Wrong", (Hooks,), {"before_create_message": before})


def test_hooks_must_be_hooks_and_messages_have_them_in_one_place() -> None:
    class Room(Thread[None]):
        tasks = Tasks()
        messages = Messages(agent="desk", hooks=MessageHooks(after_create_message=print))

    class Masking(Hooks):
        def before_create_message(self, thread: Any, message: Message) -> None: ...

    for hooks, text in ((Masking, "instance of a subclass of Hooks"), (Masking(), "has hooks of its messages")):
        app = Plait(Room, store="memory://")
        with pytest.raises(TypeError, match=text):
            app.execution(Room, agents=desk(hooks=hooks), prompts=[make_prompt("clerk", model="test:x")])


async def test_what_hooks_return_that_are_only_told_is_not_used() -> None:
    class Telling(Hooks):
        def after_subagent_created(self, thread: Any, child: Any) -> Any:
            return 7

    assert await call_hooks("after_subagent_created", [Telling()], None, "child") == "child"  # type: ignore[arg-type]


async def test_hooks_of_messages_run_before_the_first_step_of_a_run(tmp_path: Path) -> None:
    class Creating(Hooks):
        def before_create_message(self, thread: Any, message: Message) -> Message:
            return replace(message, metadata={**message.metadata, "seen": True})

    async with open_lab(tmp_path, Script("Yes."), agents=desk(hooks=Creating()), tools=[find_order]) as lab:
        await lab.handle.call(Desk.queue, "find_order", {"number": 1})
        await lab.rest()
        assert set(await lab.statuses()) == {"done"}
        assert all(each.metadata["seen"] for each in await lab.history())


NAMES = [name for name in vars(Hooks) if not name.startswith("_") and "before_create" not in name]


async def call_one(lab: Any, name: str, hooks: list[Hooks]) -> Any:
    """Call a hook with an argument of its kind, and return what comes of it."""
    thread = (await lab.app._node.actor(lab.handle._key)).thread
    value: Any = ToolResult("x") if "tool" in name else [Message(id="m", role="user")] if "filter" in name else "text"
    return value, await call_hooks(name, hooks, thread, *(() if name == "after_thread_created" else ("call", value)))


@pytest.mark.parametrize("name", NAMES)
async def test_each_hook_that_raises_is_logged_and_its_input_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def fail(*given: Any) -> Any:
        raise Block("no")

    failing = type("Failing", (Hooks,), {name: fail})()
    async with open_lab(tmp_path, Script("Yes.")) as lab:
        if name == "prefilter_llm_history":
            with pytest.raises(Block):
                await call_one(lab, name, [failing])
            return
        value, found = await call_one(lab, name, [failing])
    assert found == (None if name == "after_thread_created" else value)
    assert caplog.records[-1].getMessage() == f"{name} has raised; its argument stays as it was"


def test_there_are_twelve_hooks() -> None:
    assert len([*NAMES, "before_create_message"]) == 12


async def test_two_apps_with_one_class_have_their_own_agents_and_hooks(tmp_path: Path) -> None:
    class Naming(Hooks):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_create_message(self, thread: Any, message: Message) -> Message:
            return replace(message, name=self.name)

    agents = [desk(hooks=Naming(name)) for name in "ab"]
    (tmp_path / "a").mkdir()
    async with (
        open_lab(tmp_path, Script("One."), agents=agents[0]) as one,
        open_lab(tmp_path / "a", Script("Two."), agents=agents[1]) as two,
    ):
        for lab, name, text in ((one, "a", "One."), (two, "b", "Two.")):
            await lab.ask("Hello?")
            await lab.rest()
            assert [(each.name, each.content) for each in await lab.history()] == [(name, "Hello?"), (name, text)]


@pytest.mark.parametrize("ends", ["stop", "terminate"])
@pytest.mark.parametrize(
    "name",
    [
        "after_system_message",
        "filter_messages",
        "prefilter_llm_history",
        "before_store_tool_result",
        "after_tool_call_success",
        "after_tool_call_failure",
        "after_create_message",
        "after_update_message",
        "after_thread_created",
    ],
)
async def test_a_run_that_hangs_in_a_hook_can_be_stopped_and_goes_on_when_the_hook_is_mended(
    tmp_path: Path, name: str, ends: str
) -> None:
    begun, mended = asyncio.Event(), asyncio.Event()

    async def hang(hooks: Hooks, thread: Any, *given: Any) -> Any:
        begun.set()
        if not mended.is_set():
            await asyncio.Event().wait()
        return given[-1] if given else None

    hooks = type("Hanging", (Hooks,), {name: hang})()
    script = Script(call("find_order", number=-1 if "failure" in name else 1), "Yes.")
    async with open_lab(tmp_path, script, agents=desk(hooks=hooks), tools=[find_order]) as lab:
        await lab.ask("Hello?")
        if name == "after_update_message":
            await lab.handle.messages.update((await lab.history())[0].id, "Hi?")
        async with asyncio.timeout(10):
            await begun.wait()
            if ends == "terminate":
                await lab.handle.terminate()
                await until(lambda: is_over(lab))
                return
            await lab.handle.messages.stop()
            assert "running" not in await lab.statuses()
        mended.set()
        await lab.ask("And now?")
        await until(lambda: has_answered(lab))


async def is_over(lab: Lab) -> bool:
    return {*await lab.statuses()} <= {"cancelled", "done"}


async def has_answered(lab: Lab) -> bool:
    return (await lab.texts())[-1:] == ["assistant Yes."]
