"""The calls of tools: their results, errors and approvals, each at most once unless the tool is idempotent."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.agents.execution.lab import Desk, Lab, Said, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import (
    Conflict,
    InvalidArguments,
    Message,
    Messages,
    NotFound,
    Plait,
    Reject,
    RunCode,
    SqliteStore,
    Terminated,
)
from plait.agents.execution.definitions import Agent, Handoff, PromptTool, Side
from plait.agents.execution.stops import read_mark
from plait.agents.execution.tools import Tool, ToolResult, tool
from plait.parts.tasks import waits
from plait.store.protocol import Write
from plait.store.thread_rows import Record


async def find_results(folder: Path, tools: list[Tool], *said: Said) -> tuple[list[Message], Any]:
    """Return the results of some calls, and the values after them."""
    async with open_lab(folder, Script(*said, "Done."), tools=tools) as lab:
        await lab.ask("Do it.")
        await lab.rest()
        values = await lab.handle.values.get("a")
        return [each for each in await lab.history() if each.role == "tool"], values


async def find_result(folder: Path, tools: list[Tool], said: Said) -> tuple[str | None, Any]:
    """Return the text and the status of the result of a call."""
    ((found,), _) = await find_results(folder, tools, said)
    return found.content, found.metadata["plait"]["tool_status"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [("yes", "yes"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "The tool has returned nothing."), (7, "7")],
)
async def test_a_result_is_a_text_or_json(tmp_path: Path, returned: Any, text: str) -> None:
    @tool
    def work(desk: Desk) -> Any:
        """Work."""
        return returned

    assert await find_result(tmp_path, [work], call("work")) == (text, "success")


async def test_a_tool_result_has_attachments_and_may_be_an_error(tmp_path: Path) -> None:
    @tool
    def work(desk: Desk) -> ToolResult:
        """Work."""
        return ToolResult("half", ["attachments/a.png"], is_error=True)

    ((found,), _) = await find_results(tmp_path, [work], call("work"))
    assert (found.name, found.content) == ("work", "half")
    assert found.attachments == [{"path": "attachments/a.png"}]
    assert found.metadata["plait"]["tool_status"] == "error"


async def test_the_model_is_told_what_a_tool_raises_and_its_writes_are_dropped(tmp_path: Path) -> None:
    @tool
    async def work(desk: Desk, fails: bool) -> str:
        """Work."""
        await desk.values.push("a", fails)
        if fails:
            raise ValueError("no paper")
        return "worked"

    found, values = await find_results(tmp_path, [work], [("work", {"fails": True}), ("work", {"fails": False})])
    assert [each.content for each in found] == ["Failed to execute tool: ValueError", "worked"]
    assert [each.metadata["plait"]["tool_status"] for each in found] == ["error", "success"]
    assert values == [False]


@tool(timeout=0.01)
async def hang(desk: Desk) -> None:
    """Work."""
    await asyncio.Event().wait()


@tool
async def refuse(desk: Desk) -> None:
    """Work."""
    raise Reject("not today")


@pytest.mark.parametrize(
    ("work", "told"), [(hang, "TurnTimeout: it has taken longer than 0.01 s"), (refuse, "Reject: not today")]
)
async def test_a_time_limit_and_a_refusal_are_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, work: Tool, told: str
) -> None:
    async with open_lab(tmp_path, Script(call(work.name), "Done."), tools=[work]) as lab:
        await lab.ask("Do it.")
        await lab.rest()
        (result,) = [each for each in await lab.history() if each.role == "tool"]
        assert result.content == f"Failed to execute tool: {told}"
        assert (await lab.handle.call(Desk.invoke, work.name, {}))["text"] == result.content
    logged = [(each.levelname, each.exc_info) for each in caplog.records if each.levelno >= logging.WARNING]
    assert logged == [("WARNING", None)] * 2


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (call("work", number="x"), "work: number: Expected `int`, got `str`"),
        (call("work"), "work: 'number' is missing"),
        (call("werk", number=1), "there is no tool 'werk'; did you mean 'work'?"),
        (call("other", number=1), "there is no tool 'other'"),
    ],
)
async def test_the_model_is_told_which_argument_or_tool_is_wrong(tmp_path: Path, said: Said, text: str) -> None:
    @tool(needs_approval=True)
    def work(desk: Desk, number: int) -> str:
        """Work."""
        raise AssertionError

    assert await find_result(tmp_path, [work], said) == (f"Failed to execute tool: {text}", "error")


# Approval


@tool(needs_approval=True)
async def refund(desk: Desk, cents: int) -> str:
    """Pay back."""
    return f"paid {cents}"


async def wait_for_call(lab: Lab) -> str:
    """Wait until a call is open and the run waits, and return the id of the run."""

    async def look() -> bool:
        runs = await lab.handle.tasks.list()
        return bool(await lab.handle.messages.open_calls()) and runs[0].status in ("running", "sleeping")

    await until(look)
    return str((await lab.handle.tasks.list())[0].id)


async def find_approval(lab: Lab) -> str:
    """Return the event that answers the only open call."""
    (found,) = await lab.handle.messages.open_calls()
    return f"approval:{found['id']}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"approved": True}, "paid 5"),
        ({"approved": "yes"}, "Failed to execute tool: the answer to the request for approval cannot be read"),
        ({"approved": False}, "Failed to execute tool: a person has refused the call"),
        ({"approved": False, "reason": "too much"}, "Failed to execute tool: a person has refused the call: too much"),
    ],
)
async def test_a_call_waits_for_a_person_over_a_restart(tmp_path: Path, answer: Any, text: str) -> None:
    said = call("refund", cents=5)
    async with open_lab(tmp_path, Script(said), tools=[refund]) as lab:
        await lab.ask("Refund.")
        await wait_for_call(lab)
    async with open_lab(tmp_path, script := Script("Done."), tools=[refund]) as lab:
        run = await wait_for_call(lab)
        assert await lab.handle.tasks.send(run, await find_approval(lab), answer)
        await lab.rest()
        assert (await lab.texts())[-2:] == [f"tool {text}", "assistant Done."]
        assert len(script.seen) == 1


async def test_a_call_that_is_not_approved_in_time_is_not_carried_out(tmp_path: Path) -> None:
    @tool(needs_approval=True, approval_timeout=0.01)
    def work(desk: Desk) -> str:
        """Work."""
        raise AssertionError

    text = "Failed to execute tool: no person has approved the call in time"
    assert await find_result(tmp_path, [work], call("work")) == (text, "error")


async def test_an_approval_is_for_one_call_even_if_a_model_gives_ids_twice(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script(call("refund", cents=1)), tools=[refund]) as lab:
        await lab.ask("One.")
        run = await wait_for_call(lab)
    async with open_lab(tmp_path, Script(call("refund", cents=2), "Done."), tools=[refund]) as lab:
        await wait_for_call(lab)
        first = await find_approval(lab)
        await lab.handle.tasks.send(run, first, {"approved": True})

        async def is_second() -> bool:
            return "tool paid 1" in await lab.texts() and bool(await lab.handle.messages.open_calls())

        await until(is_second)
        second = await find_approval(lab)
        assert second != first
        await lab.handle.tasks.send(run, second, {"approved": False})
        await lab.rest()
        assert "tool paid 2" not in await lab.texts()


# Crashes


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_call_that_was_cut_off_is_unknown_or_called_again(tmp_path: Path, is_idempotent: bool) -> None:
    begun, calls, hangs = asyncio.Event(), list[int](), True

    @tool(idempotent=is_idempotent)
    async def work(desk: Desk) -> str:
        """Work."""
        calls.append(len(calls))
        await desk.values.push("a", 1)
        begun.set()
        if hangs:
            await asyncio.Event().wait()
        return "worked"

    async with open_lab(tmp_path, Script(call("work")), tools=[work]) as lab:
        await lab.ask("Do it.")
        async with asyncio.timeout(10):
            await begun.wait()
    hangs = False
    async with open_lab(tmp_path, Script("Done."), tools=[work]) as lab:
        await lab.rest()
        result = "worked" if is_idempotent else "It is not known whether this call has had its effect, "
        assert (await lab.texts())[2].startswith(f"tool {result}")
        assert len(calls) == 1 + is_idempotent
        assert await lab.handle.values.get("a") == ([1] if is_idempotent else None)


async def test_calls_that_an_ended_run_has_left_open_are_answered_before_the_model_is_asked(tmp_path: Path) -> None:
    script = Script(call("refund", cents=1), "Done.")
    async with open_lab(tmp_path, script, tools=[refund]) as lab:
        await lab.ask("One.")
        await lab.handle.tasks.cancel(await wait_for_call(lab))
        await lab.ask("Two.")
        await lab.rest("cancelled", "done")
        texts = await lab.texts()
        assert [each.split(",")[0] for each in texts] == [
            "user One.",
            "assistant ['refund']",
            "tool It is not known whether this call has had its effect",
            "user Two.",
            "assistant Done.",
        ]
        assert [each.split(" ")[0] for each in script.texts()][2:] == ["tool-call", "tool-return", "user-prompt"]


async def test_a_caller_beside_a_run_that_waits_for_its_approval_gets_the_result_of_that_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script(call("refund", cents=5), "Fine."), tools=[refund]) as lab:
        await lab.ask("Refund.")
        run = await wait_for_call(lab)
        calling = asyncio.create_task(lab.app.run("desk", thread=lab.handle))
        (open_call,) = await lab.handle.messages.open_calls()
        assert await lab.handle.tasks.send(run, f"approval:{open_call['id']}", {"approved": True})
        assert await calling == "Fine."
        await lab.rest()
        assert [each.content for each in await lab.history()] == ["Refund.", "", "paid 5", "Fine."]


async def test_a_run_by_the_name_of_another_agent_than_that_of_the_thread_is_refused(tmp_path: Path) -> None:
    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("clerk"))]
    script = Script(call("refund", cents=5), "Fine.")
    async with open_lab(tmp_path, script, tools=[refund], agents=agents) as lab:
        await lab.ask("Refund.")
        run = await wait_for_call(lab)
        for begin in (lambda: lab.app.run("billing", thread=lab.handle), lambda: lab.handle.tasks.run("billing")):
            with pytest.raises(InvalidArguments, match="'billing' cannot run in desk/one: the agent 'desk' has"):
                await begin()
        (open_call,) = await lab.handle.messages.open_calls()
        assert await lab.handle.tasks.send(run, f"approval:{open_call['id']}", {"approved": True})
        await lab.rest()
        assert [each.content for each in await lab.history()] == ["Refund.", "", "paid 5", "Fine."]


async def test_after_a_handoff_the_queue_goes_on_and_only_the_agent_that_has_the_thread_is_run_by_its_name(
    tmp_path: Path,
) -> None:
    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("clerk"))]
    async with open_lab(tmp_path, Script("One.", "Two."), agents=agents) as lab:
        await lab.handle.messages.hand_over("billing")
        with pytest.raises(InvalidArguments, match="'desk' cannot run in desk/one: the agent 'billing' has"):
            await lab.app.run("desk", thread=lab.handle)
        await lab.ask("1?")
        await lab.rest()
        await lab.handle.messages.inject("user", "2?")
        assert await lab.app.run("billing", thread=lab.handle) == "Two."
        answers = [each for each in await lab.history() if each.role == "assistant"]
        marks = [mark for each in answers if (mark := read_mark(each)) is not None]
        assert [mark.agent for mark in marks] == ["billing", "billing"]


async def test_a_model_is_shown_the_calls_of_results_beyond_its_history(tmp_path: Path) -> None:
    paid = list[int]()

    @tool
    def pay(desk: Desk, number: int) -> str:
        """Pay."""
        paid.append(number)
        return f"paid {number}"

    script = Script([("pay", {"number": 1}), ("pay", {"number": 2})], "Done.")
    async with open_lab(tmp_path, script, prompts=[make_prompt("clerk", pay, history=2)]) as lab:
        await lab.ask("Pay.")
        await lab.rest()
    assert paid == [1, 2]
    shown = [part for message in script.seen[1] for part in message.parts]
    assert [part.part_kind for part in shown] == [
        "system-prompt",
        "user-prompt",
        "tool-call",
        "tool-call",
        "tool-return",
        "tool-return",
    ]


async def test_a_thread_whose_agent_was_removed_is_answered_by_that_of_its_class(tmp_path: Path) -> None:
    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("payer"))]
    prompts = [make_prompt("clerk", refund, Handoff("billing")), make_prompt("payer", refund)]
    script = Script(call("billing"), call("refund", cents=5))
    async with open_lab(tmp_path, script, agents=agents, prompts=prompts) as lab:
        await lab.ask("Pay.")
        run = await wait_for_call(lab)
    async with open_lab(tmp_path, Script("Paid.", "Hello."), tools=[refund]) as lab:
        (open_call,) = await lab.handle.messages.open_calls()
        await lab.handle.tasks.send(run, f"approval:{open_call['id']}", {"approved": True})
        await lab.rest()
        await lab.ask("Hi.")
        await lab.rest("done", "done")
        assert (await lab.texts())[-4:] == ["tool paid 5", "assistant Paid.", "user Hi.", "assistant Hello."]
        assert {each.metadata["plait"]["execution"]["agent"] for each in (await lab.history())[-3::2]} == {"desk"}


async def test_a_thread_is_handed_over_to_an_agent_that_there_is(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script("Yes.")) as lab:
        with pytest.raises(NotFound, match="there is no agent named 'dask'; did you mean 'desk'"):
            await lab.handle.messages.hand_over("dask")
        await lab.handle.messages.hand_over("desk")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("cannot connect to postgres://app:hunter2@db"), "OSError"),
        (Conflict("the order is closed"), "Conflict: the order is closed"),
    ],
)
async def test_only_the_text_of_an_error_that_may_be_shown_is_told(
    tmp_path: Path, error: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def fail(desk: Desk) -> str:
        """Fail."""
        raise error

    async with open_lab(tmp_path, Script(call("fail"), "Done."), tools=[fail]) as lab:
        await lab.ask("Do it.")
        await lab.rest()
        invoked = await lab.handle.call(Desk.invoke, "fail", {})
        told = f"Failed to execute tool: {text}"
        assert ((await lab.history())[2].content, invoked["text"]) == (told, told)
    assert str(error) in caplog.text


@tool
async def half(desk: Desk, result: str) -> Any:
    """Write, and fail or return what cannot be stored."""
    await desk.values.push("written", result)
    desk.messages.inject("system", "Half.")
    if result == "raises":
        raise ValueError("no")
    return {
        "done": "done",
        "above": ToolResult("", ["../etc/passwd"]) if result == "above" else None,
        "nan": {"n": float("nan")},
        "half": "\ud800",
        "object": object(),
    }[result]


@pytest.mark.parametrize("result", ["done", "raises", "above", "nan", "half", "object"])
@pytest.mark.parametrize("door", ["model", "queue", "rpc", "tool", "program"])
async def test_what_a_failed_tool_has_written_is_dropped_by_each_door(tmp_path: Path, door: str, result: str) -> None:
    @tool
    async def outer(desk: Desk) -> str:
        """Have another tool do it."""
        found: ToolResult = await desk.agents.invoke_tool("half", {"result": result})
        return str(found.is_error)

    source = f"import {{ half }} from 'tools'; export default await half({{ result: '{result}' }})"
    said = {"model": call("half", result=result), "tool": call("outer"), "program": call("run_code", source=source)}
    script = Script(said.get(door, "Done."), "Done.")
    async with open_lab(tmp_path, script, tools=[half, outer, RunCode([half])]) as lab:
        if door == "rpc":
            found = await lab.handle.call(Desk.invoke, "half", {"result": result})
            assert found["is_error"] is (result != "done")
        elif door == "queue":
            await lab.handle.call(Desk.queue, "half", {"result": result})
            await lab.rest()
        else:
            await lab.ask("Do it.")
            await lab.rest()
            (told,) = [each.content or "" for each in await lab.history() if each.role == "tool"]
            assert ("True" in told or "Failed" in told or '"error"' in told) is (result != "done")
        written = [result] if result == "done" else None
        assert await lab.handle.values.get("written") == written
        assert [each.content for each in await lab.history()].count("Half.") == (result == "done")


async def test_tools_of_a_terminated_thread_do_not_run(tmp_path: Path) -> None:
    called = []

    @tool
    def note(desk: Desk) -> None:
        """Note."""
        called.append(desk)

    prompts = [make_prompt("clerk", note, PromptTool("clerk"))]
    async with open_lab(tmp_path, Script("Done."), prompts=prompts) as lab:
        thread = (await lab.app._node.actor(lab.handle._key)).thread
        await thread.terminate()
        for name, args in [("note", {}), ("clerk", {"message": "Hi."})]:
            result = await thread.agents.invoke_tool(name, args)
            assert (result.is_error, "Terminated" in result.text) == (True, True)
        with pytest.raises(Terminated):
            await note.invoke(thread, "{}")
    assert called == []


async def test_only_the_first_call_that_a_run_has_left_may_have_begun(tmp_path: Path) -> None:
    async with open_lab(tmp_path, Script([("refund", {"cents": 1}), ("refund", {"cents": 2})]), tools=[refund]) as lab:
        await lab.ask("Refund.")
        await lab.handle.tasks.cancel(await wait_for_call(lab))
    async with open_lab(tmp_path, Script("Well."), tools=[refund]) as lab:
        await lab.ask("And?")
        await lab.rest("cancelled", "done")
        assert (await lab.texts())[2:4] == [
            "tool It is not known whether this call has had its effect, as its run has ended without its result.",
            "tool This call was not carried out, as its run has ended before it.",
        ]


@pytest.mark.parametrize("is_outer", [True, False])
@pytest.mark.parametrize("sleeps", [True, False])
async def test_a_run_whose_call_waits_in_a_prompt_goes_on_when_a_message_of_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_outer: bool, sleeps: bool
) -> None:
    if not sleeps:
        monkeypatch.setattr(waits, "_REST", 60.0)
    outer, inner = Script(call("helper", message="Pay."), "Fine."), Script(call("refund", cents=5), name="inner")
    prompts = [make_prompt("clerk", PromptTool("helper")), make_prompt("helper", refund, model="inner")]
    async with open_lab(tmp_path, outer, inner, prompts=prompts) as lab:
        await lab.ask("Refund.")

        async def find_calls() -> list[Message]:
            found = (await lab.handle.messages.list(1000, include_silent=True, max_depth=9)).messages
            return [each for each in found if each.tool_calls]

        async def is_waiting() -> bool:
            return len(await find_calls()) == 2 and (not sleeps or await lab.statuses() == ["sleeping"])

        await until(is_waiting)
        await lab.handle.messages.delete((await find_calls())[0 if is_outer else 1].id)
        await lab.rest()
        assert (await lab.texts())[-1] == "assistant Fine."
        assert "paid 5" not in str(await lab.history())


@pytest.mark.parametrize("rest", [0.0, 60.0])
async def test_a_run_whose_waiting_call_is_deleted_asks_again_within_its_limit_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: float
) -> None:
    monkeypatch.setattr(waits, "_REST", rest)  # Whether it leaves the memory.
    agents, script = [Agent("desk", Side("clerk", max_steps=2))], Script(call("refund", cents=5))
    async with open_lab(tmp_path, script, agents=agents, tools=[refund]) as lab:
        await lab.ask("Refund.")
        for steps in (1, 2):

            async def is_waiting(steps: int = steps) -> bool:
                (run,) = await lab.handle.tasks.list()
                is_in_place = run.status == ("sleeping" if rest == 0 else "running")
                return is_in_place and len(script.seen) == steps and bool(await lab.handle.messages.open_calls())

            await until(is_waiting)
            await lab.handle.messages.delete((await lab.history())[-1].id)
        await lab.rest()
        assert await lab.texts() == ["user Refund."]
        assert len(script.seen) == 2


async def test_a_call_waits_on_when_an_older_message_is_deleted_whose_result_was(tmp_path: Path) -> None:
    script = Script(call("refund", cents=1), call("refund", cents=5), "Done.")
    async with open_lab(tmp_path, script, tools=[refund]) as lab:
        await lab.ask("Refund.")
        run = await wait_for_call(lab)
        (first,) = await lab.handle.messages.open_calls()
        await lab.handle.tasks.send(run, f"approval:{first['id']}", {"approved": False})
        await until(lambda: len(script.seen) == 2)
        await wait_for_call(lab)
        (second,) = await lab.handle.messages.open_calls()
        answer, result = (await lab.history())[1:3]
        await lab.handle.messages.delete(result.id)
        await lab.handle.messages.delete(answer.id)
        assert await lab.handle.tasks.send(run, f"approval:{second['id']}", {"approved": True})
        await lab.rest()
        assert await lab.texts() == ["user Refund.", "assistant ['refund']", "tool paid 5", "assistant Done."]


class Help(Desk):
    kind = "desk"
    messages = Messages(agent="help")


class EarlierStore(SqliteStore):
    """A store that keeps the runs of queues as an earlier version does: under the name of the class's agent."""

    def submit(self, write: Write) -> asyncio.Future[int]:
        records = [
            msgspec.structs.replace(each, value=each.value.replace(b'"effect":"messages"', b'"effect":"desk"'))
            if each.value is not None and each.part == "tasks"
            else each
            for each in write.records
        ]
        return super().submit(msgspec.structs.replace(write, records=records))


@asynccontextmanager
async def open_help(folder: Path, script: Script, *names: str) -> AsyncIterator[Lab]:
    app = Plait(Help, store=f"sqlite:///{folder / 'plait.db'}", shutdown_timeout=0.1)
    agents = [Agent(name, Side("clerk")) for name in names]
    app.execution(Help, agents=agents, prompts=[make_prompt("clerk", refund)], models=[script.model])
    async with app:
        yield Lab(app, Help)


@pytest.mark.parametrize("make_store", [SqliteStore, EarlierStore])
@pytest.mark.parametrize("names", [["help"], ["help", "desk"]])
async def test_a_run_that_waits_goes_on_after_its_agent_was_renamed_or_replaced(
    tmp_path: Path, make_store: type[SqliteStore], names: list[str]
) -> None:
    store = make_store(tmp_path / "plait.db")
    async with open_lab(tmp_path, Script(call("refund", cents=5)), tools=[refund], store=store) as lab:
        await lab.ask("Pay.")
        run = await wait_for_call(lab)
    async with open_help(tmp_path, Script("Paid.", "Hello."), *names) as lab:
        assert [each.id for each in await lab.handle.tasks.list("help")] == [run]
        await lab.ask("And?")
        (open_call,) = await lab.handle.messages.open_calls()
        await lab.handle.tasks.send(run, f"approval:{open_call['id']}", {"approved": True})
        await lab.rest()
        await lab.ask("Hi.")
        await lab.rest("done", "done")
        assert (await lab.texts())[2:] == [
            "tool paid 5",
            "user And?",
            "assistant Paid.",
            "user Hi.",
            "assistant Hello.",
        ]


async def test_a_failed_run_of_an_earlier_version_is_tried_again_as_that_of_the_queue(tmp_path: Path) -> None:
    store = EarlierStore(tmp_path / "plait.db")
    async with open_lab(tmp_path, Script(RuntimeError("away")), store=store) as lab:
        await lab.ask("Hi.")
        await lab.rest("failed")
        (run,) = await lab.handle.tasks.list()
    async with open_help(tmp_path, Script("Hello."), "help") as lab:
        assert await lab.handle.tasks.retry(run.id)
        assert (await lab.handle.tasks.wait(run.id)).result == "Hello."


class TwoRuns(EarlierStore):
    """A store in which an earlier version has begun another run for a queue, as its agent was renamed."""

    def submit(self, write: Write) -> asyncio.Future[int]:
        records = [*write.records]
        for each in write.records:
            if each.key.startswith("r/") and each.value is not None:
                row = json.loads(each.value)
                row |= {"id": "second", "effect": "helper", "created_at": row["created_at"] + 1, "due": row["at"]}
                for name in ("process", "asleep_since", "awaits", "is_resting"):
                    row.pop(name, None)
                records.append(Record("tasks", "r/second", json.dumps(row).encode()))
        return super().submit(msgspec.structs.replace(write, records=records))


async def test_of_two_runs_that_an_earlier_version_has_begun_for_a_queue_the_first_goes_on(tmp_path: Path) -> None:
    store = TwoRuns(tmp_path / "plait.db")
    async with open_lab(tmp_path, Script(call("refund", cents=5)), tools=[refund], store=store) as lab:
        await lab.ask("Pay.")
        run = await wait_for_call(lab)
    async with open_help(tmp_path, script := Script("Paid."), "help") as lab:
        (open_call,) = await lab.handle.messages.open_calls()
        await lab.handle.tasks.send(run, f"approval:{open_call['id']}", {"approved": True})
        await lab.rest()
    async with open_help(tmp_path, script, "help") as lab:
        assert (await lab.handle.tasks.wait("second")).status == "done"
        assert (await lab.texts())[2:] == ["tool paid 5", "assistant Paid."]
        assert len(script.seen) == 1
