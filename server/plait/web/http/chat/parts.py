"""The UI messages of the AI SDK 7, as far as they are used: the parts of a message, and the chunks that make them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from plait_schemas.codec import encode_json

__all__ = ["STEP", "Approval", "Chunk", "Part", "UIMessage", "encode_chunks", "make_chunks"]

STEP: Final = "step-start"
"""The type of the part with which each answer of a model begins."""


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """The approval of a call: its id is that of the call."""

    id: str
    approved: bool | UnsetType = UNSET
    reason: str = ""


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """A part of a message; each type uses some of the fields."""

    type: str
    text: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    input: Any = UNSET
    raw_input: Any = UNSET
    output: Any = UNSET
    error_text: str | UnsetType = UNSET
    approval: Approval | UnsetType = UNSET
    url: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


class UIMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message."""

    id: str
    role: Literal["user", "assistant", "system"]
    parts: Sequence[Part]
    metadata: Any = UNSET


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """An event of a stream; each type uses some of the fields."""

    type: str
    message_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    input: Any = UNSET
    input_text_delta: str | UnsetType = UNSET
    approval_id: str | UnsetType = UNSET
    approved: bool | UnsetType = UNSET
    output: Any = UNSET
    error_text: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET


def encode_chunks(chunks: Sequence[Chunk]) -> bytes:
    """Return server-sent events."""
    return b"".join([b"data: %b\n\n" % encode_json(each) for each in chunks])


def make_chunks(before: Part | None, after: Part, id: str) -> Iterator[Chunk]:
    """Yield the chunks that make a part from what a page has of it; `id` is that of a text."""
    match after.type:
        case "step-start":
            if before is None:
                yield Chunk(type="start-step")
        case "file":
            if before is None:
                yield Chunk(type="file", url=after.url, media_type=after.media_type)
        case "text" | "reasoning" as what:
            if before is None:
                yield Chunk(type=f"{what}-start", id=id)
            if more := str(after.text)[len(before.text or "") if before else 0 :]:
                yield Chunk(type=f"{what}-delta", id=id, delta=more)
            if after.state == "done" and (before is None or before.state != "done"):
                yield Chunk(type=f"{what}-end", id=id)
        case _:
            yield from _make_tool_chunks(before, after)


def _make_tool_chunks(before: Part | None, after: Part) -> Iterator[Chunk]:
    call, name = after.tool_call_id, after.type.removeprefix("tool-")
    state = UNSET if before is None else before.state
    if after.state == "input-streaming":
        if before is None:
            yield Chunk(type="tool-input-start", tool_call_id=call, tool_name=name)
        if more := after.raw_input[len(before.raw_input) if before else 0 :]:
            yield Chunk(type="tool-input-delta", tool_call_id=call, input_text_delta=more)
        return
    if state in (UNSET, "input-streaming") or (after.state == "input-available" != state):
        yield Chunk(type="tool-input-available", tool_call_id=call, tool_name=name, input=after.input)
    match after.state:
        case same if same == state:
            pass
        case "approval-requested":
            yield Chunk(type="tool-approval-request", tool_call_id=call, approval_id=call)
        case "output-available":
            yield Chunk(type="tool-output-available", tool_call_id=call, output=after.output)
        case "output-error":
            yield Chunk(type="tool-output-error", tool_call_id=call, error_text=after.error_text)
        case "output-denied":
            yield Chunk(type="tool-approval-request", tool_call_id=call, approval_id=call)
            yield Chunk(type="tool-approval-response", approval_id=call, approved=False)
            yield Chunk(type="tool-output-denied", tool_call_id=call)
