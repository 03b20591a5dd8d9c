"""The loop of agents that call a model and tools: a durable agent, whose journal is the history of its thread."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from plait.agents.context import Context
from plait.agents.execution.asking import Asker
from plait.agents.execution.definitions import Receiver, Speaker, Subagent
from plait.agents.execution.dispatch import Dispatcher, make_queued_call
from plait.agents.execution.prompt_tools import PromptTools
from plait.agents.execution.registry import Execution
from plait.agents.execution.state import ExecutionState
from plait.agents.execution.stops import (
    MARK,
    START,
    TOOL,
    Mark,
    Next,
    Place,
    Reason,
    find_answer,
    follow,
    is_asked,
    read_mark,
)
from plait.agents.execution.subagents import find_immediate, make_report
from plait.parts.messages.message import Message
from plait.parts.messages.model_history import ROLES, find_open_calls, is_decisive
from plait.parts.messages.own_metadata import make_own, read_own
from plait.parts.messages.task_caller import STOPPED
from plait.parts.tasks.thread_tasks import find_tasks_part
from plait_schemas.codec import to_builtins

__all__ = ["Loop"]

# The messages that are read for each step, at least.
_READ: Final = 200


class _Taken(msgspec.Struct, frozen=True):
    """Whether something was taken from the queue, and the side that must answer it; None if none must."""

    receiver: Receiver | None = None
    has_taken: bool = False


class Loop:
    """The durable agent of one name: it asks a model, answers its calls of tools, and does so again."""

    def __init__(self, execution: Execution, name: str) -> None:
        self._execution = execution
        self._name = name

    async def run(self, ctx: Context[Any]) -> Any:
        """Make steps until one ends the run, and return the text of its answer, or of the call that has ended it."""
        return await _Pass(self._execution, self._name, ctx).run()


class _Pass:
    """One pass of a run in memory.

    What is done is read from the history, by the marks of its answers, not from what an earlier pass has called its
    steps: these may have other names in the next version. Only the names of the dispatcher's steps must stay.
    """

    def __init__(self, execution: Execution, name: str, ctx: Context[Any]) -> None:
        self._execution = execution
        self._name = name
        self._step = step = ctx.step
        self._thread = ctx.thread
        self._messages = messages = execution.find_messages(ctx.thread)
        self._place = START if step.value is None else msgspec.convert(step.value, Place)
        self._agents = ctx.thread.agents
        self._state = state = ExecutionState(messages, step)
        self._asker = Asker(execution, ctx.thread, step, messages, state)
        prompts = PromptTools(execution, messages, state, self._asker.ask)
        self._dispatcher = Dispatcher(ctx.thread, step, messages, state, prompts)

    async def run(self) -> str | None:
        await self._agents.wait_for_creation()
        self._agents.running = self._state
        try:
            with self._state.entered():
                return await self._make_steps()
        finally:
            self._agents.running = None

    async def _make_steps(self) -> str | None:
        while True:
            self._state.resume(self._place)
            history = await self._read()
            if self._messages.is_stopped:  # By a step of this run; a stop from outside cancels it.
                await self._dispatcher.close(find_open_calls(history), STOPPED)
                return None
            answer = find_answer(history, self._step.id, self._place.step)
            results = {} if answer is None else await self._read_results(answer)
            if answer is None:
                closed = await self._close_left(history)
                if closed is None:
                    return None
                history = closed
                taken = await self._take()
                if taken.has_taken:
                    history = await self._read()
                    answer = find_answer(history, self._step.id, self._place.step)  # The calls that were queued.
                elif not self._place.step and not _is_question(history):
                    return None
                if answer is None:
                    answer = await self._ask(history, taken.receiver)
            if answer is None and self._state.stopped:
                await self._report(self._messages.agent or self._name, "stopped", "")
                return None
            if answer is None:  # It was deleted: ask again.
                self._go_on(replace(self._place, step=self._place.step + 1, context=self._state.context))
                continue
            place, reason, text = await self._finish(answer, results)
            if self._messages.is_stopped:
                continue
            if reason == "repeated_tool_error":
                await self._explain(place)
            if reason is not None:
                await self._report(_find_agent(answer), reason, text)
                return text
            self._go_on(place)

    async def _close(self, calls: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Answer the calls that an ended run has left open, and return the history after that."""
        await self._dispatcher.close(calls)
        return await self._read()

    async def _close_left(self, history: list[Message]) -> list[Message] | None:
        """Answer the calls that an ended run has left open, and return the history after that.

        None if their run has not ended, and will answer them.
        """
        if not (open_calls := find_open_calls(history)):
            return history
        mark = next((read_mark(each) for each in reversed(history) if each.tool_calls), None)
        tasks = find_tasks_part(type(self._thread))
        if mark is not None and mark.run != self._step.id and tasks is not None:
            run = await tasks.of(self._thread._actor).get(mark.run)
            if run is not None and run.ended_at is None:
                return None
        await self._dispatcher.close(open_calls)
        return await self._read()

    async def _read(self) -> list[Message]:
        return (await self._messages.list(max(_READ, self._execution.most_history))).messages

    async def _take(self) -> _Taken:
        """Take what is queued; calls that code has queued become an answer of this step."""
        if not await self._messages.pending():
            return _Taken()

        async def take() -> _Taken:
            taken = await self._messages.take()
            calls = [make_queued_call(read_own(each)[TOOL]) for each in taken if TOOL in read_own(each)]
            said = [each for each in taken if TOOL not in read_own(each)]
            receiver = _find_receiver(said) if said else None
            if calls:
                _, mark = self._find_speaker(receiver or "a", is_certain=receiver is not None)
                metadata = make_own({MARK: to_builtins(mark), TOOL: True})
                self._messages.inject(ROLES[mark.side], tool_calls=calls, metadata=metadata)
            return _Taken(receiver, has_taken=bool(taken))

        return await self._state.do(f"take:{self._place.step}", take, attempts=3, type=_Taken)

    async def _begin_subagents(self, history: Sequence[Message], taken: Receiver | None) -> Message | None:
        """Call the subagents that begin before the model is asked; None if there are none."""
        speaker, mark = self._find_speaker(taken or _find_receiver(history), is_certain=taken is not None)
        tools = speaker.prompt.tools.values()
        if self._place.step or not any(isinstance(each, Subagent) and each.immediate for each in tools):
            return None

        async def begin() -> str:
            said = next((each.content for each in reversed(history) if each.content and not each.silent), None)
            calls = await find_immediate(self._thread, speaker.prompt, said or "Begin.")
            if not calls:
                return ""
            made = [make_queued_call(each) for each in calls]
            metadata = make_own({MARK: to_builtins(mark), TOOL: True})
            return self._messages.inject(ROLES[mark.side], tool_calls=made, metadata=metadata).value.id

        id = await self._state.do("immediate", begin, type=str)
        return await self._messages.get(id) if id else None

    async def _ask(self, history: Sequence[Message], taken: Receiver | None) -> Message | None:
        """Ask the model of the side that is next, after the subagents that begin before it."""
        if (begun := await self._begin_subagents(history, taken)) is not None:
            return begun
        speaker, mark = self._find_speaker(taken or _find_receiver(history), is_certain=taken is not None)
        self._state.begin(speaker, self._place)
        return await self._asker.ask(speaker, history, mark)

    def _find_speaker(self, receiver: Receiver, *, is_certain: bool = False) -> tuple[Speaker, Mark]:
        """Return who answers in this step: the side whose turn it is, if there is one, unless another is certain."""
        name = self._messages.agent or self._name
        side = receiver if is_certain else self._place.side or receiver
        speaker = self._execution.find_speaker(name, side)
        return speaker, Mark(self._step.id, self._place.step, speaker.letter, name)

    async def _finish(self, answer: Message, results: Mapping[str, Message]) -> Next:
        """Answer the calls of an answer that have no results, and return what follows."""
        mark = read_mark(answer)
        assert mark is not None
        speaker = self._execution.find_speaker(mark.agent, mark.side)
        is_queued = TOOL in read_own(answer)
        self._state.begin(speaker, self._place, is_asked=is_asked(answer))
        tools = self._execution.tools if is_queued else speaker.prompt.tools
        for call in answer.tool_calls or ():
            if call["id"] not in results and not self._messages.is_stopped:
                await self._dispatcher.answer(tools, answer, call)
        if answer.tool_calls:
            results = await self._read_results(answer)
        return follow(self._place, speaker, answer, results, self._state.notes)

    async def _report(self, name: str, reason: Reason, text: str) -> None:
        agent = self._execution.find_agent(name)
        await make_report(self._thread, self._step, self._messages, agent=agent, reason=reason, text=text)
        if reason == "stopped":
            await self._step.do("hold", self._hold)

    async def _hold(self) -> None:
        """Leave what is queued, as a stop from outside does."""
        await self._messages.stop()

    async def _read_results(self, answer: Message) -> dict[str, Message]:
        """Return the results of the calls of an answer, by their ids."""
        if not (ids := answer.tool_call_ids):
            return {}
        found = (await self._messages.list(_READ + len(ids), after=answer.position, order="asc")).messages
        return {each.tool_call_id: each for each in found if each.tool_call_id is not None and each.tool_call_id in ids}

    def _go_on(self, place: Place) -> None:
        self._place = place
        self._step.checkpoint(place)

    async def _explain(self, place: Place) -> None:
        """Tell people that the run ends because of errors that come again and again."""
        id = f"{self._step.id}-errors"

        async def explain() -> None:
            if await self._messages.get(id) is None:
                text = f"I stop here, as a tool has failed {place.errors} times in the same way. {place.error}"
                self._messages.inject("assistant", text, id=id)

        await self._step.do("explain", explain)


def _find_agent(answer: Message) -> str:
    mark = read_mark(answer)
    assert mark is not None
    return mark.agent


def _is_question(history: Sequence[Message]) -> bool:
    """Whether a model must be asked about a history: its last message is no answer, or has open calls."""
    said = [each for each in history if each.content or not each.silent]  # Without thoughts.
    return bool(said) and (not is_decisive(said[-1]) or bool(find_open_calls(history)))


def _find_receiver(messages: Sequence[Message]) -> Receiver:
    """Return the side that answers the last of some messages: B those of assistants."""
    return "b" if messages and messages[-1].role == "assistant" else "a"
