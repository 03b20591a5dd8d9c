"""Tools of other frameworks that return a variable, raise it, or keep it: its value goes nowhere."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from plait import Context, Env, Plait, Secret, Thread, Values
from plait.adapters.langgraph import Checkpoints, PlaitSaver

VALUE = "sk-7f3Qx0Zz9leak"


class Desk(Thread[None]):
    env = Env()
    values = Values()
    checkpoints = Checkpoints()


def give(secret: Secret) -> Any:
    return secret


def give_within(secret: Secret) -> Any:
    return {"key": secret, "keys": [secret]}


def give_text(secret: Secret) -> Any:
    return f"the key is {secret}"


def fail(secret: Secret) -> Any:
    raise ValueError(f"no answer with {secret}", secret)


WAYS = [give, give_within, give_text, fail]


def show(error: BaseException) -> str:
    """Return an error with the variables of all frames, as error reports have them."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


async def run_everywhere(app: Plait, folder: Path) -> str:
    """Run the agent with a variable; return all that was shown and stored."""
    async with app:
        await app.thread(Desk, "one").part(Desk.env).set("KEY", VALUE)
        try:
            shown = str(await app.run("work", thread="one"))
        except Exception as error:
            shown = show(error)
        exported = b"".join([lines async for lines in app.export_thread(Desk, "one")])
    return shown + "".join(data.decode(errors="replace") for data in (exported, *read_files(folder)))


def read_files(folder: Path) -> list[bytes]:
    """Return the content of each file of a folder."""
    return [path.read_bytes() for path in folder.iterdir()]


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_of_pydantic_ai_shows_no_secret(
    way: Callable[[Secret], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(repr(messages))
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {})])
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(answer), deps_type=Desk)

    @agent.tool
    async def look(ctx: RunContext[Desk]) -> Any:
        return way(await ctx.deps.env.get("KEY"))

    app = Plait(Desk, store=f"sqlite:///{tmp_path}/a.db", secret="x" * 32)

    @app.agent("work", thread=Desk)
    async def work(ctx: Context[Desk]) -> Any:
        result = await agent.run("look", deps=ctx.thread)
        return [result.output, repr(result.all_messages()), result.all_messages_json().decode()]

    shown = await run_everywhere(app, tmp_path)
    shown += "".join(seen) + caplog.text
    assert VALUE not in shown
    assert "Secret(***)" in shown or "serialize" in shown, "the tool was called"


class Said(TypedDict):
    messages: Annotated[Sequence[AnyMessage], add_messages]
    kept: Any


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_of_langgraph_shows_no_secret(
    way: Callable[[Secret], Any], keeps: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Plait(Desk, store=f"sqlite:///{tmp_path}/a.db", secret="x" * 32)

    @app.agent("work", thread=Desk)
    async def work(ctx: Context[Desk]) -> Any:
        @tool
        async def look() -> Any:
            """Look."""
            return way(await ctx.thread.env.get("KEY"))

        async def call(state: Said) -> Any:
            kept = await ctx.thread.env.get("KEY") if keeps else None
            return {"messages": [AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])], "kept": kept}

        graph = StateGraph(Said)
        graph.add_node("call", call)
        graph.add_node("tools", ToolNode([look], handle_tool_errors=True))
        graph.add_edge(START, "call")
        graph.add_edge("call", "tools")
        graph.add_edge("tools", END)
        compiled = graph.compile(checkpointer=PlaitSaver(app, Desk))
        result = await compiled.ainvoke({"messages": [], "kept": None}, {"configurable": {"thread_id": "one"}})
        return [repr(result)]

    shown = await run_everywhere(app, tmp_path) + caplog.text
    assert VALUE not in shown
    assert "Secret(***)" in shown or "serializable" in shown, "the tool was called"
