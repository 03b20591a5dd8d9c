"""Processes that are forked from one that has constructed the app."""

import asyncio
import sys
from pathlib import Path

from tests.integration import preloaded


async def test_a_poison_message_ends_three_processes_of_a_preloaded_app(tmp_path: Path) -> None:
    command = (sys.executable, preloaded.__file__, f"sqlite:///{tmp_path / 'plait.db'}")
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(60):
            assert await process.wait() == 3
    finally:
        if process.returncode is None:
            process.kill()
