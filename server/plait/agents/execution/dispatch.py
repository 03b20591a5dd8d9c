"""Answers the calls of tools in an answer: each is a step of the run, and prompts answer some of them.

A prompt that is a tool answers in one step, in messages below the result of the call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from plait.actor.logs import log_error
from plait.agents.execution.definitions import AnyTool, Handoff, PromptTool, Speaker
from plait.agents.execution.hooks import ToolCall, call_hooks
from plait.agents.execution.run_pass import RunPass, read_after
from plait.agents.execution.stops import REMOVED, Below, Mark, read_mark
from plait.agents.execution.subagents import Put, SubagentCall, is_for_subagent
from plait.agents.execution.tools import (
    HANDED_OVER,
    Refused,
    Tool,
    ToolResult,
    decode_arguments,
    fail,
    read_result,
    tell_error,
)
from plait.errors import InvalidArguments
from plait.parts.messages.caller import STOPPED
from plait.parts.messages.message import APPROVAL, STATUS, Message, make_own, merge_metadata, read_call
from plait.parts.messages.model_history import select_history
from plait.parts.tasks.step_errors import StepFailed, Unknown

__all__ = ["DEEPEST", "Dispatcher", "decode_question", "join_results"]

DEEPEST: Final = 5
"""The maximum depth of prompts that call each other or themselves."""

_STOPPED: Final = "The execution was stopped before this call."
_UNKNOWN: Final = "It is not known whether this call has had its effect, as it was cut off."
_LEFT: Final = "It is not known whether this call has had its effect, as its run has ended without its result."
_NOT_BEGUN: Final = "This call was not carried out, as its run has ended before it."


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1)]


Ask = Callable[[Speaker, Sequence[Message], Mark, Below], Awaitable[str]]
"""Asks a model, and returns the id of its answer; empty if there is none."""


class Dispatcher:
    """Carries out the calls of tools in a pass of a run.

    The names of its steps are stored, and tell after a crash which calls have begun: they must never change.
    """

    def __init__(self, run_pass: RunPass, ask: Ask) -> None:
        self._execution = run_pass.execution
        self._thread = run_pass.thread
        self._step = run_pass.step
        self._messages = run_pass.messages
        self._history = run_pass.history
        self._state = run_pass.state
        self._servers = run_pass.servers
        self._ask = ask

    async def answer(self, tools: Mapping[str, AnyTool], answer: Message, call: Mapping[str, Any]) -> None:
        """Add the result of a call in an answer to the history: at most once, unless its tool is idempotent.

        Does nothing if the answer was deleted, even while the call waited.
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
                    put = partial(put, message_id=_make_result_id(id))
                    result = await self._ask_prompt(prompt, answer, asked)
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
        """Answer the calls that an ended run has left open; the run has carried out its calls in order."""

        async def close() -> None:
            for number, (id, name, _) in enumerate(map(read_call, calls)):
                told = text or (_NOT_BEGUN if number else _LEFT)
                self._inject(id, name, ToolResult(told, is_error=True))

        if calls:
            await self._state.do(f"close:{read_call(calls[0])[0]}", close, attempts=3)

    # Inside

    def _tell(self, failure: StepFailed) -> str:
        """Return the text about an error for a model; a replay knows only the class of the error."""
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
            answer = await self._step.approval(APPROVAL + id, timeout=tool.approval_timeout)
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

    async def _ask_prompt(self, tool: PromptTool, answer: Message, call: ToolCall) -> ToolResult:
        """Return the result of a prompt, which may call tools itself. Raises Refused and StepFailed."""
        id, name, arguments = call
        above = read_mark(answer)
        if above is None or answer.depth >= DEEPEST:
            raise Refused(f"prompts that are tools can be nested {DEEPEST} deep")
        speaker = self._execution.find_speaker(above.agent, above.side)._replace(
            letter="a", prompt=self._execution.prompts[tool.prompt]
        )
        below = Below(id, _make_result_id(id), answer.depth + 1)
        with self._state.inside(speaker):
            history = await self._read_below(answer, below)
            if not history:
                work = partial(self._put_question, decode_question(name, arguments), below)
                await self._state.do(f"prompt:{id}", work)
                history = await self._read_below(answer, below)
            said = next((each for each in history if read_mark(each) is not None), None)
            if said is None:
                mark = Mark(above.run, above.step, "a", above.agent)
                said = await self._messages.get(await self._ask(speaker, history, mark, below))
            if said is None:
                raise Refused("the prompt was stopped, or its answer was deleted")
            answered = {each.tool_call_id for each in history}
            for each in said.tool_calls or ():
                if each["id"] not in answered:
                    await self.answer(speaker.prompt.tools, said, each)
            results = [each for each in await self._read_below(answer, below) if each.role == "tool"]
        told = [
            (each.name or "", ToolResult(each.content or "", [file["path"] for file in each.attachments]))
            for each in results
        ]
        return join_results(said.content, told)

    async def _read_below(self, answer: Message, below: Below) -> list[Message]:
        found = await read_after(self._messages, answer.position, max_depth=below.depth)
        return select_history(found, below.parent_id)

    async def _put_question(self, question: str, below: Below) -> None:
        self._messages.inject("user", question, parent_id=below.parent_id, depth=below.depth)

    async def _put(
        self,
        answer: Message,
        call: ToolCall,
        result: ToolResult,
        *,
        subagent_id: str | None = None,
        message_id: str | None = None,
    ) -> None:
        """Add a result to the history as the hooks return it, or remove the call if a hook returns None."""
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


def _make_result_id(call_id: str) -> str:
    """Return the id of a prompt tool's result, which the messages below it have before it is there."""
    return f"result-{call_id}"


def join_results(text: str | None, results: Sequence[tuple[str, ToolResult]]) -> ToolResult:
    """Return the answer of a prompt, with the results of its calls by the names of their tools."""
    texts = [text, *(f"{name}: {each.text}" for name, each in results)]
    return ToolResult("\n\n".join(filter(None, texts)), [path for _, each in results for path in each.attachments])


def decode_question(name: str, arguments: str) -> str:
    """Return the message for a prompt. Raises Refused."""
    return decode_arguments(name, arguments, _Question).message
