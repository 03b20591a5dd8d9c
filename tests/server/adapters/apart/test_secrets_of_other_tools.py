"""Tools of the OpenAI Agents SDK and AgentScope that return a variable: its value goes nowhere."""

# pyright: reportMissingImports=false

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentscope.agent
import pytest
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import TextBlock, ToolCallBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel

from plait import Context, Env, Messages, Plait, Secret, Thread, Values
from plait.adapters.agentscope import open_state
from plait.adapters.openai_agents import ThreadSession

set_tracing_disabled(True)

VALUE = "sk-7f3Qx0Zz9leak"


class Desk(Thread[None]):
    env = Env()
    values = Values()
    messages = Messages()


def give(secret: Secret) -> Any:
    return secret


def give_text(secret: Secret) -> Any:
    return f"the key is {secret}"


def fail(secret: Secret) -> Any:
    raise ValueError(f"no answer with {secret}", secret)


WAYS = pytest.mark.parametrize("way", [give, give_text, fail])


def read_files(folder: Path) -> list[bytes]:
    """Return the content of each file of a folder."""
    return [path.read_bytes() for path in folder.iterdir()]


async def run_everywhere(app: Plait, folder: Path) -> str:
    """Run the agent with a variable; return all that was shown and stored."""
    async with app:
        await app.thread(Desk, "one").part(Desk.env).set("KEY", VALUE)
        try:
            shown = str(await app.run("work", thread="one"))
        except Exception as error:
            shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        exported = b"".join([lines async for lines in app.export_thread(Desk, "one")])
    return shown + "".join(data.decode(errors="replace") for data in (exported, *read_files(folder)))


class CallingModel(Model):
    """A model of the OpenAI Agents SDK that calls its tool, and is then done."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.seen.append(repr(input))
        output: list[Any]
        if input[-1].get("type") != "function_call_output":
            output = [ResponseFunctionToolCall(type="function_call", call_id="1", name="look", arguments="{}")]
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@WAYS
async def test_a_tool_of_the_openai_agents_sdk_shows_no_secret(
    way: Callable[[Secret], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, model = Plait(Desk, store=f"sqlite:///{tmp_path}/a.db", secret="x" * 32), CallingModel()

    @app.agent("work", thread=Desk)
    async def work(ctx: Context[Desk]) -> Any:
        @function_tool
        async def look() -> Any:
            """Look."""
            return way(await ctx.thread.env.get("KEY"))

        session = ThreadSession(ctx.thread.messages, session_id="one")
        result = await Runner.run(Agent(name="a", model=model, tools=[look]), "look", session=session)
        return [result.final_output, repr(result.to_input_list())]

    shown = await run_everywhere(app, tmp_path) + "".join(model.seen) + caplog.text
    assert VALUE not in shown
    assert "Secret(***)" in shown or "while running the tool" in shown, "the tool was called"


class CallingChat(ChatModelBase):
    """A model of AgentScope that calls its tool, and is then done."""

    class Parameters(BaseModel):
        pass

    def __init__(self) -> None:
        super().__init__(CredentialBase(), "calling", self.Parameters(), stream=False, max_retries=0)
        self.formatter = OpenAIChatFormatter()
        self.seen: list[str] = []

    async def _call_api(self, model_name: str, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResponse:
        self.seen.append(repr(messages))
        if len(self.seen) == 1:
            return ChatResponse(content=[ToolCallBlock(id="1", name="look", input="{}")], is_last=True)
        return ChatResponse(content=[TextBlock(text="done")], is_last=True)


@WAYS
async def test_a_tool_of_agentscope_shows_no_secret(
    way: Callable[[Secret], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, model = Plait(Desk, store=f"sqlite:///{tmp_path}/a.db", secret="x" * 32), CallingChat()

    @app.agent("work", thread=Desk)
    async def work(ctx: Context[Desk]) -> Any:
        async def look() -> Any:
            """Look."""
            return way(await ctx.thread.env.get("KEY"))

        async with open_state(ctx.thread.values, AgentState) as state:
            state.permission_context.mode = PermissionMode.BYPASS
            toolkit = Toolkit([FunctionTool(look)])
            agent = agentscope.agent.Agent("a", "Look.", model, state=state, toolkit=toolkit)
            return str(await agent.reply(UserMsg("user", "look")))

    shown = await run_everywhere(app, tmp_path) + "".join(model.seen) + caplog.text
    assert VALUE not in shown
    assert "Secret(***)" in shown, "the tool was called"
