"""A network between a store and its server that is cut after some bytes, in the middle of a statement or an answer."""

import asyncio
from asyncio import StreamReader, StreamWriter
from types import TracebackType
from typing import Self

__all__ = ["CuttingProxy"]


class CuttingProxy:
    """Carries bytes to the server at `port` until its fuse has burnt; then it cuts all connections."""

    def __init__(self, port: int) -> None:
        self.port = 0
        # How many more bytes it carries in either direction, and whether the server gets the cut statement later.
        self.fuse: int | None = None
        self.is_late = False
        self.cuts = 0
        # Whether new connections are refused.
        self.is_closed = False
        self._target = port
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
        server, far = await asyncio.open_connection("127.0.0.1", self._target)
        pair = near, far
        self._pairs.add(pair)
        for source, target, is_request in ((reader, far, True), (server, near, False)):
            task = asyncio.create_task(self._carry(source, target, pair, is_request=is_request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: StreamReader, target: StreamWriter, pair: tuple[StreamWriter, StreamWriter], *, is_request: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                if self.fuse is not None and self.fuse < len(data):
                    await self._cut(data[: self.fuse], data, target, pair, is_request=is_request)
                    return
                if self.fuse is not None:
                    self.fuse -= len(data)
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()

    async def _cut(
        self,
        part: bytes,
        data: bytes,
        target: StreamWriter,
        pair: tuple[StreamWriter, StreamWriter],
        *,
        is_request: bool,
    ) -> None:
        self.fuse = None
        self.cuts += 1
        near, far = pair
        near.transport.abort()
        if is_request and self.is_late:
            # It was on its way, and arrives when the store has already asked whether it is stored.
            await asyncio.sleep(0.03)
            far.write(data)
        else:
            target.write(part)
        far.close()
