"""Runs agents of Pydantic AI in threads, with the extra `plait[pydantic-ai]`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic_ai import Agent, AgentRunEvents, AgentRunResultEvent
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_core import to_jsonable_python

from plait import Context, ThreadValues

__all__ = ["load_messages", "open_run", "run_agent", "save_messages"]

_KEY: Final = "pydantic_ai"


async def load_messages(values: ThreadValues, *, key: str = _KEY) -> list[ModelMessage]:
    """Return the messages that `save_messages` has kept, none if there are none. Raises ValidationError."""
    return ModelMessagesTypeAdapter.validate_python(await values.get(key, []))


async def save_messages(
    values: ThreadValues, messages: Sequence[ModelMessage], *, key: str = _KEY, max_messages: int | None = None
) -> None:
    """Keep messages as one value: with `max_messages`, about the last ones, from a message of the user on."""
    kept = messages if max_messages is None else messages[_find_first(messages, max_messages) :]
    await values.set(key, ModelMessagesTypeAdapter.dump_python(list(kept), mode="json"))


@asynccontextmanager
async def open_run(
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    values: ThreadValues,
    key: str = _KEY,
    max_messages: int | None = None,
    **options: Any,
) -> AsyncIterator[AgentRunEvents[Any]]:
    """Open a run of an agent that continues the messages in `values`; iterate over its events in the block.

    The options are those of `Agent.run_stream_events`. At the end of the block the messages are kept; if it is left
    early, interrupted or cancelled, so is what the model had said so far. They are not when it raises an Exception.
    """
    history = await load_messages(values, key=key)
    async with agent.run_stream_events(prompt, message_history=history, **options) as events:
        try:
            yield events
        except Exception:
            raise
        except BaseException:
            await _keep(events, values, key, max_messages)
            raise
        else:
            await _keep(events, values, key, max_messages)


async def run_agent(
    ctx: Context[Any],
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    values: ThreadValues,
    text: str | None = None,
    event: str | None = None,
    **options: Any,
) -> Any:
    """Run an agent that continues the messages in `values`, and return its output. Each of its events is a checkpoint.

    What the model says is appended, as it comes, to the string of the thread's state at the JSON pointer `text`, and
    every event is emitted to the connections as the event `event`. The options are those of `open_run`.
    """
    async with open_run(agent, prompt, values=values, **options) as events:
        async for each in events:
            if isinstance(each, AgentRunResultEvent):
                return each.result.output
            if text is not None and (said := _find_text(each)):
                ctx.thread.append(text, said)
            if event is not None:
                ctx.thread.emit(event, to_jsonable_python(each, bytes_mode="base64", serialize_unknown=True))
            await ctx.checkpoint()
    raise AssertionError("the run had no result")


async def _keep(events: AgentRunEvents[Any], values: ThreadValues, key: str, max_messages: int | None) -> None:
    """Keep the messages of a run, which is cancelled if it has not ended."""
    events.cancel()
    try:
        async for _ in events:
            pass
        messages = events.all_messages()
    except RunCancelled as cancelled:
        messages = cancelled.all_messages()
    if messages:  # There are none if it has not begun.
        await save_messages(values, messages, key=key, max_messages=max_messages)


def _find_text(event: Any) -> str | None:
    match event:
        case PartStartEvent(part=TextPart(content=said)) | PartDeltaEvent(delta=TextPartDelta(content_delta=said)):
            return said
    return None


def _find_first(messages: Sequence[ModelMessage], most: int) -> int:
    """Return where the last messages begin: with a prompt, so that no result of a tool is there without its call."""
    prompts = [at for at, message in enumerate(messages) if _is_prompt(message)]
    return next((at for at in prompts if at >= len(messages) - most), prompts[-1] if prompts else 0)


def _is_prompt(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)
