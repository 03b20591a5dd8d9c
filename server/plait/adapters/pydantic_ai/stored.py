"""The messages of an agent of Pydantic AI as one value of a thread."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from pydantic_ai import AgentRunEvents
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, UserPromptPart

from plait import ThreadValues, TooLarge

__all__ = ["KEY", "MOST", "StoredMessages", "check_most"]

KEY: Final = "pydantic_ai"
MOST: Final = 100
# Bytes that must be free for the answer, in addition to the prompt, before the model is called.
_ANSWER: Final = 65_536


class StoredMessages:
    """The messages in a value; those of a run are stored when it has ended."""

    def __init__(self, values: ThreadValues, key: str, most: int | None) -> None:
        self._values = values
        self._key = key
        self._most = most

    async def begin(self, prompt: Any) -> tuple[list[ModelMessage], Any]:
        """Return the messages before the prompt, and the prompt. Raises TooLarge if there is no room for an answer."""
        size = _ANSWER + (0 if prompt is None else _measure(ModelRequest([UserPromptPart(prompt)])))
        if size > (room := await self._values.room(self._key)):
            raise TooLarge(
                f"the prompt and its answer need {size} bytes, but the thread's values only have room for {room}: "
                "delete other values, or pass a smaller max_messages"
            )
        return await self.load(), prompt

    async def say(self, text: str, run: AgentRunEvents[Any]) -> None:
        """Do nothing: all is stored at the end."""

    async def fail(self, error: Exception) -> None:
        """Do nothing."""

    async def finish(self, messages: Sequence[ModelMessage], new: Sequence[ModelMessage]) -> None:
        """Store the messages of the run and those before; none of a run that has not begun."""
        if messages:
            await self.save(messages)

    async def load(self) -> list[ModelMessage]:
        """Return what is stored. Raises ValidationError."""
        return ModelMessagesTypeAdapter.validate_python(await self._values.get(self._key, []))

    async def save(self, messages: Sequence[ModelMessage]) -> None:
        """Store the last messages, up to the wanted number and the room for them."""
        kept = messages[_find_first(messages, self._most, await self._values.room(self._key)) :]
        await self._values.set(self._key, ModelMessagesTypeAdapter.dump_python(list(kept), mode="json"))


def check_most(max_messages: int | None) -> None:
    """Raise ValueError for a number of messages that makes no sense."""
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
