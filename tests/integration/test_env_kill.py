"""Variables in a killed process: answered writes are there, encrypted, with the state of their transaction."""

import random
from pathlib import Path

import pytest
from tests.integration.killed_module import run_and_kill
from tests.integration.killed_variables import VALUE, read_number
from tests.postgres import new_schema
from tests.schedules import SEED, TIMES, in_soak, schedules

ROUNDS = schedules() if TIMES > 1 else 3


@pytest.fixture(params=["sqlite", *in_soak(["postgresql"])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return new_schema(request.getfixturevalue("postgres").url)
    return str(tmp_path / "variables.db")


def read_files(folder: Path) -> bytes:
    """Return the content of all files of a folder."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.soak
@pytest.mark.timeout(60 * TIMES)
async def test_a_variable_that_was_set_before_a_kill_is_there_with_its_state(url: str, tmp_path: Path) -> None:
    chance, before = random.Random(SEED), 0
    for _ in range(ROUNDS):
        answered = await run_and_kill("tests.integration.killed_variables", url, after=chance.random() * 0.3)
        assert VALUE.encode() not in read_files(tmp_path)
        number, value = await read_number(url)
        assert number >= answered["n"] > before
        assert value == f"{VALUE} {number}"
        before = number
