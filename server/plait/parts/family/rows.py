"""What a thread knows of its family, and the items that wait for its parent and its children. No I/O."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from plait.store.protocol import ThreadKey

__all__ = [
    "BIRTH",
    "DESTROYED",
    "NOTICE",
    "RUNNING",
    "STARTING",
    "STATUS",
    "TERMINATED",
    "Birth",
    "Child",
    "Head",
    "Item",
    "Notice",
    "Outbox",
    "Row",
    "Seen",
    "WithFiles",
    "find_key",
]

STARTING: Final = "starting"
RUNNING: Final = "running"
TERMINATED: Final = "terminated"
DESTROYED: Final = "destroyed"

# The kinds of the family's own items; an item of another part has the `item` of the part as its kind.
BIRTH: Final = "birth"
NOTICE: Final = "notice"
STATUS: Final = "status"

# The maximum number of items of one call, and the bytes after which no further one is added to it.
_MOST_ITEMS: Final = 100
_MOST_BYTES: Final = 256 * 1024


class Child(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child of a thread; its `reference` is its kind and its name, as in `cook/ada`."""

    reference: str
    name: str
    title: str = ""
    description: str = ""
    # "starting" until it is born, then "running", or what it has set; in the end "terminated" or "destroyed".
    status: str = STARTING
    # In microseconds since the epoch.
    created_at: int
    # Set by what executes agents.
    thread_name: str | None = None
    resumable: bool | None = None
    blocking: bool | None = None
    spawn_group_id: str | None = None
    parent_communication: Literal["implicit", "explicit"] | None = None


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The last item that was taken from a thread: the epoch in which the thread wrote it, and its number."""

    epoch: str = ""
    number: int = 0

    def has(self, item: "Item") -> bool:
        """Whether an item was taken before."""
        return item.epoch == self.epoch and item.number <= self.number


class Row(msgspec.Struct, frozen=True):
    """A child, and what was taken from it."""

    child: Child
    seen: Seen = Seen()


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parent's reference, empty for none, what was taken from it, and the last number of a delivered item."""

    parent: str = ""
    seen: Seen = Seen()
    sent: int = 0


class Item(msgspec.Struct, frozen=True, array_like=True):
    """What one thread of a family tells another, with the epoch in which it was written."""

    to: str
    epoch: str
    number: int
    kind: str
    body: msgspec.Raw


class WithFiles(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of an item with files, which the target copies: their paths in the thread that has sent it."""

    files: list[str] = []


class Birth(WithFiles, frozen=True, omit_defaults=True, kw_only=True):
    """The body of the item that creates a child."""

    user: str | None = None
    message: str | None = None
    # What parts hand down, by the `item` of the part.
    parts: dict[str, msgspec.Raw] = {}


class Notice(WithFiles, frozen=True, omit_defaults=True, kw_only=True):
    """The body of a message for the parent."""

    text: str


class Outbox:
    """The items of one thread that wait for their targets, in order."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._targets: dict[str, dict[int, Item]] = {}
        # The last number of an item, and that of a durable one; only durable ones may be sent.
        self.last = 0
        self.stored = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def targets(self) -> list[str]:
        """The threads for which items wait."""
        return list(self._targets)

    def set(self, number: int, item: Item | None) -> Item | None:
        """Add the item with a number, or remove it; return the earlier one."""
        before = self._items.pop(number, None)
        if before is not None:
            waiting = self._targets[before.to]
            del waiting[number]
            if not waiting:
                del self._targets[before.to]
        if item is not None:
            self._items[number] = item
            waiting = self._targets.setdefault(item.to, {})
            waiting[number] = item
            if number < self.last:  # The write that had removed it was rolled back.
                self._targets[item.to] = dict(sorted(waiting.items()))
            self.last = max(self.last, number)
        return before

    def find(self, to: str) -> Mapping[int, Item]:
        """Return the items for a thread, even those that are not durable."""
        return self._targets.get(to, {})

    def take(self, to: str) -> list[Item]:
        """Return the first durable items for a thread, those of one call."""
        found, size = list[Item](), 0
        for item in self.find(to).values():
            if item.number > self.stored or len(found) == _MOST_ITEMS or size > _MOST_BYTES:
                break
            found.append(item)
            size += len(bytes(item.body))
        return found


def find_key(reference: str) -> ThreadKey:
    """Return the address of a thread by its reference."""
    kind, _, name = reference.partition("/")
    return ThreadKey(kind, name)
