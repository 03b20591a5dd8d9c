"""The cells of a cluster's directory in Redis, in two hashes beside the threads of the store."""

from types import TracebackType
from typing import Any, Final, Self

from plait.store.cells import Cell, Reading
from plait.store.redis.engine import Engine
from plait.store.redis.layout import Keys
from plait.store.redis.reads import telling
from plait.store.redis.scripts import READ_CELLS, SWAP_CELL
from plait.store.redis.url import RedisUrl

__all__ = ["RedisCells"]

# A timeline is its number so many bits higher, as the epochs of shards begin above it.
_BITS: Final = 20


class RedisCells:
    """The cells over connections of their own. Revisions come from the counter of the fences, which never goes back."""

    def __init__(self, url: RedisUrl) -> None:
        self._engine = Engine(url)
        keys = Keys(url.prefix)
        self._keys = *self._engine.timeline_keys, keys("revisions"), keys("cells")

    async def __aenter__(self) -> Self:
        self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.close()

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

    async def _run(self, script: bytes, *values: object) -> Any:
        with telling("the cells"):
            return await self._engine.run_durably(("EVAL", script, len(self._keys), *self._keys, *values))
