"""Plays scenarios of this package in Node."""

import asyncio
import re
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "SCENARIOS", "TARGET", "play"]

FOLDER: Final = Path(__file__).parent
TARGET: Final = "tests.integration.usechat.app:app"
SCENARIOS: Final = re.findall(r"^export async function (\w+)", (FOLDER / "scenarios.js").read_text(), re.MULTILINE)


async def play(scenario: str, address: str) -> None:
    """Run a scenario against a server. Fails with what it said."""
    process = await asyncio.create_subprocess_exec(
        "node", FOLDER / "run.js", scenario, address, stdout=PIPE, stderr=STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()
