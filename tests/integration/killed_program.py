"""The app of `test_program_kill`: a model that writes a program over three tools, until one has succeeded."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from plait import Agent, Messages, Model, Plait, Prompt, RunCode, Side, Tasks, Thread, Values, rpc, tool

__all__ = ["Desk", "app"]

SOURCE = """
import { find, pay, tell } from "tools";
const { price } = await find({ name: "tea" });
const number = await pay({ price });
for (let i = 0; i < HANGS; i++) {}
export default await tell({ number });
"""


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Write a program; if its outcome is not known, write another one; then answer with its result."""
    results = [str(part.content) for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    if results and "success" in results[-1]:
        yield f"{len(results)} programs: {json.loads(results[-1])['value']}"
        return
    source = SOURCE.replace("HANGS", "0" if results else "Infinity")
    yield {0: DeltaToolCall("run_code", json.dumps({"source": source}), tool_call_id=f"c{len(results)}")}


class Desk(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    tasks = Tasks()
    values = Values()
    messages = Messages(agent="clerk")

    @rpc
    async def ask(self, text: str) -> None:
        await self.messages.queue(text)

    @rpc
    async def look(self) -> list[Any]:
        page = await self.messages.list(100)
        return [[each.role, each.content] for each in page.messages if each.status == "completed" and each.content]

    @rpc
    async def is_answered(self) -> bool:
        return (await self.messages.list(100)).messages[-1].content == "2 programs: number 7"

    @rpc
    async def find_paid(self) -> Any:
        return await self.values.get("paid", [])


@tool
def find(desk: Desk, name: str) -> dict[str, int]:
    """Find a price."""
    return {"price": len(name)}


@tool
async def pay(desk: Desk, price: int) -> int:
    """Pay."""
    with open(os.environ["DESK_LOG"], "a") as log:  # noqa: ASYNC230
        log.write(f"paid {price}\n")
    await desk.values.push("paid", price)
    await asyncio.sleep(0)
    return 7


@tool
def tell(desk: Desk, number: int) -> str:
    """Tell the number."""
    return f"number {number}"


app = Plait(Desk, store=os.environ.get("PLAIT_STORE", "sqlite:///desk.db"), limits=None)
app.execution(
    Desk,
    agents=[Agent("clerk", Side("clerk"))],
    models=[Model("script", FunctionModel(stream_function=say))],
    prompts=[Prompt("clerk", "You are a clerk.", "script", [RunCode([find, pay, tell])])],
)
