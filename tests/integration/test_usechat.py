"""The chat of a thread, for the published `useChat`."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.builds import Builds
from tests.integration.usechat.app import make_app
from tests.integration.usechat.playing import FOLDER, SCENARIOS, TARGET, play
from tests.running import Process, running
from tests.schedules import in_soak

# They use each kind of request.
FEW = ["approvalInTwoPages", "files", "regeneratedInTwoPages", "stopped", "viewers"]
OTHERS = [[each] for each in SCENARIOS if each not in FEW]


@pytest.fixture(scope="session")
def package(builds: Builds) -> Path:
    """Install the published packages, unless they are installed."""
    return builds.install(FOLDER, "--ignore-scripts")


@pytest.fixture
async def address(package: Path, tmp_path: Path) -> AsyncIterator[str]:
    """Serve the app from a store file."""
    app = make_app(store=f"sqlite:///{tmp_path}/plait.db", authorize=lambda principal, thread, action: True)
    async with running(app) as address:
        yield address


@pytest.mark.parametrize("scenario", [each for [each] in OTHERS])
async def test_a_page_shows_what_it_would_show_after_a_reload(address: str, scenario: str) -> None:
    await play(scenario, address)


@pytest.mark.relayed
@pytest.mark.parametrize("scenario", FEW)
async def test_a_page_shows_the_same_from_behind_a_gateway(address: str, scenario: str) -> None:
    await play(scenario, address)


@pytest.fixture(scope="module")
def workers(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the app by two workers."""
    environment = {"PLAIT_STORE": "sqlite:///plait.db"}
    folder = tmp_path_factory.mktemp("workers")
    with Process(TARGET, cwd=folder, environment=environment, options=("--workers", "2")) as server:
        yield server


@pytest.mark.parametrize("scenario", [*FEW, *in_soak(*OTHERS)])
async def test_a_page_shows_the_same_from_two_workers(workers: Process, scenario: str) -> None:
    await play(scenario, workers.address)
