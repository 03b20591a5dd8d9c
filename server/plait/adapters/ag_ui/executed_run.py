"""Shows a run of a durable agent: the messages that it writes, and the approvals that it waits for."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from ag_ui.core import (
    Interrupt,
    ResumeEntry,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.thread import Thread
from plait.adapters.ag_ui.event_run import EventRun
from plait.agents.agent import Agent
from plait.agents.execution.subagents import VARIABLES
from plait.agents.execution.thread_agents import SUPPLY
from plait.agents.run import Interruption
from plait.errors import InvalidArguments
from plait.parts.messages.caller import QUEUE
from plait.parts.messages.frames import ChunkFrame, EndFrame, Frame, InputFrame, InsertFrame, UpdateFrame
from plait.parts.messages.message import APPROVAL, Message, read_call
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.part import require_role
from plait.parts.stage import Stage, do_nothing
from plait.parts.tasks.client_methods import SEND
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.step import Approval
from plait.parts.tasks.thread_tasks import ThreadTasks
from plait.web.http.exchange import Exchange
from plait_schemas.conversation import Input

__all__ = ["ExecutedRun"]

_ANSWER: Final = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


class ExecutedRun:
    """Follows a run of a durable agent for a client that begins the run or answers its approvals."""

    def __init__(
        self, agent: Agent, run: EventRun, part: str | None, *, exchange: Exchange, connection: Connection
    ) -> None:
        self._agent = agent
        self._run = run
        # The exchange by which the client answers.
        self._exchange = exchange
        self._connection = connection
        # The name of the messages that are shown.
        self._part = part
        # The roles of the messages that are shown while they grow, by their ids, and the ids of those that have text.
        self._open = dict[str, Any]()
        self._texts = set[str]()
        # The arguments that were shown of calls in these messages, by the ids of the calls.
        self._inputs = dict[str, dict[str, str]]()

    async def show(self, thread: Thread[Any], input: Any = None) -> Any:
        """Show the run until it ends, or waits for people; return the result. Raises RuntimeError if it fails."""
        actor = thread._actor
        assert isinstance(actor, Actor)
        tasks: ThreadTasks = require_role(type(thread), "tasks").of(actor)
        actor.kind.tasks[self._agent.name].find_identity(thread, QUEUE)  # Raises if another agent has the thread.
        answers = await self._find_answers(tasks)
        if not answers:
            await self._exchange.check("call")
        await self._start(actor)
        messages: ThreadMessages | None = None if self._part is None else getattr(thread, self._part)
        if messages is not None and messages.is_stopped:
            messages.resume()
        stop = do_nothing if messages is None else messages.feed.watch(self._tell)
        try:
            for answer in answers:
                await self._exchange.call(actor, actor.kind.method(SEND), (answer, {}), self._connection)
            # Without an input, the run is the queue's, even one that has not ended.
            given, key = ([input], None) if self._agent.takes_input else ([], QUEUE)
            id = answers[0][0] if answers else tasks.run(self._agent.name, *given, key=key).id
            last = await tasks.wait_until(id, partial(_is_over, tasks))
        finally:
            stop()
        if last.ended_at is None:
            self._run.asked += map(_ask, filter(_is_for_people, tasks.find_awaited(last.id)))
        if last.status == "failed":
            # Clients do not see the error.
            raise RuntimeError(f"the agent {self._agent.name} has failed: {last.error}")
        if last.status == "cancelled":
            return Interruption()
        return last.result if messages is None else None  # The text is a message.

    # Inside

    async def _start(self, actor: Actor) -> None:
        """Store the client's additions as a run does, and return when the event run has begun."""
        stage = Stage(actor, do_nothing)
        with stage.use():
            await self._run.start(actor.thread)
            await stage.commit(is_last=True)
        await actor.state.wait_until_stored()

    async def _find_answers(self, tasks: ThreadTasks) -> list[list[Any]]:
        """Return the client's answers, each with its run, which waits for it, and the event.

        Raises InvalidArguments.
        """
        entries = {APPROVAL + each.interrupt_id: each for each in self._run.resume}
        runs = [(run.id, tasks.find_awaited(run.id)) for run in await tasks.list(self._agent.name)]
        return [[id, event, _read(entries[event])] for id, events in runs for event in events if event in entries]

    def _tell(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            match frame:
                case InsertFrame(message=message) if message.status != "pending" and not message.depth:
                    self._begin(message)
                case ChunkFrame() if frame.id in self._open:
                    self._show_text(frame.id, frame.text)
                case InputFrame() if frame.id in self._open:
                    self._add_input(frame.id, frame.input)
                case EndFrame() if frame.id in self._open:
                    self._end(frame.id)
                    for call in self._inputs.pop(frame.id, {}):
                        self._run.show(ToolCallEndEvent(tool_call_id=call))
                case UpdateFrame(message=message) if message.id in self._open:
                    self._end(message.id)
                    self._show_calls(message)

    def _begin(self, message: Message) -> None:
        if message.role == "tool":
            id, text = message.tool_call_id or "", message.content or ""
            self._run.show(ToolCallResultEvent(message_id=message.id, tool_call_id=id, content=text))
            return
        self._open[message.id] = message.role
        if message.content:
            self._show_text(message.id, message.content)
        if message.status != "streaming":
            self._end(message.id)
            self._show_calls(message)

    def _show_text(self, id: str, text: str) -> None:
        if id not in self._texts:
            self._texts.add(id)
            self._run.show(TextMessageStartEvent(message_id=id, role=self._open[id]))
        self._run.show(TextMessageContentEvent(message_id=id, delta=text))

    def _end_text(self, id: str) -> None:
        if id in self._texts:
            self._texts.remove(id)
            self._run.show(TextMessageEndEvent(message_id=id))

    def _end(self, id: str) -> None:
        self._end_text(id)
        del self._open[id]

    def _add_input(self, message: str, added: Input) -> None:
        known = self._inputs.setdefault(message, {})
        if added.call not in known:
            self._end_text(message)
            start = ToolCallStartEvent(tool_call_id=added.call, tool_call_name=added.name, parent_message_id=message)
            self._run.show(start)
        known[added.call] = known.get(added.call, "") + added.text
        if added.text:
            self._run.show(ToolCallArgsEvent(tool_call_id=added.call, delta=added.text))

    def _show_calls(self, message: Message) -> None:
        """Show the calls of a message, as far as they are not shown yet."""
        shown = self._inputs.get(message.id, {})
        for id, name, arguments in map(read_call, message.tool_calls or ()):
            self._add_input(
                message.id, Input(call=id, name=name, text=(arguments or "{}").removeprefix(shown.get(id, "")))
            )
            self._run.show(ToolCallEndEvent(tool_call_id=id))
        self._inputs.pop(message.id, None)


def _is_over(tasks: ThreadTasks, run: TaskRun) -> bool:
    """Whether a run has ended, or waits for people."""
    is_asked = any(map(_is_for_people, tasks.find_awaited(run.id)))
    return run.ended_at is not None or (is_asked and tasks.only_waits(run.id))


def _is_for_people(event: str) -> bool:
    return event.startswith((APPROVAL, VARIABLES))


def _read(entry: ResumeEntry) -> Approval:
    if entry.status != "resolved":
        return Approval(approved=False)
    try:
        return msgspec.convert(entry.payload, Approval)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"the answer to the interrupt {entry.interrupt_id[:80]!r}: {error}") from None


def _ask(event: str) -> Interrupt:
    if event.startswith(VARIABLES):
        id = event.removeprefix(VARIABLES)
        return Interrupt(id=id, reason="input_required", message=f"Supply variables with {SUPPLY}.", tool_call_id=id)
    id = event.removeprefix(APPROVAL)
    return Interrupt(id=id, reason="tool_call", tool_call_id=id, response_schema=_ANSWER)
