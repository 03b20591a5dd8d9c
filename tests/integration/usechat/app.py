"""An app for `useChat`: a durable agent that thinks, calls tools and asks for approval, and plain agents."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from starlette.requests import Request

from plait import Agent, Context, Files, Messages, Model, Plait, Principal, Prompt, Side, Tasks, Thread, tool

# Seconds between two words of an answer.
PAUSE = float(os.environ.get("CHAT_PAUSE", "0.02"))


async def say(
    history: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall] | dict[int, DeltaThinkingPart]]:
    """Answer by the words of the last question."""
    question, results = "", list[str]()
    for part in (part for message in history for part in message.parts):
        if isinstance(part, UserPromptPart):
            question, results = str(part.content), []
        elif isinstance(part, ToolReturnPart):
            results.append(str(part.content))
    if "fail" in question:
        raise RuntimeError("this model is broken")
    if "think" in question:
        for word in ["orders", "are", "on", "my", "mind"]:
            yield {0: DeltaThinkingPart(content=f"{word} ")}
            await asyncio.sleep(PAUSE)
    if "slowly" in question and not results:
        for number, text in enumerate(['{"num', 'ber": ', "7}"]):
            yield {1: DeltaToolCall(None if number else "find_order", text, tool_call_id="s")}
            await asyncio.sleep(5 * PAUSE)
        return
    if "order" in question and not results:
        yield {1: DeltaToolCall("find_order", json.dumps({"number": 7}), tool_call_id="a")}
        return
    if "refund" in question and not results:
        yield "I will. "
        yield {1: DeltaToolCall("refund", json.dumps({"number": 7}), tool_call_id="b")}
        if "twice" in question:
            yield {2: DeltaToolCall("refund", json.dumps({"number": 8}), tool_call_id="c")}
            yield {3: DeltaToolCall("find_order", json.dumps({"number": 8}), tool_call_id="d")}
        return
    for word in words(question):
        yield f"{word} "
        await asyncio.sleep(PAUSE)
    yield f"(to: {question[:40]}; {'; '.join(results)})"


def words(question: str) -> list[str]:
    """Return the words of an answer: many for a story."""
    return [f"word{number}" for number in range(60 if "story" in question else 3)]


class Support(Thread[None]):
    tasks = Tasks()
    files = Files()
    messages = Messages(agent="desk", live=True)


@tool(idempotent=True)
async def find_order(desk: Support, number: int) -> dict[str, Any]:
    """Return an order."""
    return {"number": number, "what": "a kite"}


@tool(needs_approval=True)
async def refund(desk: Support, number: int) -> str:
    """Pay an order back."""
    return f"order {number} is paid back"


class Plain(Thread[None]):
    messages = Messages(agent="plain", live=True)


class Greedy(Thread[None]):
    messages = Messages(agent="greedy", live=True)


def authenticate(request: Request) -> Principal:
    """Take the user from a header; without one, the user is Ann."""
    return Principal(request.headers.get("x-user", "ann"))


def make_app(**options: Any) -> Plait:
    """Return the app."""
    app = Plait(Support, Plain, Greedy, secret="x" * 32, authenticate=authenticate, **options)
    app.execution(
        Support,
        agents=[Agent("desk", Side("clerk"))],
        prompts=[Prompt("clerk", "Help.", "fast", [find_order, refund], thoughts=True)],
        models=[Model("fast", FunctionModel(stream_function=say, model_name="words"))],
    )

    @app.agent("plain", thread=Plain)
    async def plain(ctx: Context[Plain]) -> None:
        messages = ctx.thread.messages
        while taken := await messages.take(limit=1):
            question = taken[0].content or ""
            if "fail" in question:
                raise RuntimeError("this agent is broken")
            async with messages.stream() as answer:
                for word in words(question):
                    answer.append(f"{word} ")
                    await asyncio.sleep(PAUSE)
                    await ctx.checkpoint()
                answer.append(f"(to: {question})")
            await ctx.flush()

    @app.agent("greedy", thread=Greedy)
    async def greedy(ctx: Context[Greedy]) -> None:
        messages = ctx.thread.messages
        while taken := await messages.take():
            async with messages.stream() as answer:
                for word in words(" ".join(each.content or "" for each in taken)):
                    answer.append(f"{word} ")
                    await asyncio.sleep(PAUSE)
            await ctx.flush()

    return app


app = make_app(authorize=lambda principal, thread, action: True)
