"""After a write with an unknown outcome, clients show only stored states, and no push is applied twice."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests.integration.convergence import World
from tests.integration.test_convergence import Pad, Schedule, check_tokens
from tests.server.doubtful import DoubtfulStore

from plait.errors import Indeterminate, PlaitError, StoreError
from plait.state.commit import Commit
from plait.store.thread_rows import Record, RecordRange

SEEDS = 100


class Doubts(Schedule):
    """Clients that edit, and a server that changes the state and stores pairs of records."""

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world, dice)
        # What was stored by the server, by name, and what its author was told.
        self.commits: list[tuple[str, Commit]] = []
        self.told: dict[str, StoreError | None] = {}

    def change(self, thread: Any) -> None:
        name = f"r{len(self.commits)}"
        records = [Record("values", f"{name}/{each}", b"x") for each in "ab"]
        pipeline = thread._actor.state
        try:
            if self.dice.random() < 0.5:
                super().change(thread)
            commit = pipeline.store(records)
        except PlaitError:
            return  # The thread has been dropped, and a caller would get another.
        self.commits.append((name, commit))
        commit.then(lambda error: self.told.__setitem__(name, error))


async def play(seed: int) -> dict[str, int]:
    """Play one schedule, check how it ends, and return the fates of the writes."""
    dice = random.Random(seed)
    stores: list[DoubtfulStore] = []

    def make_store() -> DoubtfulStore:
        stores.append(DoubtfulStore(dice))
        return stores[-1]

    world = World(Pad, [f"client-{index}" for index in range(dice.randint(2, 4))], make_store)
    await world.start()
    schedule = Doubts(world, dice)
    for _ in range(dice.randint(50, 200)):
        await schedule.step()
        if stores[-1].is_stuck and dice.random() < 0.2:
            await world.kill()
    # From here on, nothing goes wrong.
    stores[-1].fates = ["stored"] * 100_000
    if stores[-1].is_stuck:
        await world.kill()
        stores[-1].fates = ["stored"] * 100_000
    await world.quiet()
    for store in stores:
        await store.settle()
    states = await world.versions()
    for member in world.members:
        session = member.session
        assert msgspec.json.decode(states[-1]) == session.shown == session.confirmed
        assert session.version == len(states) - 1
        assert set(member.outcomes) == {member.numbers[id(push)] for push in member.pushes}
    for (_, version), seen in world.seen.items():
        assert msgspec.json.decode(states[version]) == msgspec.json.decode(seen)
    await check_tokens(world, schedule)
    kept = {record.key for record in await world.disk.records(world.key, RecordRange("values", limit=100_000))}
    for name, commit in schedule.commits:
        found = {f"{name}/a", f"{name}/b"} & kept
        assert len(found) != 1, f"{name} was stored in part"
        # After a kill, the callers were not told.
        assert commit.is_done or world.kills
        if name in schedule.told:
            error = schedule.told[name]
            assert isinstance(error, Indeterminate) or bool(found) == (error is None), (name, error)
    await world.stop()
    return {fate: sum(store.counts[fate] for store in stores) for fate in stores[0].counts}  # type: ignore[index]


@pytest.mark.timeout(300)
def test_clients_end_with_what_is_stored_and_each_push_is_applied_once_whatever_the_store_says() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        try:
            for fate, count in asyncio.run(play(seed)).items():
                counts[fate] = counts.get(fate, 0) + count
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert min(counts.values()) >= 5, counts
