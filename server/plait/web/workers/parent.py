"""The parent of the workers: holds the listening socket, and starts each worker, again whenever it ends."""

import asyncio
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import gettempdir
from typing import Final

from plait.backoff import Backoff
from plait.cluster.owners import Worker
from plait.store.held_folder import make_folder
from plait.web.workers.control import SILENCE
from plait.web.workers.process import WorkerProcess

__all__ = ["Parent"]

log = logging.getLogger("plait.workers")

# A worker that accepted connections for this many seconds is started again at once when it ends.
_RAN_WELL: Final = 30.0
# Seconds before a worker is started again, from the second failure on.
_BACKOFF: Final = Backoff(1.0, 30.0)
# The prefix of the folder with the sockets that link the workers, and the longest path above it, as Unix sockets have
# short paths.
_PREFIX: Final = "plait-workers-"
_LONGEST_FOLDER: Final = 60


class Parent:
    """Keeps `count` workers running, which accept connections of one listening socket.

    `command` starts a worker. SIGTERM and SIGINT end all workers, and SIGHUP replaces them one after another. With
    `kills_silent`, a worker whose event loop does not run for 10 seconds is killed.
    """

    def __init__(
        self, command: Sequence[str], count: int, listener: socket.socket, *, kills_silent: bool = True
    ) -> None:
        self._command = command
        self._count = count
        self._listener = listener
        self._kills_silent = kills_silent
        self._folder = ""
        # The process of each worker, and the processes that are to replace them.
        self._processes: dict[int, WorkerProcess] = {}
        self._replacements: dict[int, WorkerProcess] = {}
        # The tasks that keep workers running.
        self._keepers: list[asyncio.Task[None]] = []
        self._is_ending = asyncio.Event()
        # Set when the app was changed, so that no worker waits before it starts.
        self._hurry = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._wants_reload = False
        # The exit code of a worker that could not start or has failed.
        self._code = 0

    async def run(self, started: Callable[[], None]) -> int:
        """Start the workers, call `started`, and run until all have been told to end; return the exit code."""
        root = gettempdir()
        folder, held = make_folder(_PREFIX, root if len(root) < _LONGEST_FOLDER else "/tmp")
        self._folder = str(folder)
        with self._handle_signals():
            watching = asyncio.create_task(self._watch(), name="plait watch")
            try:
                # The first worker creates the files of a new store, and reports errors of the app, once.
                if await self._begin(0):
                    await asyncio.gather(*(self._begin(number) for number in range(1, self._count)))
                    if not self._is_ending.is_set():
                        started()
                await asyncio.gather(*self._keepers)
                await asyncio.gather(*(each.exited for each in self._replacements.values()))
            finally:
                watching.cancel()
                if self._reloading is not None:
                    self._reloading.cancel()
                os.close(held)
                shutil.rmtree(folder, ignore_errors=True)
        return self._code

    # Starting

    async def _begin(self, number: int) -> bool:
        """Start a worker and keep it running; return False if the first one cannot start, or all are ending."""
        process = self._processes[number] = await self._start(number, is_restart=False)
        if await process.ready() or (number and not self._is_ending.is_set()):
            self._keepers.append(asyncio.create_task(self._keep(process), name=f"plait keeper {number}"))
            return True
        code = await process.exited
        if not self._is_ending.is_set():
            self._code = code if code > 0 else 1
            if code < 0:
                log.error("worker %d was killed by %s while it started", number, _name_signal(-code))
        return False

    async def _start(self, number: int, *, is_restart: bool = True) -> WorkerProcess:
        worker = Worker(number, self._count, self._folder, is_restart)
        process = await WorkerProcess.start(self._command, worker, self._listener)
        if self._is_ending.is_set():
            process.signal(signal.SIGTERM)
        return process

    async def _keep(self, process: WorkerProcess) -> None:
        """Start a worker again whenever it has ended, until all are ending."""
        loop, number, failures = asyncio.get_running_loop(), process.number, 0
        while True:
            code = await process.exited
            if self._is_ending.is_set():
                self._code = self._code or int(code not in (0, -signal.SIGTERM))
                return
            if (replacement := self._replacements.pop(number, None)) is not None:
                process = self._processes[number] = replacement
                continue
            ran_well = process.ready_since is not None and loop.time() - process.ready_since >= _RAN_WELL
            failures = 1 if ran_well else failures + 1
            pause = 0.0 if failures == 1 else _BACKOFF.delay(failures - 1)
            log.error(
                "worker %d %s; it is started again %s",
                number,
                f"was killed by {_name_signal(-code)}" if code < 0 else f"has ended with exit code {code}",
                f"in {pause:.0f} s" if pause else "at once",
            )
            if await self._is_told_to_end_within(pause):
                return
            process = self._processes[number] = await self._start(number)

    async def _is_told_to_end_within(self, pause: float) -> bool:
        """Wait for a pause, which a reload ends; return whether all workers are ending."""
        waiting = [asyncio.create_task(each.wait()) for each in (self._is_ending, self._hurry)]
        await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        self._hurry.clear()
        return self._is_ending.is_set()

    # Ending and replacing

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        ignores_hangup, had_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, _has_terminal()

        def hang_up() -> None:
            # A terminal that is closed sends SIGHUP, too.
            if not had_terminal or _has_terminal():
                self._reload()
            elif not ignores_hangup:
                self._end(signal.SIGTERM)

        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._end, each)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        try:
            yield
        finally:
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(each)

    def _end(self, by: signal.Signals) -> None:
        """Pass a signal on to all workers; workers that are starting end at once."""
        self._is_ending.set()
        for each in (*self._processes.values(), *self._replacements.values()):
            each.signal(by if each.is_ready else signal.SIGTERM)

    def _reload(self) -> None:
        self._wants_reload = True
        self._hurry.set()
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._replace_all(), name="plait reload")

    async def _replace_all(self) -> None:
        while self._wants_reload and not self._is_ending.is_set():
            self._wants_reload = False
            log.info("replacing the workers")
            for number in range(self._count):
                if self._is_ending.is_set():
                    return
                if not await self._replace(number):
                    if not self._is_ending.is_set():
                        log.error("the replacement of worker %d has not started: the reload is given up", number)
                    break
            else:
                log.info("all workers are replaced")

    async def _replace(self, number: int) -> bool:
        """Replace the process of a worker; return False if the new one has not started, in which case it continues."""
        former = self._processes.get(number)
        if former is None or not former.is_ready or former.exited.done():
            return True  # The worker is already starting, with the changed app.
        new = self._replacements[number] = await self._start(number)
        if not await new.loaded():
            if self._replacements.get(number) is new:
                del self._replacements[number]
            return False
        former.retire()
        return await new.ready()

    # Watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for each in (*self._processes.values(), *self._replacements.values()):
                if not each.is_ready or each.exited.done():
                    continue
                each.silence += 1
                if each.silence > SILENCE and self._kills_silent:
                    each.silence = 0
                    log.error("worker %d has not answered for %d s and is killed", each.number, SILENCE)
                    each.signal(signal.SIGKILL)


def _has_terminal() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
