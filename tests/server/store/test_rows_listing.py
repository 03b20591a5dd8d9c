"""Listings of many threads over rows."""

from typing import TypeVar

import msgspec
from tests.cases import each_case
from tests.server.owning import owned
from tests.server.store.contract import beginning, put

from plait.store.memory import MemoryRows
from plait.store.protocol import Order, ThreadQuery
from plait.store.rows.engine import INDEX, ReadPlan, Reads
from plait.store.rows.store import RowStore
from plait.store.thread_rows import ThreadKey

T = TypeVar("T")


class CountedRows(MemoryRows):
    """Rows that count the spans of each read: those of the index, and those of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[tuple[int, int]] = []

    async def read(self, plan: ReadPlan[T], /) -> T:
        self.counts.append((0, 0))
        return await super().read(ReadPlan(lambda: self._count(plan.begin())))

    def _count(self, reads: Reads[T]) -> Reads[T]:
        try:
            spans = next(reads)
            while True:
                of_index = sum(span.space == INDEX for span in spans)
                index, others = self.counts[-1]
                self.counts[-1] = index + of_index, others + len(spans) - of_index
                spans = reads.send((yield spans))
        except StopIteration as end:
            found: T = end.value
            return found


@each_case("order", ["created", "changed"])
@each_case(("user", "prefix", "most"), [("ada", "", 8), (None, "1", 510), ("ada", "1", 510)])
async def test_of_many_threads_only_the_page_is_read_and_others_are_sorted_some_at_a_time(
    order: Order, user: str | None, prefix: str, most: int
) -> None:
    engine = CountedRows()
    keys = [ThreadKey("room", f"{n:04}") for n in range(2000)]
    async with owned(RowStore(engine), *keys) as store:
        writes = [beginning(key=key) for key in keys]
        times = [(n * 7) % 2000 + 1 for n in range(2000)]
        for write, at in zip(writes, times, strict=True):
            await put(store, msgspec.structs.replace(write, user="ada", created_at=at, changed_at=at))
        found = sorted(zip(times, keys, strict=True), reverse=True)
        expected = [key for _, key in found if key.name.startswith(prefix)]
        query = ThreadQuery(user=user, prefix=prefix, order=order, limit=5)
        first = await store.threads(query)
        engine.counts.clear()
        second = await store.threads(msgspec.structs.replace(query, after=first[-1]))
        assert [row.key for row in first + second] == expected[:10]
        assert max(index for index, _ in engine.counts) <= most
        assert sum(others for _, others in engine.counts) <= 10
