"""File descriptors: whether there are enough for as many connections as are allowed, and when they run out."""

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

# What a server has open beside its connections: the store, its log, the loop's own.
_OTHERS: Final = 64
# Seconds from one line about descriptors that have run out to the next.
_SILENCE: Final = 60.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """Raises the process's limit as far as it may be raised, and logs when it is reached."""

    def __init__(self) -> None:
        self._said = -_SILENCE

    def prepare(self, connections: int) -> None:
        """Raise the limit to what the system allows, and warn if that is too low for so many connections."""
        if resource is None:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
            except (ValueError, OSError):
                pass  # macOS allows less than it says.
        if resource.RLIM_INFINITY != soft < connections + _OTHERS and connections < UNLIMITED.connections_per_address:
            log.warning(
                "only %d file descriptors are allowed, too few for the %d connections that the limits allow: raise "
                "`ulimit -n` (LimitNOFILE= in systemd), or lower connections_per_thread and connections_per_address",
                soft,
                connections,
            )

    def check(self) -> None:
        """Log if no descriptor is left. uvloop then drops connections without a word."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._say()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what goes wrong in asyncio's loop, which tries again each second to accept a connection."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            self._say()
        else:
            loop.default_exception_handler(context)

    def _say(self) -> None:
        now = time.monotonic()
        if now >= self._said + _SILENCE:
            self._said = now
            log.error(
                "no file descriptors are left, so new connections are dropped: close some, or raise `ulimit -n` "
                "(LimitNOFILE= in systemd)"
            )
