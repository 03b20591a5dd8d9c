"""Reads the body of a request that runs an agent."""

from typing import Any, Final

from ag_ui.core import RunAgentInput

from plait.errors import InvalidArguments
from plait.limits import Limits, check_json, check_weight
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, decode_json, encode_json, make_decoder
from plait_schemas.models import MODEL_TIMES

__all__ = ["read_input", "read_last_text"]

# The members that are any JSON, by their names in Python, which are allowed in bodies, too.
_FREE: Final = {"state": "state", "forwarded_props": "forwarded_props", "forwardedProps": "forwarded_props"}


_decode_input: Final = make_decoder(RunAgentInput)


def read_input(body: bytes, limits: Limits) -> RunAgentInput:
    """Return the input in a body. Raises InvalidArguments with the path, and TooLarge."""
    check_json("the body", body, limits)
    try:
        given: Any = decode_json(body)
        names = _FREE.items() if isinstance(given, dict) else ()
        free = {name: given.pop(member) for member, name in names if member in given}
        check_weight("body without its state", rest := encode_json(given), limits, MODEL_TIMES)
        found: RunAgentInput = _decode_input(rest)
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise InvalidArguments(f"the body is not a RunAgentInput: {message}", path=path) from None
    for name, value in free.items():
        setattr(found, name, value)
    return found


def read_last_text(given: RunAgentInput) -> str:
    """Return the text of the user's last message, empty if there is none."""
    content = next((each.content for each in reversed(given.messages) if each.role == "user"), "")
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if part.type == "text")
