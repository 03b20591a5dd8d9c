"""Detects peers that have disconnected silently."""

import asyncio
from typing import Protocol

__all__ = ["Heartbeat"]


class WatchedSocket(Protocol):
    """A socket, as the heartbeat sees it."""

    # When the peer last sent something, and whether it was pinged after that.
    heard: float
    is_asked: bool

    @property
    def is_held(self) -> bool:
        """Whether reading is paused."""
        ...

    def ping(self) -> None:
        """Ping the peer."""
        ...

    def give_up(self) -> None:
        """Drop the socket."""
        ...


class Heartbeat:
    """Pings silent sockets, and drops sockets that do not answer."""

    def __init__(self, interval: float, timeout: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._sockets: dict[WatchedSocket, None] = {}
        self._has_sockets = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, socket: WatchedSocket) -> None:
        """Watch a socket."""
        if not self._sockets:
            self._has_sockets.set()
        self._sockets[socket] = None

    def discard(self, socket: WatchedSocket) -> None:
        """Stop watching a socket."""
        self._sockets.pop(socket, None)

    def start(self) -> None:
        """Start the heartbeat."""
        self._task = asyncio.create_task(self._beat(), name="plait heartbeat")

    async def stop(self) -> None:
        """Stop the heartbeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        step = min(self._interval, self._timeout) / 10
        while True:
            if not self._sockets:
                self._has_sockets.clear()
                await self._has_sockets.wait()
            due = self._check(loop.time())
            # A socket that is added during the sleep is due later.
            await asyncio.sleep(max(step, due - loop.time()))

    def _check(self, now: float) -> float:
        """Ping and drop sockets, and return when to check them again."""
        due = now + self._interval
        for socket in tuple(self._sockets):
            if socket.is_held:
                socket.heard = now  # Reading is paused, so its answers are not read.
            silence = now - socket.heard
            if silence >= self._interval + self._timeout:
                socket.give_up()
            elif silence >= self._interval and not socket.is_asked:
                socket.is_asked = True
                socket.ping()
            due = min(due, socket.heard + self._interval + (self._timeout if socket.is_asked else 0))
        return due
