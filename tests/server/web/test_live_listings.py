"""Live listings, without HTTP: what they read, and when."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait import MemoryStore, Plait, Thread
from plait.store.protocol import ALL_THREADS, ThreadQuery, ThreadRow
from plait.testing import Served, serve
from plait.web import live_listings
from plait.web.listing import PageQuery
from plait.web.live_listings import LiveListings


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


class Room(Thread[dict[str, Any]]):
    """A listed thread."""

    listed = True
    initial_state: Any = {}  # noqa: RUF012


async def fill(t: Served, count: int) -> None:
    """Begin threads, at different times: "0" has changed first."""
    for number in range(count):
        await t.app.thread(Room, str(number)).set_state({"number": number})
        await t.clock.advance(0.001)


async def read(events: AsyncIterator[bytes]) -> dict[str, int]:
    """Return the people in the threads of the next event."""
    page = json.loads((await anext(events)).removeprefix(b"data: "))
    return {row["name"]: row["people"] for row in page["threads"]}


async def test_the_first_event_of_a_reader_has_the_people_of_threads_that_no_other_reader_needed() -> None:
    async with serve(Plait(Room, store=MemoryStore())) as t:
        await fill(t, 10)
        live = LiveListings(t.app._node, t.app._context.identity)
        few = await live.open("room", None, PageQuery(2, None), ended=lambda: None)
        assert await read(few.events()) == {"9": 0, "8": 0}
        async with t.connect(Room, "1"):
            await t.clock.advance(10)
            many = await live.open("room", None, PageQuery(200, None), ended=lambda: None)
            assert (await read(many.events()))["1"] == 1
        live.close()


async def test_a_live_listing_reads_no_more_threads_than_those_among_which_its_rows_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, rows = MemoryStore(), 0
    stored = store.threads

    async def threads(query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        nonlocal rows
        found = await stored(query)
        rows += len(found)
        return found

    monkeypatch.setattr(live_listings, "_MOST", 20)
    app = Plait(Room, store=store, authorize=lambda principal, thread, action: action != "list")
    async with serve(app) as t:
        await fill(t, 40)
        live = LiveListings(app._node, app._context.identity)
        monkeypatch.setattr(store, "threads", threads)
        reader = await live.open("room", None, PageQuery(5, None), ended=lambda: None)
        assert await read(reader.events()) == {}
        assert rows == 20
        live.close()
