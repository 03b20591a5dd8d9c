"""The cells of a cluster's directory in Redis, in two hashes beside the threads of the store."""

from types import TracebackType
from typing import Any, Final, Self

from plait.store.cells import Cell, Reading
from plait.store.redis.engine import Engine, telling
from plait.store.redis.line import Line
from plait.store.redis.scripts import READ_CELLS, SWAP_CELL
from plait.store.redis.url import RedisUrl

__all__ = ["RedisCells"]

# A timeline is its number so many bits higher, as the epochs of shards begin above it.
_BITS: Final = 20


class RedisCells:
    """The cells over a connection of their own, of the engine of a store if there is one.

    Revisions come from a counter that never goes back.
    """

    def __init__(self, url: RedisUrl, engine: Engine | None = None) -> None:
        self._engine = engine or Engine(url)
        self._line: Line | None = None
        tag = self._engine.tag
        self._keys = *self._engine.timeline_keys, tag + b"revisions", tag + b"cells"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.terminate()

    async def confirm(self) -> None:
        with telling("the cells"):
            await self._engine.confirm(await self._connect())

    async def read(self, former: Reading | None = None) -> Reading:
        former = former or Reading(0, {})
        number, position, count, rows = await self._run(READ_CELLS, former.timeline >> _BITS, former.position)
        cells = {name.decode(): Cell(int(revision), value) for name, revision, value in rows}
        if number << _BITS == former.timeline:
            cells = {**former.cells, **cells}
            if len(cells) > count:  # Some have been removed.
                return await self.read()
        return Reading(number << _BITS, cells, int(position))

    async def swap(self, cell: str, revision: int, value: bytes | None, *, timeline: int) -> int | None:
        values = () if value is None else (value,)
        found: int | None = await self._run(SWAP_CELL, timeline >> _BITS, cell, revision, *values)
        return found

    # Inside

    async def _run(self, script: bytes, *values: object) -> Any:
        with telling("the cells"):
            command = "EVAL", script, len(self._keys), *self._keys, *values
            return await self._engine.run_durably(command, await self._connect())

    async def _connect(self) -> Line:
        if self._line is None or self._line.is_lost:
            if self._line is not None:  # The server may have closed its end alone.
                self._line.terminate()
            self._line = await self._engine.connect()
        return self._line
