"""The app of `test_steering_kill`: agents whose models are asked, wait for a moment, and are asked again."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from plait import Agent, Context, Messages, Model, Plait, Prompt, Side, Tasks, Thread, Values, rpc, tool
from plait.adapters.ag_ui import AgUi
from plait.adapters.langgraph import Checkpoints, PlaitSaver, steer
from plait.adapters.pydantic_ai import run_agent

__all__ = ["app"]

PAUSE = 0.15


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call a tool after a question, and then tell all that was asked."""
    last = messages[-1].parts if isinstance(messages[-1], ModelRequest) else ()
    if not any(isinstance(part, ToolReturnPart) for part in last):
        yield {0: DeltaToolCall("work", "{}", tool_call_id=os.urandom(4).hex())}
        return
    prompts = [part.content for each in messages for part in each.parts if isinstance(part, UserPromptPart)]
    said = [text for each in prompts for text in ([each] if isinstance(each, str) else each)]
    yield f"You said {said}."


class Talking(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    messages: Any

    @rpc
    async def say(self, text: str) -> None:
        await self.messages.queue(text, key=text)

    @rpc
    async def items(self) -> list[tuple[str, str, str]]:
        found = (await self.messages.list()).messages
        return [(each.role, each.status, each.content or "") for each in found]


class Desk(Talking):
    values = Values()
    tasks = Tasks()
    messages = Messages(agent="desk", live=True)


class Typed(Talking):
    messages = Messages(agent="typed", live=True)


class Graph(Talking):
    messages = Messages(agent="graph", live=True)
    checkpoints = Checkpoints()

    @rpc
    async def asked(self) -> list[str]:
        found = await graph.aget_state({"configurable": {"thread_id": self.name}})
        return [str(each.content) for each in found.values["messages"] if isinstance(each, HumanMessage)]


class Page(Talking):
    messages = Messages(live=True)


@tool(idempotent=True)
async def work(desk: Desk) -> str:
    """Work."""
    await asyncio.sleep(PAUSE)
    return "done"


app = Plait(Desk, Typed, Graph, Page, store="sqlite:///steering.db", secret="s")
model = FunctionModel(stream_function=say, model_name="m")
app.execution(
    Desk,
    agents=[Agent("desk", Side("clerk"))],
    prompts=[Prompt("clerk", "Help.", "fast", [work])],
    models=[Model("fast", model)],
)
assistant = PydanticAgent(model)


@assistant.tool_plain(name="work")
async def work_plainly() -> str:
    await asyncio.sleep(PAUSE)
    return "done"


@app.agent("typed", thread=Typed)
async def typed(ctx: Context[Typed]) -> None:
    await run_agent(ctx, assistant, messages=ctx.thread.messages)


@app.agent("page", thread=Page)
async def page(ctx: Context[Page], text: str) -> None:
    await run_agent(ctx, assistant, messages=ctx.thread.messages)


class Said(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def pause(said: Said) -> dict[str, Any]:
    await asyncio.sleep(PAUSE)
    return {}


async def answer(said: Said) -> dict[str, Any]:
    texts = [each.content for each in said["messages"] if isinstance(each, HumanMessage)]
    return {"messages": [AIMessage(f"You said {texts}.")]}


nodes: list[Any] = [pause, answer]
builder: Any = StateGraph(Said).add_sequence(nodes).add_edge(START, "pause")
graph = steer(builder).compile(PlaitSaver(app, Graph))


@app.agent("graph", thread=Graph)
async def run_graph(ctx: Context[Graph]) -> None:
    result = await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": ctx.thread.name}})
    ctx.thread.messages.inject("assistant", result["messages"][-1].content)


app.mount("/ag-ui", AgUi(app, messages="messages"))
