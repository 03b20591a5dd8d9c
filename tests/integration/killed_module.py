"""Runs a module in a process that is killed, and reads its acknowledgements."""

import asyncio
import os
import signal
import sys
from pathlib import Path

__all__ = ["run_and_kill"]


async def run_and_kill(module: str, *arguments: str, after: float) -> dict[str, int]:
    """Run a module with arguments, and kill it some seconds after its first line.

    Its lines are a name and a number each. Returns the last number of each name.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = [await process.stdout.readline()]
        assert lines[0], "nothing was acknowledged"
        reading = asyncio.create_task(process.stdout.read())
        await asyncio.sleep(after)
        process.send_signal(signal.SIGKILL)
        lines += (await reading).splitlines()
        await process.wait()
    return {name: int(number) for name, number in (line.decode().split() for line in lines)}
