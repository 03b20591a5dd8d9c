"""The messages of one part of a thread in a client: no I/O.

The same as `conversation.ts` of the JavaScript client, with the same names.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from plait_client.opened_part import OpenedPart
from plait_client.sent_messages import SentMessage
from plait_schemas.conversation import Input, Item, PendingApproval
from plait_schemas.messages import Open, Page, Part, Unopened

__all__ = ["Conversation"]


class Conversation(OpenedPart):
    """The known messages of a part, from when it is opened."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        # Whether there are messages older than the known ones.
        self.has_more = False
        # Why an older page cannot be read; this stops nothing else.
        self.older_error: Unopened | None = None
        # The calls that wait for a person.
        self.approvals: Sequence[PendingApproval] = []
        self._may_approve = False
        self._items: dict[str, Item] = {}
        # The size of the older page that is wanted.
        self._older: int | None = None
        self._shown: list[Item] | None = None

    @property
    def is_loading(self) -> bool:
        """Whether an older page is awaited."""
        return self._older is not None

    def show(self, sent: Iterable[SentMessage]) -> list[Item]:
        """Return the messages to show: the history, the pending messages, and the messages that are being sent."""
        if self._shown is None:
            self._shown = _order(self._items.values())
        known = {each.metadata.get("key") for each in self._items.values() if "key" in each.metadata}
        return self._shown + [_as_item(each) for each in sent if each.part == self.part and each.key not in known]

    def load_older(self, limit: int | None = None) -> None:
        """Ask for an older page, if there is one."""
        self.error = self.older_error = None
        if self.is_ready and self.has_more and self._older is None:
            self._older = self._limit if limit is None else limit

    def close(self) -> None:
        """Stop following, and forget all messages."""
        super().close()
        self.has_more = False
        self._older = self.older_error = None
        self.approvals = []
        self._set({})

    # Inside

    def _apply_page(self, page: Page) -> None:
        items = {} if page.reset else dict(self._items)
        if page.before is not None:
            self._older = None
        else:
            self._may_approve = page.may_approve
            self._set_approvals(page.approvals)
        is_whole = page.reset or page.before is not None
        if is_whole:
            self.has_more = page.more
            items.update((each.id, each) for each in page.items)
        self._set(items)
        if not is_whole:
            for each in page.items:
                self._put(each)
            for id in page.removed:
                self._items.pop(id, None)

    def _fail(self, frame: Unopened, *, is_older: bool) -> None:
        self._older = None
        if is_older:
            self.older_error = frame
        else:
            super()._fail(frame, is_older=is_older)

    def _follow(self, frame: Part) -> bool:
        if frame.op == "chunk":
            return self._extend(frame)
        if frame.approvals is not None:
            self._set_approvals(frame.approvals)
            return True
        if not super()._follow(frame):
            return False
        self._shown = None
        return True

    def _apply(self, frame: Part) -> bool:
        known = self._items.get(frame.id or "")
        match frame.op:
            case "insert" | "update" if frame.message is not None:
                self._put(frame.message)
            case "delete":
                self._items.pop(frame.id or "", None)
            case "take":
                if not self._items.keys() >= frame.taken.keys():
                    return False
                for id, position in frame.taken.items():
                    self._put(replace(self._items[id], position=position, status="completed"))
            case "end" if known is not None and frame.status is not None:
                self._items[known.id] = replace(known, status=frame.status, taken=[], tool_calls=None)
        return True

    def _extend(self, frame: Part) -> bool:
        """Add to a streaming message, unless the text is there already."""
        known = self._items.get(frame.id or "")
        if known is None or known.status != "streaming":
            return False
        if frame.input is not None:
            return self._extend_call(known, frame.input)
        content = known.content or ""
        if frame.at > len(content):
            self._is_following = False
            return False
        added = frame.text[len(content) - frame.at :]
        self._items[known.id] = replace(known, content=content + added)
        self._shown = None
        return bool(added)

    def _extend_call(self, known: Item, added: Input) -> bool:
        """Add to the arguments of a call of a streaming message, unless the text is there already."""
        calls = {call["id"]: call for call in known.tool_calls or ()}
        before = calls[added.call]["function"]["arguments"] if added.call in calls else ""
        if added.at > len(before):
            self._is_following = False
            return False
        arguments = before + added.text[len(before) - added.at :]
        function = {"name": added.name, "arguments": arguments}
        calls[added.call] = {"id": added.call, "type": "function", "function": function}
        self._items[known.id] = replace(known, tool_calls=[*calls.values()])
        self._shown = None
        return True

    def _next_older(self) -> Open | None:
        if self._older is None:
            return None
        oldest = self._find_oldest()
        return None if oldest is None else Open(self.part, before=oldest, limit=self._older)

    def _find_oldest(self) -> int | None:
        return min((each.position for each in self._items.values() if each.status != "pending"), default=None)

    def _put(self, item: Item) -> None:
        """Add or replace a message, except one among the unknown older messages, which comes with these."""
        known = self._items.get(item.id)
        is_placed = known is not None and known.status != "pending"
        oldest = self._find_oldest() if self.has_more and not is_placed else None
        if oldest is None or item.position > oldest or item.status == "pending":
            self._items[item.id] = item
        else:
            self._items.pop(item.id, None)

    def _set_approvals(self, approvals: Sequence[PendingApproval]) -> None:
        self.approvals = [replace(each, may_approve=self._may_approve) for each in approvals]

    def _set(self, items: dict[str, Item]) -> None:
        self._items = items
        self._shown = None


def _order(items: Iterable[Item]) -> list[Item]:
    """Return messages in the order in which they are shown; a stream comes after the pending ones that it answers."""
    history, pending = list[Item](), list[Item]()
    for each in sorted(items, key=_position):
        (pending if each.status == "pending" else history).append(each)
    places = {each.id: number for number, each in enumerate(pending, 1)}
    streams = [each for each in history if any(id in places for id in each.taken)]
    if not streams:
        return history + pending
    at = max(places.get(id, 0) for each in streams for id in each.taken)
    return [each for each in history if each not in streams] + pending[:at] + streams + pending[at:]


def _position(item: Item) -> int:
    return item.position


def _as_item(sent: SentMessage) -> Item:
    """Return a message that is not known to have reached the server."""
    key = {"key": sent.key}
    return Item(
        id=sent.key, role="user", content=sent.content, metadata=key, attachments=sent.attachments, status="sending"
    )
