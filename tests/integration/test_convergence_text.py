"""Clients that type in one text at random moments, over sockets that break and a server that is killed, end the same.

Only letters that a client meant to delete are gone, and no letter is there twice.
"""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.convergence import World
from tests.integration.test_convergence import Pad, Schedule
from tests.schedules import schedules

from plait import Reject, Retention, Text, Thread
from plait_schemas.patch import Op, decode_ops, splice

__all__ = ["TextPad", "TypedTextPad"]

FIRST = 0x10000
"""The first of the characters that are typed: each of them is there once, and two halves in JavaScript."""


class TextPad(Pad):
    """Two texts, one of them in a list that changes."""

    texts = ("/note", "/cards/*/body")
    initial_state: Any = {  # noqa: RUF012
        "note": "",
        "cards": [{"id": 1, "body": ""}, {"id": 2, "body": ""}],
        "by": {},
    }


class Card(msgspec.Struct, frozen=True):
    id: int
    body: Text


class State(msgspec.Struct, frozen=True):
    note: Text
    cards: tuple[Card, ...]
    by: dict[str, int] = {}


class TypedTextPad(Thread[State]):
    """The same with a type."""

    initial_state = State("", (Card(1, ""), Card(2, "")))
    retention = Retention(changes=None)

    def validate_state_change(self, next_state: State, source: object) -> None:
        if "refused" in next_state.by:
            raise Reject("not that", path="/by/refused")


class Typing(Schedule):
    """Letters come and go, in two texts; the cards change their places, and some changes are refused."""

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world, dice)
        self.typed = 0
        # What each push has put in, and what clients have meant to delete.
        self.letters: dict[int, str] = {}
        self.meant: set[str] = set()

    def change(self, thread: Thread[Any]) -> None:
        state = msgspec.to_builtins(thread.state)
        match self.dice.choice(["append", "update", "swap"]):
            case "append":
                thread.append("/note", self.type(0))
            case "update":
                note = state["note"]
                at = self.dice.randint(0, len(note))
                thread.update("/note", note[:at] + self.type(0) + note[at:])
            case _:
                thread.update("/cards", state["cards"][::-1])

    def ops(self, shown: dict[str, Any]) -> list[Op]:
        dice = self.dice
        kind = dice.choice(["type", "type", "type", "delete", "swap", "refused"])
        if kind == "swap":
            return [Op("remove", "/cards/0"), Op("add", "/cards/1", shown["cards"][0], moved=True)]
        index = dice.choice([None, 0, 1])
        path = "/note" if index is None else f"/cards/{index}/body"
        text = shown["note"] if index is None else shown["cards"][index]["body"]
        at = dice.randint(0, len(text))
        remove = min(dice.randint(1, 4), len(text) - at) if kind == "delete" else 0
        self.meant.update(text[at : at + remove])
        insert = self.type(self.count) if kind != "delete" or dice.random() < 0.3 else ""
        if not remove and not insert:
            return [Op("add", "/by/a", self.count)]
        ops = [splice(path, at, remove, insert)]
        return [Op("add", "/by/refused", 1), *ops] if kind == "refused" else ops

    def type(self, number: int) -> str:
        """Return letters that are nowhere else."""
        count = self.dice.randint(1, 3)
        letters = "".join(chr(FIRST + self.typed + index) for index in range(count))
        self.typed += count
        self.letters[number] = self.letters.get(number, "") + letters
        return letters


async def play(kind: type[Thread[Any]], clients: int, steps: int, seed: int) -> None:
    """Play one schedule and check how it ends."""
    world = World(kind, [f"client-{index}" for index in range(clients)])
    await world.start()
    schedule = Typing(world, random.Random(seed))
    for member in world.members:
        world.connect(member)
    for _ in range(steps):
        await schedule.step()
    await world.quiet()
    states = [msgspec.json.decode(state) for state in await world.versions()]
    for member in world.members:
        assert states[-1] == member.session.shown == member.session.confirmed
        assert set(member.outcomes) == {member.numbers[id(push)] for push in member.pushes}
    outcomes = {number: outcome for member in world.members for number, outcome in member.outcomes.items()}
    rows = await world.disk.changes(world.key, after=0, limit=100_000)
    put_in = "".join(op.insert for row in rows for op in decode_ops(row.ops) if isinstance(op.insert, str))
    for number, letters in schedule.letters.items():
        if number:
            assert letters in put_in or outcomes[number] != "ack", number
            assert outcomes[number] == "ack" or letters not in put_in, number
    assert len(put_in) == len(set(put_in))
    there = letters_of(states[-1])
    assert len(there) == len(set(there))
    assert set(put_in) - set(there) <= schedule.meant
    await world.stop()


def letters_of(state: Any) -> str:
    return "".join((state["note"], *(card["body"] for card in state["cards"])))


@pytest.mark.soak
@pytest.mark.parametrize("kind", [TextPad, TypedTextPad])
@settings(max_examples=schedules())
@given(clients=st.integers(2, 5), steps=st.integers(20, 200), seed=st.integers(0, 2**32))
def test_what_several_people_type_in_one_text_is_all_there(
    kind: type[Thread[Any]], clients: int, steps: int, seed: int
) -> None:
    asyncio.run(play(kind, clients, steps, seed))
