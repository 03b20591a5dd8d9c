"""The agents of one thread: what its code may ask for by name, and have them do."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import Turn, current_turn
from plait.agents.execution.definitions import Agent, Model, Prompt, PromptTool, Speaker, Subagent
from plait.agents.execution.hooks import Hooks, call_hooks
from plait.agents.execution.invoking import Invoker
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.prompt_tools import decode_question
from plait.agents.execution.registry import Execution, find_named
from plait.agents.execution.state import ExecutionState, find_execution, find_hooks
from plait.agents.execution.stops import TOOL
from plait.agents.execution.subagents import VARIABLES, SubagentCall
from plait.agents.execution.tools import Refused, Tool, ToolResult
from plait.errors import InvalidArguments, NotFound
from plait.parts.encoding import check_type, encode_named
from plait.parts.env.secret import Secret
from plait.parts.messages.message import Message
from plait.parts.messages.own_metadata import make_own
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
        self._creation: asyncio.Task[None] | None = None
        # The turn that has begun it.
        self._creating: Turn | None = None

    @property
    def execution(self) -> ExecutionState | None:
        """The execution that the calling code is a part of; None at rest."""
        return find_execution(self._messages)

    def find_variables(self) -> Mapping[str, str]:
        """Return the variables of the agent that answers, and those of its prompt; at rest, of that of its side A."""
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
            invoker = Invoker(self._definitions, self._actor.thread, self._messages, servers)
            return await invoker.invoke(self._definitions.tools, name, _encode_arguments(name, args))

    # Subagents

    async def supply(self, run: str, variables: Mapping[str, str | Secret]) -> bool:
        """Give the variables that a run needs for a subagent, which begins then; return whether they were taken.

        They are in the `value` of the run: `{"needs": {"call": …, "agent": …, "variables": [names]}}`. Raises NotFound
        if the run needs none, and ValueError if names are missing, or not needed.
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
        self._creation, self._creating = asyncio.create_task(called), current_turn()
        try:
            await asyncio.wait([self._creation])
        finally:
            self._creation.cancel()
            await asyncio.wait([self._creation])

    async def wait_for_creation(self) -> None:
        """Wait until the hooks of a new thread have ended."""
        if self._creation is not None:
            await asyncio.wait([self._creation])

    def cancel_creation(self) -> None:
        """Cancel the hooks of a new thread, as the run that waits for them was cancelled, but not by one of them."""
        if self._creation is not None and current_turn() is not self._creating:
            self._creation.cancel()


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
