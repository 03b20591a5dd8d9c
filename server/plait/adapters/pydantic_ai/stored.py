"""The messages of an agent of Pydantic AI as one value of a thread."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from pydantic_ai import AgentRunEvents
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, UserPromptPart

from plait import ThreadValues, TooLarge

__all__ = ["KEY", "MOST", "Stored", "check_most", "load_messages", "save_messages"]

KEY: Final = "pydantic_ai"
MOST: Final = 100
# Bytes that must be free for the answer, in addition to the prompt, before the model is called.
_ANSWER: Final = 65_536


async def load_messages(values: ThreadValues, *, key: str = KEY) -> list[ModelMessage]:
    """Return the messages that `save_messages` has stored, an empty list if there are none. Raises ValidationError."""
    return ModelMessagesTypeAdapter.validate_python(await values.get(key, []))


async def save_messages(
    values: ThreadValues, messages: Sequence[ModelMessage], *, key: str = KEY, max_messages: int | None = MOST
) -> None:
    """Store messages as one value: approximately the last `max_messages`, beginning with a message of the user.

    If the values have no room for that many, fewer are stored. `max_messages=None` stores as many as there is room for.
    """
    check_most(max_messages)
    kept = messages[_find_first(messages, max_messages, await values.room(key)) :]
    await values.set(key, ModelMessagesTypeAdapter.dump_python(list(kept), mode="json"))


class Stored:
    """The messages of one run, which are stored when it has ended."""

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
        return await load_messages(self._values, key=self._key), prompt

    async def say(self, text: str, run: AgentRunEvents[Any]) -> None:
        """Do nothing: all is stored at the end."""

    async def fail(self, error: Exception) -> None:
        """Do nothing."""

    async def finish(self, messages: Sequence[ModelMessage], new: Sequence[ModelMessage]) -> None:
        """Store the messages of the run and those before; none of a run that has not begun."""
        if messages:
            await save_messages(self._values, messages, key=self._key, max_messages=self._most)


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
