"""Child processes with pipes to them; those of programs have little memory and time, and end with the server."""

import asyncio
import os
import resource
import signal
import sys
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final

__all__ = ["Child", "finish", "forbid_files", "open_child", "open_program"]

# Bytes that are read at once.
_AT_ONCE: Final = 64 * 1024

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))


class Child:
    """A process that `subprocess` has started, with pipes to it.

    uvloop would start it by a fork, which copies the page tables of the whole server, and holds the loop for as long.
    """

    def __init__(self, process: Popen[bytes], *, limit: int) -> None:
        self._process = process
        self.pid = process.pid
        self.stdout = StreamReader(limit)
        self.stdin: StreamWriter

    async def connect(self) -> None:
        """Connect to the pipes of the process, before anything else; kill it if that fails. Raises OSError."""
        loop, process = asyncio.get_running_loop(), self._process
        try:
            self._reading, _ = await loop.connect_read_pipe(lambda: StreamReaderProtocol(self.stdout), process.stdout)
            transport, protocol = await loop.connect_write_pipe(
                lambda: StreamReaderProtocol(StreamReader()), process.stdin
            )
        except BaseException:
            with process:  # Closes the pipes, and waits for the end.
                process.kill()
            raise
        self.stdin = StreamWriter(transport, protocol, None, loop)

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        return await asyncio.to_thread(self._process.wait)

    async def end(self, grace: float) -> None:
        """Close its input, and kill it with its group when it has ended, or after `grace` seconds.

        Waits until the process is gone.
        """
        self.stdin.close()
        ended = asyncio.ensure_future(self.wait())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while await self.stdout.read(_AT_ONCE):
                        pass
                    await asyncio.shield(ended)
        finally:  # This also runs if all tasks are cancelled, as at the end of a loop.
            with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter if all have ended.
                os.killpg(self.pid, signal.SIGKILL)
            # A process that has left the group may keep the pipes open.
            if self.stdin.transport.get_write_buffer_size():
                self.stdin.transport.abort()
            self._reading.close()
        await ended


@asynccontextmanager
async def open_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: str | None = None,
    limit: int = _AT_ONCE,
    grace: float = 0.0,
) -> AsyncIterator[Child]:
    """Start a command with pipes to its stdin and stdout, whose lines have at most `limit` bytes. Raises OSError.

    Leaving the block ends the process: it is killed if it has not ended by itself within `grace` seconds.
    """
    child = Child(
        Popen(  # noqa: ASYNC220
            command,
            bufsize=0,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            cwd=folder,
            start_new_session=True,
        ),
        limit=limit,
    )
    connecting = asyncio.ensure_future(child.connect())
    try:
        await finish(connecting)
        connecting.result()
        yield child
    finally:
        if connecting.exception() is None:
            ending = asyncio.ensure_future(child.end(grace))
            await finish(ending)
            ending.result()


def open_program(
    command: Sequence[str], *, memory: int, seconds: int, environment: Mapping[str, str]
) -> AbstractAsyncContextManager[Child]:
    """Start a command with little memory and processor time, which is killed as the block is left, or the server ends.

    Raises OSError.
    """
    # Limits that are set in Python between fork and exec would need a copy of the whole server.
    launch = [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), str(memory), str(seconds)]
    return open_child([*launch, *command], environment=environment, folder="/")


def forbid_files(child: Child) -> None:
    """Keep a process from opening files and sockets from here on, where the system can do that."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # The process has ended.
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (0, 0))


async def finish(work: "asyncio.Future[Any]") -> None:
    """Wait for work that ends soon; if this task is cancelled, the cancellation takes effect after that."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
