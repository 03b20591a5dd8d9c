"""Limits its own process, and then becomes another command: a script that `child.py` runs."""

import ctypes
import os
import resource
import signal
import sys
from typing import Final

__all__ = ["main"]

# The number of the call on Linux, for prctl(2).
_PR_SET_PDEATHSIG: Final = 1

# The soft limit of a thread's stack that systems set; a server may have been started with another one.
_STACK: Final = 8 * 1024 * 1024


def main(parent: str, memory: str, seconds: str, *command: str) -> None:
    """Become a command with limits of memory and processor time, for a server by its process id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the server is gone")
    os.nice(19)
    for kind, wanted in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds)),
        (resource.RLIMIT_DATA, int(memory)),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_STACK, _STACK),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (limit, limit))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
