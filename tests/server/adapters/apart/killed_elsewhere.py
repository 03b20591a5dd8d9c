"""The app of `test_steering_kill`: agents of the OpenAI Agents SDK and of AgentScope, whose models are asked twice."""

# pyright: reportMissingImports=false

import asyncio
import os
from typing import Any

from agents import Agent as OpenAIAgent
from agents import ModelResponse, Usage, function_tool, set_tracing_disabled
from agentscope.agent import Agent as ScopeAgent
from agentscope.message import TextBlock, ToolCallBlock
from agentscope.model import ChatResponse
from agentscope.permission import PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from tests.server.adapters.apart.test_agentscope import Echo as ScopeModel
from tests.server.adapters.apart.test_openai_agents import Echo as OpenAIModel

from plait import Context, Messages, Plait, Thread, Values, rpc
from plait.adapters.agentscope import Steering, open_state
from plait.adapters.openai_agents import ThreadSession

__all__ = ["app"]

PAUSE = 0.15
set_tracing_disabled(True)


class Talking(Thread[None]):
    messages: Any

    @rpc
    async def say(self, text: str) -> None:
        await self.messages.queue(text, key=text)

    @rpc
    async def items(self) -> list[tuple[str, str, str]]:
        found = (await self.messages.list()).messages
        return [(each.role, each.status, each.content or "") for each in found]


class Session(Talking):
    messages = Messages(agent="session", live=True)


class Scope(Talking):
    values = Values()
    messages = Messages(agent="scope", live=True)


app = Plait(Session, Scope, store="sqlite:///steering.db", secret="s")


class Asked(OpenAIModel):
    """Calls its tool after a question, and then tells all that was asked."""

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        if not any(each.get("type") == "function_call_output" for each in input):
            call = {"call_id": os.urandom(4).hex(), "name": "work", "arguments": "{}"}
            output: list[Any] = [ResponseFunctionToolCall(type="function_call", **call)]
            return ModelResponse(output=output, usage=Usage(), response_id=None)
        said = [each["content"] for each in input if each.get("role") == "user"]
        text = ResponseOutputText(type="output_text", text=f"You said {said}.", annotations=[])
        message = ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)


@function_tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(PAUSE)
    return "done"


@app.agent("session", thread=Session)
async def session(ctx: Context[Session]) -> None:
    await ThreadSession(ctx.thread.messages).run(OpenAIAgent(name="asked", model=Asked(), tools=[work]))


class Scoped(ScopeModel):
    """Does the same."""

    async def _call_api(self, model_name: str, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResponse:
        blocks = [(each.role, block) for each in messages for block in each.content if block.type != "hint"]
        if not any(block.type == "tool_result" for _, block in blocks):
            return ChatResponse(content=[ToolCallBlock(id=os.urandom(4).hex(), name="wait", input="{}")], is_last=True)
        said = [block.text for role, block in blocks if role == "user" and block.type == "text"]
        return ChatResponse(content=[TextBlock(text=f"You said {said}.")], is_last=True)


async def wait() -> ToolChunk:
    """Wait."""
    await asyncio.sleep(PAUSE)
    return ToolChunk(content=[TextBlock(text="done")])


@app.agent("scope", thread=Scope)
async def scope(ctx: Context[Scope]) -> None:
    steering, thread = Steering(), ctx.thread
    async with open_state(thread.values, AgentState, messages=thread.messages, steering=steering) as state:
        state.permission_context.mode = PermissionMode.BYPASS
        tools = Toolkit(tools=[FunctionTool(wait)])
        await ScopeAgent("asked", "Help.", Scoped(), state=state, toolkit=tools, middlewares=[steering]).reply()
