"""Whatever the network and the server do, clients end with the server's state and know the outcome of each push."""

import asyncio
import random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.convergence import Member, World
from tests.schedules import schedules

from plait import Reject, Retention, Thread
from plait.state.conflicts import Policy
from plait_schemas.patch import Op, decode_ops


class Pad(Thread[dict[str, Any]]):
    """Accepts every change, except one with the mark `refused`."""

    initial_state = {"list": [], "by": {}, "n": 0}  # noqa: RUF012
    retention = Retention(changes=None)

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        if "refused" in next_state["by"]:
            raise Reject("not that", path="/by/refused")


class StrictPad(Pad):
    """Refuses changes on an older state if others have changed the same place."""

    conflict: ClassVar[Policy] = "reject"


class Item(msgspec.Struct, frozen=True):
    id: str
    done: bool = False


class Items(msgspec.Struct, frozen=True):
    list: tuple[Item | str, ...] = ()
    by: dict[str, str | int] = {}
    n: int = 0


class TypedPad(Thread[Items]):
    """The same state with a type, which fills in omitted fields."""

    initial_state = Items()
    retention = Retention(changes=None)

    def validate_state_change(self, next_state: Items, source: object) -> None:
        if "refused" in next_state.by:
            raise Reject("not that", path="/by/refused")


class Schedule:
    """Does one thing after another, as dice say."""

    # What may be done, and how often.
    weights: ClassVar = {
        "edit": 20.0,
        "up": 25.0,
        "down": 30.0,
        "connect": 8.0,
        "cut": 2.0,
        "hold": 2.0,
        "release": 4.0,
        "server": 3.0,
        "kill": 0.5,
    }

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.count = 0
        # The text that each push puts into the list, if it puts one there.
        self.tokens: dict[int, str] = {}

    async def step(self) -> None:
        """Do something."""
        world, dice = self.world, self.dice
        member = dice.choice(world.members)
        (what,) = dice.choices(list(self.weights), list(self.weights.values()))
        match what:
            case "edit" if member.session.epoch is not None:
                self.edit(member)
            case "up":
                for _ in range(dice.randint(1, 4)):
                    await world.carry_up(member)
            case "down":
                for _ in range(dice.randint(1, 4)):
                    world.carry_down(member)
            case "connect":
                world.connect(member)
            case "cut":
                world.cut(member)
            case "hold" | "release":
                world.hold(is_held=what == "hold")
            case "server":
                if (actor := world.awake()) is not None:
                    self.change(actor.thread)
            case "kill":
                await world.kill()
        await world.rest()

    def change(self, thread: Thread[Any]) -> None:
        """Change the state as the server."""
        thread.update("/n", self.dice.randrange(1000))

    def edit(self, member: Member) -> None:
        """Change a client's shown state."""
        self.count += 1
        ops = self.ops(member.session.shown)
        member.made(self.count, member.session.push(ops))
        member.note()
        self.world.flush(member)

    def ops(self, shown: dict[str, Any]) -> list[Op]:
        """Return a change of the shown state."""
        dice, length = self.dice, len(shown["list"])
        kind = dice.choice(["insert", "insert", "insert", "remove", "replace", "key", "unkey", "refused", "n"])
        match kind:
            case "remove" if length:
                return [Op("remove", f"/list/{dice.randrange(length)}")]
            case "replace" if length:
                return [Op("replace", f"/list/{dice.randrange(length)}", self.token())]
            case "key":
                return [Op("add", f"/by/{dice.choice('abc')}", self.count)]
            case "unkey" if shown["by"]:
                return [Op("remove", f"/by/{dice.choice(sorted(shown['by']))}")]
            case "refused":
                return [Op("add", "/by/refused", 1), Op("add", f"/list/{length}", self.token())]
            case "n":
                return [Op("replace", "/n", self.count)]
            case _:
                return [Op("add", f"/list/{dice.randint(0, length)}", self.token())]

    def token(self) -> str:
        """Return a text that is nowhere else."""
        self.tokens[self.count] = f"t{self.count}"
        return self.tokens[self.count]


async def play(kind: type[Thread[Any]], clients: int, steps: int, seed: int) -> None:
    """Play one schedule and check how it ends."""
    world = World(kind, [f"client-{index}" for index in range(clients)])
    await world.start()
    schedule = Schedule(world, random.Random(seed))
    for member in world.members:
        world.connect(member)
    for _ in range(steps):
        await schedule.step()
    await world.quiet()
    states = await world.versions()
    for member in world.members:
        session = member.session
        assert msgspec.json.decode(states[-1]) == session.shown == session.confirmed
        assert session.version == len(states) - 1
        assert set(member.outcomes) == {member.numbers[id(push)] for push in member.pushes}
    for (_, version), seen in world.seen.items():
        assert msgspec.json.decode(states[version]) == msgspec.json.decode(seen)
    await check_tokens(world, schedule)
    await world.stop()


async def check_tokens(world: World, schedule: Schedule) -> None:
    """Check that each push was applied once if it was acknowledged, and otherwise not at all."""
    outcomes = {number: outcome for member in world.members for number, outcome in member.outcomes.items()}
    rows = await world.disk.changes(world.key, after=0, limit=100_000)
    put = [op.value for row in rows for op in decode_ops(row.ops) if op.path.startswith("/list/")]
    for number, token in schedule.tokens.items():
        assert put.count(token) == (outcomes[number] == "ack"), (number, outcomes[number])


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Pad, StrictPad, TypedPad])
@settings(max_examples=schedules())
@given(clients=st.integers(2, 5), steps=st.integers(20, 200), seed=st.integers(0, 2**32))
def test_clients_end_with_the_state_of_the_server(kind: type[Thread[Any]], clients: int, steps: int, seed: int) -> None:
    asyncio.run(play(kind, clients, steps, seed))
