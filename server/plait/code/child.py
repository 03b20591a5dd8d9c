"""A child process with little memory and processor time, which ends with the server."""

import asyncio
import os
import resource
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["finish", "forbid_files", "open_child"]

# Bytes that are read at once.
_AT_ONCE: Final = 64 * 1024

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))


@asynccontextmanager
async def open_child(
    command: Sequence[str], *, memory: int, seconds: int, environment: Mapping[str, str]
) -> AsyncIterator[Process]:
    """Start a command with pipes to its stdin and stdout; leaving the block kills it. Raises OSError."""
    # Limits that are set in Python between fork and exec would need a copy of the whole server.
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", _LAUNCH, str(os.getpid()), str(memory), str(seconds), *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    )
    try:
        await finish(starting)
        yield starting.result()
    finally:
        if starting.exception() is None:
            await _kill(starting.result())


def forbid_files(process: Process) -> None:
    """Keep a process from opening files and sockets from here on, where the system can do that."""
    if sys.platform == "linux" and process.returncode is None:
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, 0))


async def _kill(process: Process) -> None:
    """Kill a process with all that it has started, and wait until it is gone."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await finish(asyncio.ensure_future(_drain(process)))


async def _drain(process: Process) -> None:
    """Wait until a killed process is gone, which asyncio learns only when all that it has written is read."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    while await process.stdout.read(_AT_ONCE):
        pass
    await process.wait()


async def finish(work: "asyncio.Future[Any]") -> None:
    """Wait for work that ends soon; if this task is cancelled, it is so after that."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
