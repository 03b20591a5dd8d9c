"""Boards of a given size, as threads: cards by id in plain JSON, and the same in frozen Structs.

Colyseus has the same board, in benchmarks/colyseus/serve.mjs.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from benchmarks.documents import board
from plait import Commit, Thread, rpc

__all__ = [
    "SIZES",
    "Board",
    "FrozenBoard",
    "FrozenState",
    "document",
    "make_frozen",
    "size_of",
    "touch_cards",
    "touch_frozen",
    "write",
]

State = TypeVar("State")

SIZES = (1_000, 30_000, 300_000)


class Person(msgspec.Struct, frozen=True):
    """Who wrote a card."""

    name: str
    color: str


class Point(msgspec.Struct, frozen=True):
    """The position of a card."""

    x: float
    y: float


class FrozenCard(msgspec.Struct, frozen=True):
    """`documents.Card`, of parts that never change in place."""

    id: str
    title: str
    text: str
    column: str
    votes: int
    done: bool
    tags: tuple[str, ...]
    by: Person
    position: Point


class FrozenState(msgspec.Struct, frozen=True):
    """A board whose cards are in a tuple, since a dict is not frozen."""

    title: str = "Board"
    cards: tuple[FrozenCard, ...] = ()


def document(size: int) -> dict[str, Any]:
    """A board of about `size` bytes, its cards by id."""
    cards = {card.id: card for card in board(size)}
    return dict(msgspec.to_builtins({"title": "Board", "cards": cards}))


def make_frozen(size: int) -> FrozenState:
    """The same cards, frozen."""
    return FrozenState(cards=msgspec.convert(list(document(size)["cards"].values()), tuple[FrozenCard, ...]))


def cards_of(total: int, n: int, count: int) -> Iterator[int]:
    """The places of the cards that change number `n` touches."""
    return ((n * count + i) % total for i in range(count))


def make_field(n: int, length: int) -> dict[str, Any]:
    """The field of a card that change number `n` writes: a text of `length` characters, or, for 0, the votes."""
    return {"text": str(n).rjust(length, "0")} if length else {"votes": n}


def touch_cards(state: Mapping[str, Any], n: int, count: int, length: int) -> dict[str, Any]:
    """A plain board after change number `n`, made by spreading; unchanged parts are shared."""
    field = make_field(n, length)
    cards = {f"card-{at:05d}": at for at in cards_of(len(state["cards"]), n, count)}
    return {**state, "cards": {**state["cards"], **{id: {**state["cards"][id], **field} for id in cards}}}


def touch_frozen(state: FrozenState, n: int, count: int, length: int) -> FrozenState:
    """A frozen board after change number `n`."""
    field = make_field(n, length)
    cards = list(state.cards)
    for at in cards_of(len(cards), n, count):
        cards[at] = replace(cards[at], **field)
    return replace(state, cards=tuple(cards))


def size_of(name: str) -> int:
    """The size of a board, which is the first part of its name."""
    return int(name.partition("-")[0])


def write(folder: Path) -> None:
    """Write the boards as files, for the servers that read them from there."""
    for size in SIZES:
        (folder / f"board-{size}.json").write_bytes(msgspec.json.encode(document(size)))


class Measured(Thread[State]):
    """Measures what a change costs until it waits for its commit."""

    def change(self, method: str, n: int, count: int, length: int) -> Commit:
        """Make change number `n` by the named method."""
        raise NotImplementedError

    @rpc
    async def cost(self, method: str, count: int, length: int, times: int) -> float:
        """The processor seconds of `times` changes, each until it waits for its commit."""
        spent = 0.0
        for _ in range(times):
            start = time.thread_time()
            commit = self.change(method, self.version, count, length)
            spent += time.thread_time() - start
            await commit
        return spent


class Board(Measured[dict[str, Any]]):
    """Cards by id, in plain JSON."""

    initial_state = staticmethod(lambda: {"title": "Board", "cards": {}})
    total = 0

    async def on_start(self) -> None:
        if not self.state["cards"]:
            await self.set_state(document(size_of(self.name)))
        self.total = len(self.state["cards"])

    def change(self, method: str, n: int, count: int, length: int) -> Commit:
        if method == "set":
            return self.set_state(lambda state: touch_cards(state, n, count, length))
        field = make_field(n, length)
        with (edit := self.edit()) as draft:
            cards = draft["cards"]
            for at in cards_of(self.total, n, count):
                cards[f"card-{at:05d}"].update(field)
        assert edit.commit is not None
        return edit.commit

    @rpc
    async def edit_cards(self, n: int, count: int, length: int) -> None:
        """Write to the cards in place."""
        self.change("edit", n, count, length)

    @rpc
    async def set_cards(self, n: int, count: int, length: int) -> None:
        """Set a whole state, made by spreading."""
        self.change("set", n, count, length)

    @rpc
    async def work(self, changes: int) -> int:
        """Make many changes of one number each, and return the version after them."""
        for n in range(changes):
            self.change("edit", 1000 + n, 1, 0)
        return self.version


class FrozenBoard(Measured[FrozenState]):
    """Cards in a tuple, all of it frozen."""

    initial_state = FrozenState()

    async def on_start(self) -> None:
        if not self.state.cards:
            await self.set_state(make_frozen(size_of(self.name)))

    def change(self, method: str, n: int, count: int, length: int) -> Commit:
        return self.set_state(lambda state: touch_frozen(state, n, count, length))

    @rpc
    async def set_cards(self, n: int, count: int, length: int) -> None:
        """Set a whole state that shares its unchanged parts."""
        self.change("set", n, count, length)
