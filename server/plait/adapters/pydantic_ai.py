"""Runs agents of Pydantic AI in threads, with the extra `plait[pydantic-ai]`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
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

from plait import Context, Interrupted, ThreadValues, TooLarge

__all__ = ["load_messages", "open_run", "run_agent", "save_messages"]

_KEY: Final = "pydantic_ai"
_MOST: Final = 100
# Bytes that must be free for the answer, in addition to the prompt, before the model is called.
_ANSWER: Final = 65_536


async def load_messages(values: ThreadValues, *, key: str = _KEY) -> list[ModelMessage]:
    """Return the messages that `save_messages` has stored, an empty list if there are none. Raises ValidationError."""
    return ModelMessagesTypeAdapter.validate_python(await values.get(key, []))


async def save_messages(
    values: ThreadValues, messages: Sequence[ModelMessage], *, key: str = _KEY, max_messages: int | None = _MOST
) -> None:
    """Store messages as one value: approximately the last `max_messages`, beginning with a message of the user.

    If the values have no room for that many, fewer are stored. `max_messages=None` stores as many as there is room for.
    """
    _check_most(max_messages)
    kept = messages[_find_first(messages, max_messages, await values.room(key)) :]
    await values.set(key, ModelMessagesTypeAdapter.dump_python(list(kept), mode="json"))


@asynccontextmanager
async def open_run(
    agent: Agent[Any, Any],
    prompt: Any = None,
    *,
    values: ThreadValues,
    key: str = _KEY,
    max_messages: int | None = _MOST,
    **options: Any,
) -> AsyncIterator[AgentRunEvents[Any]]:
    """Open a run of an agent that continues the messages in `values`; iterate over its events in the block.

    The options are those of `Agent.run_stream_events`. At the end of the block, the messages are stored; if it is left
    early, interrupted or cancelled, the part that the model has sent so far, too. Nothing is stored when the block
    raises an Exception. Raises TooLarge, without calling the model, if the values have no room for the prompt and an
    answer of 64 KiB.
    """
    _check_most(max_messages)
    size = _ANSWER + (0 if prompt is None else _measure(ModelRequest([UserPromptPart(prompt)])))
    if size > (room := await values.room(key)):
        raise TooLarge(
            f"the prompt and its answer need {size} bytes, but the thread's values only have room for {room}: delete "
            "other values, or pass a smaller max_messages"
        )
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

    The text of the model is appended, as it arrives, to the string at the JSON pointer `text` of the thread's state.
    Every event is emitted to the connections, as the event `event`. The options are those of `open_run`.
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
    """Store the messages of a run, which is cancelled if it has not ended."""
    events.cancel()
    try:
        async for _ in events:
            pass
        messages = events.all_messages()
    except RunCancelled as cancelled:
        messages = cancelled.all_messages()
    if messages:  # A run that has not begun has none.
        try:
            await save_messages(values, messages, key=key, max_messages=max_messages)
        except Interrupted:  # The run was interrupted after its last checkpoint, or once more.
            await save_messages(values, messages, key=key, max_messages=max_messages)
            raise


def _find_text(event: Any) -> str | None:
    match event:
        case PartStartEvent(part=TextPart(content=said)) | PartDeltaEvent(delta=TextPartDelta(content_delta=said)):
            return said
    return None


def _check_most(max_messages: int | None) -> None:
    if max_messages is not None and max_messages < 1:
        raise ValueError(f"max_messages must be at least 1, not {max_messages!r}")


def _find_first(messages: Sequence[ModelMessage], most: int | None, room: int) -> int:
    """Return where the last messages begin: with a prompt, so that every result of a tool comes with its call."""
    prompts = [at for at, message in enumerate(messages) if _is_prompt(message)]
    first = 0 if most is None else len(messages) - most
    # For each message, the bytes of it and all later ones.
    sizes = list(accumulate(_measure(message) for message in reversed(messages)))[::-1]
    starts = [0, *prompts] if most is None else prompts
    found = (at for at in starts if at >= first and sizes[at] <= room) if messages else ()
    return next(iter(found), prompts[-1] if prompts else 0)


def _measure(message: ModelMessage) -> int:
    """Return the bytes of a message in a list."""
    return len(ModelMessagesTypeAdapter.dump_json([message]))


def _is_prompt(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)
