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
        first = await desk.part(Desk.messages).inject("user", "hello")
        second = await desk.part(Desk.messages).queue("how are you?")
        assert (await desk.part(Desk.messages).update(first.id, content="hi")).content == "hi"
        id = await desk.part(Desk.schedule).at(later, "ring")
        await desk.part(Desk.schedule).every(3600, "ring")
    async with Plait(Desk, store=store) as app:
        desk = app.thread(Desk, "one")
        page = await desk.part(Desk.messages).list()
        assert [message.content for message in page.messages] == ["hi", "how are you?"]
        found = await desk.part(Desk.messages).get(first.id)
        assert found is not None
        assert found.content == "hi"
        assert [message.id for message in await desk.part(Desk.messages).pending()] == [second.id]
        assert id in [each.id for each in await desk.part(Desk.schedule).list("ring")]
        assert await desk.part(Desk.schedule).cancel(id)
        assert len(await desk.part(Desk.schedule).list()) == 1


async def test_reading_parts_from_outside_begins_no_thread(store: Store) -> None:
    async with Plait(Desk, store=store) as app:
        desk = app.thread(Desk, "one")
        assert (await desk.part(Desk.messages).list()).messages == []
        assert await desk.part(Desk.messages).get("none") is None
        assert await desk.part(Desk.messages).pending() == []
        assert await desk.part(Desk.schedule).list() == []
        assert await desk.part(Desk.values).items() == []
        assert [row async for row in app.threads()] == []


async def test_a_write_to_a_part_begins_when_it_is_called(store: Store) -> None:
    async with Plait(Desk, store=store) as app:
        values = app.thread(Desk, "one").part(Desk.values)
        first = values.set("n", 1)
        await values.set("m", 1)
        assert await values.get("n") == 1
        await first


async def test_a_part_is_given_as_its_class_declares_it(store: Store) -> None:
    class Bare(Thread[None]):
        pass

    async with Plait(Desk, Bare, store=store) as app:
        with pytest.raises(TypeError, match="not as 'values'"):
            app.thread(Desk, "one").part("values")  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="Bare has no part 'values'"):
            app.thread(Bare, "one").part(Desk.values)


async def test_a_part_shares_no_object_with_other_code(store: Store) -> None:
    async with Plait(Desk, store=store) as app:
        values, messages = app.thread(Desk, "one").part(Desk.values), app.thread(Desk, "one").part(Desk.messages)
        given, metadata = [1], {"tags": ["a"]}
        await values.set("list", given)
        await messages.inject("user", "hi", metadata=metadata)
        given.append(2)
        metadata["tags"].append("b")
        for _ in range(2):
            found, (message,) = await values.get("list"), (await messages.list()).messages
            assert (found, message.metadata) == ([1], {"tags": ["a"]})
            found.append(2)
            message.metadata["tags"].append("b")
