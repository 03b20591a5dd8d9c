"""The parent and the children that a thread knows, and the items that wait for its parent and its children. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import encode_json

__all__ = [
    "EVERY_CHILD",
    "Birth",
    "Body",
    "Call",
    "Cancel",
    "Child",
    "Handed",
    "Head",
    "Item",
    "Outbox",
    "Question",
    "Report",
    "Row",
    "Seen",
    "Status",
    "find_key",
]

EVERY_CHILD: Final = ""
"""The target of an item for all children, except destroyed ones."""

# The maximum number of items of one call, and the bytes after which the call takes no further item.
_MOST_ITEMS: Final = 100
_MOST_BYTES: Final = 256 * 1024


class Child(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child of a thread; its `reference` is its kind and its name, as in `cook/ada`."""

    reference: str
    name: str
    title: str = ""
    description: str = ""
    # "starting" until it is born, then "running", or the status that it has set; at last "terminated" or "destroyed".
    status: str = "starting"
    # In microseconds since the epoch.
    created_at: int
    # Set by the code that executes agents.
    thread_name: str | None = None
    resumable: bool | None = None
    blocking: bool | None = None
    spawn_group_id: str | None = None
    parent_communication: Literal["implicit", "explicit"] | None = None

    @property
    def is_destroyed(self) -> bool:
        """Whether the child's thread is known to be destroyed."""
        return self.status == "destroyed"

    @property
    def is_live(self) -> bool:
        """Whether the child's thread takes messages."""
        return self.status not in ("terminated", "destroyed")


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool that a child answers."""

    id: str
    # The run that waits for the answer; empty if none does.
    run: str = ""
    # The role of the message for the child.
    role: Literal["user", "assistant"] = "user"
    # The agent that answers; empty for that of the child.
    agent: str = ""


class Birth(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="birth"):
    """Creates a child, for a user."""

    child: Child
    user: str | None = None
    message: str | None = None
    # The paths of the files that it copies.
    files: list[str] = []
    # The values that parts hand down, by the parts' roles.
    parts: dict[str, Any] = {}
    # The call for which it works, and the types and encrypted values of the variables that it gets.
    call: Call | None = None
    variables: dict[str, tuple[str, str]] = {}
    # How many threads above it, with itself, work for calls.
    depth: int = 0
    # Whether the child was spawned before. A destroyed child takes nothing, and is born again.
    is_known: bool = False


class Status(msgspec.Struct, frozen=True, tag="status"):
    """The status of a child, for the parent."""

    text: str


class Handed(msgspec.Struct, frozen=True, omit_defaults=True, tag="handed"):
    """An object for the part of another thread with a role, and the paths of files that the thread copies."""

    role: str
    body: dict[str, Any]
    files: list[str] = []


class Question(msgspec.Struct, frozen=True, omit_defaults=True, tag="question"):
    """A message for a child that works for calls, and the paths of files that it copies."""

    message: str
    call: Call
    files: list[str] = []


class Report(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    """The answer of a child to calls, by their ids, or to all that are open; and paths of files for the parent."""

    text: str
    calls: list[str] | None = None
    is_error: bool = False
    files: list[str] = []


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Ends the work of a child for calls whose runs no longer wait."""

    calls: Sequence[str] = ()


Body = Birth | Cancel | Status | Handed | Question | Report
"""The content of an item."""


class Item(msgspec.Struct, frozen=True):
    """A message from one thread of a family to another: its epoch, number and time are those of its write."""

    to: str
    body: Body
    epoch: str = ""
    number: int = 0
    written_at: int = 0

    @property
    def is_birth(self) -> bool:
        """Whether the item may create its target."""
        return isinstance(self.body, Birth) and not self.body.is_known

    @property
    def files(self) -> list[str]:
        """The paths of the files that its target copies."""
        return (
            []
            if isinstance(self.body, Cancel | Status) or (isinstance(self.body, Birth) and self.body.is_known)
            else self.body.files
        )


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The last item that was taken from a thread."""

    epoch: str = ""
    number: int = 0

    def has(self, item: Item) -> bool:
        """Whether an item was taken before."""
        return item.epoch == self.epoch and item.number <= self.number


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A child, its last item that was taken, and the open calls that it answers, with the runs that wait for them."""

    child: Child
    seen: Seen = Seen()
    calls: dict[str, str] = {}
    # The number up to which it needs no items for every child.
    handed: int = 0

    def ask(self, call: Call) -> "Row":
        """Return the row of a child that gets a call to answer."""
        return replace(self, calls={**self.calls, call.id: call.run})


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parent's reference, empty for none, the parent's last item that was taken, and the last delivered number."""

    parent: str = ""
    seen: Seen = Seen()
    sent: int = 0
    # Whether the thread works for further calls of its parent, or for one only; None if it works for no call.
    resumable: bool | None = None
    # How many threads above it, with itself, work for calls.
    depth: int = 0


class Outbox(dict[int, Item]):
    """The items of one thread that wait for their targets, by number and in order."""

    def __init__(self) -> None:
        super().__init__()
        self._targets: dict[str, dict[int, Item]] = {}
        # The last number of an item, and of a durable item; only durable ones may be sent.
        self.last = 0
        self.stored = 0
        # The number of the last item for every child; 0 if there is none.
        self.newest = 0

    @property
    def targets(self) -> list[str]:
        """The threads for which items wait, and EVERY_CHILD."""
        return list(self._targets)

    def find(self, to: str, handed: int | None = None) -> Mapping[int, Item]:
        """Return the items for a thread, even those that are not durable.

        A child that got the items for every child up to the number `handed` also gets the later ones of these.
        """
        found = self._targets.get(to, {})
        if handed is None or handed >= self.newest:
            return found
        common = {number: item for number, item in self._targets[EVERY_CHILD].items() if number > handed}
        return dict(sorted({**found, **common}.items()))

    def set(self, number: int, item: Item | None) -> Item | None:
        """Add the item with a number, or remove it; return the earlier one."""
        before = self.pop(number, None)
        if before is not None:
            del self._targets[before.to][number]
            if not self._targets[before.to]:
                del self._targets[before.to]
        if item is not None:
            self[number] = item
            waiting = self._targets.setdefault(item.to, {})
            waiting[number] = item
            if number < self.last:  # The write that had removed this item was rolled back.
                self._targets[item.to] = dict(sorted(waiting.items()))
            self.last = max(self.last, number)
        self.newest = next(reversed(self._targets.get(EVERY_CHILD, {0: None})))
        return before

    def take(self, to: str, handed: int | None = None) -> list[Item]:
        """Take the first durable items for a thread, enough for one call; `handed` is that of `find`."""
        found, size = list[Item](), 0
        for item in self.find(to, handed).values():
            if (
                item.number > self.stored
                or len(found) == _MOST_ITEMS
                or size > _MOST_BYTES
                or (found and item.is_birth)
            ):
                break
            found.append(item)
            size += len(encode_json(item))
        return found


def find_key(reference: str) -> ThreadKey:
    """Return the address of a thread by its reference."""
    kind, _, name = reference.partition("/")
    return ThreadKey(kind, name)
