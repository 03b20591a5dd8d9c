"""What the cells of every shared engine do."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from plait.store.cells import NO_CELL, Cells

__all__ = ["CellsContract"]


class CellsContract:
    """Tests of a fixture `make_cells`, which returns the same empty cells for one process after the other."""

    @pytest.fixture
    async def cells(self, make_cells: Callable[[], Cells]) -> AsyncIterator[Cells]:
        async with make_cells() as cells:
            await make_first(cells)
            yield cells

    @pytest.fixture
    async def other(self, make_cells: Callable[[], Cells], cells: Cells) -> AsyncIterator[Cells]:
        async with make_cells() as other:
            await other.read()
            yield other

    async def test_a_cell_that_is_swapped_is_read_by_others_with_its_revision(self, cells: Cells, other: Cells) -> None:
        timeline = (await cells.read()).timeline
        first = await cells.swap("node/a.2", 0, b"\x00one", timeline=timeline)
        assert first
        assert (await other.read()).cells["node/a.2"] == (first, b"\x00one")
        second = await cells.swap("node/a.2", first, b"two", timeline=timeline)
        assert second not in (None, 0, first)
        found = await other.read()
        assert found.cells == {"first": found.cells["first"], "node/a.2": (second, b"two")}
        assert found.timeline == timeline > 0

    async def test_of_swaps_at_one_revision_one_is_made(self, cells: Cells, other: Cells) -> None:
        timeline = (await cells.read()).timeline
        for revision in (0, (await cells.read()).cells["first"].revision):
            name = "first" if revision else "new"
            made = await asyncio.gather(
                *(each.swap(name, revision, value, timeline=timeline) for each, value in ((cells, b"1"), (other, b"2")))
            )
            (new,) = [each for each in made if each is not None]
            assert (await cells.read()).cells[name] == (new, b"1" if made[0] else b"2")

    async def test_a_swap_at_a_revision_of_a_cell_that_is_not_there_does_nothing(self, cells: Cells) -> None:
        timeline = (await cells.read()).timeline
        assert await cells.swap("other", 1, b"1", timeline=timeline) is None
        assert (await cells.read()).cells.keys() == {"first"}

    async def test_a_swap_on_another_timeline_does_nothing(self, cells: Cells) -> None:
        found = await cells.read()
        for name, cell in (("first", found.cells["first"]), ("new", NO_CELL)):
            assert await cells.swap(name, cell.revision, b"2", timeline=found.timeline - 1) is None
        assert (await cells.read()).cells == found.cells

    async def test_a_reading_after_a_former_one_fetches_only_what_has_changed(self, cells: Cells, other: Cells) -> None:
        timeline = (await cells.read()).timeline
        for name in ("versions/1", "node/a"):
            assert await cells.swap(name, 0, name.encode(), timeline=timeline)
        former = await cells.read()
        revision = await other.swap("node/a", former.cells["node/a"].revision, b"a2", timeline=timeline)
        assert await other.swap("node/b", 0, b"b", timeline=timeline)
        found = await cells.read(former)
        assert found.cells == (await other.read()).cells
        assert found.cells["node/a"] == (revision, b"a2")
        for name in ("first", "versions/1"):
            assert found.cells[name].value is former.cells[name].value
        assert (await cells.read(found)).cells == found.cells

    async def test_readings_tell_of_a_removed_cell_and_it_can_be_made_again(self, cells: Cells, other: Cells) -> None:
        former = await other.read()
        first = former.cells["first"].revision
        assert await cells.swap("first", first + 1, None, timeline=former.timeline) is None
        assert await cells.swap("first", first, None, timeline=former.timeline)
        assert await cells.swap("second", 0, b"2", timeline=former.timeline)
        found = await other.read(former)
        assert {name: cell.value for name, cell in found.cells.items() if cell.value} == {"second": b"2"}
        removed = found.cells.get("first", NO_CELL)
        again = await cells.swap("first", removed.revision, b"again", timeline=former.timeline)
        assert again not in (None, first)
        for each in (former, found):
            assert (await other.read(each)).cells["first"] == (again, b"again")

    async def test_a_call_that_is_cancelled_leaves_cells_that_can_be_used(self, cells: Cells) -> None:
        for _ in range(10):
            reading = asyncio.ensure_future(cells.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert (await cells.read()).cells.keys() == {"first"}


async def make_first(cells: Cells) -> None:
    """Make the first cell, and what the engine needs for it."""
    while (found := await cells.read()).cells.keys() != {"first"}:
        await cells.swap("first", 0, b"1", timeline=found.timeline)
