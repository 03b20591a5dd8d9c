"""The engines that several processes may use, for tests that each of them passes."""

from collections.abc import Iterator

import pytest
from tests.postgres import private_folder
from tests.server.store.engines import ENGINES, Engine, Server


@pytest.fixture(scope="module", params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine, or those that a test names: all tests of one follow each other."""
    return ENGINES[request.param]


@pytest.fixture
def server(request: pytest.FixtureRequest, engine: Engine) -> Server:
    """A server of this session."""
    found: Server = request.getfixturevalue(engine.fixture)
    return found


@pytest.fixture
def own_server(engine: Engine) -> Iterator[Server]:
    """A server of the test's own, which it may stop."""
    with private_folder() as folder, engine.make(folder / "own") as server:
        yield server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores wait for a server, or for a leader, for as long as those need on a busy machine."""
    monkeypatch.setattr("plait.store.reconnecting._PATIENCE", 60.0)
    for module in ("publishing", "jetstream"):
        monkeypatch.setattr(f"plait.store.nats.{module}.PATIENCE", 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores wait for a server for less long than usual."""
    monkeypatch.setattr("plait.store.reconnecting._PATIENCE", 0.5)
