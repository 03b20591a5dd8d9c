"""A network between clients and a server that delays, splits and cuts, as dice say."""

import asyncio
import random
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

__all__ = ["Proxy"]

_LONGEST: Final = 0.004
"""How many seconds a piece may be held back."""


class _Pair:
    """One connection, on both sides."""

    def __init__(self, near: StreamWriter, far: StreamWriter) -> None:
        self.near = near
        self.far = far
        self.is_cut = False

    def cut(self, *, is_told: bool) -> None:
        """End the connection for the client, and for the server if it `is_told`; data on its way is lost."""
        self.is_cut = True
        self.near.transport.abort()
        if is_told:
            self.far.transport.abort()


class Proxy:
    """Carries bytes between clients and the server at `port`; `address` is where the clients come."""

    def __init__(self, port: int, dice: random.Random) -> None:
        self.address = ""
        self.cuts = 0
        self._port = port
        self._dice = dice
        self._is_calm = False
        self._is_open = True
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._is_open = False
        for pair in self._pairs:
            pair.cut(is_told=True)
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break one connection; sometimes the server does not learn of it."""
        whole = [pair for pair in self._pairs if not pair.is_cut]
        if whole:
            self.cuts += 1
            self._dice.choice(whole).cut(is_told=self._dice.random() < 0.6)

    def calm(self) -> None:
        """Cause no more trouble."""
        self._is_calm = True

    async def _carry(self, reader: StreamReader, near: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            answers, far = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            near.transport.abort()
            return
        pair = _Pair(near, far)
        if not self._is_open:
            pair.cut(is_told=True)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(pair, reader, far))
                pumps.create_task(self._pump(pair, answers, near))
        finally:
            pair.cut(is_told=True)
            self._pairs.discard(pair)

    async def _pump(self, pair: _Pair, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry in one direction until either end, or the dice, end it."""
        try:
            while data := await reader.read(65536):
                for piece in self._pieces(data):
                    if not self._is_calm:
                        await asyncio.sleep(self._dice.choice((0, 0, self._dice.uniform(0, _LONGEST))))
                    # uvloop raises RuntimeError for a transport that its peer has ended.
                    if pair.is_cut or writer.is_closing():
                        break
                    writer.write(piece)
                    await writer.drain()
                    if not self._is_calm and self._dice.random() < 0.004:
                        self.cuts += 1
                        pair.cut(is_told=True)
        except OSError:
            pass
        if not pair.is_cut:
            writer.close()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if self._is_calm or len(data) < 2 or self._dice.random() < 0.5:
            yield data
            return
        at = self._dice.randrange(1, len(data))
        yield data[:at]
        yield data[at:]
