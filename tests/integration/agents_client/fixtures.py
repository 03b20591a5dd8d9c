"""A pytest plugin: the installed package, and a server for its clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.agents_client.app import KINDS
from tests.integration.agents_client.playing import FOLDER, Agents
from tests.integration.builds import Builds
from tests.running import running

from plait import Plait

__all__ = ["agents", "agents_package"]


@pytest.fixture(scope="session")
def agents_package(builds: Builds) -> Path:
    """Install the dependencies of the package, unless they are installed."""
    return builds.install(FOLDER, "--ignore-scripts", "--legacy-peer-deps")


@pytest.fixture
async def agents(agents_package: Path, tmp_path: Path) -> AsyncIterator[Agents]:
    """Serve all kinds from a store file, for clients from the installed package."""
    async with running(Plait(*KINDS, store=f"sqlite:///{tmp_path}/plait.db")) as address:
        yield Agents(address)
