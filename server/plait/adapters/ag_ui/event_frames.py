"""Encodes the events of AG-UI as frames of server-sent events, without ids."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import msgspec
from ag_ui.core import (
    BaseEvent,
    EventType,
    ReasoningEndEvent,
    ReasoningMessageEndEvent,
    StepFinishedEvent,
    TextMessageEndEvent,
    ToolCallEndEvent,
)
from ag_ui.encoder import EventEncoder

from plait.errors import InvalidArguments
from plait.state.revision import Revision
from plait.state.view import View
from plait_schemas.codec import encode_json
from plait_schemas.encoding import encode_given
from plait_schemas.messages import Version
from plait_schemas.patch import Op, decode_ops, find, parse

__all__ = [
    "Cursor",
    "EncodedEvent",
    "Opened",
    "encode",
    "encode_custom",
    "encode_delta",
    "encode_snapshot",
]

_ENCODER: Final = EventEncoder()
_CURSOR: Final = re.compile(r"(.+):(\d{1,18})(?::([0-9a-f]+)\.(\d{1,18})(?:\.(start|end))?)?", re.DOTALL)

# The events that begin an item that must end before its run: the event that ends the item, and the member with its id.
_PAIRS: Final[dict[EventType, tuple[Callable[..., BaseEvent], str]]] = {
    EventType.TEXT_MESSAGE_START: (TextMessageEndEvent, "message_id"),
    EventType.TOOL_CALL_START: (ToolCallEndEvent, "tool_call_id"),
    EventType.STEP_STARTED: (StepFinishedEvent, "step_name"),
    EventType.REASONING_START: (ReasoningEndEvent, "message_id"),
    EventType.REASONING_MESSAGE_START: (ReasoningMessageEndEvent, "message_id"),
}
# The events that continue or end an item, by the event that begins it.
_BEGUN_BY: Final = {
    EventType.TEXT_MESSAGE_CONTENT: EventType.TEXT_MESSAGE_START,
    EventType.TEXT_MESSAGE_END: EventType.TEXT_MESSAGE_START,
    EventType.TOOL_CALL_ARGS: EventType.TOOL_CALL_START,
    EventType.TOOL_CALL_END: EventType.TOOL_CALL_START,
    EventType.STEP_FINISHED: EventType.STEP_STARTED,
    EventType.REASONING_END: EventType.REASONING_START,
    EventType.REASONING_MESSAGE_CONTENT: EventType.REASONING_MESSAGE_START,
    EventType.REASONING_MESSAGE_END: EventType.REASONING_MESSAGE_START,
}


class Cursor(NamedTuple):
    """The position of a viewer: `epoch:version`, and, after a frame that is not a version, `:feed.position` and a mark.

    The mark is `start` after RUN_STARTED, before the state was sent, and `end` after the last event of a run.
    """

    version: Version
    feed: str | None = None
    position: int = 0
    mark: str | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Parse a cursor. Raises InvalidArguments with the `name` of the header or member that has it."""
        if (match := _CURSOR.fullmatch(text)) is None:
            raise InvalidArguments(f"{name}={text[:80]}: must be epoch:version, as sent by the server", path=f"/{name}")
        epoch, version, feed, position, mark = match.groups()
        return cls((epoch, int(version)), feed, int(position or 0), mark)


class Opened(NamedTuple):
    """An item that one event begins and another one ends: a text, a tool call, a step."""

    type: EventType
    id: str

    def end(self) -> BaseEvent:
        """Return the event that ends the item."""
        make, member = _PAIRS[self.type]
        return make(**{member: self.id})


class EncodedEvent(NamedTuple):
    """An event that was encoded when it was sent, because the agent may change the object later."""

    type: EventType
    frame: bytes
    # The item that the event begins; the item that it continues or ends; and whether it ends that item.
    opens: Opened | None
    of: Opened | None
    is_end: bool

    @classmethod
    def make(cls, event: BaseEvent) -> Self:
        """Encode an event. Raises ValueError for an event that cannot be JSON, or that begins an item without an id."""
        opens = of = end = None
        if (pair := _PAIRS.get(event.type)) is not None:
            opens = Opened(event.type, getattr(event, pair[1]))
            opens.end()
        elif (begun_by := _BEGUN_BY.get(event.type)) is not None:
            of = Opened(begun_by, getattr(event, _PAIRS[begun_by][1]))
            end = of.end()
        return cls(event.type, encode(event), opens, of, end is not None and end.type == event.type)


def encode(event: BaseEvent) -> bytes:
    """Return the frame of an event."""
    frame = _ENCODER.encode(event).encode()
    if b"null" in frame:
        encode_given(event)  # This refuses values that Pydantic writes as null.
    return frame


def encode_custom(name: str, value: Any) -> bytes:
    """Return the frame of a CUSTOM event. Raises TypeError or ValueError for a value that cannot be JSON."""
    return b'data: {"type":"CUSTOM","name":%b,"value":%b}\n\n' % (encode_given(name), encode_given(value))


def encode_snapshot(epoch: str, revision: Revision, view: View) -> bytes:
    """Return the frame of a whole state, as the reader sees it."""
    json = view.json(revision).translate(None, b"\r\n")  # Strings in JSON have no raw line breaks.
    metadata = _metadata(view.name(epoch), revision.version)
    return b'data: {"type":"STATE_SNAPSHOT","snapshot":%b,%b}\n\n' % (json, metadata)


def encode_delta(epoch: str, revision: Revision) -> bytes:
    """Return the frame of a change, as JSON Patch (RFC 6902) with only `add`, `remove` and `replace`."""
    assert revision.change is not None
    ops = revision.change.ops
    if b'"splice"' in ops or b'"moved"' in ops:
        ops = encode_json(_write_plain(decode_ops(ops), revision))
    return b'data: {"type":"STATE_DELTA","delta":%b,%b}\n\n' % (
        ops.translate(None, b"\r\n"),
        _metadata(epoch, revision.version),
    )


def _metadata(epoch: str, version: int) -> bytes:
    return b'"metadata":{"stateVersion":%b}' % encode_json(f"{epoch}:{version}")


def _write_plain(ops: list[Op], revision: Revision) -> list[Op]:
    """Return plain JSON Patch for the operations that led to a revision, with whole texts instead of splices.

    If a text may have moved in the same change, the whole state is replaced.
    """
    texts = dict.fromkeys(op.path for op in ops if op.op == "splice")
    plain = [msgspec.structs.replace(op, moved=msgspec.UNSET) for op in ops if op.op != "splice"]
    if any(_may_move(op, path) for op in plain for path in texts):
        return [Op("replace", "", msgspec.Raw(revision.require_json()))]
    return plain + [Op("replace", path, find(revision.tree, parse(path))) for path in texts]


def _may_move(op: Op, path: str) -> bool:
    """Whether an operation may move a place, or change its value."""
    around = op.path if op.op == "replace" else op.path.rpartition("/")[0]
    return path == around or path.startswith(f"{around}/")
