"""The chat of a thread, for the published `useChat`."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.builds import Builds
from tests.integration.usechat.app import make_app
from tests.running import running

FOLDER = Path(__file__).parent / "usechat"
SCENARIOS = re.findall(r"^export async function (\w+)", (FOLDER / "scenarios.js").read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def package(builds: Builds) -> Path:
    """Install the published packages, unless they are installed."""
    return builds.install(FOLDER, "--ignore-scripts")


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    """Serve the app from a store file."""
    app = make_app(store=f"sqlite:///{tmp_path}/plait.db", authorize=lambda principal, thread, action: True)
    async with running(app) as address:
        yield address


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_page_shows_what_it_would_show_after_a_reload(package: Path, address: str, scenario: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "node", package / "run.js", scenario, address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()
