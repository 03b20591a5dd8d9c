"""TCP proxies whose connections can be cut: closed, silent in one direction or both, or late."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, Self

__all__ = ["Direction", "Proxies", "Proxy"]

Direction = Literal["in", "out", "both"]


class Proxy:
    """Passes data that arrives at its port on to another port, which may be changed for later connections."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: Direction | None = None
        # When the target is to get these bytes, it becomes silent in this direction.
        self._trigger: tuple[bytes, Direction] | None = None
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self.port = 0
        # What is kept from the target while it is silent.
        self.held: list[bytes] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close all connections; new ones are passed on."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def silence(self, direction: Direction = "both") -> None:
        """Hold back all further data: with `in`, the data to the target, with `out`, its answers."""
        self._silent = direction
        self._may_pass.clear()

    def silence_at(self, text: bytes, direction: Direction) -> None:
        """Become silent at these bytes to the target: with `in` before them, with `out` before the answer."""
        self._trigger = text, direction

    def heal(self) -> None:
        """Close the silent connections, and pass everything on."""
        self.close()
        self.deliver()

    def deliver(self) -> None:
        """Pass everything on, the held data first, which arrives late."""
        self._silent = None
        self.held.clear()
        self._may_pass.set()

    # Inside

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(target_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, target_writer, "in"))
                    group.create_task(self._pass(target_reader, writer, "out"))
            finally:
                target_writer.transport.abort()
                self._writers.discard(target_writer)
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while data := await reader.read(65536):
            if direction == "in" and self._trigger is not None and self._trigger[0] in data:
                self.silence(self._trigger[1])
                self._trigger = None
            if self._silent in (direction, "both"):
                if direction == "in":
                    self.held.append(data)
                await self._may_pass.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()


class Proxies:
    """The proxies through which a node reaches the servers of an engine."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self._proxies = proxies

    @property
    def held(self) -> bytes:
        """The data that is held back while the servers are silent."""
        return b"".join(data for each in self._proxies for data in each.held)

    def silence(self, direction: Direction = "both") -> None:
        """Hold back all data: with `in`, the data to the servers, with `out`, their answers."""
        for each in self._proxies:
            each.silence(direction)

    def heal(self) -> None:
        """Close the silent connections, and pass everything on."""
        for each in self._proxies:
            each.heal()

    def deliver(self) -> None:
        """Pass everything on, the held data first."""
        for each in self._proxies:
            each.deliver()
