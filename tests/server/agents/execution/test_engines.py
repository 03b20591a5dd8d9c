"""Executions on engines: what a person decides, a handover and a stop hold over restarts."""

from pathlib import Path
from typing import Any

import pytest
from tests.nats import new_stream
from tests.postgres import new_schema
from tests.schedules import in_soak
from tests.server.agents.execution.lab import Desk, Lab, Script, call, make_prompt, open_lab
from tests.server.parts.workshop import until

from plait import tool
from plait.agents.execution.definitions import Agent, Handoff, Side


@tool(needs_approval=True)
async def refund(desk: Desk, cents: int) -> str:
    """Pay back."""
    await desk.values.push("paid", cents)
    return f"paid {cents}"


AGENTS = [Agent("desk", Side("clerk")), Agent("billing", Side("cashier"))]
PROMPTS = [make_prompt("clerk", Handoff("billing")), make_prompt("cashier", refund)]


@pytest.fixture(params=["postgresql", *in_soak(["nats"])])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    if request.param == "nats":
        return new_stream(request.getfixturevalue("nats_server").url, "replicas=1")
    return new_schema(request.getfixturevalue("postgres").url)


async def find_refund(lab: Lab, *before: str) -> str:
    """Wait for a call that waits for a person, other than some before it, and return its id."""
    found = list[str]()

    async def is_open() -> bool:
        calls = await lab.handle.messages.open_calls()
        found[:] = [call["id"] for call in calls if call["function"]["name"] == "refund" and call["id"] not in before]
        return bool(found)

    await until(is_open)
    return found[0]


async def test_a_handover_an_approval_and_a_stop_hold_over_restarts(url: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"agents": AGENTS, "prompts": PROMPTS, "store": url}
    script = Script(call("billing"), call("refund", cents=5), call("refund", cents=6))
    async with open_lab(tmp_path, script, **options) as lab:
        await lab.ask("Refund.")
        first = await find_refund(lab)
    async with open_lab(tmp_path, Script(call("refund", cents=6)), **options) as lab:
        (run,) = await lab.handle.tasks.list()
        await lab.handle.tasks.send(run.id, f"approval:{first}", {"approved": True})
        await find_refund(lab, first)
        assert await lab.handle.messages.stop() is True
        await lab.ask("Nothing.", role="assistant")
    async with open_lab(tmp_path, Script("Stopped, then."), **options) as lab:
        assert await lab.statuses() == ["cancelled"]
        await lab.ask("Well?")
        await lab.rest("cancelled", "done")
        assert await lab.texts() == [
            "user Refund.",
            "assistant ['billing']",
            "tool The conversation is handed over.",
            "assistant ['refund']",
            "tool paid 5",
            "assistant ['refund']",
            "tool Execution stopped by user",
            "assistant Nothing.",
            "user Well?",
            "assistant Stopped, then.",
        ]
        assert await lab.handle.values.get("paid") == [5]
        assert (await lab.history())[-1].metadata["plait"]["execution"]["agent"] == "billing"
