"""Shows the messages of a thread to clients of the native protocol: pages, and each change."""

from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Any, Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.transport import Frame
from plait.errors import NotFound
from plait.parts.messages.frames import (
    ChunkFrame,
    DeleteFrame,
    EndFrame,
    InputFrame,
    InsertFrame,
    ResetFrame,
    TakeFrame,
    UpdateFrame,
)
from plait.parts.messages.frames import Frame as Change
from plait.parts.messages.message import Message, show_message
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait_schemas import messages
from plait_schemas.codec import encode_json
from plait_schemas.conversation import PendingApproval
from plait_schemas.frames import encode
from plait_schemas.messages import Open

__all__ = ["LiveMessages", "find_messages"]

# Maximum messages of a page, besides pending ones, and their maximum size.
_MOST_ON_PAGE: Final = 500
_MOST_BYTES: Final = 1 << 20


def find_messages(actor: Actor, part: str) -> ThreadMessages:
    """Return the messages of a thread that its clients may see. Raises NotFound."""
    found = getattr_static(actor.kind.cls, part, None)
    if not isinstance(found, Messages) or not found.is_live:
        raise NotFound(f"{actor.key.kind} has no part {part!r} that clients can open")
    return found.of(actor)


class LiveMessages:
    """The messages of one part of a thread."""

    __slots__ = ("_messages", "_part")

    def __init__(self, part: str, messages: ThreadMessages) -> None:
        self._part = part
        self._messages = messages

    def may_open(self, rights: Rights) -> bool:
        """Whether a client with these rights may see the messages."""
        return rights.may_open

    def watch(self, tell: Callable[[int, Sequence[Frame]], None]) -> Callable[[], None]:
        """Call `tell` with each revision and its frames; return a function that stops this."""

        def hand_on(changes: Sequence[Change]) -> None:
            tell(changes[-1].revision, [Frame(_encode_change(self._part, change)) for change in changes])

        def tell_approvals(found: Sequence[PendingApproval]) -> None:
            # Revision 0 makes older clients ignore it.
            tell(0, [Frame(encode(messages.Part(self._part, 0, "update", approvals=_show(found))))])

        stop, stop_too = self._messages.feed.watch(hand_on), self._messages.waiting.watch(tell_approvals)

        def stop_both() -> None:
            stop()
            stop_too()

        return stop_both

    async def read(self, frame: Open, rights: Rights) -> bytes:
        """Return the page that an Open asks for, for a client with these rights. Raises StoreError."""
        feed, waiting = self._messages.feed, dict[str, Any]()
        if frame.before is None:
            found = await self._messages.waiting.list(is_silent=False)
            waiting = {"approvals": _show(found), "may_approve": rights.may_approve}
        if frame.before is None and frame.since is not None:
            missed = await feed.since(frame.since)
            if missed is not None:
                answer = messages.Page(frame.part, missed.revision, removed=[*missed.removed], **waiting)
                return _encode_page(answer, missed.items)
        limit = min(max(frame.limit, 1), _MOST_ON_PAGE)
        revision, page = await feed.newest(limit, frame.before, size=_MOST_BYTES)
        answer = messages.Page(
            frame.part, revision, reset=frame.before is None, more=page.has_more, before=frame.before, **waiting
        )
        return _encode_page(answer, page.messages)


def _show(found: Sequence[PendingApproval]) -> Sequence[PendingApproval]:
    return [replace(each, run="") for each in found]


def _encode_page(page: messages.Page, items: Sequence[Message]) -> bytes:
    data = encode(page)
    shown = [encode_json(show_message(each)) for each in items if not each.silent]
    return b'%b,"items":[%b]}' % (data[:-1], b",".join(shown)) if shown else data


def _encode_change(part: str, change: Change) -> bytes:
    match change:
        case InsertFrame(revision, message):
            data = encode(messages.Part(part, revision, "insert"))
        case UpdateFrame(revision, message):
            data = encode(messages.Part(part, revision, "update"))
        case DeleteFrame(revision, id):
            return encode(messages.Part(part, revision, "delete", id=id))
        case TakeFrame(revision, taken):
            return encode(messages.Part(part, revision, "take", taken=dict(taken)))
        case ChunkFrame(revision, id, _, at, text):
            return encode(messages.Part(part, revision, "chunk", id=id, at=at, text=text))
        case InputFrame(revision, id, input):
            return encode(messages.Part(part, revision, "chunk", id=id, input=input))
        case EndFrame(revision, id, status):
            return encode(messages.Part(part, revision, "end", id=id, status=status))
        case ResetFrame(revision):
            return encode(messages.Part(part, revision, "missed"))
    return b'%b,"message":%b}' % (data[:-1], encode_json(show_message(message)))
