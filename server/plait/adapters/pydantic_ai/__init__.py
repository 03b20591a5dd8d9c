"""Runs agents of Pydantic AI in threads, with the extra `plait[pydantic-ai]`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent, AgentRunEvents, AgentRunResultEvent
from pydantic_ai.exceptions import RunCancelled
from pydantic_core import to_jsonable_python

from plait import Context, Interrupted, ThreadMessages
from plait.adapters.pydantic_ai.conversation import Conversation, Steering
from plait.agents.execution.message_format import find_text

__all__ = ["open_run", "run_agent"]


@asynccontextmanager
async def open_run(
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    messages: ThreadMessages,
    max_messages: int | None = 100,
    **options: Any,
) -> AsyncIterator[AgentRunEvents[Any]]:
    """Open a run of an agent that continues the messages of a thread; iterate over its events in the block.

    Without a prompt, the run takes the queued messages; the user's last ones are the prompt. All messages are kept, and
    the agent gets approximately the last `max_messages`. The options are those of `Agent.run_stream_events`.

    At the end of the block, the new messages are stored. If the block is left early, interrupted or cancelled, so is
    the part that the model has sent so far. Nothing is stored when the block raises an Exception.
    """
    async with _open(agent, prompt, Conversation(messages, max_messages), options) as events:
        yield events


async def run_agent(
    ctx: Context[Any],
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    messages: ThreadMessages,
    max_messages: int | None = 100,
    text: str | None = None,
    event: str | None = None,
    **options: Any,
) -> Any:
    """Run an agent that continues the messages of a thread, and return its output. Each of its events is a checkpoint.

    The text of the model is shown in the messages as it arrives, and appended to the string at the JSON pointer `text`
    of the thread's state. Every event is emitted to the connections, as the event `event`. The options are those of
    `open_run`.
    """
    history = Conversation(messages, max_messages)
    async with _open(agent, prompt, history, options) as events:
        async for each in events:
            if isinstance(each, AgentRunResultEvent):
                return each.result.output
            if said := find_text(each):
                await history.say(said, events)
                if text is not None:
                    ctx.thread.append(text, said)
            if event is not None:
                ctx.thread.emit(event, to_jsonable_python(each, bytes_mode="base64", serialize_unknown=True))
            await ctx.checkpoint()
    raise AssertionError("the run had no result")


@asynccontextmanager
async def _open(
    agent: Agent[Any, Any], prompt: Any, history: Conversation, options: dict[str, Any]
) -> AsyncIterator[AgentRunEvents[Any]]:
    before, prompt = await history.begin(prompt)
    capabilities = [*(options.pop("capabilities", None) or ()), Steering(history)]
    running = agent.run_stream_events(prompt, message_history=before, capabilities=capabilities, **options)
    async with running as events:
        history.run = events
        try:
            yield events
        except Exception as error:
            await history.fail(error)
            raise
        except BaseException:
            await _keep(events, history)
            raise
        else:
            await _keep(events, history)


async def _keep(events: AgentRunEvents[Any], history: Conversation) -> None:
    """Store the messages of a run, which is cancelled if it has not ended."""
    events.cancel()
    try:
        async for _ in events:
            pass
        new = events.new_messages()
    except RunCancelled as cancelled:
        new = cancelled.new_messages()
    try:
        await history.finish(new)
    except Interrupted:  # The run was interrupted after its last checkpoint, or once more.
        await history.finish(new)
        raise
