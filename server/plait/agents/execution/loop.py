"""The loop of agents that call a model and tools: a durable agent, whose journal is the history of its thread."""

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
from plait.parts.messages.message import Message
from plait.parts.messages.model_history import ROLES, find_open_calls, is_decisive
from plait.parts.messages.own_metadata import make_own, read_own
from plait.parts.messages.tool_calls import make_call, make_call_id
from plait_schemas.codec import to_builtins

__all__ = ["make_loop"]


class _Taken(msgspec.Struct, frozen=True):
    """Whether something was taken from the queue, and the side that must answer it; None if none must."""

    receiver: Receiver | None = None
    has_taken: bool = False


def make_loop(execution: Execution) -> Callable[[Context[Any]], Awaitable[Any]]:
    """Return the function of the durable agents of an execution.

    It asks models and answers the calls of tools, until a step ends the run. It returns the text of the answer, or of
    the call that has ended the run.
    """

    async def run(ctx: Context[Any]) -> Any:
        return await _Loop(execution, ctx).run()

    return run


class _Loop(RunPass):
    """The steps of one pass.

    What is done is read from the history, by the marks of its answers, not from what an earlier pass has called its
    steps: these may have other names in the next version. Only the names of the dispatcher's steps must stay.
    """

    def __init__(self, execution: Execution, ctx: Context[Any]) -> None:
        super().__init__(execution, ctx)
        self._agents = ctx.thread.agents
        self._place = START if ctx.step.value is None else msgspec.convert(ctx.step.value, Place)
        self._asker = Asker(self)
        self._dispatcher = Dispatcher(self, self._asker.ask)

    async def run(self) -> str | None:
        await self._agents.wait_for_creation()
        self._agents.running = self.state
        try:
            async with self.servers:
                with self.state.entered():
                    return await self._make_steps()
        finally:
            self._agents.running = None

    async def _make_steps(self) -> str | None:
        history = await self.history.read()
        while True:
            self.state.resume(self._place)
            open_calls = find_open_calls(history)
            if self.messages.is_stopped:  # By a step of this run; a stop from outside cancels it.
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
                answer = answer or await self._ask(history, taken.receiver)
            if answer is None and self.state.stopped:
                await self._report("stopped", "")
                return None
            if answer is not None:
                await self._carry_out(answer, history)
            history = await self.history.read()
            if self.messages.is_stopped:
                continue
            place, reason, text = self._find_next(history)
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
        """Take what is queued; calls that code has queued become an answer of this step."""
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

    async def _ask(self, history: Sequence[Message], taken: Receiver | None) -> Message | None:
        """Ask the model of the side that is next, after the subagents that begin before it; None if it was deleted."""
        speaker, mark = self._find_speaker(taken, _find_receiver(history))
        if not self._place.step and (begun := await self._begin_subagents(speaker, mark, history)) is not None:
            return begun
        self.state.begin(speaker, self._place)
        return await self._asker.ask(speaker, history, mark)

    async def _begin_subagents(self, speaker: Speaker, mark: Mark, history: Sequence[Message]) -> Message | None:
        """Call the subagents that begin before the model is asked; None if there are none."""
        if not any(isinstance(each, Subagent) and each.immediate for each in speaker.prompt.tools.values()):
            return None

        async def begin() -> str:
            said = next((each.content for each in reversed(history) if each.content and not each.silent), None)
            calls = await find_immediate(self.thread, speaker.prompt, said or "Begin.")
            return self._add_calls(calls, mark) if calls else ""

        id = await self.state.do("immediate", begin, type=str)
        return await self.messages.get(id) if id else None

    def _add_calls(self, given: Sequence[Mapping[str, str]], mark: Mark) -> str:
        """Make calls that no model has made an answer, and return its id."""
        calls = [make_call(make_call_id(), each["name"], each["arguments"]) for each in given]
        metadata = make_own({MARK: to_builtins(mark), TOOL: True})
        return self.messages.inject(ROLES[mark.side], tool_calls=calls, metadata=metadata).value.id

    def _find_speaker(self, receiver: Receiver | None, first: Receiver = "a") -> tuple[Speaker, Mark]:
        """Return who answers in this step: the receiver of what was taken, the side whose turn it is, or the first."""
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

    def _find_next(self, history: Sequence[Message]) -> Next:
        """Return what follows from the answer of this step; another one is asked for if it was deleted."""
        speaker, answer = self.state.speaker, self._find_answer(history)
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
        """Leave what is queued, as a stop from outside does."""
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
