"""Calls a model by Pydantic AI, with the extra `plait[execution]`."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRequestRejectedError, UserError
from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from plait.agents.execution.definitions import Model
from plait.agents.execution.message_format import Known, link, read_history, write_message
from plait.agents.execution.model_attempts import FIRST, Answer, ModelFailed, Progress
from plait.agents.execution.tools import ToolSpec
from plait.author_code import call
from plait.clock import read_due_clock
from plait.parts.messages.message import Message
from plait.parts.messages.model_history import MODEL
from plait.parts.messages.own_metadata import make_own

__all__ = ["call_model"]

log = logging.getLogger("plait.agents")


async def call_model(
    model: Model,
    history: Sequence[Message],
    *,
    tools: Iterable[ToolSpec] = (),
    settings: Mapping[str, Any] = {},
    progress: Progress = FIRST,
    known: Known | None = None,
) -> AsyncGenerator[str | Answer, None]:
    """Make an attempt, due or not: yield the text as it comes, and then the answer. Raises ModelFailed.

    `history` is what the model sees, with its system prompt; `settings` come before those of the model. `known` is a
    dict that calls with growing histories may share: only new messages are then converted.
    """
    ids, seconds = [model.model, *model.fallback], model.first_chunk
    id = ids[min(progress.number, len(ids) - 1)]  # A deploy may have removed the one that was to be next.
    messages = read_history(history, {} if known is None else known)
    parameters = _make_parameters(tools)
    merged = cast(ModelSettings, {**model.settings, **settings})
    loop = asyncio.get_running_loop()
    try:
        async with AsyncExitStack() as stack:
            deadline = loop.time() + seconds
            async with asyncio.timeout_at(deadline):
                # The packages of a provider are imported for its first model.
                used = await asyncio.to_thread(infer_model, id) if isinstance(id, str) else id
                stream = await call(
                    stack.enter_async_context,
                    model_request_stream(used, messages, model_settings=merged, model_request_parameters=parameters),
                )
            events = aiter(stream)
            while True:
                async with asyncio.timeout_at(deadline):
                    event = await call(anext, events, None)
                if event is None:
                    break
                if text := _find_text(event):
                    yield text
                seconds = model.next_chunk
                deadline = loop.time() + seconds
            response = stream.get()
    except Exception as error:
        failure = f"no chunk within {seconds:g} s" if isinstance(error, TimeoutError) else _describe(error)
        raise _fail(model, progress, f"{_name(id)}: {failure}", error) from None
    yield _make_answer(response, _name(id))


def _make_parameters(tools: Iterable[ToolSpec]) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=each.name, description=each.description, parameters_json_schema=dict(each.parameters))
            for each in tools
        ]
    )


def _find_text(event: object) -> str | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
    return None


def _make_answer(response: ModelResponse, name: str) -> Answer:
    first, *thoughts = write_message(response)
    usage = {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
    metadata = make_own({MODEL: name, "usage": usage, **first["metadata"].own})
    return Answer(
        first.get("content") or "",
        first["tool_calls"],
        metadata,
        lambda id: [{**each, "metadata": link(each["metadata"], id)} for each in thoughts],
    )


def _fail(model: Model, progress: Progress, failure: str, error: Exception) -> ModelFailed:
    """Log a failure, and return the error for it."""
    retry_after = error.retry_after if isinstance(error, ModelAPIError) else None
    is_final = isinstance(error, UserError | ImportError | ModelRequestRejectedError)
    retry = progress.fail(model, failure, read_due_clock(), retry_after=retry_after, is_final=is_final)
    log.warning("the model %s has failed: %s", model.name, failure)
    return ModelFailed(model, [*progress.failures, failure], retry)


def _describe(error: Exception) -> str:
    """Return what has failed, without the text of a provider, as a key may be a part of that."""
    if isinstance(error, UserError | ImportError):
        return str(error)
    if isinstance(error, ModelHTTPError):
        return f"HTTP {error.status_code}" + (f", {error.provider_error_code}" if error.provider_error_code else "")
    return type(error).__name__


def _name(id: Any) -> str:
    return id if isinstance(id, str) else f"{id.system}:{id.model_name}"
