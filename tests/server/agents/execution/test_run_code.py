"""Programs of models: they call the tools that they were given, at most once."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.server.agents.execution.lab import Desk, Script, call, open_lab

from plait import Conflict, Handoff, RunCode, ToolResult, tool


@tool
async def find(desk: Desk, name: str) -> dict[str, Any]:
    """Find a price."""
    await desk.values.push("found", name)
    return {"price": {"tea": 3, "cake": 5}[name]}


@tool
def note(desk: Desk, sum: int) -> ToolResult:
    """Write a note."""
    return ToolResult(f"noted {sum}", ["attachments/note.txt"])


@tool
def refuse(desk: Desk) -> ToolResult:
    """Refuse."""
    return ToolResult("not today", is_error=True)


@tool
def clash(desk: Desk) -> None:
    """Clash."""
    raise Conflict("it has changed")


SOURCE = """
    import { find, note, refuse, clash } from "tools";
    const prices = await Promise.all(["tea", "cake"].map(async (name: string) => (await find({ name })).price));
    console.log("prices", prices);
    const failures = [];
    for (const work of [refuse, clash, () => find({ name: 7 }), () => find({ name: "wine" })]) {
        await work().catch((error: Error) => failures.push(String(error)));
    }
    export default [await note({ sum: prices[0] + prices[1] }), failures];
"""


async def ask(folder: Path, source: str, **options: Any) -> tuple[Any, Any, Script]:
    script = Script(call("run_code", source=source), "Done.")
    tools = [find, RunCode([find, note, refuse, clash], **options)]
    async with open_lab(folder, script, tools=tools) as lab:
        await lab.ask("Do it.")
        await lab.rest()
        (found,) = [each for each in await lab.history() if each.role == "tool"]
        return found, await lab.handle.values.get("found"), script


async def test_a_model_writes_a_program_over_its_tools(tmp_path: Path) -> None:
    found, values, script = await ask(tmp_path, SOURCE)
    failures = [
        "CallFailed: not today",
        "Conflict: it has changed",
        "InvalidArguments: find: name: Expected `str`, got `int`",
        "KeyError",
    ]
    assert json.loads(found.content) == {
        "status": "success",
        "value": ["noted 8", failures],
        "logs": [{"level": "log", "text": "prices [3,5]"}],
    }
    assert found.attachments == [{"path": "attachments/note.txt"}]
    assert found.metadata["plait"]["tool_status"] == "success"
    assert values == ["tea", "cake"]
    (described,) = [each for each in script.tools[0] if each.name == "run_code"]
    assert described.description is not None
    assert 'import { note } from "tools": await note(arguments). Write a note.' in described.description


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        ("throw new Error('no')", "error", "Error: no"),
        ("for (;;) {}", "terminated", "the program took longer than 0.5 s"),
        ("const a = []; for (;;) a.push(new Array(1e5).fill(1))", "memory", "the program needed more than"),
        ("import { pay } from 'tools'; pay()", "link_error", "does not provide an export named 'pay'"),
        ("import { find } from 'tools'; await find({ name: 'wine' })", "error", '"error":"KeyError"'),
        ("await import('./shapes')", "error", '"error":"TypeError: there is no module'),
    ],
)
async def test_a_model_is_told_how_its_program_has_failed(source: str, status: str, error: str, tmp_path: Path) -> None:
    found, _, _ = await ask(
        tmp_path, source, timeout=0.5 if status == "terminated" else None, memory_limit=32 * 1024 * 1024
    )
    outcome = json.loads(found.content)
    assert outcome["status"] == status
    assert error in (found.content if error.startswith('"error"') else outcome["error"])
    assert found.metadata["plait"]["tool_status"] == "error"


def test_what_a_program_cannot_call_fails_at_the_start() -> None:
    @tool(needs_approval=True)
    def refund(desk: Desk) -> None:
        """Pay back."""

    with pytest.raises(ValueError, match="a program cannot call 'refund', as it needs approval"):
        RunCode([refund])
    with pytest.raises(ValueError, match="two tools that a program can call have the same name"):
        RunCode([find, find])
    for other in (Handoff("billing"), RunCode(), print):
        with pytest.raises(TypeError, match="imports must be functions with @tool"):
            RunCode([other])  # type: ignore[list-item]


async def test_stopping_an_agent_ends_its_program(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool
    def begin(desk: Desk) -> None:
        """Begin."""
        begun.set()

    source = "import { begin } from 'tools'; begin(); for (;;) {}"
    script = Script(call("run_code", source=source), "Done.")
    async with open_lab(tmp_path, script, tools=[RunCode([begin])]) as lab:
        await lab.ask("Do it.")
        async with asyncio.timeout(10):
            await begun.wait()
        assert await lab.handle.messages.stop()
        await lab.rest("cancelled")
        (found,) = [each for each in await lab.history() if each.role == "tool"]
        assert found.content == "Execution stopped by user"


def test_without_deno_the_error_at_the_start_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deno", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'plait\[code\]'"):
        RunCode([find])


def test_a_program_runs_at_most_once() -> None:
    assert not RunCode([find]).idempotent
