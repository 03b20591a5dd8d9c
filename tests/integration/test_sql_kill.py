"""Tables in a process that is killed: rows, state and values of each transaction are there together, or none is."""

import random
from pathlib import Path

import pytest
from tests.integration.killed_ledger import read_ledger
from tests.integration.killed_module import run_and_kill
from tests.postgres import new_schema
from tests.schedules import SEED, TIMES, schedules

ROUNDS = schedules(5)
CLEAN = ([], [], False, [{"integrity_check": "ok"}])


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return new_schema(request.getfixturevalue("postgres").url)
    return str(tmp_path / "ledger.db")


@pytest.mark.soak
@pytest.mark.timeout(120 * TIMES)
async def test_a_killed_process_has_all_of_each_transaction_or_nothing(url: str) -> None:
    chance = random.Random(SEED)
    before = 0
    for _ in range(ROUNDS):
        answered = await run_and_kill("tests.integration.killed_ledger", url, after=chance.random() * 0.3)
        number, *others, rest = await read_ledger(url)
        assert number >= answered["n"] > before
        assert (others, rest) == ([number] * 3, CLEAN)
        before = number
