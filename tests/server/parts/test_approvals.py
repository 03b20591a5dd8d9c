"""Calls of tools that wait for a person: who sees them, who answers them, and what counts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.running import running
from tests.server.agents.execution.lab import Desk, Lab, Said, Script, call, make_prompt
from tests.server.parts.workshop import until

from plait import Agent, Messages, NotFound, Plait, Principal, PromptTool, Side, rpc, tool
from plait.parts.tasks import waits
from plait_client import CallError, PendingApproval, Room, connect


class Shop(Desk):
    kind = "shop"
    messages = Messages(agent="desk", live=True)

    @rpc
    async def waiting(self) -> list[bool]:
        return [each.may_approve for each in await self.messages.approvals()]


@tool(needs_approval=True)
async def pay(desk: Desk, cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def authenticate(request: Any) -> Principal | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal(name) if name else None


async def authorize(principal: Principal | None, thread: object, action: str) -> bool:
    return action != "approve" or (principal is not None and principal.id == "bo")


@asynccontextmanager
async def serving(*said: Said, store: str = "memory:", prompts: Sequence[Any] = ()) -> AsyncIterator[tuple[str, Lab]]:
    app = Plait(Shop, store=store, secret="s", authenticate=authenticate, authorize=authorize, shutdown_timeout=0.1)
    script = Script(*said)
    found = prompts or [make_prompt("clerk", pay)]
    app.execution(Shop, agents=[Agent("desk", Side("clerk"))], prompts=found, models=[script.model])
    async with running(app) as address, asyncio.timeout(30):
        yield f"ws://{address}/threads/shop/one", Lab(app, Shop)


Found = Sequence[PendingApproval]


async def has_waiting(lab: Lab) -> bool:
    return bool(await lab.handle.messages.approvals())


async def until_waiting(room: Room[Any], look: Callable[[Found], bool]) -> Found:
    """Wait until a client sees waiting calls that fit."""
    changed = asyncio.Event()
    stop = room.messages.on_change(lambda _: changed.set())
    while not look(room.messages.approvals):
        await changed.wait()
        changed.clear()
    stop()
    return room.messages.approvals


@pytest.mark.parametrize("rest", [0.0, 3600.0])
async def test_clients_see_what_waits_and_one_with_the_right_answers_it_by_its_call(
    rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SOON", "_REST"):
        monkeypatch.setattr(waits, name, rest)  # Whether the run leaves the memory.
    said = [("pay", {"cents": 1}), ("pay", {"cents": 2})]
    async with serving(said, "Done.") as (url, lab), connect(url, token="ada") as ada, connect(url, token="bo") as bo:
        await ada.messages.send("Pay.")
        (waiting,) = await until_waiting(ada, bool)
        answer = ada.messages.items[1]
        assert answer.tool_calls is not None
        assert waiting == PendingApproval(answer.tool_calls[0]["id"], "pay", '{"cents": 1}', answer.id)
        (seen,) = await until_waiting(bo, bool)
        assert (seen.call, seen.may_approve) == (waiting.call, True)
        assert (await ada.call("waiting"), await bo.call("waiting")) == ([False], [True])
        with pytest.raises(CallError, match="Forbidden"):
            await ada.messages.approve(waiting.call, True)
        assert await bo.messages.approve(waiting.call, True)
        (second,) = await until_waiting(ada, lambda found: [each.call for each in found] not in ([], [waiting.call]))
        assert second.arguments == '{"cents": 2}'
        assert await bo.messages.approve(second.call, False, "Too much.")
        await until_waiting(ada, lambda found: not found)
        await lab.rest()
        assert (await lab.texts())[2:] == [
            "tool paid 1",
            "tool Failed to execute tool: a person has refused the call: Too much.",
            "assistant Done.",
        ]


async def test_one_of_two_answers_counts_and_an_unknown_call_is_an_error() -> None:
    async with (
        serving(call("pay", cents=1), "Done.") as (url, lab),
        connect(url, token="bo") as bo,
        connect(url, token="bo") as other,
    ):
        await bo.messages.send("Pay.")
        (waiting,) = await until_waiting(bo, bool)
        answers = await asyncio.gather(
            bo.messages.approve(waiting.call, True), other.messages.approve(waiting.call, False)
        )
        assert sorted(answers) == [False, True]
        await lab.rest()
        assert not await bo.messages.approve(waiting.call, True)
        told = (await lab.texts())[2]
        assert (told == "tool paid 1") is answers[0]
        with pytest.raises(CallError, match="no call 'nothing' of a tool"):
            await bo.messages.approve("nothing", True)


async def test_server_code_lists_what_waits_with_its_run_and_answers_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'plait.db'}"
    async with serving(call("pay", cents=1), store=store) as (_, lab):
        assert await lab.handle.messages.approvals() == []
        await lab.ask("Pay.")
        await until(lambda: has_waiting(lab))
        found = await lab.handle.messages.approvals()
        (run,) = await lab.handle.tasks.list()
        assert (found[0].run, found[0].may_approve) == (run.id, True)
    async with serving("Done.", store=store) as (url, lab), connect(url, token="ada") as room:
        assert await lab.handle.messages.approvals() == found
        assert [each.call for each in await until_waiting(room, bool)] == [found[0].call]
        with pytest.raises(NotFound):
            await lab.handle.messages.approve("x", True)
        assert await lab.handle.messages.approve(found[0].call, True)
        assert not await lab.handle.messages.approve(found[0].call, True)
        await lab.rest()
        assert await lab.handle.messages.approvals() == []


async def test_a_call_of_a_prompt_that_is_a_tool_waits_like_others_and_a_stop_ends_the_wait() -> None:
    prompts = [make_prompt("clerk", PromptTool("payer")), make_prompt("payer", pay)]
    said = call("payer", message="Pay 1."), call("pay", cents=1)
    async with serving(*said, prompts=prompts) as (url, lab), connect(url, token="bo") as bo:
        await bo.messages.send("Pay.")
        (waiting,) = await until_waiting(bo, bool)
        (message,) = [each for each in bo.messages.items if each.id == waiting.message_id]
        assert (message.depth, waiting.tool) == (1, "pay")
        await lab.handle.messages.stop()
        await until_waiting(bo, lambda found: not found)
        assert not await bo.messages.approve(waiting.call, True)
