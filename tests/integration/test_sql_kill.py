"""Tables in a process that is killed: rows, state and values of each transaction are there together, or none is."""

import random
from pathlib import Path

import pytest
from tests.integration.killed_ledger import read_ledger
from tests.integration.killed_module import run_and_kill
from tests.postgres import new_schema
from tests.schedules import SEED, TIMES, in_soak, schedules
from tests.server.parts.sql.shop import listed

ROUNDS = schedules() if TIMES > 1 else 3
CLEAN = ([], [], False, [{"integrity_check": "ok"}])


def make_folder(path: Path) -> Path:
    """Return a new folder."""
    path.mkdir()
    return path


@pytest.fixture(params=["sqlite", *in_soak(["postgresql"])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return new_schema(request.getfixturevalue("postgres").url)
    return str(tmp_path / "ledger.db")


@pytest.mark.soak
@pytest.mark.timeout(120 * TIMES)
async def test_a_killed_process_has_all_of_each_transaction_or_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, local = random.Random(SEED), make_folder(tmp_path / "local")
    monkeypatch.setenv("TMPDIR", str(local))
    before = 0
    for _ in range(ROUNDS):
        answered = await run_and_kill("tests.integration.killed_ledger", url, after=chance.random() * 0.3)
        number, *others, rest = await read_ledger(url)
        assert number >= answered["n"] > before
        assert (others, rest) == ([number] * 3, CLEAN)
        before = number
        # Each process has removed the local files of the one before.
        assert len(listed(local)) == 1
