"""Classes of attrs as states, arguments and results."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from tests.server.nodes import Nodes, open_nodes

from plait import Handle, InvalidArguments, InvalidState, Plait, Thread, rpc
from plait_schemas.patch import Op


@attrs.frozen
class Point:
    x: int = attrs.field(default=0, validator=attrs.validators.ge(0))


@attrs.frozen
class Path:
    points: tuple[Point, ...] = ()
    name: str = ""


@attrs.define
class Card:
    title: str
    tags: list[str] = attrs.field(factory=list)


@attrs.define(slots=False)
class Board:
    cards: dict[str, Card] = attrs.field(factory=dict)
    size: int = 0


class FrozenRoom(Thread[Path]):
    initial_state = Path()

    @rpc
    def put(self, point: Point) -> Path:
        self.set_state(lambda state: attrs.evolve(state, points=(*state.points, point)))
        return self.state


class Room(Thread[Board]):
    initial_state = Board

    @rpc
    def add(self, name: str, card: Card) -> Card:
        with self.edit() as draft:
            draft.cards[name] = card
        return self.state.cards[name]

    @rpc
    def change_in_place(self) -> None:
        self.state.cards["a"].tags.append("x")


def make() -> Plait:
    return Plait(FrozenRoom, Room, store="memory://", secret="x" * 32)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(make) as opened:
        yield opened


@pytest.mark.parametrize("node", [0, 1])
async def test_a_frozen_class_is_a_state(nodes: Nodes, node: int) -> None:
    room: Handle[FrozenRoom] = nodes.handle(FrozenRoom, node)
    assert await room.call(FrozenRoom.put, Point(1)) == Path((Point(1),))
    await room.update("/points/0/x", 2)
    await room.update("/name", "n")
    assert await room.state() == Path((Point(2),), "n")
    history = await room.history()
    assert (history[0].ops, history[2].ops) == ([Op("add", "/points/0", {"x": 1})], [Op("replace", "/name", "n")])
    with pytest.raises(InvalidState):
        await room.update("/points/0/x", -1)
    with pytest.raises(InvalidState) as refused:
        await room.update("/points/0/y", 1)
    assert refused.value.path == "/points/0/y"


@pytest.mark.parametrize("node", [0, 1])
async def test_a_class_that_can_be_changed_is_a_state(nodes: Nodes, node: int) -> None:
    room: Handle[Room] = nodes.handle(Room, node)
    assert await room.call(Room.add, "a", Card("A")) == Card("A")
    await room.call(Room.change_in_place)
    assert await room.state() == Board({"a": Card("A")})
    await room.set_state(lambda state: attrs.evolve(state, size=3))
    assert [op.path for op in (await room.history())[-1].ops] == ["/size"]
    unfit: Any = {"title": 1}
    with pytest.raises(InvalidArguments) as refused:
        await room.call(Room.add, "b", unfit)
    assert refused.value.path == "/card/title"


def test_a_frozen_class_is_known_to_be_immutable() -> None:
    assert FrozenRoom._kind.state_type.is_immutable
    assert not Room._kind.state_type.is_immutable
