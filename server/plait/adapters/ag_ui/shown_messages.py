"""The messages of a thread as those of AG-UI: the messages shown to clients, and those that clients add."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final, NamedTuple

from ag_ui.core import Message as AgUiMessage
from ag_ui.core import RunAgentInput
from pydantic import TypeAdapter

from plait.actor.connection import Connection
from plait.adapters.message_history import Fields, Format
from plait.errors import InvalidArguments, TooLarge
from plait.parts.messages.message import CLIENT_CALLS, Message, read_own
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait_schemas.codec import LARGE, encode_json

__all__ = ["Added", "MessagesSnapshot", "has_messages", "open_messages", "queue_messages", "read_added"]

# The newest messages, which clients are shown, and their bytes; at least one is shown.
_SHOWN: Final = 100
_SHOWN_BYTES: Final = 1 << 20
# The messages that are read at once.
_PAGE: Final = 50
# The number of the newest messages that are searched for the call of a result.
_SEARCHED: Final = 1000
# The messages that a client may add with a run.
_MOST_ADDED: Final = 200
# Bytes of a message beside the data from the client.
_SPARE: Final = 1024
# The form of the ids that plait makes.
_OWN_ID: Final = re.compile(r"(ag-ui-)?[0-9a-f-]{1,64}")
_FRAME: Final = b'data: {"type":"MESSAGES_SNAPSHOT","messages":[%b]}\n\n'

_ITEM: Final = TypeAdapter[Any](AgUiMessage)

Item = dict[str, Any]


class Added(NamedTuple):
    """A message that a client sends with a run, and the arguments of `inject` for it."""

    item: Item
    fields: dict[str, Any]


class MessagesSnapshot(NamedTuple):
    """The messages of a thread when a run began, as the frame of MESSAGES_SNAPSHOT, and their ids."""

    frame: bytes
    ids: Sequence[str]
    # Whether the last of them is not a user's.
    is_answered: bool

    def frames(self, has: Sequence[str] | None) -> Iterator[bytes]:
        """Yield the frames for a client that has messages with these ids, in order; None if they are not known.

        The published client leaves the messages that it has at their places, and appends the others: an empty snapshot
        makes it drop those that would be out of order.
        """
        known = set(self.ids)
        kept = None if has is None else [id for id in has if id in known]
        if kept is None or kept != self.ids[: len(kept)]:
            yield _FRAME % b""
        yield self.frame


def has_messages(cls: type, part: str | None) -> bool:
    """Whether the threads of a class have messages by this name that clients may see."""
    found = None if part is None else getattr(cls, part, None)
    return isinstance(found, Messages) and found.is_live


def read_added(given: RunAgentInput, most: int, roles: Collection[str]) -> list[Added]:
    """Return the messages that a client may add: those after the agent's last message, with one of some roles.

    Raises TooLarge for too many messages, and for one that does not fit into a record of `most` bytes.
    """
    sent = [*takewhile(lambda each: each.role in ("user", "tool"), reversed(given.messages))][::-1]
    if len(sent) > _MOST_ADDED:
        raise TooLarge(f"a run may add {_MOST_ADDED} messages; {len(sent)} follow the last one of the agent")
    added = []
    for each in sent:
        if each.role not in roles:
            continue
        item = each.model_dump(mode="json", by_alias=True)
        fields = _FORMAT.take(item)
        size = len(encode_json(fields)) + _SPARE
        if size > most:
            raise TooLarge(f"a message has {size} bytes; a record may have {most}", limit="record")
        added.append(Added(item, fields))
    return added


async def queue_messages(messages: ThreadMessages, added: Sequence[Added], sender: Connection) -> bool:
    """Queue what a user adds while a run is under way, which may take it; return whether it is queued.

    Results of tools are not queued, and then nothing is.
    """
    is_queued = False
    for each in () if any(each.item["role"] != "user" for each in added) else added:
        if (id := await _find_id(messages, each.item)) is not None:
            is_queued = True
            fields = _make_fields(each, id)
            text, name, metadata = fields["content"] or "", fields["name"], fields["metadata"]
            await messages.queue(text, name=name, metadata=metadata, id=id, sender=sender)
        elif await _find_place(messages, each.item):  # Queued before the server was killed.
            is_queued = True
    return is_queued


async def open_messages(messages: ThreadMessages, added: Sequence[Added]) -> MessagesSnapshot:
    """Store in a run the messages that a client adds, unless they are stored, and return the messages to show.

    Raises InvalidArguments if the last message is the result of a call that is not stored.
    """
    calls = _Calls(messages)
    for each in added:
        if (id := await _find_id(messages, each.item)) is None:
            if place := await _find_place(messages, each.item):
                await messages.take(place)
            continue
        if each.item["role"] == "tool" and not await calls.answer(each.item["toolCallId"], is_last=each is added[-1]):
            continue
        messages.inject(**_make_fields(each, id), id=id)
        await asyncio.sleep(0)  # Each message may be large.
    return await _make_snapshot(messages)


class _Calls:
    """The calls of tools in the newest messages of a thread, which are read back as far as needed."""

    def __init__(self, messages: ThreadMessages) -> None:
        self._messages = _read_back(messages, _SEARCHED)
        self._found: set[str] = set()
        # The calls of clients' tools, as noted by the runs that have made them.
        self._of_clients: set[str] = set()
        self._answered: set[str] = set()

    async def answer(self, id: str, *, is_last: bool) -> bool:
        """Return whether the result of a call must be added: the call is for the client, and has no result.

        Raises InvalidArguments if there is no such call, and the client says nothing after the result.
        """
        while id not in self._found and (each := await anext(self._messages, None)) is not None:
            self._found |= each.tool_call_ids
            self._of_clients.update(read_own(each).get(CLIENT_CALLS, ()))
            self._answered |= {each.tool_call_id or ""}
        if is_last and id not in self._found:
            raise InvalidArguments(
                f"there is a result of the tool call {id[:80]!r}, which no recent message of this thread has"
            )
        is_open = id in self._of_clients and id not in self._answered
        self._answered.add(id)
        return is_open


async def _find_place(messages: ThreadMessages, item: Item) -> int:
    """Return the number of queued messages up to the one of a client; 0 if that is not queued."""
    ids = (_make_id(item["id"]), item["id"], _make_id(item["id"], item.get("content")))
    return max((at for at, each in enumerate(await messages.pending(), 1) if each.id in ids), default=0)


def _make_fields(added: Added, id: str) -> dict[str, Any]:
    if id == _make_id(added.item["id"]):
        return added.fields
    # Another message has the client's id.
    return _FORMAT.take({key: value for key, value in added.item.items() if key != "id"})


async def _find_id(messages: ThreadMessages, item: Item) -> str | None:
    """Return the id by which a client's message is to be stored; None if it is stored."""
    id, content = item["id"], item.get("content")
    there = await messages.get(first := _make_id(id))
    if there is None and _OWN_ID.fullmatch(id):
        there = await messages.get(id)
    if there is None:
        return first
    if _show(there).get("content") == content or await messages.get(other := _make_id(id, content)) is not None:
        return None
    return other


def _make_id(*parts: Any) -> str:
    return f"ag-ui-{blake2b(encode_json(parts), digest_size=12).hexdigest()}"


async def _read_back(messages: ThreadMessages, most: int) -> AsyncIterator[Message]:
    """Yield the newest messages, the newest first."""
    before, has_more = None, True
    while has_more and most > 0:
        page = await messages.list(min(_PAGE, most), order="desc", include_silent=False, before=before)
        await asyncio.sleep(0)
        has_more, most = page.has_more, most - len(page.messages)
        for message in page.messages:
            before = message.position
            yield message


async def _make_snapshot(messages: ThreadMessages) -> MessagesSnapshot:
    items, ids, size, last = list[bytes](), list[str](), 0, ""
    async for message in _read_back(messages, _SHOWN):
        item = _show(message)
        data = _ITEM.dump_json(_ITEM.validate_python(item), by_alias=True)
        if len(data) >= LARGE:
            await asyncio.sleep(0)
        size += len(data)
        if ids and size > _SHOWN_BYTES:
            break
        last = last or message.role
        ids.append(item["id"])
        items.append(data)
    return MessagesSnapshot(_FRAME % b",".join(items[::-1]), ids[::-1], last != "user")


def _show(message: Message) -> Item:
    return {"id": message.id, **_FORMAT.show(message)[0]}


class _Format(Format):
    """Keeps the messages of AG-UI."""

    name = "ag_ui"

    def tell(self, item: Item) -> Fields:
        content = item.get("content")
        if isinstance(content, list):
            texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
            content = "\n".join(texts)
        return Fields(item["role"], content, item.get("toolCalls"), item.get("toolCallId"), item.get("name"))

    def make(self, fields: Fields) -> list[Item]:
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


_FORMAT: Final = _Format()
