"""The cells of a cluster's directory in NATS JetStream, in a stream beside that of the store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from plait.errors import StoreError
from plait.store.cells import Cell, Reading
from plait.store.nats.api import Publication, Requests, WrongSequence
from plait.store.nats.jetstream import JetStream
from plait.store.nats.server_connection import ServerConnection
from plait.store.nats.url import NatsUrl

__all__ = ["NatsCells"]

_SETTINGS: Final = {"max_msgs_per_subject": 1, "allow_msg_ttl": True}
# Each call waits for a connection as long as it may, even if none has been found for long.
_PATIENCE: Final = 1e9
# Seconds for which a removed cell is kept, empty, so that readings tell of it. NATS returns at most 1,024 cells.
_EMPTY_TTL: Final = 60


class NatsCells:
    """The cells over a connection of their own; the revision of one is the sequence of its message."""

    def __init__(self, url: NatsUrl, engine: Callable[[Requests], Awaitable[None]] | None = None) -> None:
        # Checks the stream of the store.
        self._engine = engine
        self._connection = ServerConnection(url, patience=_PATIENCE)
        name = f"{url.stream}-directory"
        self._stream = JetStream(url, self._connection, name)
        # The message that tells the timeline, which is also in the subjects of cells: two streams of one name may have
        # messages of the same sequences.
        self._line = f"{name}.timeline"
        self._timeline = 0
        self._cells = f"{name}.cells."

    async def __aenter__(self) -> Self:
        await self._connection.open()
        try:
            await self._prepare()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def confirm(self) -> None:
        with self._dropping():
            await self._stream.confirm()
            if self._engine is not None:
                await self._engine(self._connection)

    async def read(self, former: Reading | None = None) -> Reading:
        """Any copy of the stream may be read, and a former leader does not know that it is one.

        A message that most servers have accepted before shows which copy is late.
        """
        with self._dropping():
            barrier = await self._stream.publish(self._stream.make_barrier())
            if former is not None and barrier <= former.position:
                former = None  # It is another stream.
            after = 0 if former is None else former.position
            messages = await self._stream.last([self._line, f"{self._cells}>"], since=barrier, after=after)
            found = {each.subject: Cell(each.sequence, each.data) for each in messages}
            if (line := found.pop(self._line, None)) is not None:
                self._timeline = int(line.value)
                if former is not None and former.timeline != self._timeline:
                    return await self.read()
            elif former is None:
                await self._prepare()
                return await self.read()
        cells = {} if former is None else dict(former.cells)
        prefix = f"{self._cells}{self._timeline}."
        for subject, cell in found.items():
            if subject.startswith(prefix):
                cells[subject.removeprefix(prefix).replace(".", "/", 1)] = cell
        return Reading(self._timeline, cells, barrier)

    async def swap(self, cell: str, revision: int, value: bytes | None, *, timeline: int) -> int | None:
        if timeline != self._timeline:
            return None
        subject = f"{self._cells}{timeline}.{cell.replace('/', '.', 1)}"
        with self._dropping():
            try:
                return await self._stream.publish(
                    Publication(subject, value or b"", revision, None if value else _EMPTY_TTL)
                )
            except WrongSequence:
                return None

    # Inside

    async def _prepare(self) -> None:
        """Make the stream, unless it is there. Raises StoreError if nodes of an earlier plait may use it."""
        info = await self._stream.prepare(_SETTINGS)
        if info.config.get("allow_atomic"):  # They need that, so they refuse the stream of this one, too.
            raise StoreError(
                f"{self._stream.name} is the stream of an earlier plait: stop all servers of the store, then delete it"
            )
        # Milliseconds with ten more bits, so that the epochs of a newer stream are always higher.
        timeline = int(datetime.fromisoformat(info.created).timestamp() * 1000) << 10
        with suppress(WrongSequence):
            await self._stream.publish(Publication(self._line, str(timeline).encode(), 0))

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Drop a connection whose answer is no longer awaited: it may be that of a server that does not answer."""
        try:
            yield
        except asyncio.CancelledError:
            self._connection.drop()
            raise
