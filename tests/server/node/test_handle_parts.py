"""The parts of a thread as other server code reads and writes them, through a handle."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plait import MemoryStore, Messages, Plait, Schedule, SqliteStore, Store, Thread, Values, effect


class Desk(Thread[Any]):
    values = Values()
    messages = Messages()
    schedule = Schedule()

    @effect()
    def ring(self) -> None:
        pass


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a closed store."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "desks.db")


async def test_messages_and_schedules_are_written_and_read_from_outside(store: Store) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    async with Plait(Desk, store=store) as app:
        desk = app.thread(Desk, "one")
        first = await desk.messages.inject("user", "hello")
        second = await desk.messages.queue("how are you?")
        assert (await desk.messages.update(first.id, content="hi")).content == "hi"
        id = await desk.schedule.at(later, "ring")
        await desk.schedule.every(3600, "ring")
    async with Plait(Desk, store=store) as app:
        desk = app.thread(Desk, "one")
        page = await desk.messages.list()
        assert [message.content for message in page.messages] == ["hi", "how are you?"]
        assert (await desk.messages.get(first.id)).content == "hi"
        assert [message.id for message in await desk.messages.pending()] == [second.id]
        assert id in [each.id for each in await desk.schedule.list("ring")]
        assert await desk.schedule.cancel(id)
        assert len(await desk.schedule.list()) == 1


async def test_reading_parts_from_outside_begins_no_thread(store: Store) -> None:
    async with Plait(Desk, store=store) as app:
        desk = app.thread(Desk, "one")
        assert (await desk.messages.list()).messages == []
        assert await desk.messages.get("none") is None
        assert await desk.messages.pending() == []
        assert await desk.schedule.list() == []
        assert await desk.values.items() == []
        assert [row async for row in app.threads()] == []
