"""The base of adapters that keep the history of a framework in a thread's `messages`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from plait.parts.messages.message import Message, make_own, read_own
from plait.parts.messages.thread_messages import ThreadMessages

__all__ = ["Fields", "Format", "load_history"]

# Messages that are read at first, and when all are read.
_FIRST: Final = 100
_ALL: Final = 1 << 30

Item = dict[str, Any]


class Fields(NamedTuple):
    """A framework's message as readers of the thread's messages see it."""

    role: Any
    content: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    # Whether the message is only for agents, such as the thoughts of a model.
    silent: bool = False


class Format:
    """Stores the items of a framework, JSON objects, as messages, and restores them.

    The metadata holds what `make` does not restore of an item, by the `name` of the format. If a message was changed
    since, `make` alone restores it.
    """

    name: ClassVar[str]

    def tell(self, item: Item) -> Fields:
        """Return an item as a message; a message that only models read is silent."""
        raise NotImplementedError

    def make(self, fields: Fields) -> list[Item]:
        """Return the items of a message that others may have written."""
        raise NotImplementedError

    def write(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `inject` for an item."""
        return self.take(copy.deepcopy(dict(item)))

    def take(self, whole: Item) -> dict[str, Any]:
        """Return the arguments of `inject` for an item that the caller does not change later."""
        fields = self.tell(whole)
        made = self.make(fields)
        plain = made[0] if len(made) == 1 else {}
        rest = {
            "more": {key: value for key, value in whole.items() if key not in plain or plain[key] != value},
            "less": [key for key in plain if key not in whole],
        }
        kept = {key: value for key, value in rest.items() if value}
        return {**fields._asdict(), "metadata": make_own({self.name: kept} if kept or len(made) != 1 else {})}

    def read(self, message: Message) -> list[Item]:
        """Return the items of a message: one if it was written as one."""
        return copy.deepcopy(self.show(message))

    def show(self, message: Message) -> list[Item]:
        """Return the items of `read`, for a caller that does not change them: they are not copied."""
        fields = Fields(*(getattr(message, name) for name in Fields._fields))
        made = self.make(fields)
        kept = read_own(message).get(self.name)
        if kept is None:
            return made
        plain = made[0] if len(made) == 1 else {}
        less = kept.get("less", ())
        whole = {key: value for key, value in plain.items() if key not in less}
        whole |= dict(kept.get("more", {}))
        return [whole] if self.tell(whole) == fields else made


async def load_history(messages: ThreadMessages, most: int | None = None, *, after: int = 0) -> list[Message]:
    """Return the completed messages, even silent ones: about the last `most`, beginning with one of the user.

    So every result of a tool comes with its call.
    """
    count = _ALL if most is None else max(most + 1, _FIRST)
    while True:
        page = await messages.list(count, include_silent=True, after=after)
        found = [each for each in page.messages if each.status == "completed"]
        first = 0 if most is None or len(found) <= most else _find_first(found, most)
        if first is not None or not page.has_more:
            return found[first or 0 :]
        count *= 4


def _find_first(found: Sequence[Message], most: int) -> int | None:
    """Return where the last messages begin, None if no message of the user was read."""
    starts = [at for at, each in enumerate(found) if each.role == "user" and not each.silent]
    return next((at for at in starts if at >= len(found) - most), starts[-1] if starts else None)
