"""Runs agents of Pydantic AI in threads, with the extra `plait[pydantic-ai]`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pydantic_ai import Agent, AgentRunEvents, AgentRunResultEvent
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessage, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_core import to_jsonable_python

from plait import Context, Interrupted, ThreadMessages, ThreadValues
from plait.adapters.pydantic_ai.conversation import Conversation
from plait.adapters.pydantic_ai.stored import KEY, MOST, StoredMessages, check_most

__all__ = ["load_messages", "open_run", "run_agent", "save_messages"]


async def load_messages(values: ThreadValues, *, key: str = KEY) -> list[ModelMessage]:
    """Return the messages that `save_messages` has stored, an empty list if there are none. Raises ValidationError."""
    return await StoredMessages(values, key, None).load()


async def save_messages(
    values: ThreadValues, messages: Sequence[ModelMessage], *, key: str = KEY, max_messages: int | None = MOST
) -> None:
    """Store messages as one value: approximately the last `max_messages`, beginning with a message of the user.

    If the values have less room, fewer are stored. `max_messages=None` stores all that fit.
    """
    check_most(max_messages)
    await StoredMessages(values, key, max_messages).save(messages)


@asynccontextmanager
async def open_run(
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    values: ThreadValues | None = None,
    messages: ThreadMessages | None = None,
    key: str = KEY,
    max_messages: int | None = MOST,
    **options: Any,
) -> AsyncIterator[AgentRunEvents[Any]]:
    """Open a run of an agent that continues the messages in `values`; iterate over its events in the block.

    The options are those of `Agent.run_stream_events`. At the end of the block, the messages are stored; if it is left
    early, interrupted or cancelled, the part that the model has sent so far, too. Nothing is stored when the block
    raises an Exception. Raises TooLarge, without calling the model, if the values have no room for the prompt and an
    answer of 64 KiB.

    With `messages`, the run continues those, and adds to them. Without a prompt, it takes what is queued; what the user
    has said last is the prompt. All are kept, and the agent gets approximately the last `max_messages`.
    """
    async with _open(agent, prompt, _find_history(values, messages, key, max_messages), options) as events:
        yield events


async def run_agent(
    ctx: Context[Any],
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    values: ThreadValues | None = None,
    messages: ThreadMessages | None = None,
    key: str = KEY,
    max_messages: int | None = MOST,
    text: str | None = None,
    event: str | None = None,
    **options: Any,
) -> Any:
    """Run an agent that continues the messages in `values`, and return its output. Each of its events is a checkpoint.

    The text of the model is appended, as it arrives, to the string at the JSON pointer `text` of the thread's state,
    and shown in the thread's `messages` if these are given instead of `values`. Every event is emitted to the
    connections, as the event `event`. The options are those of `open_run`.
    """
    history = _find_history(values, messages, key, max_messages)
    async with _open(agent, prompt, history, options) as events:
        async for each in events:
            if isinstance(each, AgentRunResultEvent):
                return each.result.output
            if said := _find_text(each):
                await history.say(said, events)
                if text is not None:
                    ctx.thread.append(text, said)
            if event is not None:
                ctx.thread.emit(event, to_jsonable_python(each, bytes_mode="base64", serialize_unknown=True))
            await ctx.checkpoint()
    raise AssertionError("the run had no result")


class _History(Protocol):
    """The messages that a run continues."""

    async def begin(self, prompt: Any) -> tuple[list[ModelMessage], Any]:
        """Return the messages before the run, and its prompt."""
        ...

    async def say(self, text: str, run: AgentRunEvents[Any]) -> None:
        """Show text of the model."""
        ...

    async def finish(self, messages: Sequence[ModelMessage], new: Sequence[ModelMessage]) -> None:
        """Store the messages of the run, after those before; it is called again if it raised Interrupted."""
        ...

    async def fail(self, error: Exception) -> None:
        """End without storing anything."""
        ...


def _find_history(values: ThreadValues | None, messages: ThreadMessages | None, key: str, most: int | None) -> _History:
    check_most(most)
    if messages is not None and values is None:
        return Conversation(messages, most)
    if values is None or messages is not None:
        raise TypeError("the messages of an agent are in the values of a thread, or in its messages: pass one of them")
    return StoredMessages(values, key, most)


@asynccontextmanager
async def _open(
    agent: Agent[Any, Any], prompt: Any, history: _History, options: dict[str, Any]
) -> AsyncIterator[AgentRunEvents[Any]]:
    before, prompt = await history.begin(prompt)
    async with agent.run_stream_events(prompt, message_history=before, **options) as events:
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


async def _keep(events: AgentRunEvents[Any], history: _History) -> None:
    """Store the messages of a run, which is cancelled if it has not ended."""
    events.cancel()
    try:
        async for _ in events:
            pass
        messages, new = events.all_messages(), events.new_messages()
    except RunCancelled as cancelled:
        messages, new = cancelled.all_messages(), cancelled.new_messages()
    try:
        await history.finish(messages, new)
    except Interrupted:  # The run was interrupted after its last checkpoint, or once more.
        await history.finish(messages, new)
        raise


def _find_text(event: Any) -> str | None:
    match event:
        case PartStartEvent(part=TextPart(content=said)) | PartDeltaEvent(delta=TextPartDelta(content_delta=said)):
            return said
    return None
