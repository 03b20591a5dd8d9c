"""Answers the calls of tools in an answer: each is a step of the run."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from plait.actor.logs import log_error
from plait.agents.execution.definitions import AnyTool, Handoff, PromptTool
from plait.agents.execution.hooks import ToolCall, call_hooks
from plait.agents.execution.prompt_tools import Ask, PromptTools, make_result_id
from plait.agents.execution.run_pass import RunPass
from plait.agents.execution.stops import REMOVED
from plait.agents.execution.subagents import Put, SubagentCall, is_for_subagent
from plait.agents.execution.tools import HANDED_OVER, Refused, Tool, ToolResult, fail, read_result, tell_error
from plait.errors import InvalidArguments
from plait.parts.messages.caller import STOPPED
from plait.parts.messages.message import Message
from plait.parts.messages.own_metadata import make_own, merge_metadata
from plait.parts.messages.tool_calls import STATUS, read_call
from plait.parts.tasks.step_errors import StepFailed, Unknown

__all__ = ["Dispatcher"]

_STOPPED: Final = "The execution was stopped before this call."
_UNKNOWN: Final = "It is not known whether this call has had its effect, as it was cut off."
_LEFT: Final = "It is not known whether this call has had its effect, as its run has ended without its result."
_NOT_BEGUN: Final = "This call was not carried out, as its run has ended before it."


class Dispatcher:
    """Carries out the calls of tools in a pass of a run.

    The names of its steps are stored, and tell after a crash which calls have begun: they must never change.
    """

    def __init__(self, run_pass: RunPass, ask: Ask) -> None:
        self._thread = run_pass.thread
        self._step = run_pass.step
        self._messages = run_pass.messages
        self._history = run_pass.history
        self._state = run_pass.state
        self._servers = run_pass.servers
        self._prompts = PromptTools(run_pass.execution, run_pass.messages, run_pass.state, ask)

    async def answer(self, tools: Mapping[str, AnyTool], answer: Message, call: Mapping[str, Any]) -> None:
        """Add the result of a call in an answer to the history: at most once, unless its tool is idempotent.

        Does nothing if the answer was deleted, also while the call has waited.
        """
        if not await self._history.has(answer):
            return
        id, name, arguments = asked = ToolCall(*read_call(call))
        put = partial(self._put, answer, asked)
        if self._messages.is_stopped or (self._state.stopped and not self._has_begun(id)):
            text = STOPPED if self._messages.is_stopped else _STOPPED
            await self._state.do(f"stopped:{id}", partial(put, ToolResult(text, is_error=True)))
            return
        try:
            if is_for_subagent(tools, name):
                subagent = SubagentCall(self._thread, self._step, self._state, tools=tools, call=asked, put=put)
                await subagent.answer()
                return
            match await self._servers.find(tools, name):
                case Handoff(agent=agent):
                    await self._state.do(f"call:{id}", partial(self._hand_over, agent, put))
                case Tool() as tool:
                    decoded = self._decode(tool, arguments)
                    if tool.needs_approval:
                        await self._wait_for_approval(tool, id)
                    work = partial(self._run, tool, decoded, answer, put)
                    await self._state.do(f"call:{id}", work, once=not tool.idempotent, timeout=tool.timeout)
                case PromptTool() as prompt:
                    put = partial(put, message_id=make_result_id(id))
                    result = await self._prompts.answer(prompt, answer, call, carry_out=self.answer)
                    await self._state.do(f"answer:{id}", partial(put, result))
                case _:
                    raise Refused(f"{name} cannot be called by this name")
        except Refused as refusal:
            error = fail(refusal)
        except StepFailed as failure:
            error = fail(self._tell(failure))
        except Unknown:
            error = ToolResult(_UNKNOWN, is_error=True)
        else:
            return
        await self._state.do(f"error:{id}", partial(put, error))

    async def close(self, calls: Sequence[Mapping[str, Any]], text: str = "") -> None:
        """Answer calls of a run that has ended before it has; it carries them out in order."""

        async def close() -> None:
            for number, (id, name, _) in enumerate(map(read_call, calls)):
                told = text or (_NOT_BEGUN if number else _LEFT)
                self._inject(id, name, ToolResult(told, is_error=True))

        if calls:
            await self._state.do(f"close:{read_call(calls[0])[0]}", close, attempts=3)

    # Inside

    def _tell(self, failure: StepFailed) -> str:
        """Return what a model is told of an error; a replay does not know more than its class."""
        if (error := failure.__cause__) is None:
            return str(failure).partition(":")[0]
        log_error(error, self._thread._actor.key, None)
        return tell_error(error)

    def _decode(self, tool: Tool, arguments: str) -> dict[str, Any]:
        try:
            return tool.decode(arguments, limits=self._thread._actor.limits)
        except InvalidArguments as error:
            raise Refused(str(error)) from None

    async def _wait_for_approval(self, tool: Tool, id: str) -> None:
        try:
            answer = await self._step.approval(f"approval:{id}", timeout=tool.approval_timeout)
        except TimeoutError:
            raise Refused("no person has approved the call in time") from None
        except msgspec.ValidationError:
            raise Refused("the answer to the request for approval cannot be read") from None
        if not answer.approved:
            raise Refused(f"a person has refused the call{answer.reason and f': {answer.reason}'}")

    def _has_begun(self, id: str) -> bool:
        """Whether a call had begun before a replay: then one of its own hooks or tools may have stopped the run."""
        return not self._step.journal.entries.keys().isdisjoint((f"call:{id}", f"prompt:{id}"))

    async def _run(self, tool: Tool, arguments: Mapping[str, Any], answer: Message, put: Put) -> None:
        if await self._history.has(answer):
            await put(read_result(await tool.call(self._thread, arguments)))

    async def _hand_over(self, agent: str, put: Put) -> None:
        self._messages.hand_over(agent)
        await put(HANDED_OVER)

    async def _put(
        self,
        answer: Message,
        call: ToolCall,
        result: ToolResult,
        *,
        subagent_id: str | None = None,
        message_id: str | None = None,
    ) -> None:
        """Add a result to the history, as the hooks want it; or remove the call, if they want that."""
        if not await self._history.has(answer):
            return
        hooks = self._state.hooks
        name = f"after_tool_call_{'failure' if result.is_error else 'success'}"
        found: ToolResult | None = await call_hooks(name, hooks, self._thread, call, result)
        if found is None:
            await self._messages.change(answer.id, partial(_remove_call, id=call.id))
        else:
            stored: ToolResult = await call_hooks("before_store_tool_result", hooks, self._thread, call, found)
            place: dict[str, Any] = {"parent_id": answer.parent_id, "depth": answer.depth}
            self._inject(call.id, call.name, stored, id=message_id, subagent_id=subagent_id, **place)

    def _inject(self, call_id: str, name: str, result: ToolResult, **fields: Any) -> None:
        self._messages.inject(
            "tool",
            result.text,
            name=name,
            tool_call_id=call_id,
            metadata=make_own({STATUS: "error" if result.is_error else "success"}),
            attachments=[{"path": path} for path in result.attachments],
            **fields,
        )


def _remove_call(message: Message, *, id: str) -> Message:
    calls = [call for call in message.tool_calls or () if call.get("id") != id]
    metadata = merge_metadata(message.metadata, make_own({REMOVED: True}))
    return replace(message, tool_calls=calls or None, metadata=metadata)
