"""A worker's end of the socket that connects it with its parent. Every message is one byte."""

import asyncio
import faulthandler
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["BEAT", "BEAT_EVERY", "LOADED", "READY", "RETIRE", "SILENCE", "Control"]

LOADED: Final = b"l"
"""Worker: the app is imported; its store is opened as soon as the earlier process has closed it."""

READY: Final = b"r"
"""Worker: it accepts connections."""

BEAT: Final = b"."
"""Worker: its event loop runs."""

RETIRE: Final = b"e"
"""Parent: accept no further connections, and end as after SIGTERM."""

BEAT_EVERY: Final = 1.0
SILENCE: Final = 10
"""After this many seconds without a beat, the parent kills a worker."""


# If the loop is blocked for this many seconds, the stack of every OS thread is written to standard error.
_STALL: Final = SILENCE - 1.0


class Control:
    """Tells the parent how far this worker has started and that its loop runs; learns when the worker has to end."""

    def __init__(self, connected: socket.socket, *, is_restart: bool = False) -> None:
        connected.setblocking(False)
        self._socket = connected
        # Whether this worker has had an earlier process.
        self.is_restart = is_restart
        self._beat: asyncio.TimerHandle | None = None
        # Whether the parent is gone.
        self.is_orphaned = False

    def tell(self, message: bytes) -> None:
        """Send a message; it is lost if the parent is gone, or has read nothing for minutes."""
        with suppress(OSError):
            self._socket.send(message)

    def start(self, retire: Callable[[], None]) -> None:
        """Send beats while the event loop runs; call `retire` when this worker has to end or its parent has ended."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, loop, retire)
        self._send_beat(loop)

    def stop(self) -> None:
        """Send no more beats, as the event loop ends."""
        if self._beat is not None:
            self._beat.cancel()
            faulthandler.cancel_dump_traceback_later()
            asyncio.get_running_loop().remove_reader(self._socket)

    def _send_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tell(BEAT)
        faulthandler.dump_traceback_later(_STALL)
        self._beat = loop.call_later(BEAT_EVERY, self._send_beat, loop)

    def _read(self, loop: asyncio.AbstractEventLoop, retire: Callable[[], None]) -> None:
        try:
            message = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.is_orphaned = True
            loop.remove_reader(self._socket)
        retire()
