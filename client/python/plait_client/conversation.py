"""The messages of one part of a thread as a client has them: no I/O.

The same as `conversation.ts` of the JavaScript client, with the same names.
"""

from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace

from plait_client.sent_messages import SentMessage
from plait_schemas.conversation import Item
from plait_schemas.messages import Close, Open, Page, Part, Unopened

__all__ = ["Conversation"]

_NO_TIME: Final = float("inf")


class Conversation:
    """The known messages of a part, from when it is opened.

    After a reconnect it is opened again, with what was missed. What comes between an Open and its page is held back.
    """

    def __init__(self, part: str) -> None:
        self.part: Final = part
        # Whether there are older messages than those that are known.
        self.has_more = False
        # Why the part cannot be opened, and why an older page cannot be read, which stops nothing else.
        self.error: Unopened | None = None
        self.older_error: Unopened | None = None
        self._items: dict[str, Item] = {}
        # Of what is known; None before the first page, and when the history has begun again.
        self._revision: int | None = None
        self._epoch: str | None = None
        self._limit = 50
        self._is_wanted = False
        # Whether the socket tells of changes, and what is awaited on it.
        self._is_following = False
        self._awaits: Literal["page", "older"] | None = None
        self._older: int | None = None
        self._leaves = False
        self._held: list[Part] = []
        # When a refused Open may be sent again.
        self._resumes_at = 0.0
        self._shown: list[Item] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether it was opened."""
        return self._is_wanted

    @property
    def is_ready(self) -> bool:
        """Whether a page has come."""
        return self._revision is not None

    @property
    def is_loading(self) -> bool:
        """Whether an older page is awaited."""
        return self._older is not None

    @property
    def keeps_answered(self) -> bool:
        """Whether messages that the server has are still to come with a page."""
        return self._is_wanted and not (self._is_following and self._awaits is None)

    def show(self, sent: Iterable[SentMessage]) -> list[Item]:
        """Return the messages as they are shown: the history, what is pending, and what is being sent."""
        if self._shown is None:
            self._shown = _order(self._items.values())
        known = {each.metadata.get("key") for each in self._items.values() if "key" in each.metadata}
        return self._shown + [_as_item(each) for each in sent if each.part == self.part and each.key not in known]

    # Requests

    def open(self, limit: int | None = None) -> None:
        """Want the newest messages, and all changes."""
        self._limit = self._limit if limit is None else limit
        self._is_wanted, self.error = True, None

    def load_older(self, limit: int | None = None) -> None:
        """Want an older page, if there is one."""
        self.error = self.older_error = None
        if self.is_ready and self.has_more and self._older is None:
            self._older = self._limit if limit is None else limit

    def close(self) -> None:
        """Want no more, and forget all."""
        self._leaves = self._leaves or self._is_following or self._awaits is not None
        self._is_wanted = self._is_following = self.has_more = False
        self._awaits = self._older = self._revision = self.error = self.older_error = None
        self._set({})

    # The socket

    def reset(self) -> None:
        """A new socket: nothing was sent on it, or refused."""
        self._is_following = self._leaves = False
        self._awaits = self.error = None
        self._held = []
        self._resumes_at = 0.0

    def join(self, epoch: str) -> None:
        """The thread is joined; messages of another epoch are shown until the page comes."""
        if epoch != self._epoch:
            self._revision = None
        self._epoch = epoch

    @property
    def due(self) -> float:
        """When there may be something to send."""
        return self._resumes_at if self._next() is not None else _NO_TIME

    def take(self, now: float) -> list[Open | Close]:
        """Return what may be sent by now."""
        frames: list[Open | Close] = []
        if self._leaves:
            self._leaves = False
            frames.append(Close(self.part))
        if now >= self._resumes_at and (frame := self._next()) is not None:
            self._awaits = "page" if frame.before is None else "older"
            frames.append(frame)
        return frames

    # Frames

    def receive(self, frame: Page | Part | Unopened, now: float) -> bool:
        """Take in a frame; tell whether anything else may be shown."""
        match frame:
            case Unopened():
                return self._refused(frame, now)
            case Part() if self._awaits is not None:
                self._held.append(frame)
                return False
            case Part():
                return self._is_following and self._follow(frame)
            case Page():
                return self._turn(frame)

    def _turn(self, page: Page) -> bool:
        if self._awaits != ("page" if page.before is None else "older"):
            return False  # It was closed since.
        self._awaits = None
        items = {} if page.reset else dict(self._items)
        if page.before is None:
            self._is_following = True
            self._revision = page.revision
        else:
            self._older = None
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
        held, self._held = self._held, []
        for frame in held:
            if self._is_following:
                self._follow(frame)
        return True

    def _refused(self, frame: Unopened, now: float) -> bool:
        if self._awaits is None:
            return False
        is_older = self._awaits == "older"
        self._awaits = None
        if frame.retry_after is not None:
            self._resumes_at = now + frame.retry_after
        elif is_older:
            self.older_error, self._older = frame, None
        else:
            self.error, self._older = frame, None
        held, self._held = self._held, []
        for part in held:
            if self._is_following:
                self._follow(part)
        return True

    def _follow(self, frame: Part) -> bool:
        """Apply a change, unless the page has it; open the part again if one before it is missing."""
        assert self._revision is not None
        if frame.op == "missed":
            self._is_following = False
            return False
        if frame.op == "chunk":
            return self._extend(frame)
        if frame.revision <= self._revision:
            return False
        if frame.revision > self._revision + 1 or not self._apply(frame):
            self._is_following = False
            return False
        self._revision = frame.revision
        self._shown = None
        return True

    def _apply(self, frame: Part) -> bool:
        """Apply a change; return False if it does not fit."""
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
                self._items[known.id] = replace(known, status=frame.status, taken=[])
        return True

    def _extend(self, frame: Part) -> bool:
        """Add to a message that is streaming, unless the text is there already."""
        known = self._items.get(frame.id or "")
        if known is None or known.status != "streaming":
            return False
        content = known.content or ""
        if frame.at > len(content):
            self._is_following = False
            return False
        added = frame.text[len(content) - frame.at :]
        self._items[known.id] = replace(known, content=content + added)
        self._shown = None
        return bool(added)

    # Inside

    def _next(self) -> Open | None:
        """Return what is to be asked for next."""
        if not self._is_wanted or self._awaits is not None or self.error is not None:
            return None
        if not self._is_following:
            return Open(self.part, self._revision, limit=self._limit)
        if self._older is None:
            return None
        oldest = self._find_oldest()
        return None if oldest is None else Open(self.part, before=oldest, limit=self._older)

    def _find_oldest(self) -> int | None:
        return min((each.position for each in self._items.values() if each.status != "pending"), default=None)

    def _put(self, item: Item) -> None:
        """Add or replace a message; one that belongs to the older messages that are not known comes with them."""
        known = self._items.get(item.id)
        is_placed = known is not None and known.status != "pending"
        oldest = self._find_oldest() if self.has_more and not is_placed else None
        if oldest is None or item.position > oldest or item.status == "pending":
            self._items[item.id] = item
        else:
            self._items.pop(item.id, None)

    def _set(self, items: dict[str, Item]) -> None:
        self._items = items
        self._shown = None


def _order(items: Iterable[Item]) -> list[Item]:
    """Return messages as they are shown; a stream stands after the pending messages that it answers."""
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
    """Return a message that the server is not known to have."""
    key = {"key": sent.key}
    return Item(
        id=sent.key, role="user", content=sent.content, metadata=key, attachments=sent.attachments, status="sending"
    )
