"""`plait` and programs that use it, in processes forked from one that has imported it: that takes half a second."""

import ctypes
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Final, NamedTuple, TextIO

from plait.cli.main import main

__all__ = ["Command", "Done", "run_command", "run_program"]

_forkserver: Final = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["plait.cli.main", "plait_client"])

_CAPABILITIES_VERSION: Final = 0x20080522


class Command:
    """A running `plait`, or another program, whose stdout is read from here and whose stderr is appended to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        stderr: Path,
        heeds_rights: bool = False,
        program: str = "plait",
    ) -> None:
        reader, writer = _forkserver.Pipe(duplex=False)
        with reader, writer:
            # One that is a daemon ends with the tests if they are interrupted.
            self._process: ForkServerProcess = _forkserver.Process(
                target=_run,
                args=((program, *arguments), cwd, dict(environment), writer, stderr),
                kwargs={"heeds_rights": heeds_rights},
                daemon=True,
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
    """The output of a command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_command(
    arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], heeds_rights: bool = False
) -> Done:
    """Run a command to its end; with `heeds_rights`, the rights of files hold for root, too."""
    with tempfile.NamedTemporaryFile() as said:
        stderr = Path(said.name)
        command = Command(arguments, cwd=cwd, environment=environment, stderr=stderr, heeds_rights=heeds_rights)
        return _finish(command, said)


def run_program(file: str, *, cwd: Path, environment: Mapping[str, str]) -> Done:
    """Run a Python file to its end; warnings are errors."""
    with tempfile.NamedTemporaryFile() as said:
        command = Command((), cwd=cwd, environment=environment, stderr=Path(said.name), program=file)
        return _finish(command, said)


def _finish(command: Command, said: IO[bytes]) -> Done:
    stdout = command.stdout.read()
    return Done(command.wait(60), stdout, said.read().decode())


def _run(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    stdout: Connection,
    stderr: Path,
    *,
    heeds_rights: bool,
) -> None:
    if heeds_rights and os.geteuid() == 0:
        # Without capabilities, root is a user as any other.
        header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(header, none) == 0
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdout.fileno(), 1)
    with stderr.open("a") as file:
        os.dup2(file.fileno(), 2)
    stdout.close()
    sys.path[:0] = [str(cwd), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [*command]
    if command[0] == "plait":
        main()
    else:
        warnings.simplefilter("error")
        runpy.run_path(command[0], run_name="__main__")
