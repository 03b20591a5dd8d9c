"""Asks the model of a side, and adds its answer to the history: in one write, with its calls and its usage."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import cache, partial
from itertools import count
from typing import Any, Final

import msgspec

from plait.agents.execution.definitions import Prompt, Speaker
from plait.agents.execution.hooks import Block, call_hooks
from plait.agents.execution.model_attempts import FIRST, Answer, CallPiece, ModelFailed, Piece, Progress, Thought
from plait.agents.execution.run_pass import RunPass, cut_history
from plait.agents.execution.stops import BLOCKED, MARK, REMOVED, Below, Mark
from plait.agents.execution.subagents import describe_subagents
from plait.author_code import call
from plait.clock import read_due_clock
from plait.errors import is_outage
from plait.parts.messages.message import (
    Message,
    make_call,
    make_call_id,
    make_own,
    merge_metadata,
    read_call,
    read_own,
)
from plait.parts.messages.message_stream import MessageStream
from plait.parts.messages.model_history import ROLES, view_history
from plait_schemas.codec import to_builtins

__all__ = ["Asker", "load_model_call"]

# The characters that are kept of the text of an attempt that has failed.
_KEPT: Final = 4_000


class _Asked(msgspec.Struct, frozen=True):
    """The id of the answer, or the next attempt to get one."""

    id: str = ""
    retry: Progress | None = None


class Asker:
    """Asks models in a pass of a run."""

    def __init__(self, run_pass: RunPass) -> None:
        self._execution = run_pass.execution
        self._thread = run_pass.thread
        self._step = run_pass.step
        self._messages = run_pass.messages
        self._state = run_pass.state
        self._servers = run_pass.servers
        # The models' views of the earlier calls, converted.
        self._known: dict[Any, Any] = {}

    async def ask(self, speaker: Speaker, history: Sequence[Message], mark: Mark, below: Below | None = None) -> str:
        """Ask until there is an answer, and return its id; empty if no model was asked. Raises StepFailed."""
        progress, place = FIRST, below.call_id if below else mark.step
        for attempt in count():
            if progress.due:
                await self._step.sleep(f"wait:{place}:{attempt}", (progress.due - read_due_clock()) / 1e6)
            work = partial(self._attempt, speaker.prompt, history, mark, below, progress)
            asked = await self._state.do(f"ask:{place}:{attempt}", work, attempts=3, type=_Asked)
            if asked.retry is None:
                return asked.id
            progress = asked.retry
        raise AssertionError

    async def _attempt(
        self, prompt: Prompt, history: Sequence[Message], mark: Mark, below: Below | None, progress: Progress
    ) -> _Asked:
        self._step.status(None)  # A call that was deleted needs no variables.
        place: dict[str, Any] = {} if below is None else {"parent_id": below.parent_id, "depth": below.depth}
        try:
            seen = await self._view(prompt, history, mark)
        except Block as block:
            metadata = make_own({MARK: to_builtins(mark), BLOCKED: True})
            return _Asked(self._messages.inject(ROLES[mark.side], str(block), metadata=metadata, **place).value.id)
        if self._state.stopped:
            return _Asked()
        chunks = (await load_model_call())(
            self._execution.load_model(prompt.model),
            seen,
            tools=[
                *self._execution.describe_tools(prompt),
                *await describe_subagents(self._thread, prompt),
                *await self._servers.describe(prompt.tools),
            ],
            progress=progress,
            settings=prompt.settings,
            known=self._known,
        )
        added = list[str]()
        async with aclosing(chunks):
            try:
                await self._add(chunks, mark, place, added, prompt)
            except ModelFailed as failed:
                if failed.retry is None:
                    raise
                return _Asked(retry=failed.retry)
        return _Asked(added[0])

    async def _add(
        self,
        chunks: AsyncGenerator[Piece | Answer],
        mark: Mark,
        place: Mapping[str, Any],
        added: list[str],
        prompt: Prompt,
    ) -> None:
        """Add a model's answer to the history, and its ids to `added`. Raises ModelFailed, except in an outage."""
        role, stream = ROLES[mark.side], None
        # The ids and the tools of the calls, by the parts of the answer that they are.
        called: dict[int, tuple[str, str]] = {}
        try:
            async with AsyncExitStack() as stack:
                async for each in chunks:
                    if isinstance(each, Answer):
                        answer = each
                        break
                    if not self._shows(each, prompt):
                        continue
                    if stream is None:
                        stream = self._messages.stream(role, **place)
                        stream.most_failed = _KEPT
                        added.append((await stack.enter_async_context(stream)).id)
                    _show(each, stream, called)
                fields: dict[str, Any] = {
                    "tool_calls": _give_ids(answer.tool_calls, [id for _, (id, _) in sorted(called.items())]),
                    "metadata": merge_metadata(answer.metadata, make_own({MARK: to_builtins(mark)})),
                }
                if stream is None:
                    added.append(self._messages.inject(role, answer.text, **fields, **place).value.id)
                else:
                    stream.finish(**fields)
                thoughts = ({**each, **place, "role": role} for each in answer.make_thoughts(added[0]))
                added.extend(self._messages.inject(**each).value.id for each in thoughts)
        except Exception as error:
            if is_outage(error):
                raise
            has_text = stream is not None and stream.text != ""
            for id in added[has_text:]:
                await self._messages.delete(id)
            if isinstance(error, ModelFailed):
                raise
            await chunks.athrow(error)  # As if the model had raised it.

    def _shows(self, piece: Piece, prompt: Prompt) -> bool:
        """Whether people see a piece of an answer while it comes."""
        match piece:
            case Thought():
                return prompt.thoughts
            case CallPiece():
                return self._messages.is_live
        return True

    async def _view(self, prompt: Prompt, history: Sequence[Message], mark: Mark) -> list[Message]:
        """Return the input of the model, as the hooks want it. Raises Block."""
        thread, hooks = self._thread, self._state.hooks
        text = await call(prompt.text, thread) if callable(prompt.text) else prompt.text
        text = await call_hooks("after_system_message", hooks, thread, text)
        shown = await call_hooks("filter_messages", hooks, thread, cut_history(history, mark.run, prompt.history))
        shown = [each for each in shown if each.content or each.tool_calls or REMOVED not in read_own(each)]
        seen = [Message(id="", role="system", content=text), *view_history(shown, mark.side)]
        found: list[Message] = await call_hooks("prefilter_llm_history", hooks, thread, seen)
        return found


def _show(piece: Piece, stream: MessageStream, called: dict[int, tuple[str, str]]) -> None:
    match piece:
        case str():
            stream.append(piece)
        case Thought(text):
            stream.think(text)
        case CallPiece(at, text, name):
            stream.add_input(*called.setdefault(at, (make_call_id(), name)), text)


def _give_ids(calls: Sequence[Mapping[str, Any]] | None, shown: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return calls with ids of our own, because a model may use its ids again; the first ones are `shown` already."""
    ids = iter(shown)
    return [make_call(next(ids, None) or make_call_id(), *read_call(call)[1:]) for call in calls or ()] or None


async def load_model_call() -> Callable[..., AsyncGenerator[Piece | Answer, None]]:
    """Return `call_model`, for which Pydantic AI is imported first: that takes a second.

    Raises ModuleNotFoundError without the extra `plait[execution]`.
    """
    return _load() if _load.cache_info().currsize else await asyncio.to_thread(_load)


@cache
def _load() -> Callable[..., AsyncGenerator[Piece | Answer, None]]:
    try:
        from plait.agents.execution.model_call import call_model  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("agents that call models need the extra plait[execution]", name=error.name) from error
    return call_model
