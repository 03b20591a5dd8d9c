"""The directory of a cluster in cells under compare-and-set, for any engine.

Each node has a cell, by its name, so that only one of two nodes with the same name joins. All shards share one cell.
Their versions are in other cells, so that a rollout does not write all shards once for each shard.

No change depends on two cells, as death is final: the shard of a dead owner may be taken, and a shard that a node gets
while it is being marked as dead is taken again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from msgspec import json
from msgspec.structs import replace

from plait.cluster.cell_content import CellContent, StoredNode, find_node_cell
from plait.cluster.directory import DirectoryView, NodeRecord
from plait.errors import StoreError
from plait.store.cells import NO_CELL, Cell, Cells
from plait.store.engines import ENGINES
from plait.store.outcomes import Replaced
from plait.store.protocol import Store

__all__ = ["CellDirectory", "find_directory"]

T = TypeVar("T")

# Seconds after which a call without an answer fails, as a node's beats must not wait for it.
_TIMEOUT: Final = 2.0
# Maximum seconds before a change is repeated after a conflict with another one.
_PAUSE: Final = 0.01


class CellDirectory:
    """Keeps the directory in cells at a store's URL, with one connection for beats and one for everything else."""

    def __init__(self, make: Callable[[Any], Cells], url: object, *, timeout: float = _TIMEOUT) -> None:
        self._url = url
        self._timeout = timeout
        self._cells, self._beating = make(url), make(url)
        self._stack = AsyncExitStack()
        # Each connection serves one call at a time.
        self._turn, self._beat_turn = asyncio.Lock(), asyncio.Lock()
        # The last content, with the cells swapped since; None if it may be wrong, so that all cells must be read.
        self._content: CellContent | None = None
        # The last beat of each node that beats here (normally one), with its timeline.
        self._last: dict[str, tuple[StoredNode, int]] = {}

    async def __aenter__(self) -> Self:
        with self._naming():
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._cells)
                await stack.enter_async_context(self._beating)
                self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def read(self) -> DirectoryView:
        async with self._alone(self._turn):
            return (await self._find()).view

    async def join(self, node: NodeRecord) -> NodeRecord | None:
        async with self._alone(self._turn):
            self._content = None  # A node that joins again may have been lost together with everything else.
            await self._cells.confirm()
            found = await self._find()
            for cell in found.find_obsolete():
                await self._swap(found, cell, None)
            while (other := (found := await self._find()).find_name(node.name)) is None:
                if await self._swap(found, find_node_cell(node.name), json.encode(node)):
                    return None
            return None if other.id == node.id else other

    async def beat(self, id: str, *, is_leaving: bool = False, links: Sequence[str] = ()) -> bool:
        async with self._alone(self._beat_turn):
            await self._beating.confirm()
            while True:
                # Unknown after a conflict or a lost answer.
                if (last := self._last.pop(id, None)) is None:
                    reading = await self._beating.read()
                    if (stored := CellContent(reading).find(id)) is None:
                        return False
                    last = stored, reading.timeline
                (cell, revision, before), timeline = last
                record = replace(before, beats=before.beats + 1, is_leaving=is_leaving, links=links)
                new = await self._beating.swap(cell, revision, json.encode(record), timeline=timeline)
                if new is not None:
                    self._last[id] = StoredNode(cell, new, record), timeline
                    return True

    async def mark_dead(self, id: str, beats: int) -> bool:
        def mark(found: CellContent) -> tuple[dict[str, bytes], bool]:
            if (node := found.find(id)) is None or node.record.beats != beats:
                return {}, False
            return {node.cell: json.encode(replace(node.record, is_dead=True))}, True

        return await self._change(mark)

    async def remove(self, id: str) -> None:
        await self._change(lambda found: ({each.cell: None for each in found.nodes if each.record.id == id}, None))

    async def take(self, id: str, shards: Mapping[int, int]) -> dict[int, int]:
        return await self._change(lambda found: found.move(id, shards, id, takes=True))

    async def give(self, id: str, shards: Mapping[int, int], to: str) -> dict[int, int]:
        return await self._change(lambda found: found.move(to, shards, id, takes=False))

    async def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> list[int]:
        async with self._alone(self._turn):
            while True:
                # Check again after the swaps: a record binds the next owner only if this node is still the owner then.
                found = await self._find()
                cells, own = found.record(id, versions)
                if not cells:
                    return own
                for cell, value in cells.items():
                    await self._swap(found, cell, value)

    # Inside

    async def _change(self, make: Callable[[CellContent], tuple[Mapping[str, bytes | None], T]]) -> T:
        """Swap the cells that `make` returns for the content, again after each conflict; return its result."""
        async with self._alone(self._turn):
            while True:
                found = await self._find()
                cells, result = make(found)
                if all([await self._swap(found, cell, value) for cell, value in cells.items()]):
                    return result
                await asyncio.sleep(random.uniform(0, _PAUSE))

    async def _find(self) -> CellContent:
        former, self._content = self._content, None  # After a failure, all cells are read.
        reading = await self._cells.read(None if former is None else former.reading)
        self._content = CellContent(reading, former)
        return self._content

    async def _swap(self, found: CellContent, cell: str, value: bytes | None) -> bool:
        revision = found.reading.cells.get(cell, NO_CELL).revision
        new = await self._cells.swap(cell, revision, value, timeline=found.reading.timeline)
        if new is None:
            self._content = None  # NATS forgets a removed cell after a while, and the next reading would not show this.
        elif self._content is not None and value is not None:  # The new cell need not be read again.
            reading = self._content.reading
            cells = {**reading.cells, cell: Cell(new, value)}
            self._content = CellContent(reading._replace(cells=cells), self._content)
        return new is not None

    @asynccontextmanager
    async def _alone(self, turn: asyncio.Lock) -> AsyncIterator[None]:
        """Limit the time of a call. Raises StoreError; its outcome is not known then."""
        with self._naming():
            try:
                async with asyncio.timeout(self._timeout), turn:
                    yield
            except TimeoutError:
                raise StoreError("no answer in time") from None

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the directory in errors."""
        try:
            yield
        except StoreError as error:
            kind = Replaced if isinstance(error, Replaced) else StoreError
            raise kind(f"the directory of the nodes in {self._url} cannot be reached: {error}") from error


def find_directory(store: Store) -> CellDirectory | None:
    """Return the directory that the engine of a shared store keeps; None without one."""
    url = getattr(store, "url", None)
    shared = getattr(store, "engine", None)
    engine = next((each for each in ENGINES if each.is_shared and isinstance(url, each.url)), None)
    return None if engine is None else CellDirectory(partial(engine.load(engine.cells), engine=shared), url)
