"""Changes of one place of a state by code of the server."""

from plait.errors import Conflict
from plait.limits import Limits
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.state.types import UNDECODED, encode_value
from plait_schemas.codec import decode_json
from plait_schemas.diff import replace
from plait_schemas.patch import Op, PatchError, find, parse
from plait_schemas.patch import splice as make_splice

__all__ = ["splice", "update"]


def update(pipeline: Pipeline, pointer: str, value: object, limits: Limits) -> Commit:
    """Set the value at a JSON pointer, as a change of the server."""
    try:
        parts = parse(pointer)
    except PatchError as error:
        raise Conflict(str(error), path=pointer) from None
    plain = decode_json(encode_value("value", value, limits, pointer))
    keys = pipeline.keys
    if isinstance(plain, str) and keys is not None and keys.has_text(pointer):
        text = _find_text(pipeline, pointer)
        if text is not None:
            return pipeline.change(replace(text, plain, pointer, keys), "server")
    is_element = bool(parts) and parts[-1] != "-" and pipeline.current.has_array(parts[:-1])
    return pipeline.change([Op("replace" if is_element else "add", pointer, plain)], "server")


def splice(pipeline: Pipeline, pointer: str, at: int | None, remove: int = 0, insert: str = "") -> Commit:
    """Remove and insert characters of the text at a JSON pointer, as a change of the server.

    If `at` is None, insert them at the end of the text.
    """
    if at is None:
        at = len(_find_text(pipeline, pointer) or "")
    return pipeline.change([make_splice(pointer, at, remove, insert)], "server")


def _find_text(pipeline: Pipeline, pointer: str) -> str | None:
    """Return the string at a JSON pointer; None without one. Raises Conflict."""
    try:
        parts = parse(pointer)
    except PatchError as error:
        raise Conflict(str(error), path=pointer) from None
    current = pipeline.current
    text = find(current.partial, parts)
    if not isinstance(text, str) and current.base is not UNDECODED:
        text = find(current.document, parts)  # An object of another type may be encoded as a string.
    return text if isinstance(text, str) else None
