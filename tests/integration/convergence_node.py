"""The TypeScript client as one file, and Node programs that play with it."""

import asyncio
import json
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.integration.builds import CLIENT, Builds

__all__ = ["FOLDER", "Driver", "bundle_client", "bundle_sessions", "driving"]

FOLDER: Final = Path(__file__).parent / "convergence_client"
TIMEOUT: Final = 120.0


def bundle_client(builds: Builds) -> Path:
    """Bundle the client from its sources."""
    return _bundle(builds, "client", 'export * from "./index.js"; export { ThreadClient } from "./full.js";')


def bundle_sessions(builds: Builds) -> Path:
    """Bundle what the client has inside: its session, and how it compares states."""
    return _bundle(builds, "sessions", 'export { Session, diff } from "../test/whole.js";')


def _bundle(builds: Builds, name: str, entry: str) -> Path:
    def make(folder: Path) -> None:
        command: list[str | Path] = [
            CLIENT / "node_modules" / ".bin" / "esbuild",
            "--bundle",
            "--format=esm",
            "--loader=ts",
        ]
        command += ["--log-level=error", f"--outfile={folder / name}.mjs"]
        subprocess.run(command, cwd=CLIENT / "src", check=True, input=entry.encode())

    builds.install(CLIENT)
    return builds.build(f"bundle-{name}", make) / f"{name}.mjs"


class Driver:
    """A program that says things in lines of JSON, and may be told some."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self) -> Any:
        """Return the next that it says; None at its end."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT)
        if line:
            return json.loads(line)
        said = (await self._process.stderr.read()).decode()
        assert await self._process.wait() == 0, said
        return None

    async def tell(self, command: str, **options: Any) -> Any:
        """Have it carry out a command, and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        said = await self.line()
        assert said is not None, "it has ended"
        return said["answer"]


@asynccontextmanager
async def driving(program: str, options: dict[str, Any]) -> AsyncIterator[Driver]:
    """Run a program of the folder in Node."""
    process = await asyncio.create_subprocess_exec(
        "node", FOLDER / program, json.dumps(options), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=2**24
    )
    try:
        yield Driver(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
