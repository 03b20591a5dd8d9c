"""Accepts TLS connections, and counts and times them even before their handshakes are done."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from plait.web.addresses import Addresses
from plait.web.descriptors import Descriptors

__all__ = ["TlsListener"]

# Maximum number of connections that are accepted in one iteration of the loop.
_AT_ONCE: Final = 64
# Seconds to wait after a connection could not be accepted.
_PAUSE: Final = 1.0


class TlsListener:
    """Accepts the connections of a socket, and calls `make` for a protocol after each handshake."""

    def __init__(
        self,
        bound: socket.socket,
        *,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        timeout: float,
        addresses: Addresses,
        descriptors: Descriptors,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._context = context
        self.make = make
        self._timeout = timeout
        self.addresses = addresses
        self._descriptors = descriptors
        self._retry: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether handshakes are under way."""
        return bool(self._handshakes)

    def start(self) -> None:
        """Start accepting connections."""
        self._bound.setblocking(False)
        self._loop.add_reader(self._bound, self._accept)

    def stop_accepting(self) -> None:
        """Stop accepting connections."""
        self._loop.remove_reader(self._bound)
        if self._retry is not None:
            self._retry.cancel()

    def close(self) -> None:
        """Stop accepting connections, and close connections in the middle of a handshake."""
        self.stop_accepting()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until all handshakes have ended."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._descriptors.handle(self._loop, {"message": "cannot accept a connection", "exception": error})
                self._loop.remove_reader(self._bound)
                self._retry = self._loop.call_later(_PAUSE, self.start)
                return
            self._take(connection, address[0])

    def _take(self, connection: socket.socket, host: str) -> None:
        counted = None if host in self.addresses.proxies else host
        if counted is not None:
            if self.addresses.is_full(counted):
                connection.close()
                return
            self.addresses.begin_waiting(counted)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._secure(connection, _Handshake(self, counted)), name="plait TLS")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _secure(self, connection: socket.socket, handshake: "_Handshake") -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: handshake, connection, ssl=self._context, ssl_handshake_timeout=self._timeout
            )
        except OSError:  # TLS errors are OSErrors, too.
            pass
        finally:
            if not handshake.is_done:
                handshake.end()
                connection.close()


class _Handshake(asyncio.Protocol):
    """Represents a connection until its handshake is done."""

    def __init__(self, listener: TlsListener, host: str | None) -> None:
        self._listener = listener
        # The address that the handshake counts for; None for a proxy.
        self._host = host
        self.is_done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.end()
        protocol = self._listener.make()
        cast(asyncio.Transport, transport).set_protocol(protocol)
        protocol.connection_made(transport)

    def end(self) -> None:
        """Stop counting the handshake."""
        if not self.is_done:
            self.is_done = True
            if self._host is not None:
                self._listener.addresses.end_waiting(self._host)
