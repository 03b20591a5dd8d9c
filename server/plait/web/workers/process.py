"""One process of a worker, as its parent sees it."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from plait.cluster.owners import Worker
from plait.web.workers.control import LOADED, READY, RETIRE

__all__ = ["WorkerProcess"]

log = logging.getLogger("plait.workers")

_MOST: Final = 4096


class WorkerProcess:
    """A process that has been started. `exited` is done when it has ended, with its exit code."""

    def __init__(self, number: int, process: asyncio.subprocess.Process | None, connected: socket.socket) -> None:
        self.number = number
        # None if the system could not start the process.
        self._process = process
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Task[int] = asyncio.create_task(self._wait(), name=f"plait worker {number}")
        self._is_loaded = asyncio.Event()
        self._is_ready = asyncio.Event()
        # The time at which the process first accepted connections, by the loop's clock.
        self.ready_since: float | None = None
        # Seconds since its last sign of life, without the time in which the parent itself did not run.
        self.silence = 0
        self._loop.add_reader(connected, self._read)

    @classmethod
    async def start(cls, command: Sequence[str], worker: Worker, listener: socket.socket) -> Self:
        """Start a process, which gets the numbers of the listening and of the control socket as its last arguments."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            numbers = listener.fileno(), theirs.fileno()
            # The process gets a session of its own, so that Ctrl+C reaches only the parent, which passes it on.
            process = None
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *map(str, numbers),
                    pass_fds=numbers,
                    env={**os.environ, **worker.to_environment()},
                    start_new_session=True,
                )
            except OSError as error:  # Too many processes, or no memory for another one.
                log.error("worker %d could not be started: %s", worker.number, error)
        return cls(worker.number, process, ours)

    @property
    def is_ready(self) -> bool:
        """Whether the process accepts connections, or has done so."""
        return self._is_ready.is_set()

    async def loaded(self) -> bool:
        """Wait until the process has imported the app; return False if it ends before."""
        return await self._until(self._is_loaded)

    async def ready(self) -> bool:
        """Wait until the process accepts connections; return False if it ends before."""
        return await self._until(self._is_ready)

    def retire(self) -> None:
        """Tell the process to accept no further connections, and to end after its running work."""
        with suppress(OSError):
            self._socket.send(RETIRE)

    def signal(self, by: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(by)

    def _read(self) -> None:
        try:
            messages = self._socket.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            messages = b""
        if not messages:
            self._loop.remove_reader(self._socket)
            return
        self.silence = 0
        if LOADED in messages:
            self._is_loaded.set()
        if READY in messages:
            self.ready_since = self._loop.time()
            self._is_ready.set()

    async def _wait(self) -> int:
        try:
            return 1 if self._process is None else await self._process.wait()
        finally:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def _until(self, event: asyncio.Event) -> bool:
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([waiting, self.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return event.is_set() and not self.exited.done()
