"""A pytest plugin: the installed package, and a server for its clients."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.agents_client.app import KINDS
from tests.integration.agents_client.playing import FOLDER, Agents
from tests.running import running

from plait import Plait

__all__ = ["agents", "agents_package"]


@pytest.fixture(scope="session")
def agents_package() -> Path:
    """Install what the package needs, where that has not been done."""
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    if any(_installed(name) != version for name, version in wanted.items()):
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(
                "npm is missing: install Node.js 20 or newer with npm, to test with the published client"
            )
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"],
            cwd=FOLDER,
            check=True,
        )
    return FOLDER


@pytest.fixture
async def agents(agents_package: Path, tmp_path: Path) -> AsyncIterator[Agents]:
    """Serve all kinds from a store file, for clients from the installed package."""
    async with running(Plait(*KINDS, store=f"sqlite:///{tmp_path}/plait.db")) as address:
        yield Agents(address)


def _installed(name: str) -> str | None:
    file = FOLDER / "node_modules" / name / "package.json"
    version: str | None = json.loads(file.read_text())["version"] if file.is_file() else None
    return version
