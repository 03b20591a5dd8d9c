"""Raises the limit of file descriptors, and logs when they run out."""

import asyncio
import errno
import logging
import os
import time
from typing import Any, Final

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

from plait.limits import UNLIMITED

__all__ = ["Descriptors"]

log = logging.getLogger("plait.sockets")

# The descriptors that a server needs besides its connections: for the store, the log and the event loop.
_OTHERS: Final = 64
# Minimum seconds between two log lines about missing descriptors.
_SILENCE: Final = 60.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """Raises the process's limit of file descriptors, and logs when it is reached."""

    def __init__(self) -> None:
        self._said = -_SILENCE

    def prepare(self, connections: int) -> None:
        """Raise the limit as far as the system allows, and warn if that is too low for `connections`."""
        if resource is None:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
            except (ValueError, OSError):
                pass  # macOS allows less than it reports.
        if resource.RLIM_INFINITY != soft < connections + _OTHERS and connections < UNLIMITED.connections_per_address:
            log.warning(
                "only %d file descriptors are allowed, too few for the %d connections that the limits allow: raise "
                "`ulimit -n` (LimitNOFILE= in systemd), or lower connections_per_thread and connections_per_address",
                soft,
                connections,
            )

    def check(self) -> None:
        """Log if no descriptor is left, as uvloop then drops connections silently."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._log()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle errors of asyncio's loop, which tries to accept connections again each second."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            self._log()
        else:
            loop.default_exception_handler(context)

    def _log(self) -> None:
        now = time.monotonic()
        if now >= self._said + _SILENCE:
            self._said = now
            log.error(
                "no file descriptors are left, so new connections are dropped: close some, or raise `ulimit -n` "
                "(LimitNOFILE= in systemd)"
            )
