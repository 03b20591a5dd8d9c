"""What a model thinks: people see it below the answer, and no model reads it again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ThinkingPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from tests.running import running
from tests.server.agents.execution.lab import Desk, Hold, Lab, make_prompt

from plait import Message, Messages, Page, Plait
from plait.agents.execution import model_attempts
from plait.agents.execution.definitions import Agent, Model, Side
from plait.agents.execution.tools import tool
from plait_client import Room, connect

Say = Callable[[], AsyncIterator[Any]]


class Shown(Desk):
    kind = "desk"
    messages = Messages(agent="desk", live=True)


@tool
async def look(desk: Desk, at: int = 0) -> str:
    """Look."""
    return "seen"


@asynccontextmanager
async def open_desk(
    *answers: Say, thoughts: bool = True
) -> AsyncIterator[tuple[Room[Any], Lab, list[list[ModelMessage]]]]:
    """Yield a client that has the messages open, the thread, and what the model has seen in each call."""
    seen: list[list[ModelMessage]] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        seen.append([*messages])
        async for each in answers[len(seen) - 1]():
            yield each

    app = Plait(Shown, store="memory:", secret="test")
    model = Model("script", FunctionModel(stream_function=stream))
    prompt = make_prompt("clerk", look, thoughts=thoughts)
    app.execution(Shown, agents=[Agent("desk", Side("clerk"))], prompts=[prompt], models=[model])
    async with running(app) as address, connect(f"ws://{address}/threads/desk/one") as room, asyncio.timeout(20):
        await room.messages.open()
        await room.messages.send("Where?")
        yield room, Lab(app, Shown), seen


def shown(room: Room[Any]) -> list[str]:
    return [f"{'>' * each.depth}{each.role} {each.status} {each.content}" for each in room.messages.items]


async def until_shown(room: Room[Any], *lines: str) -> list[Any]:
    """Wait until a client shows this."""
    async for items in room.messages:
        if shown(room) == [*lines]:
            return [*items]
    raise AssertionError


async def test_thoughts_are_shown_below_the_answer_as_they_come_and_no_model_reads_them() -> None:
    thinking, talking = Hold(), Hold()

    async def think_and_look() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Where ")}
        await thinking.wait()
        yield {0: DeltaThinkingPart(content="is it?", signature="s")}
        yield "I look."
        await talking.wait()
        yield {2: DeltaToolCall("look", "{}", tool_call_id="c")}

    async def tell() -> AsyncIterator[Any]:
        yield "Here."

    async with open_desk(think_and_look, tell) as (room, lab, seen):
        await until_shown(room, "user completed Where?", "assistant streaming ", ">assistant streaming Where ")
        thinking.go.set()
        items = await until_shown(
            room, "user completed Where?", "assistant streaming I look.", ">assistant streaming Where is it?"
        )
        assert (items[2].parent_id, items[2].name) == (items[1].id, "reasoning")
        talking.go.set()
        told = ["user completed Where?", "assistant completed I look.", "tool completed seen"]
        await until_shown(room, *told[:2], ">assistant completed Where is it?", told[2], "assistant completed Here.")
        await lab.rest()
        page: Page = await lab.handle.messages.list()
        assert [each.content for each in page.messages] == ["Where?", "I look.", "seen", "Here."]
        assert page.total == 4
        # The model gets its own thoughts back, as its provider needs them, and once.
        thoughts = [part for each in seen[1] for part in each.parts if isinstance(part, ThinkingPart)]
        assert [(each.content, each.signature) for each in thoughts] == [("Where is it?", "s")]
        texts = [getattr(part, "content", None) for each in seen[1] for part in each.parts]
        assert texts.count("Where is it?") == 1


async def test_thoughts_are_only_shown_if_the_prompt_says_so() -> None:
    async def think() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Hm.")}
        yield "Here."

    async with open_desk(think, thoughts=False) as (room, _, _):
        await until_shown(room, "user completed Where?", "assistant completed Here.")


async def test_the_thoughts_of_a_failed_attempt_go_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_attempts, "_PAUSE", 1_000)

    async def think_and_fail() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Hm.")}
        raise RuntimeError("away")

    async def think_and_tell() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Ah.")}
        yield "Here."

    async with open_desk(think_and_fail, think_and_tell) as (room, lab, _):
        await until_shown(room, "user completed Where?", "assistant completed Here.", ">assistant completed Ah.")
        found: list[Message] = (await lab.handle.messages.list(max_depth=1)).messages
        assert [each.content for each in found] == ["Where?", "Here.", "Ah."]


async def test_the_thoughts_of_an_attempt_that_fails_after_some_text_are_failed_as_its_text_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_attempts, "_PAUSE", 1_000)

    async def fail() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Hm.")}
        yield "Half"
        raise RuntimeError("away")

    async def tell() -> AsyncIterator[Any]:
        yield "Here."

    async with open_desk(fail, tell) as (room, _, _):
        failed = ["assistant failed Half", ">assistant failed Hm."]
        await until_shown(room, "user completed Where?", *failed, "assistant completed Here.")


async def test_a_deleted_answer_takes_its_thoughts_with_it() -> None:
    async def think() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Hm.")}
        yield "Here."

    async with open_desk(think) as (room, lab, _):
        items = await until_shown(
            room, "user completed Where?", "assistant completed Here.", ">assistant completed Hm."
        )
        assert await lab.handle.messages.delete(items[1].id)
        await until_shown(room, "user completed Where?")
        assert (await lab.handle.messages.list(max_depth=1)).total == 1


async def test_the_arguments_of_a_call_are_shown_while_the_model_writes_them_under_the_id_of_the_call() -> None:
    hold = Hold()

    async def call() -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Hm.")}
        yield {1: DeltaToolCall("look", '{"a', tool_call_id="c1")}
        yield {2: DeltaToolCall("look", "{}", tool_call_id="c2")}
        await hold.wait()
        yield {1: DeltaToolCall(json_args='t": 1}')}

    async def tell() -> AsyncIterator[Any]:
        yield "Here."

    def calls(room: Room[Any]) -> dict[str, str]:
        found = [call for each in room.messages.items for call in each.tool_calls or ()]
        return {call["id"]: f"{call['function']['name']} {call['function']['arguments']}" for call in found}

    async with open_desk(call, tell, thoughts=False) as (room, lab, _):
        async for _ in room.messages:
            if [*calls(room).values()] == ['look {"a', "look {}"]:
                break
        shown_ids = [*calls(room)]
        hold.go.set()
        await until_shown(
            room,
            "user completed Where?",
            "assistant completed ",
            "tool completed seen",
            "tool completed seen",
            "assistant completed Here.",
        )
        assert calls(room) == dict(zip(shown_ids, ['look {"at": 1}', "look {}"], strict=True))
        assert [each.tool_call_id for each in await lab.history() if each.role == "tool"] == shown_ids
