"""A test that plays schedules plays each of them, and says which one failed."""

import inspect

import pytest
from tests.schedules import SEED, play_seeds, schedules


async def test_each_seed_is_played_and_an_error_names_its_own() -> None:
    played = []

    @play_seeds(3)
    async def fail_at_last(name: str, seed: int) -> None:
        played.append((name, seed))
        assert len(played) < schedules(3)

    assert list(inspect.signature(fail_at_last).parameters) == ["name"]
    with pytest.raises(AssertionError) as caught:
        await fail_at_last(name="one")
    assert played == [("one", SEED + number) for number in range(schedules(3))]
    assert caught.value.__notes__ == [f"with seed={played[-1][1]}"]
