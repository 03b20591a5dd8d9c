"""Runs a command, and again whenever a Python file changes, for `plait dev`."""

import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

from plait.cli.options import fail

__all__ = ["run_and_watch"]

# Seconds after which a process that does not end is killed.
_PATIENCE: Final = 30.0


def run_and_watch(command: Sequence[str]) -> None:
    """Run a command, and again when a Python file in this folder changes, until this process is told to end."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415
    except ImportError:
        fail("`plait dev` needs watchfiles: pip install watchfiles")
    told = threading.Event()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP, and nohup ignores it.
        if number is not None and (name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN):
            signal.signal(number, lambda *_: told.set())
    process = _start(command)
    try:
        for _ in watch(".", watch_filter=PythonFilter(), stop_event=told):
            _end(process)
            process = _start(command)
    finally:
        _end(process)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that ignores Ctrl+C until it serves: during its imports, Ctrl+C would show a traceback."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(command)
    finally:
        signal.signal(signal.SIGINT, former)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
