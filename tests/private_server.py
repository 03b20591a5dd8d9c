"""Private servers of tests: processes with a folder and ports of their own, which are ended by their ids."""

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

from tests.ports import hold_port

__all__ = ["PrivateServer", "copy_folder", "find_program"]

# Seconds: the machine may be busy.
_PATIENCE: Final = 60.0


class PrivateServer(ABC):
    """A server, which keeps its folder and its ports over restarts. When it does not start, its log is shown.

    `options` are added to its command line. It has the ports of a `former` server that has ended, if there is one.
    """

    # What stops it in order, and what ends it at once with all of its processes.
    orderly: ClassVar = signal.SIGTERM
    at_once: ClassVar = signal.SIGKILL

    def __init__(self, folder: Path, *options: str, ports: int = 1, former: "PrivateServer | None" = None) -> None:
        self.folder = folder
        # Beside the folder: some servers want an empty one.
        self.log = folder.with_name(f"{folder.name}.log")
        # As whom it runs, if not as the user of this process.
        self.user: str | None = None
        # Seconds for which it may not answer.
        self.patience = _PATIENCE
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._held = [hold_port() for _ in range(ports)] if former is None else former._held
        self.port, *self._other_ports = (int(each.getsockname()[1]) for each in self._held)

    def __enter__(self) -> Self:
        """Make the folder, and start the server."""
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.resume()  # One that is paused gets no other signal.
            self.stop(self.at_once)
        for each in self._held:
            each.close()

    # What it is

    def prepare(self) -> None:
        """Make the folder, with the files that the server needs before its first start."""
        self.folder.mkdir(mode=0o700, parents=True)
        if self.user is not None:
            shutil.chown(self.folder, self.user)

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Return its command line."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it answers."""

    def _check_running(self) -> None:
        """Raise AssertionError if it has ended while something is waited for."""
        assert self.is_running, self.log.read_text()

    # Its process

    @property
    def pid(self) -> int:
        """The id of its first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def ports(self) -> Sequence[int]:
        """Where it listens to clients."""
        return (self.port,)

    @property
    def is_running(self) -> bool:
        """Whether its first process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start the server, and do not wait for it."""
        command = [*self._command(), *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, user=self.user, stdout=log, stderr=log, cwd="/")

    def wait(self) -> None:
        """Wait until it answers."""
        self.until(self._is_ready)

    def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until something is true of the server, which runs."""
        begun = time.monotonic()
        while not is_reached():
            self._check_running()
            assert time.monotonic() < begun + self.patience, self.log.read_text()
            time.sleep(0.02)

    def stop(self, by: signal.Signals | None = None) -> None:
        """End the server by a signal, in order if none is given, and wait until it has ended."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(self.orderly if by is None else by)
        process.wait(_PATIENCE)

    def crash(self) -> None:
        """Kill all processes of the server."""
        self._signal(signal.SIGKILL)
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all processes of the server with SIGSTOP; they keep their connections."""
        pids = self._signal(signal.SIGSTOP)
        # A thread on another processor goes on for a moment.
        self.until(lambda: all(map(_is_stopped, pids)))

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal(signal.SIGCONT)

    # Inside

    def _find_pids(self) -> list[int]:
        """Return the ids of its processes."""
        return [self.pid]

    def _signal(self, by: signal.Signals) -> list[int]:
        """Send a signal to all processes, and return their ids."""
        pids = self._find_pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, by)
        return pids


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped, or have ended."""
    try:
        stats = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # One has ended.
        return False
    return {each.rpartition(")")[2].split()[0] for each in stats} <= {"T", "Z", "X"}


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a folder, with their owners, to one that is there."""
    subprocess.run(["cp", "-a", f"{source}/.", target], check=True)


def find_program(name: str) -> str:
    """Return the path of a program, which may be one for root only."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found is not None, f"{name} is not installed: run tests/system.sh"
    return found
