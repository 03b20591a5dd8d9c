"""Fixtures for the tests of AG-UI: the published client, and apps that are served."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.adapters.ag_ui.lab import FOLDER, Lab, make_app
from tests.adapters.ag_ui.streams import Served, serving
from tests.integration.builds import Builds
from tests.running import running


@pytest.fixture(scope="session")
def client_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the published client, where that has not been done."""
    return Builds(tmp_path_factory).install(FOLDER, "--ignore-scripts")


@pytest.fixture
async def lab(client_package: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    """Serve the agents from a store file."""
    app = make_app(store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address:
        yield Lab(app, address)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Serve the agents from memory."""
    async with serving() as served:
        yield served
