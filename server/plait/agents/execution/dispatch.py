"""Answers the calls of tools in an answer: each is a step of the run."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from plait.actor.thread import Thread
from plait.agents.execution.definitions import AnyTool, Handoff, Prompt, Subagent
from plait.agents.execution.model_attempts import ToolSpec
from plait.agents.execution.registry import Execution
from plait.agents.execution.subagents import Subagents
from plait.agents.execution.tools import Refused, Tool, ToolResult
from plait.errors import InvalidArguments
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.messages.tool_calls import STATUS, read_call
from plait.parts.tasks.step import Step
from plait.parts.tasks.step_errors import StepFailed, Unknown
from plait.spelling import find_nearest
from plait_schemas.codec import encode_json

__all__ = ["Dispatcher", "describe_tools"]

_NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_FAILED: Final = "Failed to execute tool: "
_UNKNOWN: Final = "It is not known whether this call has had its effect, as the server stopped during it."


def describe_tools(execution: Execution, prompt: Prompt) -> list[ToolSpec]:
    """Return the tools of a prompt as a model sees them."""
    tools = {name: each for name, each in prompt.tools.items() if not isinstance(each, Subagent)}
    return [_describe(execution, name, each) for name, each in tools.items()]


def _describe(execution: Execution, name: str, tool: AnyTool) -> ToolSpec:
    match tool:
        case Tool():
            return ToolSpec(name, tool.description, tool.schema)
        case Handoff():
            agent = execution.load_agent(tool.agent)
            told = tool.description or f"Hand the conversation over to {agent.title or agent.name}. {agent.description}"
            return ToolSpec(name, told.strip(), _NOTHING)
        case _:
            raise AssertionError(f"{name} cannot be executed")


class Dispatcher:
    """Carries out the calls of tools in a pass of a run.

    The names of its steps are stored, and tell after a crash which calls have begun: they must never change.
    """

    def __init__(self, thread: Thread[Any], step: Step, messages: ThreadMessages) -> None:
        self._thread = thread
        self._step = step
        self._messages = messages
        self._subagents = Subagents(thread, step, self._put)

    async def answer(self, prompt: Prompt, call: Mapping[str, Any]) -> None:
        """Add the result of a call to the history: at most once, unless its tool is idempotent."""
        id, name, arguments = read_call(call)
        step = partial(self._step.do, f"call:{id}", attempts=1)
        try:
            if self._subagents.takes(prompt, name):
                await self._subagents.answer(prompt, id, name, arguments)
                return
            match _find(prompt, name):
                case Handoff(agent=agent):
                    await step(partial(self._hand_over, id, name, agent))
                case Tool() as tool:
                    decoded = self._decode(tool, arguments)
                    if tool.needs_approval:
                        await self._wait_for_approval(tool, id)
                    work = partial(self._run, tool, id, decoded)
                    await step(work, once=not tool.idempotent, timeout=tool.timeout)
                case _:
                    raise AssertionError(f"{name} cannot be executed")
        except Refused as refusal:
            error = f"{_FAILED}{refusal}"
        except StepFailed as failure:
            error = f"{_FAILED}{failure}"
        except Unknown:
            error = _UNKNOWN
        else:
            return
        await self._step.do(f"error:{id}", lambda: self._put(id, name, ToolResult(error, is_error=True)))

    async def close(self, calls: Sequence[Mapping[str, Any]], text: str = _UNKNOWN) -> None:
        """Answer calls of a run that has ended before it has."""

        async def close() -> None:
            for id, name, _ in map(read_call, calls):
                self._put(id, name, ToolResult(text, is_error=True))

        await self._step.do("close", close)

    # Inside

    def _decode(self, tool: Tool, arguments: str) -> dict[str, Any]:
        try:
            return tool.decode(arguments, depth=self._thread._actor.limits.depth)
        except InvalidArguments as error:
            raise Refused(str(error)) from None

    async def _wait_for_approval(self, tool: Tool, id: str) -> None:
        try:
            answer = await self._step.approval(f"approval:{id}", timeout=tool.approval_timeout)
        except TimeoutError:
            raise Refused("no person has approved the call in time") from None
        if not answer.approved:
            raise Refused(f"a person has refused the call{answer.reason and f': {answer.reason}'}")

    async def _run(self, tool: Tool, id: str, arguments: Mapping[str, Any]) -> None:
        self._put(id, tool.name, _read_result(await tool.run(self._thread, arguments)))

    async def _hand_over(self, id: str, name: str, agent: str) -> None:
        self._messages.hand_over(agent)
        self._put(id, name, ToolResult("The conversation is handed over."))

    def _put(self, id: str, name: str, result: ToolResult, *, subagent_id: str | None = None) -> None:
        self._messages.inject(
            "tool",
            result.text,
            name=name,
            tool_call_id=id,
            subagent_id=subagent_id,
            metadata={STATUS: "error" if result.is_error else "success"},
            attachments=[{"path": path} for path in result.attachments],
        )


def _find(prompt: Prompt, name: str) -> AnyTool:
    """Return a tool of a prompt. Raises Refused."""
    if (found := prompt.tools.get(name)) is not None:
        return found
    near = find_nearest(name, prompt.tools)
    raise Refused(f"there is no tool {name!r}" + (f"; did you mean {near!r}?" if near else ""))


def _read_result(value: Any) -> ToolResult:
    """Return what a tool has returned as its result: a text as it is, and all else as JSON."""
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult("The tool has returned nothing.")
    return ToolResult(value if isinstance(value, str) else encode_json(value).decode())
