"""Reads the body of a request that runs an agent."""

from typing import Any, Final

from ag_ui.core import RunAgentInput
from pydantic import ValidationError

from plait.errors import InvalidArguments, TooLarge
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, decode_json, nests_deeper

__all__ = ["read_input", "read_last_text"]

# Validating RunAgentInput blocks the loop; more items would block it for too long.
_MOST_ITEMS: Final = 5_000
# The members that are any JSON, by their names in Python, which are allowed in bodies, too.
_FREE: Final = {"state": "state", "forwarded_props": "forwarded_props", "forwardedProps": "forwarded_props"}


def read_input(body: bytes, depth: int) -> RunAgentInput:
    """Return the input in a body. Raises InvalidArguments with the path, and TooLarge."""
    if len(body) > depth and nests_deeper(body, depth):
        raise InvalidArguments(f"the body is nested more than {depth} deep", path="")
    try:
        given = decode_json(body)
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise InvalidArguments(f"the body is not JSON: {message}", path=path) from None
    free = {}
    if isinstance(given, dict):
        if (count := _count_items(given)) > _MOST_ITEMS:
            items = "messages, their parts and calls, tools, contexts and answers to interrupts"
            raise TooLarge(f"the body has {count} {items} together, the limit is {_MOST_ITEMS}")
        free = {name: given.pop(member) for member, name in _FREE.items() if member in given}
    try:
        found = RunAgentInput.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"/{part}" for part in first["loc"])
        raise InvalidArguments(f"the body is not a RunAgentInput: {first['msg']}", path=path) from None
    for name, value in free.items():
        setattr(found, name, value)
    return found


def _count_items(given: dict[str, Any]) -> int:
    """Return how many items RunAgentInput validates, as each takes much more time than its bytes."""
    lists = [given.get(name) for name in ("messages", "tools", "context", "resume")]
    messages = lists[0] if isinstance(lists[0], list) else []
    members = ("content", "toolCalls", "tool_calls")
    lists += [each.get(name) for each in messages if isinstance(each, dict) for name in members]
    return sum(len(each) for each in lists if isinstance(each, list))


def read_last_text(given: RunAgentInput) -> str:
    """Return the text of the user's last message, empty if there is none."""
    content = next((each.content for each in reversed(given.messages) if each.role == "user"), "")
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if part.type == "text")
