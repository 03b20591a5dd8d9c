"""States whose lists are rebuilt, in which every element carries a secret that all that is written into it names."""

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import msgspec

from plait import Retention, Thread
from plait.state.conflicts import Policy

__all__ = ["KINDS", "NAMES", "REBUILDS", "Element", "Lists", "check_secrets", "drag", "element", "plain", "secrets"]

Element = dict[str, Any]
State = dict[str, Any]

NAMES: Final = {"items": "id", "rows": "key", "cards": "_id", "plain": None}
"""The lists of a state, and the member that identifies their elements."""


def element(name: str, secret: str) -> Element:
    """Return a new element of a list."""
    known_by = NAMES[name]
    more = {} if known_by is None else {known_by: secret}
    return {**more, "secret": secret, "text": f"{secret}:", "marks": {}, "tags": []}


def first_state() -> State:
    """Return a state with some elements in each list, and in a list within an element."""
    state: State = {name: [element(name, f"{name}-{n}") for n in range(5)] for name in NAMES}
    state["items"][0]["inner"] = [element("items", f"inner-{n}") for n in range(4)]
    return state


class Loose(Thread[dict[str, Any]]):
    """Merges changes if possible."""

    initial_state = first_state()
    retention = Retention(changes=None)


class Strict(Loose):
    """Refuses changes that conflict with the changes of others."""

    conflict: ClassVar[Policy] = "reject"


class Forgetful(Loose):
    """Has hardly a log, so that who comes back is given the whole state."""

    retention = Retention(changes=2)


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    secret: str
    text: str
    marks: dict[str, str]
    tags: tuple[str, ...]
    id: str | None = None
    key: str | None = None
    _id: str | None = None
    inner: "tuple[Cell, ...]" = ()


class Lists(msgspec.Struct, frozen=True):
    items: tuple[Cell, ...] = ()
    rows: tuple[Cell, ...] = ()
    cards: tuple[Cell, ...] = ()
    plain: tuple[Cell, ...] = ()


class Typed(Thread[Lists]):
    """The same state with a type."""

    initial_state = msgspec.convert(first_state(), Lists)
    retention = Retention(changes=None)


KINDS: Final = (Loose, Strict, Forgetful, Typed)


# How a list is rebuilt


def rotate(items: list[Element], dice: random.Random) -> list[Element]:
    by = dice.randrange(len(items))
    return [*items[by:], *items[:by]]


def drop_oldest(items: list[Element], dice: random.Random) -> list[Element]:
    return items[1:]


def drop_some(items: list[Element], dice: random.Random) -> list[Element]:
    return [item for item in items if dice.random() < 0.7]


def reverse(items: list[Element], dice: random.Random) -> list[Element]:
    return items[::-1]


def shuffle(items: list[Element], dice: random.Random) -> list[Element]:
    return dice.sample(items, len(items))


def drag(items: list[Element], dice: random.Random) -> list[Element]:
    rest = [*items]
    taken = rest.pop(dice.randrange(len(rest)))
    rest.insert(dice.randint(0, len(rest)), taken)
    return rest


def swap(items: list[Element], dice: random.Random) -> list[Element]:
    rest = [*items]
    a, b = dice.randrange(len(rest)), dice.randrange(len(rest))
    rest[a], rest[b] = rest[b], rest[a]
    return rest


REBUILDS: Final[tuple[Callable[[list[Element], random.Random], list[Element]], ...]] = (
    rotate,
    drop_oldest,
    drop_some,
    reverse,
    shuffle,
    drag,
    swap,
)


# What is in a state


def plain(state: Any) -> Any:
    """Return a state as JSON of its own."""
    return msgspec.json.decode(msgspec.json.encode(state))


def secrets(state: Any) -> Iterator[str]:
    """Yield the secret of every element of a state."""
    for name in NAMES:
        for item in state[name]:
            yield item["secret"]
            yield from (each["secret"] for each in item.get("inner") or ())


def check_secrets(state: Any) -> None:
    """Check that every element holds its own secret alone."""
    if state is None:
        return
    for name in NAMES:
        for item in state[name]:
            for each in (item, *(item.get("inner") or ())):
                held = {*each["marks"].values(), *(text.partition(":")[0] for text in (each["text"], *each["tags"]))}
                assert held == {each["secret"]}, f"{each['secret']} of {name} holds {held}"
