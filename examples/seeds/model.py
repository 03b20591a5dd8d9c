"""A language model for these examples: it repeats the last message, and counts the messages."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from msgspec import Struct

__all__ = ["Message", "generate", "stream"]


class Message(Struct, frozen=True):
    """A message of the user or of the assistant."""

    role: Literal["user", "assistant"]
    content: str


def generate(messages: Sequence[Message]) -> str:
    """Return an answer to a conversation."""
    asked = [message.content for message in messages if message.role == "user"]
    before = f", after “{asked[-2]}”" if len(asked) > 1 else ""
    return f"You said “{asked[-1]}”{before}. I remember {len(messages)} messages."


async def stream(messages: Sequence[Message]) -> AsyncIterator[str]:
    """Yield an answer to a conversation, a word at a time."""
    for word in re.findall(r"\S+\s*", generate(messages)):
        await asyncio.sleep(0)
        yield word
