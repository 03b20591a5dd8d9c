"""The history of a run, its open calls of tools, and the view that a model gets of the history. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from plait.parts.messages.message import Message, Role, read_own

__all__ = [
    "MODEL",
    "ROLES",
    "OpenCalls",
    "Side",
    "find_open_calls",
    "is_decisive",
    "list_open_calls",
    "select_history",
    "view_history",
]

Side = Literal["a", "b"]
"""One of two models that speak with each other; with a person, there is only side A."""

MODEL: Final = "model"
"""The metadata key that names the model of an answer, in plait's own metadata or in an assistant's."""

ROLES: Final[Mapping[Side, Role]] = {"a": "assistant", "b": "user"}
"""The role of the messages of each side."""


def select_history(messages: Iterable[Message], parent_id: str | None = None) -> list[Message]:
    """Return the history of a run from messages in order; for a run nested in a message, by the id of that message.

    Messages that are pending, streaming or failed are not a part of it.
    """
    return [
        each
        for each in messages
        if each.status == "completed" and (each.depth == 0 if parent_id is None else each.parent_id == parent_id)
    ]


def find_open_calls(history: Sequence[Message]) -> Sequence[Mapping[str, Any]]:
    """Return the calls of tools that have no result yet, in order; a model may only be asked if there are none.

    They are in the last message with calls. Once a model has answered after that message, none of its calls is open,
    even if a result was deleted.
    """
    answered: set[str | None] = {None}
    for message in reversed(history):
        if is_decisive(message):
            return [call for call in message.tool_calls or () if call.get("id") not in answered]
        if message.role == "tool":
            answered.add(message.tool_call_id)
    return []


class OpenCalls(NamedTuple):
    """The calls without a result in one history: that of the thread, or one nested in a message."""

    parent_id: str | None
    depth: int
    calls: Sequence[Mapping[str, Any]]


def list_open_calls(messages: Sequence[Message]) -> list[OpenCalls]:
    """Return the open calls of the history in some messages, and after these the open calls of nested histories."""
    places = dict.fromkeys([(None, 0), *((each.parent_id, each.depth) for each in messages if each.depth)])
    return [
        OpenCalls(parent_id, depth, find_open_calls(select_history(messages, parent_id))) for parent_id, depth in places
    ]


def is_decisive(message: Message) -> bool:
    """Whether this message alone decides which calls are open, with the results after it."""
    is_answer = MODEL in read_own(message) or (message.role == "assistant" and MODEL in message.metadata)
    return bool(message.tool_calls) or is_answer


def view_history(history: Iterable[Message], side: Side) -> list[Message]:
    """Return a history as the model of a side sees it: its own messages as an assistant's, all others as a user's.

    The results of its calls stand directly after them, in their order, and before the messages in between. A call or a
    result without the other is left out, and so are the calls and results of the other side.
    """
    own = ROLES[side]
    seen: list[tuple[Message, dict[str, Message]]] = []
    # The results of the last message that has a call with an id: ids may be used again.
    open: dict[str, dict[str, Message]] = {}
    for message in history:
        role = message.role
        results: dict[str, Message] = {}
        if message.tool_calls:
            open.update(dict.fromkeys(message.tool_call_ids, results))
        if role == "tool":
            if (id := message.tool_call_id) in open:
                open[id].setdefault(id, message)
        elif role == own:
            seen.append((message if role == "assistant" else replace(message, role="assistant"), results))
        elif message.content or message.attachments:
            is_same = role == "system" or (role == "user" and not message.tool_calls)
            seen.append((message if is_same else replace(message, role="user", tool_calls=None), {}))
    view: list[Message] = []
    for message, results in seen:
        view += _join(message, message.tool_calls, results) if message.tool_calls else [message]
    return view


def _join(message: Message, given: Sequence[Mapping[str, Any]], results: Mapping[str, Message]) -> list[Message]:
    """Return a message without its calls that lack results, and the results; nothing if it had only such calls."""
    calls = [call for call in given if call.get("id") in results]
    if not calls and not message.content:
        return []
    if len(calls) < len(given):
        message = replace(message, tool_calls=calls or None)
    return [message, *[results[call["id"]] for call in calls]]
