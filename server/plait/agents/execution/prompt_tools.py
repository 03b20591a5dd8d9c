"""Prompts that are tools: one step of another prompt answers a call, in messages below its result."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from plait.agents.execution.definitions import AnyTool, PromptTool, Speaker
from plait.agents.execution.registry import Execution
from plait.agents.execution.run_history import read_after
from plait.agents.execution.state import ExecutionState
from plait.agents.execution.stops import Below, Mark, read_mark
from plait.agents.execution.tools import Refused, ToolResult, decode_arguments
from plait.parts.messages.message import Message
from plait.parts.messages.model_history import select_history
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.messages.tool_calls import read_call

__all__ = ["DEEPEST", "Ask", "PromptTools", "decode_question", "join_results", "make_result_id"]

DEEPEST: Final = 5
"""How deep prompts may be nested, which call each other or themselves."""


def make_result_id(call_id: str) -> str:
    """Return the id of the result of a prompt that is a tool, which the messages below it have before it is there."""
    return f"result-{call_id}"


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1)]


Ask = Callable[[Speaker, Sequence[Message], Mark, Below], Awaitable[Message | None]]
"""Asks a model, and returns its answer; None if there is none."""


class PromptTools:
    """Has prompts answer calls, in a pass of a run. The names of its steps must never change."""

    def __init__(self, execution: Execution, messages: ThreadMessages, state: ExecutionState, ask: Ask) -> None:
        self._execution = execution
        self._messages = messages
        self._state = state
        self._ask = ask

    async def answer(
        self,
        tool: PromptTool,
        answer: Message,
        call: Mapping[str, Any],
        *,
        carry_out: Callable[[Mapping[str, AnyTool], Message, Mapping[str, Any]], Awaitable[None]],
    ) -> ToolResult:
        """Return the result of a call. Raises Refused and StepFailed.

        `carry_out` answers the calls of the prompt.
        """
        id, name, arguments = read_call(call)
        above = read_mark(answer)
        if above is None or answer.depth >= DEEPEST:
            raise Refused(f"prompts that are tools can be nested {DEEPEST} deep")
        speaker = self._execution.find_speaker(above.agent, above.side)._replace(
            letter="a", prompt=self._execution.prompts[tool.prompt]
        )
        below = Below(id, make_result_id(id), answer.depth + 1)
        with self._state.inside(speaker):
            history = await self._read(answer, below)
            if not history:
                work = partial(self._put, decode_question(name, arguments), below)
                await self._state.do(f"prompt:{id}", work)
                history = await self._read(answer, below)
            said = next((each for each in history if read_mark(each) is not None), None)
            if said is None:
                said = await self._ask(speaker, history, Mark(above.run, above.step, "a", above.agent), below)
            if said is None:
                raise Refused("the prompt was stopped, or its answer was deleted")
            answered = {each.tool_call_id for each in history}
            for each in said.tool_calls or ():
                if each["id"] not in answered:
                    await carry_out(speaker.prompt.tools, said, each)
            results = [each for each in await self._read(answer, below) if each.role == "tool"]
        told = [
            (each.name or "", ToolResult(each.content or "", [file["path"] for file in each.attachments]))
            for each in results
        ]
        return join_results(said.content, told)

    async def _read(self, answer: Message, below: Below) -> list[Message]:
        found = await read_after(self._messages, answer.position, max_depth=below.depth)
        return select_history(found, below.parent_id)

    async def _put(self, question: str, below: Below) -> None:
        self._messages.inject("user", question, parent_id=below.parent_id, depth=below.depth)


def join_results(text: str | None, results: Sequence[tuple[str, ToolResult]]) -> ToolResult:
    """Return the answer of a prompt, with the results of its calls by the names of their tools."""
    texts = [text, *(f"{name}: {each.text}" for name, each in results)]
    return ToolResult("\n\n".join(filter(None, texts)), [path for _, each in results for path in each.attachments])


def decode_question(name: str, arguments: str) -> str:
    """Return the message for a prompt. Raises Refused."""
    return decode_arguments(name, arguments, _Question).message
