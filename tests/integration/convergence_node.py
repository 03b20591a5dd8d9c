"""The TypeScript client as one file, and Node programs that play with it."""

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "Driver", "bundle_client", "bundle_sessions", "driving"]

FOLDER: Final = Path(__file__).parent / "convergence_client"
CLIENT: Final = Path(__file__).parents[2] / "client" / "js"
TIMEOUT: Final = 60.0


def bundle_client(folder: Path) -> Path:
    """Bundle the client from its sources into a folder; install what that needs where that has not been done."""
    return _bundle(folder / "client.mjs", 'export * from "./index.js";')


def bundle_sessions(folder: Path) -> Path:
    """Bundle what the client has inside: its session, and how it compares states."""
    return _bundle(
        folder / "sessions.mjs", 'export { Session } from "./session.js"; export { diff } from "./patch.js";'
    )


def _bundle(bundle: Path, entry: str) -> Path:
    esbuild = CLIENT / "node_modules" / ".bin" / "esbuild"
    if not esbuild.exists() or not (CLIENT / "node_modules" / "ws").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("npm is missing: install Node.js 20 or newer with npm, to test the TypeScript client")
        subprocess.run([npm, "install", "--no-audit", "--no-fund"], cwd=CLIENT, check=True)
    command = [str(esbuild), "--bundle", "--format=esm", "--loader=ts", "--log-level=error", f"--outfile={bundle}"]
    subprocess.run(command, cwd=CLIENT / "src", check=True, input=entry.encode())
    return bundle


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
