"""A network between a store and its server that is cut after some bytes, in the middle of a statement or an answer."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

__all__ = ["CuttingProxy"]

# A store in an SQL database asks for the outcome of a write in a transaction; this is what ends it.
_QUESTION: Final = b"COMMIT"


class CuttingProxy:
    """Carries bytes to the server at `port` until its fuse has burnt; then it cuts all connections."""

    def __init__(self, port: int, *, is_question: Callable[[bytes], bool] | None = None) -> None:
        self.port = 0
        # Whether a request asks for the outcome of the statement that was cut; by default as an SQL database is asked.
        self._is_question = is_question or (lambda data: _QUESTION in data)
        # How many more bytes it carries in either direction, and whether the server gets the cut statement later.
        self.fuse: int | None = None
        self.is_late = False
        self.cuts = 0
        # How many statements have arrived after the store had asked for their outcome.
        self.arrived_late = 0
        # Whether new connections are refused.
        self.is_closed = False
        # Requests with these bytes never arrive, and how many have not.
        self.swallows: bytes | None = None
        self.swallowed = 0
        # The port of the server.
        self.target = port
        # A statement that has not arrived yet, with its connection to the server.
        self._held: tuple[bytes, StreamWriter] | None = None
        # Set when the server has answered the one that was held back last, or has ended.
        self._is_answered = asyncio.Event()
        # The connection on which one has arrived late.
        self._late: StreamWriter | None = None
        # Whether the question has been asked.
        self._is_asked = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pairs: set[tuple[StreamWriter, StreamWriter]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for near, far in self._pairs:
            near.transport.abort()
            far.transport.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _accept(self, reader: StreamReader, near: StreamWriter) -> None:
        if self.is_closed:
            near.transport.abort()
            return
        try:
            server, far = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # The server does not run.
            near.transport.abort()
            return
        pair = near, far
        self._pairs.add(pair)
        for source, target, is_request in ((reader, far, True), (server, near, False)):
            task = asyncio.create_task(self._carry(source, target, pair, is_request=is_request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        source: StreamReader,
        target: StreamWriter,
        pair: tuple[StreamWriter, StreamWriter],
        *,
        is_request: bool,
    ) -> None:
        is_in_transaction = False
        try:
            while data := await source.read(65536):
                if self.fuse is not None and self.fuse < len(data):
                    self._cut(
                        self.fuse, data, target, pair, is_held=is_request and self.is_late and not is_in_transaction
                    )
                    return
                if is_request and self.swallows is not None and self.swallows in data:
                    self.swallowed += 1
                    continue
                if is_request:
                    is_in_transaction = b"COMMIT" not in data and (b"BEGIN" in data or is_in_transaction)
                    is_other = self._held is not None and pair[1] is not self._held[1]
                    self._is_asked |= is_other and self._is_question(data)
                elif self._is_asked:  # The answer to the question: the statement arrives before the store has it.
                    self._is_asked = False
                    await self._deliver()
                if pair[1] is self._late and not self._is_answered.is_set():
                    self.arrived_late += 1
                    self._is_answered.set()
                if target.is_closing():
                    return
                if self.fuse is not None:
                    self.fuse -= len(data)
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            if pair[1] is self._late:  # The server may have ended without an answer.
                self._is_answered.set()
            if self._held is None or self._held[1] is not target:
                target.close()

    def _cut(
        self, at: int, data: bytes, target: StreamWriter, pair: tuple[StreamWriter, StreamWriter], *, is_held: bool
    ) -> None:
        """Cut a connection in `data`, which may be held back. Inside of a transaction it is not, as that has locks."""
        self.fuse = None
        self.cuts += 1
        near, far = pair
        near.transport.abort()
        if is_held:
            self._held, self._is_asked = (data, far), False
        else:
            if not target.is_closing():
                target.write(data[:at])
            far.close()

    async def _deliver(self) -> None:
        """Give the server the statement that was held back, and wait until it has answered."""
        if self._held is not None:
            (data, self._late), self._held = self._held, None
            if self._late.is_closing():
                return
            self._is_answered.clear()
            self._late.write(data)
            await self._is_answered.wait()
            self._late.close()
