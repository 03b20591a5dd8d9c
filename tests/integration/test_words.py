"""People who type at one place of a text keep their words whole, in whatever order the network carries them."""

import asyncio
import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.builds import Builds
from tests.integration.convergence import Member, World
from tests.integration.convergence_sessions import NodeMember, NodeSessions, node_sessions
from tests.schedules import schedules

from plait import Retention, Thread
from plait_client.insertion import LastInsertion
from plait_schemas.patch import Op, splice

LETTERS = 14
"""How many letters each word has."""


class Note(Thread[dict[str, Any]]):
    """One text; the rest of the state changes, too."""

    texts = ("/note",)
    initial_state = {"note": "[]", "n": 0}  # noqa: RUF012
    retention = Retention(changes=None)


class Words:
    """Each member types a word of one letter between the brackets, with some backspaces."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.left = dict.fromkeys((member.name for member in world.members), LETTERS)
        self.count = 0

    async def play(self) -> str:
        """Type all of them while the network carries one frame after another, and return the text."""
        world, dice = self.world, self.dice
        for member in world.members:
            world.connect(member)
        while any(self.left.values()):
            member = dice.choice(world.members)
            match dice.choice(["type", "up", "down"]):
                case "type" if self.left[member.name] and member.session.epoch is not None:
                    self.type(member)
                case "up":
                    await world.carry_up(member)
                case "down":
                    world.carry_down(member)
            await world.rest()
        await world.quiet()
        (text,) = {member.session.shown["note"] for member in world.members}
        return text

    def type(self, member: Member) -> None:
        """Type the next letter after the last one, or take that back."""
        text, letter = member.session.shown["note"], member.name
        caret = text.rindex(letter) + 1 if letter in text else 1
        if letter in text and self.dice.random() < 0.12:
            op = splice("/note", caret - 1, 1)
        else:
            op = splice("/note", caret, 0, letter)
            self.left[letter] -= 1
        ops = [op] if self.dice.random() < 0.9 else [op, Op("replace", "/n", self.count)]
        self.count += 1
        member.push(self.count, ops)
        self.world.flush(member)


async def type_words(seed: int, names: str, node: NodeSessions | None = None, scripts: str = "") -> str:
    """Return what comes of the words; those named in `scripts` are typed in Node."""
    world = World(Note, [name for name in names if name not in scripts])
    await world.start()
    if node is not None:
        world.members += [NodeMember(node, world, name) for name in scripts]
    text = await Words(world, random.Random(seed)).play()
    await world.stop()
    return text


def count_pieces(text: str) -> int:
    """Return of how many runs of one letter what is between the brackets is made."""
    word = text[1:-1]
    return len(word) - sum(a == b for a, b in itertools.pairwise(word))


@settings(max_examples=schedules(20))
@given(names=st.sampled_from(["ab", "abc"]), seed=st.integers(0, 2**32))
def test_words_that_are_typed_at_one_place_stay_whole(names: str, seed: int) -> None:
    text = asyncio.run(type_words(seed, names))
    assert count_pieces(text) == len(names), text


@pytest.fixture(scope="module")
def node(builds: Builds) -> Any:
    with node_sessions(builds) as sessions:
        yield sessions


@pytest.mark.parametrize(("names", "scripts"), [("ab", "ab"), ("ab", "b"), ("abc", "bc")])
async def test_so_do_those_of_typescript_clients(node: NodeSessions, names: str, scripts: str) -> None:
    for seed in range(4):
        text = await type_words(seed, names, node, scripts)
        assert count_pieces(text) == len(names), text


# Whatever says that it goes on


class Letters(Words):
    """Few different letters come and go anywhere, and readers fall behind, so that they get several changes in one."""

    async def step(self) -> None:
        world, dice = self.world, self.dice
        member = dice.choice(world.members)
        match dice.choice(["type", "type", "up", "down", "stall", "drain"]):
            case "type" if member.session.epoch is not None:
                self.count += 1
                member.push(self.count, self.ops(member))
                world.flush(member)
            case "up":
                await world.carry_up(member)
            case "down":
                for _ in range(dice.randint(1, 3)):
                    world.carry_down(member)
            case "stall" if member.wire is not None and member.wire.is_joined and dice.random() < 0.3:
                member.wire.is_backed_up = True
            case "drain":
                drain(member)
        await world.rest()

    def ops(self, member: Member) -> list[Op]:
        text, dice = member.session.shown["note"], self.dice
        ops: list[Op] = []
        for _ in range(dice.choice([1, 1, 2])):
            at = dice.randint(0, len(text))
            remove = min(dice.choice([0, 0, 0, 1, 3]), len(text) - at)
            insert = "" if remove and dice.random() < 0.5 else dice.choice("xyz") * dice.choice([1, 1, 2])
            ops.append(splice("/note", at, remove, insert))
            text = text[:at] + insert + text[at + remove :]
        return ops


class RandomFlags(LastInsertion):
    """Sets `own` as dice say."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def add(self, op: Op) -> Op:
        return msgspec.structs.replace(op, own=self._dice.choice([True, msgspec.UNSET]))


def drain(member: Member) -> None:
    """Bring a slow reader up to date."""
    if member.wire is not None and member.wire.is_backed_up:
        member.wire.is_backed_up = False
        assert member.wire.session is not None
        member.wire.session.drained()


async def play_letters(seed: int, *, is_random: bool) -> None:
    """Play one schedule; at its end all show the server's text."""
    dice = random.Random(seed)
    world = World(Note, ["a", "b", "c"][: dice.randint(2, 3)])
    await world.start()
    letters = Letters(world, dice)
    for member in world.members:
        if is_random:
            member.session._pushes.fold._insertion = RandomFlags(dice)
        world.connect(member)
    for _ in range(60):
        await letters.step()
    for member in world.members:
        drain(member)
    await world.quiet()
    stored = msgspec.json.decode((await world.versions())[-1])
    for member in world.members:
        assert member.session.shown == member.session.confirmed == stored
        assert set(member.outcomes.values()) <= {"ack"}
    await world.stop()


@settings(max_examples=schedules(25))
@given(seed=st.integers(0, 2**32), is_random=st.booleans())
def test_clients_end_with_the_text_of_the_server_whatever_says_that_it_goes_on(seed: int, is_random: bool) -> None:
    asyncio.run(play_letters(seed, is_random=is_random))
