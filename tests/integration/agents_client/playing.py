"""Plays scenarios of this package in Node."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Agents", "Play", "play", "playing"]

FOLDER = Path(__file__).parent
TIMEOUT = 90


class Play:
    """A scenario that runs. It may stop at steps, where the test does something before it goes on."""

    def __init__(self, process: Process, what: str) -> None:
        self._process = process
        self._what = what

    async def reach(self, step: str) -> None:
        """Wait until the scenario has come to `step`."""
        found = await self._line()
        assert found == {"step": step}, f"{self._what}: wanted step {step}, got {found}"

    def go_on(self) -> None:
        """Continue the scenario after its step."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def result(self) -> Any:
        """Wait for the end, and return what the scenario returned. It must not have warned of anything."""
        found = await self._line()
        assert "result" in found or "warnings" in found, f"{self._what}: wanted a result, got {found}"
        assert found["warnings"] == [], f"{self._what}: the client warned"
        return found.get("result")

    async def _line(self) -> Any:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT)
        if not line:
            raise AssertionError((await self._process.stderr.read()).decode())
        return json.loads(line)


@asynccontextmanager
async def playing(address: str, file: str, scenario: str, **options: Any) -> AsyncIterator[Play]:
    """Run a scenario against the server at `address`."""
    process = await asyncio.create_subprocess_exec(
        "node", FOLDER / "run.js", file, scenario, address, json.dumps(options),
        stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=2**24, env={**os.environ, "NODE_ENV": "development"},
    )  # fmt: skip
    try:
        yield Play(process, f"{file} {scenario}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def play(address: str, file: str, scenario: str, **options: Any) -> Any:
    """Run a scenario against the server at `address`, and return its result."""
    async with playing(address, file, scenario, **options) as running_play:
        return await running_play.result()


class Agents:
    """A server with all kinds, and the clients that talk to it."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def play(self, file: str, scenario: str, **options: Any) -> Any:
        """Run a scenario against the server, and return its result."""
        return await play(self.address, file, scenario, **options)
