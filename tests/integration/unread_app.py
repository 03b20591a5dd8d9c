"""The app of `test_unread_kills`: listed conversations with a plain agent, and with one that asks for approval."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.integration.test_listings import authenticate

from plait import Agent, Context, Messages, Model, Plait, Prompt, Side, Tasks, Thread, Values, tool

__all__ = ["Chat", "Desk", "app"]


def make_card(messages: Any) -> dict[str, Any]:
    return {"status": messages.status, "last": messages.last, "told": messages.told}


class Chat(Thread[dict[str, Any]]):
    """A conversation with a plain agent."""

    listed = True
    initial_state: Any = {}  # noqa: RUF012
    messages = Messages(agent="bot", live=True)

    def card(self, state: dict[str, Any]) -> object:
        return make_card(self.messages)


class Desk(Thread[dict[str, Any]]):
    """A conversation with an agent that executes."""

    listed = True
    initial_state: Any = {}  # noqa: RUF012
    values = Values()
    tasks = Tasks(live=True)
    messages = Messages(agent="desk", live=True)

    def card(self, state: dict[str, Any]) -> object:
        return make_card(self.messages)


@tool(needs_approval=True)
async def pay(desk: Desk) -> str:
    """Pay."""
    return "paid"


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Answer the last question; pay before, if it asks for that."""
    question, has_paid = "", False
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, UserPromptPart):
            question, has_paid = str(part.content), False
        has_paid |= isinstance(part, ToolReturnPart)
    if "pay" in question and not has_paid:
        yield {0: DeltaToolCall("pay", "{}", tool_call_id=f"call-{question}")}
        return
    for word in ("re", question):
        yield f"{word} "
        await asyncio.sleep(0.02)


app = Plait(
    Chat, Desk, store="sqlite:///unread.db", secret="x" * 32, authenticate=authenticate, authorize=lambda *_: True
)
app.execution(
    Desk,
    agents=[Agent("desk", Side("clerk"))],
    prompts=[Prompt("clerk", "Help.", "fast", [pay])],
    models=[Model("fast", FunctionModel(stream_function=say, model_name="m"))],
)


@app.agent("bot", thread=Chat)
async def bot(ctx: Context[Chat]) -> None:
    for message in await ctx.thread.messages.take():
        async with ctx.thread.messages.stream() as answer:
            for word in ("re", message.content):
                answer.append(f"{word} ")
                await asyncio.sleep(0.02)
