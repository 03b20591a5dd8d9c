"""Clients in Python and TypeScript that come back to whole states keep what was typed in texts, to the letter."""

import asyncio
import random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.builds import Builds
from tests.integration.convergence import Member, Wire, World
from tests.integration.convergence_sessions import NodeMember, NodeSessions, node_sessions
from tests.integration.test_convergence import Schedule
from tests.integration.test_convergence_text import TextPad, TypedTextPad, Typing, letters_of
from tests.schedules import schedules

from plait import Thread
from plait_schemas.diff import diff
from plait_schemas.elements import Keys
from plait_schemas.messages import Join
from plait_schemas.patch import decode_ops

KEYS = Keys({}, TextPad.texts)


class Forgetful(World):
    """A world whose clients join without saying what they have, so that they are sent the whole state."""

    async def _enter(self, wire: Wire, join: Join) -> None:
        await super()._enter(wire, msgspec.structs.replace(join, have=None))


class Outages(Typing):
    """Letters come and go while sockets are lost often and for long; half of what is typed are whole new texts."""

    weights: ClassVar = Schedule.weights | {"edit": 30.0, "connect": 4.0, "cut": 4.0, "kill": 0.3}

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world, dice)
        # What each push has meant to delete.
        self.removals: dict[int, set[str]] = {}

    def edit(self, member: Member) -> None:
        """Change a client's shown state."""
        self.count += 1
        shown = member.session.shown
        before, self.meant = self.meant, set()
        ops = self.ops(shown) if self.dice.random() < 0.5 else diff(shown, self.rewritten(shown), KEYS)
        self.removals[self.count] = self.meant
        self.meant = before | self.meant
        member.push(self.count, ops)
        self.world.flush(member)

    def rewritten(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Return what is shown with letters put in at one place of the note, and others taken out there."""
        dice, note = self.dice, shown["note"]
        at = dice.randint(0, len(note))
        end = min(at + dice.randint(0, 3), len(note))
        self.meant.update(note[at:end])
        return {**shown, "note": note[:at] + self.type(self.count) + note[end:]}


async def play(kind: type[Thread[Any]], node: NodeSessions, steps: int, seed: int) -> None:
    """Play one schedule and check how it ends."""
    dice = random.Random(seed)
    clients, in_node = dice.randint(2, 5), dice.randint(0, 2)
    world = Forgetful(kind, [f"python-{index}" for index in range(clients - in_node)])
    node.tell("forget", name="")
    world.members += [NodeMember(node, world, f"node-{index}") for index in range(in_node)]
    await world.start()
    schedule = Outages(world, dice)
    for member in world.members:
        world.connect(member)
    for _ in range(steps):
        await schedule.step()
    await world.quiet()
    final = msgspec.json.decode((await world.versions())[-1])
    for member in world.members:
        assert member.session.shown == member.session.confirmed == final, member.name
    outcomes = {number: outcome for member in world.members for number, outcome in member.outcomes.items()}
    check(schedule, outcomes, letters_of(final), await letters_put_in(world))
    await world.stop()


async def letters_put_in(world: World) -> str:
    rows = await world.disk.changes(world.key, after=0, limit=100_000)
    return "".join(op.insert for row in rows for op in decode_ops(row.ops) if isinstance(op.insert, str))


def check(schedule: Outages, outcomes: dict[int, str], there: str, put_in: str) -> None:
    """Check that each letter is there once that was typed and not deleted, and none that was deleted."""
    assert len(there) == len(set(there))
    assert len(put_in) == len(set(put_in))
    for number, letters in schedule.letters.items():
        if number:
            is_applied = outcomes[number] == "ack"
            assert set(letters) - schedule.meant <= set(there) if is_applied else not set(letters) & set(put_in), number
    assert set(put_in) - set(there) <= schedule.meant
    for number, removed in schedule.removals.items():
        assert outcomes.get(number) != "ack" or not removed & set(there), number


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", [TextPad, TypedTextPad])
def test_each_letter_is_there_that_somebody_has_typed_and_nobody_has_deleted(
    kind: type[Thread[Any]], builds: Builds
) -> None:
    with node_sessions(builds) as node:

        @settings(max_examples=schedules())
        @given(steps=st.integers(20, 200), seed=st.integers(0, 2**32))
        def run(steps: int, seed: int) -> None:
            asyncio.run(play(kind, node, steps, seed))

        run()
