"""Calls tools for code, outside of the steps of a run: at once, and without messages."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from plait.actor.logs import log_error
from plait.actor.thread import Thread
from plait.agents.execution.definitions import AnyTool, Handoff, Prompt, PromptTool
from plait.agents.execution.loading import load_model_call
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.model_attempts import FIRST, Answer, ModelFailed
from plait.agents.execution.prompt_tools import DEEPEST, decode_question, join_results
from plait.agents.execution.registry import Execution
from plait.agents.execution.tools import HANDED_OVER, Refused, Tool, ToolResult, fail, read_result, tell_error
from plait.author_code import call
from plait.clock import read_due_clock
from plait.parts.messages.message import Message
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.messages.tool_calls import read_call

__all__ = ["Invoker"]


class Invoker:
    """Calls tools for the code of one thread, which gets errors as results."""

    def __init__(
        self, execution: Execution, thread: Thread[Any], messages: ThreadMessages, servers: McpServers
    ) -> None:
        self._execution = execution
        self._thread = thread
        self._messages = messages
        self._servers = servers

    async def invoke(self, tools: Mapping[str, AnyTool], name: str, arguments: str, *, depth: int = 0) -> ToolResult:
        """Call a tool with arguments, which are JSON: for code, or for a prompt that is nested `depth` deep."""
        try:
            self._thread._actor.check_active()
            match await self._servers.find(tools, name):
                case Handoff(agent=agent):
                    self._messages.hand_over(agent)
                    return HANDED_OVER
                case Tool(needs_approval=True) if depth:
                    raise Refused("it needs approval, for which only a run can wait")
                case Tool() as tool:
                    return read_result(await tool.invoke(self._thread, arguments))
                case PromptTool() as tool:
                    return await self._ask(tool, arguments, depth)
                case _:
                    return ToolResult("Only models and `queue_tool` can call a subagent.", is_error=True)
        except Refused as refusal:
            return fail(refusal)
        except Exception as error:
            log_error(error, self._thread._actor.key, None)
            return fail(tell_error(error))

    # Inside

    async def _ask(self, tool: PromptTool, arguments: str, depth: int) -> ToolResult:
        """Ask the model of a prompt once, and carry out the calls of its answer."""
        if depth >= DEEPEST:
            raise Refused(f"prompts that are tools can be nested {DEEPEST} deep")
        prompt, question = self._execution.prompts[tool.prompt], decode_question(tool.name, arguments)
        text = await call(prompt.text, self._thread) if callable(prompt.text) else prompt.text
        seen = [Message(id="", role="system", content=text), Message(id="question", role="user", content=question)]
        answer = await self._call_model(prompt, seen)
        calls = [read_call(call)[1:] for call in answer.tool_calls or ()]
        results = [(name, await self.invoke(prompt.tools, name, given, depth=depth + 1)) for name, given in calls]
        return join_results(answer.text, results)

    async def _call_model(self, prompt: Prompt, seen: list[Message]) -> Answer:
        model, progress = self._execution.load_model(prompt.model), FIRST
        tools = [*self._execution.describe_tools(prompt), *await self._servers.describe(prompt.tools)]
        while True:
            await asyncio.sleep((progress.due - read_due_clock()) / 1e6)
            chunks = (await load_model_call())(model, seen, tools=tools, progress=progress, settings=prompt.settings)
            try:
                async with aclosing(chunks):
                    (answer,) = [each async for each in chunks if isinstance(each, Answer)]
                return answer
            except ModelFailed as failed:
                if failed.retry is None:
                    raise
                progress = failed.retry
