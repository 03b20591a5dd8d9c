"""The parts of a thread that a client sees, and the messages that it sends to them, over all its sockets: no I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

from plait_client.conversation import Conversation
from plait_client.errors import TooLarge
from plait_client.opened_part import OpenedPart
from plait_client.sent_messages import SentMessage, SentMessages
from plait_schemas.messages import Close, Open, Page, Part, Send, Sent, Unopened, Unsent

__all__ = ["Conversations", "Delivered", "PartChanged", "PartEvent", "PartFrame", "Undelivered"]

P = TypeVar("P", bound=OpenedPart)

PartFrame = Page | Part | Unopened | Sent | Unsent
"""The frames about parts from a server."""


class PartChanged(NamedTuple):
    """The shown items of a part may have changed, or whether the part can be opened."""

    part: str


class Delivered(NamedTuple):
    """A message that was sent here is durable, with the id `id`."""

    message: SentMessage
    id: str


class Undelivered(NamedTuple):
    """A message that was sent here was refused by the server, or is larger than the server takes."""

    message: SentMessage
    answer: Unsent


PartEvent = PartChanged | Delivered | Undelivered
"""Something has happened in a part."""


class Conversations:
    """The conversation or the runs of each part that is in use, and the messages that are being sent."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._parts: dict[str, OpenedPart] = {}
        self._sent = SentMessages()
        # Messages that the server has, but that are not in a page yet.
        self._answered: list[SentMessage] = []
        self._epoch: str | None = None

    def of(self, part: str) -> Conversation:
        """Return the conversation of a part."""
        return self.find(part, Conversation)

    def find(self, part: str, kind: type[P]) -> P:
        """Return the known data of a part of one kind. Raises TypeError if the part is in use as another kind."""
        if part not in self._parts:
            self._parts[part] = made = kind(part)
            if self._epoch is not None:
                made.join(self._epoch)
        found = self._parts[part]
        if not isinstance(found, kind):
            raise TypeError(f"the part {part!r} is in use for something else")
        return found

    def show(self, part: str) -> Sequence[Any]:
        """Return the messages or runs of a part as they are shown."""
        return self._parts[part].show((*self._answered, *self._sent.all))

    def send(
        self, part: str, content: str, key: str, attachments: Iterable[Mapping[str, Any]], max_frame: float
    ) -> SentMessage:
        """Send a message to a part as soon as possible. Raises TooLarge."""
        message = SentMessage(part, content, key, attachments)
        self._sent.add(message, max_frame)
        return message

    @property
    def unanswered(self) -> list[SentMessage]:
        """The messages that are not known to have reached the server."""
        return self._sent.all

    @property
    def is_busy(self) -> bool:
        """Whether a message is not known to be durable."""
        return len(self._sent.all) > 0

    # The socket

    def reset(self) -> None:
        """A new socket: nothing was sent on it."""
        self._sent.reset()
        for each in self._parts.values():
            each.reset()

    def join(self, epoch: str) -> None:
        """The thread is joined."""
        self._epoch = epoch
        for each in self._parts.values():
            each.join(epoch)

    @property
    def due(self) -> float:
        """When there may be something to send."""
        return min((self._sent.due, *(each.due for each in self._parts.values())), default=inf)

    def take(self, max_frame: float) -> tuple[list[Open | Close | Send], list[PartEvent]]:
        """Return the frames that may be sent now, and the outcomes of messages that are too large for the socket."""
        now = self._now()
        opens = [frame for each in self._parts.values() for frame in each.take(now)]
        sends, dropped = self._sent.take(now, max_frame)
        events: list[PartEvent] = []
        for each in dropped:
            error = TooLarge(int(max_frame))
            events += [Undelivered(each, Unsent(0, error.code, str(error))), PartChanged(each.part)]
        return [*opens, *sends], events

    def receive(self, frame: PartFrame) -> list[PartEvent]:
        """Take in a frame; return the resulting events."""
        match frame:
            case Sent():
                message = self._sent.end(frame.ref)
                return [] if message is None else self._deliver(message, frame.id)
            case Unsent():
                if self._sent.delay(frame, self._now()) or (message := self._sent.end(frame.ref)) is None:
                    return []
                return [Undelivered(message, frame), PartChanged(message.part)]
            case _:
                found = self._parts.get(frame.part)
                if found is None or not found.receive(frame, self._now()):
                    return []
                self._answered = [each for each in self._answered if self.of(each.part).keeps_answered]
                return [PartChanged(frame.part)]

    def _deliver(self, message: SentMessage, id: str) -> list[PartEvent]:
        message.id = id
        if self.of(message.part).keeps_answered:
            self._answered.append(message)
        return [Delivered(message, id), PartChanged(message.part)]
