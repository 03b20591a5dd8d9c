"""The command `plait` in processes that are forked from one that has imported it, as that takes half a second."""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from plait.cli.main import main

__all__ = ["Command", "Done", "run_command"]

_forkserver: Final = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["plait.cli.main"])


class Command:
    """A running `plait`, whose stdout is read from here and whose stderr is appended to a file."""

    def __init__(self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stderr: Path) -> None:
        reader, writer = _forkserver.Pipe(duplex=False)
        with reader, writer:
            # One that is a daemon ends with the tests if they are interrupted.
            self._process: ForkServerProcess = _forkserver.Process(
                target=_run, args=(arguments, cwd, dict(environment), writer, stderr), daemon=True
            )
            self._process.start()
            self.stdout: TextIO = os.fdopen(os.dup(reader.fileno()))

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float) -> int:
        """Wait until it is gone; return its exit code, which is negative if a signal has ended it."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"plait has not ended after {timeout} s")
        self._process.close()
        self.stdout.close()
        return code


class Done(NamedTuple):
    """What a command that has ended said."""

    returncode: int
    stdout: str
    stderr: str


def run_command(arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Done:
    """Run a command to its end."""
    with tempfile.NamedTemporaryFile() as said:
        command = Command(arguments, cwd=cwd, environment=environment, stderr=Path(said.name))
        stdout = command.stdout.read()
        return Done(command.wait(60), stdout, said.read().decode())


def _run(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], stdout: Connection, stderr: Path) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdout.fileno(), 1)
    with stderr.open("a") as file:
        os.dup2(file.fileno(), 2)
    stdout.close()
    sys.path[:0] = [str(cwd), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["plait", *arguments]
    main()
