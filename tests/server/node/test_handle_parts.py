"""The parts of a thread as other server code reads and writes them, through a handle."""

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.schedules import in_soak

from plait import MemoryStore, Messages, Plait, Schedule, Sql, SqlError, SqliteStore, Store, Thread, Values, effect, rpc


class Desk(Thread[Any]):
    values = Values()
    messages = Messages()
    schedule = Schedule()

    @effect()
    def ring(self) -> None:
        pass


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
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


class Size(IntEnum):
    LARGE = 3


class Color(StrEnum):
    RED = "red"


class Shape(Enum):
    ROUND = "round"


class Table(Thread[Any]):
    sql = Sql(migrations=["create table things (value any) strict"])

    @rpc
    async def add(self, index: int) -> list[dict[str, Any]]:
        return await self.sql(ADD, SQL_ARGUMENTS[index][0])


ADD = "insert into things values (?) returning typeof(value) as type, hex(value) as value"
SQL_ARGUMENTS: list[tuple[Any, str]] = [
    *[(None, ""), (True, ""), (7, ""), (-(2**63), ""), (1.5, ""), (math.inf, ""), ("é", ""), (b"\xff", "")],
    *[(bytearray(b"a"), ""), (memoryview(b"a"), ""), (Size.LARGE, ""), (Color.RED, "")],
    (
        datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "argument 1 is a datetime that cannot be stored as it is: pass value.isoformat()",
    ),
    (date(2026, 1, 2), "argument 1 is a date that cannot be stored as it is: pass value.isoformat()"),
    (time(3, 4), "argument 1 is a time that cannot be stored as it is: pass value.isoformat()"),
    (timedelta(1), "argument 1 is a timedelta that cannot be stored as it is: pass value.total_seconds()"),
    (UUID(int=1), "argument 1 is a UUID that cannot be stored as it is: pass str(value)"),
    (Decimal("1.5"), "argument 1 is a Decimal that cannot be stored as it is: pass str(value)"),
    (Shape.ROUND, "argument 1 is a Shape that cannot be stored as it is: pass value.value"),
    ({"a": 1}, "argument 1 is a dict that cannot be stored as it is: pass json.dumps(value)"),
    ([1], "argument 1 is a list that cannot be stored as it is: pass json.dumps(value)"),
    (math.nan, "argument 1 is a float that cannot be stored as it is: pass None"),
    (2**63, "argument 1 is a int that cannot be stored as it is: pass str(value)"),
    (2**64, "argument 1 is a int that cannot be stored as it is: pass str(value)"),
    ("\ud83d", "argument 1 is a str that cannot be stored as it is: pass a text without halves of surrogate pairs"),
]


async def test_arguments_of_sql_mean_the_same_in_the_thread_and_from_outside(store: Store) -> None:
    async with Plait(Table, store=store) as app:
        handle, inside, outside = app.thread(Table, "one"), list[Any](), list[Any]()
        for index, (value, _) in enumerate(SQL_ARGUMENTS):
            calls = [(inside, lambda at=index: handle.call(Table.add, at))]
            calls.append((outside, lambda value=value: handle.part(Table.sql)(ADD, value)))
            for found, call in calls:
                try:
                    found.append(await call())
                except SqlError as error:
                    found.append(str(error.detail).partition(f": {ADD}")[0])
        assert inside == outside
        assert [each if isinstance(each, str) else "" for each in inside] == [why for _, why in SQL_ARGUMENTS]
