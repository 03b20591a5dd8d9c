"""The loop of agents that call a model and tools: a durable agent, whose journal is the history of its thread."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from plait.agents.context import Context
from plait.agents.execution.asking import Asker
from plait.agents.execution.definitions import Receiver, Speaker, Subagent
from plait.agents.execution.dispatch import Dispatcher
from plait.agents.execution.registry import Execution
from plait.agents.execution.run_pass import RunPass
from plait.agents.execution.stops import (
    MARK,
    START,
    TOOL,
    Mark,
    Next,
    Place,
    Reason,
    find_answer,
    find_results,
    follow,
    is_asked,
    read_mark,
    skip,
)
from plait.agents.execution.subagents import find_immediate, make_report
from plait.parts.messages.caller import STOPPED
from plait.parts.messages.message import Message, make_call, make_call_id, make_own, read_own
from plait.parts.messages.model_history import ROLES, find_open_calls, is_decisive
from plait_schemas.codec import to_builtins

__all__ = ["make_loop"]


class _Taken(msgspec.Struct, frozen=True):
    """Whether something was taken from the queue, and the side that must answer it; None if no side must."""

    receiver: Receiver | None = None
    has_taken: bool = False


def make_loop(execution: Execution) -> Callable[[Context[Any]], Awaitable[Any]]:
    """Return the function of the durable agents of an execution.

    The function asks models and answers the calls of tools, until a step ends the run. The function returns the text of
    the answer, or of the call that has ended the run.
    """

    async def run(ctx: Context[Any]) -> str | None:
        agents, loop = ctx.thread.agents, _Loop(execution, ctx)
        if agents.creation is not None:  # The hooks of a new thread end before its first run.
            await asyncio.wait([agents.creation])
        agents.running = loop.state
        try:
            async with loop.servers:
                with loop.state.entered():
                    return await loop.make_steps()
        finally:
            agents.running = None

    return run


class _Loop(RunPass):
    """The steps of one pass.

    Finished work is read from the history, by the marks of its answers, and not from the names of an earlier pass's
    steps: the next version may name them otherwise. Only the names of the dispatcher's steps must stay.
    """

    def __init__(self, execution: Execution, ctx: Context[Any]) -> None:
        super().__init__(execution, ctx)
        value = self.step.value
        self._place = START if value is None else msgspec.convert(value, Place)
        self._asker = Asker(self)
        self._dispatcher = Dispatcher(self, self._asker.ask)

    async def make_steps(self) -> str | None:
        """Make the steps, from the last checkpoint to the end of the run, and return its output."""
        history = await self.history.read()
        while True:
            self.state.resume(self._place)
            open_calls = find_open_calls(history)
            if self.messages.is_stopped:  # A step of this run has stopped it; a stop from outside cancels it.
                await self._dispatcher.close(open_calls, STOPPED)
                return None
            answer = self._find_answer(history)
            if answer is None:
                await self._dispatcher.close(open_calls)
                taken = await self._take()
                if open_calls or taken.has_taken:
                    history = await self.history.read()
                    answer = self._find_answer(history)  # The calls that were queued.
                if answer is None and not (self._place.step or taken.has_taken or _is_question(history)):
                    return None
                if answer is None:
                    await self._ask(history, taken.receiver)
                    history = await self.history.read()
                    answer = self._find_answer(history)  # None if it was deleted.
            if answer is None and self.state.stopped:
                await self._report("stopped", "")
                return None
            if answer is not None:
                await self._carry_out(answer, history)
                if answer.tool_calls:
                    history = await self.history.read()
                    answer = self._find_answer(history)  # A call may have deleted it.
            if self.messages.is_stopped:
                continue
            place, reason, text = self._find_next(answer, history)
            if reason == "repeated_tool_error":
                await self._explain(place)
            if reason is not None:
                await self._report(reason, text)
                return text
            self._place = place
            self.step.checkpoint(place)

    def _find_answer(self, history: Sequence[Message]) -> Message | None:
        return find_answer(history, self.step.id, self._place.step)

    async def _take(self) -> _Taken:
        """Take the queued messages; calls that code has queued become an answer of this step."""
        if not await self.messages.pending():
            return _Taken()

        async def take() -> _Taken:
            taken = await self.messages.take()
            calls = [read_own(each)[TOOL] for each in taken if TOOL in read_own(each)]
            said = [each for each in taken if TOOL not in read_own(each)]
            receiver = _find_receiver(said) if said else None
            if calls:
                self._add_calls(calls, self._find_speaker(receiver)[1])
            return _Taken(receiver, has_taken=bool(taken))

        return await self.state.do(f"take:{self._place.step}", take, attempts=3, type=_Taken)

    async def _ask(self, history: Sequence[Message], taken: Receiver | None) -> None:
        """Ask the model of the next side, unless subagents begin before it."""
        speaker, mark = self._find_speaker(taken, _find_receiver(history))
        self.state.begin(speaker, self._place)
        if self._place.step or not await self._begin_subagents(speaker, mark, history):
            await self._asker.ask(speaker, history, mark)

    async def _begin_subagents(self, speaker: Speaker, mark: Mark, history: Sequence[Message]) -> bool:
        """Call the subagents that begin before the model is asked; return whether there is one."""
        if not any(isinstance(each, Subagent) and each.immediate for each in speaker.prompt.tools.values()):
            return False

        async def begin() -> str:
            said = next((each.content for each in reversed(history) if each.content and not each.silent), None)
            calls = await find_immediate(self.thread, speaker.prompt, said or "Begin.")
            return self._add_calls(calls, mark) if calls else ""

        id = await self.state.do("immediate", begin, type=str)
        return bool(id) and await self.messages.get(id) is not None

    def _add_calls(self, given: Sequence[Mapping[str, str]], mark: Mark) -> str:
        """Store an answer with calls that no model has made, and return the answer's id."""
        calls = [make_call(make_call_id(), each["name"], each["arguments"]) for each in given]
        metadata = make_own({MARK: to_builtins(mark), TOOL: True})
        return self.messages.inject(ROLES[mark.side], tool_calls=calls, metadata=metadata).value.id

    def _find_speaker(self, receiver: Receiver | None, first: Receiver = "a") -> tuple[Speaker, Mark]:
        """Return who answers in this step: the receiver of the messages, the side whose turn it is, or the first."""
        side = receiver or self._place.side or first
        speaker = self.execution.find_speaker(self.messages.agent or "", side)
        return speaker, Mark(self.step.id, self._place.step, speaker.letter, speaker.agent.name)

    async def _carry_out(self, answer: Message, history: Sequence[Message]) -> None:
        """Answer the calls of an answer that have no results."""
        mark = read_mark(answer)
        assert mark is not None
        speaker = self.execution.find_speaker(mark.agent, mark.side)
        self.state.begin(speaker, self._place, is_asked=is_asked(answer))
        tools = self.execution.tools if TOOL in read_own(answer) else speaker.prompt.tools
        results = find_results(history, answer)
        for call in answer.tool_calls or ():
            if call["id"] not in results and not self.messages.is_stopped:
                await self._dispatcher.answer(tools, answer, call)

    def _find_next(self, answer: Message | None, history: Sequence[Message]) -> Next:
        """Return the step that follows the answer of this step; if the answer was deleted, the model is asked again."""
        speaker = self.state.speaker
        assert speaker is not None
        if answer is None:
            return skip(self._place, speaker, self.state.notes)
        return follow(self._place, speaker, answer, find_results(history, answer), self.state.notes)

    async def _report(self, reason: Reason, text: str) -> None:
        assert self.state.speaker is not None
        agent = self.state.speaker.agent
        await make_report(self.thread, self.step, self.messages, agent=agent, reason=reason, text=text)
        if reason == "stopped":
            await self.step.do("hold", self._hold)

    async def _hold(self) -> None:
        """Leave the messages in the queue, as a stop from outside does."""
        await self.messages.stop()

    async def _explain(self, place: Place) -> None:
        """Tell people that the run ends because of errors that come again and again."""
        id = f"{self.step.id}-errors"

        async def explain() -> None:
            if await self.messages.get(id) is None:
                text = f"I stop here, as a tool has failed {place.errors} times in the same way. {place.error}"
                self.messages.inject("assistant", text, id=id)

        await self.step.do("explain", explain)


def _is_question(history: Sequence[Message]) -> bool:
    """Whether a model must be asked about a history: its last message is no answer, or has open calls."""
    said = [each for each in history if each.content or not each.silent]  # Without thoughts.
    return bool(said) and (not is_decisive(said[-1]) or bool(find_open_calls(history)))


def _find_receiver(messages: Sequence[Message]) -> Receiver:
    """Return the side that answers the last of some messages: B those of assistants."""
    return "b" if messages and messages[-1].role == "assistant" else "a"
