"""The messages of a thread as those of AG-UI: what clients are shown, and what they add."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ag_ui.core import MessagesSnapshotEvent, RunAgentInput

from plait.adapters.ag_ui.events import encode
from plait.adapters.history import Fields, Format
from plait.errors import TooLarge
from plait.parts.messages.message import Message
from plait.parts.messages.part import Messages, ThreadMessages
from plait_schemas.codec import encode_json

__all__ = ["check_added", "has_messages", "open_messages", "read_added"]

# The newest messages, which clients are shown.
_SHOWN: Final = 100
# Bytes of a message beside what the client has sent.
_SPARE: Final = 1024

Item = dict[str, Any]


def has_messages(cls: type, part: str | None) -> bool:
    """Whether the threads of a class have messages by this name that clients may see."""
    found = None if part is None else getattr(cls, part, None)
    return isinstance(found, Messages) and found.is_live


def read_added(given: RunAgentInput) -> list[Item]:
    """Return what a client may add: what comes after the agent's last message in its list, by the user and by tools."""
    added: list[Item] = []
    for each in reversed(given.messages):
        if each.role not in ("user", "tool"):
            break
        added.insert(0, each.model_dump(mode="json", by_alias=True))
    return added


def check_added(added: Sequence[Item], most: int) -> None:
    """Raise TooLarge for a message that does not fit into a record of `most` bytes."""
    for each in added:
        size = len(encode_json(_FORMAT.write(each))) + _SPARE
        if size > most:
            raise TooLarge(f"a message has {size} bytes; a record may have {most}", limit="record")


async def open_messages(messages: ThreadMessages, added: Sequence[Item]) -> bytes:
    """Add to the messages, in a run, what a client adds that is not there, and return the frame of MESSAGES_SNAPSHOT.

    A result must be that of a call that has none.
    """
    page = await messages.list(_SHOWN, include_silent=False)
    shown = {each["id"]: each for each in map(_read, page.messages)}
    open = {id for each in page.messages for id in each.tool_call_ids}
    open -= {each.tool_call_id for each in page.messages if each.role == "tool"}
    for item in added:
        there = shown.get(item["id"])
        if there is not None and there.get("content") == item.get("content"):
            continue
        if item["role"] == "tool":
            if item["toolCallId"] not in open:
                continue
            open.discard(item["toolCallId"])
        own = item if there is None else {key: value for key, value in item.items() if key != "id"}
        new = _read(messages.inject(**_FORMAT.write(own)).value)
        shown[new["id"]] = new
    return encode(MessagesSnapshotEvent.model_validate({"messages": list(shown.values())}))


def _read(message: Message) -> Item:
    return {"id": message.id, **_FORMAT.read(message)[0]}


def _tell(item: Item) -> Fields:
    content = item.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
        content = "\n".join(texts)
    return Fields(item["role"], content, item.get("toolCalls"), item.get("toolCallId"), item.get("name"))


def _make(fields: Fields) -> list[Item]:
    item: Item = {"role": fields.role}
    if fields.content is not None or fields.role != "assistant":
        item["content"] = fields.content or ""
    if fields.role == "tool":
        return [{**item, "toolCallId": fields.tool_call_id or ""}]
    if fields.tool_calls:
        item["toolCalls"] = list(map(_make_call, fields.tool_calls))
    if fields.name is not None:
        item["name"] = fields.name
    return [item]


def _make_call(call: Mapping[str, Any]) -> Item:
    return {**call, "id": call.get("id") or "", "type": "function"}


_FORMAT: Final = Format("ag_ui", _tell, _make)
