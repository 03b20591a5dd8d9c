"""Pushes into states that have more in them than Structs, lists and dicts."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.server.rooms import House, open_house
from tests.server.session.guests import add, joined, put, remove

from plait.actor.thread import Thread
from plait.errors import InvalidState
from plait_schemas.patch import Op


class Point(NamedTuple):
    x: int = 1
    y: int = 2


@dataclasses.dataclass
class Card:
    title: str = "a"
    at: Point = dataclasses.field(default_factory=Point)


class Board(msgspec.Struct):
    point: Point = Point()
    card: Card = msgspec.field(default_factory=Card)
    cards: dict[str, Card] = {}
    numbers: dict[str, int] = {}


class Typed(Thread[Board]):
    initial_state = Board()


class Whole(Thread[Card]):
    initial_state = Card()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Typed, Whole) as house:
        yield house


@pytest.mark.parametrize("op", [put("/point/0", "no number"), add("/point/-", 3), put("/card/title", 5)])
async def test_what_is_not_of_the_type_is_refused_wherever_it_is(house: House, op: Any) -> None:
    actor = await house.actor(Typed)
    guest = await joined(actor, "a")
    guest.push(op, base=0)
    await actor.wait_until_idle()
    (nack,) = guest.frames
    assert (nack["type"], nack["code"]) == ("nack", "invalid_state")
    assert actor.thread.state == Board()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (put("/point/0", 7), Board(point=Point(7))),
        (put("/card/title", "b"), Board(card=Card("b"))),
        (put("/card/at/1", 5), Board(card=Card("a", Point(1, 5)))),
        (add("/cards/x", {"title": "c"}), Board(cards={"x": Card("c")})),
    ],
)
async def test_named_tuples_and_dataclasses_are_changed_in_part(house: House, op: Any, expected: Board) -> None:
    actor = await house.actor(Typed)
    guest = await joined(actor, "a")
    guest.push(op, base=0)
    await actor.wait_until_idle()
    assert guest.frames[0]["type"] == "ack"
    assert actor.thread.state == expected


async def test_a_state_that_is_a_dataclass_is_pushed_to_updated_and_edited(house: House) -> None:
    actor = await house.actor(Whole)
    guest = await joined(actor, "a")
    guest.push(put("/title", "b"), base=0)
    await actor.wait_until_idle()
    actor.thread.update("/at/0", 5)
    with actor.thread.edit() as draft:
        draft.at[1] += 10
    await actor.wait_until_idle()
    assert actor.thread.state == Card("b", Point(5, 12))


@pytest.mark.parametrize(
    "op",
    [
        add("/titel", "b"),
        put("", {"titel": "b", "at": [1, 2]}),
        put("", {"title": "a", "at": [1, 2], "titel": "b"}),
    ],
)
async def test_a_push_to_a_field_that_is_not_there_is_refused_with_the_nearest_name(house: House, op: Any) -> None:
    actor = await house.actor(Whole)
    guest = await joined(actor, "a")
    guest.push(op, base=0)
    await actor.wait_until_idle()
    (nack,) = guest.frames
    assert (nack["code"], nack["path"]) == ("invalid_state", "/titel")
    assert nack["message"].endswith("did you mean /title?")
    assert actor.thread.state == Card()
    # What comes after it is taken.
    guest.push(put("/title", "c"), base=0)
    await actor.wait_until_idle()
    assert actor.thread.state == Card("c")


async def test_an_edit_of_a_field_that_is_not_there_is_refused(house: House) -> None:
    for cls, path in ((Whole, "/titel"), (Typed, "/card/titel")):
        actor = await house.actor(cls)
        with pytest.raises(InvalidState, match="did you mean") as raised, actor.thread.edit() as draft:
            (draft if cls is Whole else draft.card).titel = "b"
        assert raised.value.path == path
        assert actor.state.history.current.version == 0


async def test_several_operations_in_one_object_lead_on_from_each_other(house: House) -> None:
    actor = await house.actor(Typed)
    guest = await joined(actor, "a")
    before = actor.state.history.current.base
    guest.push(add("/numbers/a", 1), put("/numbers/a", 2), add("/numbers/b", 3), remove("/numbers/a"), base=0)
    await actor.wait_until_idle()
    assert actor.thread.state.numbers == {"b": 3}
    assert before == Board()


async def test_the_inverse_of_several_operations_in_one_container_leads_back(house: House) -> None:
    actor = await house.actor(Typed)
    ops = [Op("add", "/numbers/a", 1), Op("add", "/numbers/b", 2), Op("replace", "/numbers", {"c": 1})]
    await actor.state.change(ops, "server", name="ada")
    await actor.thread.undo("ada")
    assert actor.thread.state == Board()


class Row(msgspec.Struct, frozen=True):
    numbers: tuple[int, ...] = ()


class Rows(Thread[Row]):
    initial_state = Row(tuple(range(10_000)))


async def test_many_operations_in_a_long_tuple_are_carried_out_on_the_whole() -> None:
    async with open_house(Rows) as house:
        actor = await house.actor(Rows)
        guest = await joined(actor, "a")
        guest.push(*(put(f"/numbers/{n}", -1) for n in range(200)), put("/numbers/0", -2), base=0)
        await actor.wait_until_idle()
        assert actor.thread.state.numbers == (-2, *[-1] * 199, *range(200, 10_000))
        (ack,) = guest.frames
        # What is different, without what came to the same place before.
        assert ack["ops"] == [put("/numbers/0", -2), *(put(f"/numbers/{n}", -1) for n in range(1, 200))]
