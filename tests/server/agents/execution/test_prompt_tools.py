"""Prompts that are tools."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.agents.execution.lab import Desk, Lab, Script, call, make_prompt, open_lab

from plait import Hooks, Message, PromptTool
from plait.agents.execution.tools import tool

paths = list[Any]()


@pytest.fixture(autouse=True)
def _forget() -> None:
    paths.clear()


@tool(idempotent=True)
async def count(desk: Desk, word: str) -> str:
    """Count the letters of a word."""
    paths.append((desk.execution.prompt_path, desk.execution.step_count))
    return f"{len(word)} letters"


async def find_all(lab: Lab) -> list[Message]:
    return (await lab.handle.messages.list(1000, include_silent=True, max_depth=9)).messages


def two(*inner: Any, **options: Any) -> list[Any]:
    return [make_prompt("clerk", PromptTool("helper")), make_prompt("helper", *inner, model="inner", **options)]


async def test_a_prompt_answers_a_call_by_one_step_and_its_calls(tmp_path: Path) -> None:
    outer = Script(call("helper", message="How long is plait?"), "Five.")
    inner = Script([("count", {"word": "plait"})], "Never.", name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=two(count)) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert await lab.texts() == [
            "user Hello?",
            "assistant ['helper']",
            "tool count: 5 letters",
            "assistant Five.",
        ]
    assert inner.texts(0) == ["system-prompt You are helper.", "user-prompt How long is plait?"]
    assert len(inner.seen) == 1
    assert paths == [(["clerk", "helper"], 1)]


async def test_the_messages_of_a_prompt_are_below_the_result_and_the_model_above_never_sees_them(
    tmp_path: Path,
) -> None:
    outer = Script(call("helper", message="How long?"), "Five.", "Again.")
    inner = Script([("count", {"word": "plait"})], name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=two(count)) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        await lab.ask("And?")
        await lab.rest("done", "done")
        found = await find_all(lab)
        result = next(each for each in found if each.name == "helper")
        below = [each for each in found if each.depth == 1]
        assert [each.role for each in below] == ["user", "assistant", "tool"]
        assert {each.parent_id for each in below} == {result.id}
    assert outer.texts() == [
        "system-prompt You are clerk.",
        "user-prompt Hello?",
        "tool-call None",
        "tool-return count: 5 letters",
        "text Five.",
        "user-prompt And?",
    ]


async def test_the_text_of_the_prompt_is_the_result(tmp_path: Path) -> None:
    outer = Script([("helper", {"message": "One?"}), ("helper", {"message": "Two?"})], "Both.")
    inner = Script("First.", "Second.", name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=two()) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert (await lab.texts())[2:4] == ["tool First.", "tool Second."]
    assert inner.texts(1) == ["system-prompt You are helper.", "user-prompt Two?"]


async def test_a_prompt_whose_model_fails_and_arguments_that_do_not_fit_are_errors_for_the_model(
    tmp_path: Path,
) -> None:
    outer = Script([("helper", {"message": "One?"}), ("helper", {"text": "x"})], "No.")
    async with open_lab(tmp_path, outer, Script(RuntimeError("away"), name="inner"), prompts=two()) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        failed, refused = (await lab.texts())[2:4]
        assert failed == "tool Failed to execute tool: ModelFailed"
        assert refused.startswith("tool Failed to execute tool: helper: the arguments do not fit: ")


async def test_the_hooks_of_the_prompt_that_is_a_tool_run_in_its_step(tmp_path: Path) -> None:
    class Noting(Hooks):
        def __init__(self) -> None:
            self.called: list[str] = []

        def after_system_message(self, thread: Any, text: str) -> None:
            self.called.append(text)

    hooks = Noting()
    outer = Script(call("helper", message="One?"), "Yes.")
    async with open_lab(tmp_path, outer, Script("First.", name="inner"), prompts=two(hooks=hooks)) as lab:
        await lab.ask("Hello?")
        await lab.rest()
    assert hooks.called == ["You are helper."]


async def test_prompts_that_call_themselves_end(tmp_path: Path) -> None:
    outer = Script(call("helper", message="One?"), "Yes.")
    inner = Script(call("helper", message="Deeper?"), name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=two(PromptTool("helper"))) as lab:
        await lab.ask("Hello?")
        await lab.rest()
        assert "prompts that are tools can be nested 5 deep" in (await lab.texts())[2]
        assert max(each.depth for each in await find_all(lab)) == 5
    assert len(inner.seen) == 5


async def test_a_restart_during_the_step_of_a_prompt_asks_no_model_again(tmp_path: Path) -> None:
    begun = asyncio.Event()
    hangs = True

    @tool(idempotent=True)
    async def wait(desk: Desk) -> str:
        """Wait."""
        begun.set()
        if hangs:
            await asyncio.Event().wait()
        return "waited"

    outer = Script(call("helper", message="Wait."), "Never.")
    inner = Script(call("wait"), name="inner")
    async with open_lab(tmp_path, outer, inner, prompts=two(wait)) as lab:
        await lab.ask("Hello?")
        async with asyncio.timeout(10):
            await begun.wait()
    hangs = False
    again = Script("Never.", name="inner")
    async with open_lab(tmp_path, Script("Yes."), again, prompts=two(wait)) as lab:
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool wait: waited", "assistant Yes."]
        assert [each.role for each in await find_all(lab) if each.depth] == ["user", "assistant", "tool"]
    assert again.seen == []
