"""Agents that execute: a question, calls of tools, their results and an answer."""

from pathlib import Path

from tests.server.agents.execution.lab import Desk, Script, call, open_lab

from plait.agents.execution.tools import tool


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
        marks = [each.metadata["execution"] for each in await lab.history() if each.role == "assistant"]
        assert marks == [{"run": run.id, "step": step, "side": "a", "agent": "desk"} for step in (0, 1)]
        assert script.texts(0) == ["system-prompt You are clerk.", "user-prompt Where is it?"]
        assert script.texts()[-1] == "tool-return order 7"
        assert len(script.seen) == 2
