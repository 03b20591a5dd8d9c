"""Calls a model by Pydantic AI, with the extra `plait[execution]`."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, cast

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, ModelRequestRejectedError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model as AnyModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from plait.agents.execution.definitions import Model
from plait.agents.execution.message_format import Known, find_piece, link, read_history, write_message
from plait.agents.execution.model_attempts import FIRST, Answer, ModelFailed, Piece, Progress
from plait.agents.execution.tools import ToolSpec
from plait.author_code import call
from plait.clock import read_due_clock
from plait.errors import PlaitError, TooLarge
from plait.parts.messages.message import Message, make_own
from plait.parts.messages.model_history import MODEL

__all__ = ["call_model"]

log = logging.getLogger("plait.agents")

# The errors whose text is told.
_TOLD: Final = UserError | ImportError | PlaitError


async def call_model(
    model: Model,
    history: Sequence[Message],
    *,
    tools: Iterable[ToolSpec] = (),
    settings: Mapping[str, Any] = {},
    progress: Progress = FIRST,
    known: Known | None = None,
) -> AsyncGenerator[Piece | Answer, None]:
    """Make an attempt, due or not: yield what comes, and then the whole answer. Raises ModelFailed.

    An error that the caller throws into it has the same effect. A model that cannot stream is asked for its whole
    answer. `history` is the input of the model, with its system prompt; `settings` come before those of the model.
    `known` is a dict that calls with growing histories may share: only new messages are then converted.
    """
    ids = [model.model, *model.fallback]
    id = ids[min(progress.number, len(ids) - 1)]  # A deploy may have removed the next id.
    messages = read_history(history, {} if known is None else known)
    merged = cast(ModelSettings, {**model.settings, **settings})
    options: Any = {"model_settings": merged, "model_request_parameters": _make_parameters(tools)}
    stream: StreamedResponse | None = None
    reader = _Reader(model)
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(reader.deadline):
                # The packages of a provider are imported for its first model.
                used = await asyncio.to_thread(infer_model, id) if isinstance(id, str) else id
                if _can_stream(used):
                    opening = model_request_stream(used, messages, **options)
                    stream = await call(stack.enter_async_context, opening)
                else:
                    response = await call(partial(model_request, used, messages, **options))
            if stream is not None:
                events = aiter(stream)
                while piece := await call(reader.read, events):
                    yield piece
                    reader.expect_next()
                response = stream.get()
        yield _make_answer(response, _name(id))
    except Exception as error:
        failure = f"no chunk within {reader.seconds:g} s" if isinstance(error, TimeoutError) else _describe(error)
        raise _fail(model, progress, f"{_name(id)}: {failure}", error) from None


class _Reader:
    """Reads the pieces of an answer, whose chunks must come in time."""

    def __init__(self, model: Model) -> None:
        self._next = model.next_chunk
        # The seconds that the next chunk may take, and when they end.
        self.seconds = model.first_chunk
        self.deadline = asyncio.get_running_loop().time() + self.seconds

    async def read(self, events: AsyncIterator[object]) -> Piece | None:
        """Return the next piece; None at the end."""
        while True:
            async with asyncio.timeout_at(self.deadline):
                event = await anext(events, None)
            if event is None:
                return None
            if piece := find_piece(event):
                return piece
            self.expect_next()

    def expect_next(self) -> None:
        """Begin to wait for the next chunk."""
        self.seconds = self._next
        self.deadline = asyncio.get_running_loop().time() + self.seconds


def _make_parameters(tools: Iterable[ToolSpec]) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=each.name, description=each.description, parameters_json_schema=dict(each.parameters))
            for each in tools
        ]
    )


def _can_stream(model: AnyModel) -> bool:
    while isinstance(model, WrapperModel):
        model = model.wrapped
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return type(model).request_stream is not AnyModel.request_stream


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
    is_final = isinstance(error, UserError | ImportError | ModelRequestRejectedError | TooLarge)
    retry = progress.fail(model, failure, read_due_clock(), retry_after=retry_after, is_final=is_final)
    stack = None if isinstance(error, TimeoutError | _TOLD) or _is_of_provider(error) else error
    log.warning("the model %s has failed: %s", model.name, failure, exc_info=stack)
    return ModelFailed(model, [*progress.failures, failure], retry)


def _is_of_provider(error: BaseException | None) -> bool:
    """Whether an error may quote a provider: then its text is not logged, because it may contain a part of a key."""
    while error is not None and not isinstance(error, AgentRunError | BaseExceptionGroup):
        error = error.__cause__ or error.__context__
    return error is not None


def _describe(error: Exception) -> str:
    """Describe a failure, without the text of a provider."""
    if isinstance(error, _TOLD):
        return f"{type(error).__name__}: {error}" if isinstance(error, PlaitError) else str(error)
    if isinstance(error, ModelHTTPError):
        return f"HTTP {error.status_code}" + (f", {error.provider_error_code}" if error.provider_error_code else "")
    return type(error).__name__


def _name(id: Any) -> str:
    return id if isinstance(id, str) else f"{id.system}:{id.model_name}"
