"""The methods by which clients mark messages as read, change the branch of a conversation, and approve calls."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.errors import InvalidArguments, NotFound
from plait.parts.messages.message import Message, show_message

__all__ = ["make_methods"]


def make_methods(part: str) -> Iterator[Method]:
    """Yield the methods of a part, which begin with its name."""

    def find(thread: Thread[Any]) -> Any:
        return getattr(thread, part)

    async def read(thread: Thread[Any]) -> None:
        """Note that the caller has read all messages."""
        await find(thread).mark_read()

    async def regenerate(thread: Thread[Any], id: str | None = None) -> bool:
        """Have the agent answer a question again; return False if others have done so."""
        await find(thread).check_own(id)
        done: bool = await find(thread).regenerate(id)
        return done

    async def edit(thread: Thread[Any], id: str, content: str) -> str:
        """Ask a question in other words, and return the id of the new message."""
        await find(thread).check_own(id)
        try:
            edited: Message = await find(thread).edit(id, content)
        except (ValueError, TypeError) as error:
            raise InvalidArguments(str(error)) from error
        return edited.id

    async def switch(thread: Thread[Any], id: str) -> bool:
        """Show the newest branch with a message; return whether it was hidden."""
        await find(thread).check_own(id)
        done: bool = await find(thread).switch(id)
        return done

    async def siblings(thread: Thread[Any], id: str) -> list[Message]:
        """Return the versions of a question, or the answers to it, oldest first."""
        found: Sequence[Message] = await find(thread).siblings(id)
        if any(each.silent for each in found):
            raise NotFound(f"there is no message {id}")
        return [show_message(each) for each in found]

    async def approve(thread: Thread[Any], call: str, approved: bool, note: str = "") -> bool:
        """Approve a call of a tool, or refuse it, with a note for the model; return whether it has waited."""
        has_waited: bool = await find(thread).approve(call, approved, note)
        return has_waited

    functions: Sequence[Callable[..., Any]] = (read, regenerate, edit, switch, siblings, approve)
    for function in functions:
        method = Method(f"{part}:{function.__name__}", part, function, concurrent=True)
        if function is siblings:
            method.action = "messages"
        elif function is approve:
            method.action = "approve"
        elif function is not read:
            method.action = "send"
        yield method
