"""The messages of a thread in one run of an agent of Pydantic AI."""

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from pydantic_ai import AgentRunEvents, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext

from plait import Interrupted, Message, MessageStream, ThreadMessages
from plait.adapters.message_history import load_history
from plait.agents.execution.message_format import link, read_messages, write_message

__all__ = ["Conversation", "Steering"]

# The member of the metadata of a run's message with the id of the thread's message.
_ID: Final = "plait_id"


class Conversation:
    """Reads the messages that a run continues, and writes those that it adds, each at its place."""

    def __init__(self, messages: ThreadMessages, most: int | None) -> None:
        if most is not None and most < 1:
            raise ValueError(f"max_messages must be at least 1, not {most!r}")
        self._messages = messages
        self._most = most
        # The messages that are the prompt, and whether they are to be removed if the agent does not begin.
        self._prompts: list[Message] = []
        self._is_own_prompt = False
        # The ids of the added messages, which are removed if the run fails.
        self._added: list[str] = []
        # The number of messages of the run that were written.
        self._written = 0
        # The texts that were shown while they came, by the number of their message in the run; the last may be open.
        self._said: dict[int, MessageStream] = {}
        self._open = AsyncExitStack()
        # The run, when it has begun.
        self.run: AgentRunEvents[Any] | None = None

    async def begin(self, prompt: Any) -> tuple[list[ModelMessage], Any]:
        """Return the messages before the prompt, and the prompt; by default, it is the user's last messages."""
        messages = self._messages
        if prompt is None:
            await messages.take()
        else:
            self._is_own_prompt = True
            (written,) = write_message(ModelRequest([UserPromptPart(prompt)]))
            self._added.append((await messages.inject(**written)).id)
        found = await load_history(messages, self._most)
        count = next((at for at, each in enumerate(reversed(found)) if not _is_prompt(each)), len(found))
        first = len(found) - count
        self._prompts = found[first:]
        return read_messages(found[:first]), _read_prompt(self._prompts)

    async def take(self) -> list[ModelMessage]:
        """Take the messages queued since the run began, after all that it has so far, and return them for the model.

        Nothing is taken in a run that has a prompt of its own, or is interrupted.
        """
        if self.run is None or self._is_own_prompt or not await self._messages.pending():
            return []
        new = self.run.new_messages()
        await self._end(new)
        await self.write(new)
        taken: list[ModelMessage] = []
        with suppress(Interrupted):
            for message in await self._messages.take():
                taken += [replace(each, metadata={_ID: message.id}) for each in read_messages([message])]
        while taken and isinstance(taken[-1], ModelResponse):
            taken.pop()  # No model answers its own message.
        return taken

    async def say(self, text: str, run: AgentRunEvents[Any]) -> None:
        """Show text of the model, in a message after the new ones that the run has so far."""
        new = run.new_messages()
        if len(new) not in self._said:
            await self._end(new)
            await self.write(new)
            self._said[len(new)] = await self._open.enter_async_context(self._messages.stream())
        self._said[len(new)].append(text)

    async def write(self, new: Sequence[ModelMessage]) -> None:
        """Write the new messages of the run that are not written yet; may be called again after an error."""
        while self._written < len(new):
            message = new[self._written]
            if self._written == 0 and self._prompts and isinstance(message, ModelRequest):
                message = _split_prompt(message, self._prompts)
                there = [each.id for each in self._prompts]
            elif message.metadata is not None and _ID in message.metadata:
                there = [message.metadata[_ID]]
                message = replace(message, metadata=None)
            else:
                there = [self._said[self._written].id] if self._is_said(message) else []
            await self._write(message, there)
            self._written += 1

    async def finish(self, new: Sequence[ModelMessage]) -> None:
        """Write all that is left when the agent has ended; an agent without new messages has not begun."""
        await self._end(new)
        if not new and self._is_own_prompt:
            for each in self._prompts:
                await self._messages.delete(each.id)
        await self.write(new)

    async def fail(self, error: Exception) -> None:
        """Leave the shown text as failed, and remove the added messages, because the agent may go on without them."""
        shown = next(reversed(self._said.values()), None)
        await self._open.__aexit__(type(error), error, error.__traceback__)
        for id in [*self._added, *(each.id for each in self._said.values() if each is not shown)]:
            await self._messages.delete(id)

    # Inside

    def _is_said(self, message: ModelMessage) -> bool:
        return self._written in self._said and _read_text(message) is not None

    async def _end(self, new: Sequence[ModelMessage]) -> None:
        """End the shown text, with the pieces that have come since."""
        number = next(reversed(self._said), len(new))
        if number < len(new) and (text := _read_text(new[number])) is not None:
            stream = self._said[number]
            if text.startswith(stream.text) and text != stream.text:
                stream.append(text[len(stream.text) :])
        await self._open.aclose()

    async def _write(self, message: ModelMessage, there: Sequence[str]) -> None:
        """Write a message; the first of its messages in the thread are there already."""
        written = write_message(message, is_said=bool(there))
        first = there[0] if there else None
        for id, fields in zip(there, written, strict=False):
            await self._messages.update(id, metadata=link(fields["metadata"], None if id == first else first))
        for fields in written[len(there) :]:
            result = self._messages.inject(**{**fields, "metadata": link(fields["metadata"], first)})
            self._added.append(result.value.id)
            first = first or result.value.id


class Steering(AbstractCapability[Any]):
    """Gives the model, before each of its calls, the messages queued since."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        ctx.enqueue(*await self._conversation.take())
        return request_context


def _read_text(message: ModelMessage) -> str | None:
    """Return the text of a response, None if it has none."""
    parts = message.parts if isinstance(message, ModelResponse) else ()
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if texts else None


def _is_prompt(message: Message) -> bool:
    return message.role == "user" and not message.silent


def _read_prompt(prompts: Sequence[Message]) -> Any:
    """Return the content of the prompt's messages: of one as it is, of several in a list; None without messages."""
    contents = [
        part.content for message in read_messages(prompts) for part in message.parts if isinstance(part, UserPromptPart)
    ]
    if len(contents) < 2:
        return contents[0] if contents else None
    return [each for content in contents for each in ([content] if isinstance(content, str) else content)]


def _split_prompt(request: ModelRequest, prompts: Sequence[Message]) -> ModelRequest:
    """Return a request in which each message of the prompt is a part."""
    if len(prompts) == 1:
        return request
    own = [part for message in read_messages(prompts) for part in message.parts if isinstance(part, UserPromptPart)]
    others = [part for part in request.parts if not isinstance(part, UserPromptPart)]
    return replace(request, parts=[*others, *own])
