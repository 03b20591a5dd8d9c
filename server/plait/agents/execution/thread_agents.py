"""The agents of one thread: its code gets them by name, and uses their tools."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.logs import log_error
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import Turn, current_turn
from plait.agents.execution.asking import load_model_call
from plait.agents.execution.definitions import Agent, AnyTool, Handoff, Model, Prompt, PromptTool, Speaker, Subagent
from plait.agents.execution.dispatch import DEEPEST, decode_question, join_results
from plait.agents.execution.hooks import Hooks, call_hooks
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.model_attempts import FIRST, Answer, ModelFailed
from plait.agents.execution.registry import Execution, find_named
from plait.agents.execution.state import ExecutionState, find_execution, find_hooks
from plait.agents.execution.stops import TOOL
from plait.agents.execution.subagents import VARIABLES, SubagentCall
from plait.agents.execution.tools import HANDED_OVER, Refused, Tool, ToolResult, fail, read_result, tell_error
from plait.author_code import call
from plait.clock import read_due_clock
from plait.errors import InvalidArguments, NotFound
from plait.parts.encoding import check_type, encode_named
from plait.parts.env.secret import Secret
from plait.parts.messages.message import Message, make_own, read_call
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.part import require_role
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.thread_tasks import ThreadTasks
from plait.parts.written import Result

__all__ = ["SUPPLY", "ThreadAgents", "make_supply_method"]

SUPPLY: Final = "run:supply"
"""The method by which clients that may `approve` give a run the variables that it needs for a subagent."""


class ThreadAgents:
    """`thread.agents` of a class that was given to `app.execution`: its agents, prompts, models and tools by name."""

    def __init__(self, execution: Execution, actor: Actor) -> None:
        self._definitions = execution
        self._actor = actor
        self._messages = execution.find_messages(actor.thread)
        # The run in memory, if there is one.
        self.running: ExecutionState | None = None
        # The call of `after_thread_created`, if it has begun.
        self.creation: asyncio.Task[None] | None = None
        # The turn that has begun that call.
        self._creating: Turn | None = None

    @property
    def execution(self) -> ExecutionState | None:
        """The execution that the calling code is a part of; None at rest."""
        return find_execution(self._messages)

    def find_variables(self) -> Mapping[str, str]:
        """Return the variables of the answering agent and of its prompt; at rest, of the prompt of side A."""
        speaker = self._find_speaker(self.execution)
        return {**speaker.prompt.env, **speaker.agent.env}

    # Definitions

    def load_model(self, name: str) -> Model:
        """Return a model. Raises NotFound."""
        return self._definitions.load_model(name)

    def load_prompt(self, name: str) -> Prompt:
        """Return a prompt. Raises NotFound."""
        return find_named("prompt", self._definitions.prompts, name)

    def load_agent(self, name: str) -> Agent:
        """Return an agent. Raises NotFound."""
        return find_named("agent", self._definitions.agents, name)

    def get_model_names(self) -> list[str]:
        """Return the names of all models."""
        return [*self._definitions.models]

    def get_prompt_names(self) -> list[str]:
        """Return the names of all prompts."""
        return [*self._definitions.prompts]

    def get_agent_names(self) -> list[str]:
        """Return the names of all agents."""
        return [*self._definitions.agents]

    # Tools

    def queue_tool(self, name: str, args: Mapping[str, Any] = {}) -> Result[Message]:
        """Queue a call of a tool of any prompt: a run carries it out before it asks a model again.

        At rest, a run begins for it. Raises NotFound for an unknown tool, InvalidArguments for arguments that do not
        fit, TypeError and ValueError for those that are no dict of JSON values, and what `messages.queue` raises.
        """
        tool, arguments = self._definitions.find_tool(name), _encode_arguments(name, args)
        try:
            match tool:
                case Tool():
                    tool.decode(arguments, limits=self._actor.limits)
                case PromptTool():
                    decode_question(name, arguments)
                case Subagent():
                    SubagentCall.decode(name, arguments)
        except Refused as refusal:
            raise InvalidArguments(str(refusal)) from None
        call = {"name": name, "arguments": arguments}
        return self._messages.queue("", "system", silent=True, metadata=make_own({TOOL: call}))

    async def invoke_tool(self, name: str, args: Mapping[str, Any] = {}) -> ToolResult:
        """Call a tool of any prompt at once, and return its result; the history gets no message.

        Errors are results, too. No person is asked for approval, and no hooks are called.
        """
        async with McpServers(self._actor.thread) as servers:
            invoker = _Invoker(self._definitions, self._actor.thread, self._messages, servers)
            return await invoker.invoke(self._definitions.tools, name, _encode_arguments(name, args))

    # Subagents

    async def supply(self, run: str, variables: Mapping[str, str | Secret]) -> bool:
        """Give the variables that a run needs for a subagent, which begins then; return whether they were taken.

        The `value` of the run has them: `{"needs": {"call": …, "agent": …, "variables": [names]}}`. Raises NotFound if
        the run needs none, and ValueError if names are missing, or not needed.
        """
        tasks: ThreadTasks = require_role(type(self._actor.thread), "tasks").of(self._actor)
        match await tasks.get(run):
            case TaskRun(ended_at=None, value={"needs": {"call": call, "variables": [*needed]}}):
                if {*needed} != {*variables}:
                    raise ValueError(f"the run needs these variables, and no others: {', '.join(needed)}")
            case _:
                raise NotFound(f"the run {run} needs no variables")
        env = require_role(type(self._actor.thread), "env").of(self._actor)
        sealed = {name: env.seal(name, value) for name, value in variables.items()}
        return await tasks.deliver(run, f"{VARIABLES}{call}", sealed)

    # Hooks

    def find_hooks(self) -> tuple[Hooks, ...]:
        """Return the hooks of the step, or, before the first one and at rest, those of the side that answers people."""
        return find_hooks(self._find_speaker(self.running))

    def _find_speaker(self, execution: ExecutionState | None) -> Speaker:
        """Return the side that answers in an execution, or, before the first step and at rest, side A."""
        speaker = None if execution is None else execution.speaker
        return speaker or self._definitions.find_speaker(self._messages.agent or "", "a")

    async def follow_creation(self) -> None:
        """Call the hooks of a new thread."""
        called = call_hooks("after_thread_created", self.find_hooks(), self._actor.thread)
        self.creation, self._creating = asyncio.create_task(called), current_turn()
        try:
            await asyncio.wait([self.creation])
        finally:
            self.creation.cancel()
            await asyncio.wait([self.creation])

    def cancel_creation(self) -> None:
        """Cancel the hooks of a new thread, as the waiting run was cancelled, unless one of them did that."""
        if self.creation is not None and current_turn() is not self._creating:
            self.creation.cancel()


class _Invoker:
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


def _encode_arguments(name: str, args: Mapping[str, Any]) -> str:
    what = f"the arguments of {name}"
    check_type(what, args, Mapping)
    return encode_named(what, dict(args)).decode()


def make_supply_method() -> Method:
    """Return the method by which clients supply variables."""

    async def supply(thread: Thread[Any], run: str, variables: dict[str, str]) -> bool:
        """Give a run the variables that a subagent needs; return whether they were taken."""
        try:
            return bool(await thread.agents.supply(run, variables))
        except ValueError as error:
            raise InvalidArguments(str(error)) from error

    method = Method(SUPPLY, SUPPLY, supply, concurrent=True)
    method.action = "approve"
    return method
