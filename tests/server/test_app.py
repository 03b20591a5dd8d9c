"""What an app checks when it is built."""

import logging
import re
from typing import Any

import msgspec
import pytest

from plait.actor.thread import Thread
from plait.app import Plait
from plait.errors import NotFound, Unavailable
from plait.limits import Limits
from plait.store.memory import MemoryStore
from plait.store.protocol import ThreadRow
from plait.store.thread_rows import ThreadKey


class Game(msgspec.Struct, frozen=True):
    score: int = 0


class Room(Thread[Game]):
    initial_state = Game()


def test_an_app_has_at_least_one_class() -> None:
    with pytest.raises(TypeError, match=re.escape("needs at least one Thread class, such as Plait(GameRoom)")):
        Plait(store=MemoryStore())


def test_an_app_takes_classes_only() -> None:
    for what in (Room._kind, "game:Room", [Room], Thread, int):
        with pytest.raises(TypeError, match=r"^Plait takes subclasses of Thread, not "):
            Plait(what, store=MemoryStore())  # type: ignore[arg-type]


def test_an_initial_state_that_a_function_returns_is_checked_when_the_app_is_built() -> None:
    class Wrong(Thread[Game]):
        @staticmethod
        def initial_state() -> Any:
            return {"score": "none"}

    with pytest.raises(
        TypeError, match=r"^Wrong\.initial_state does not fit Game: Expected `int`, got `str`, at /score$"
    ):
        Plait(Room, Wrong, store=MemoryStore())


def test_an_initial_state_over_the_limits_is_refused_when_the_app_is_built() -> None:
    class Long(Thread[Any]):
        initial_state = {"text": "x" * 200}  # noqa: RUF012

    Plait(Long, store=MemoryStore())
    with pytest.raises(ValueError, match=r"^Long\.initial_state: the state has 211 bytes of JSON, the limit is 100$"):
        Plait(Long, store=MemoryStore(), limits=Limits(state=100))


def test_a_function_whose_initial_state_is_there_only_later_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    class Early(Thread[Any]):
        @staticmethod
        def initial_state() -> Any:
            raise LookupError("the database is not open")

    with caplog.at_level(logging.WARNING):
        Plait(Early, store=MemoryStore())
    (record,) = caplog.records
    assert record.getMessage() == (
        "Early.initial_state raised LookupError: the database is not open; no new thread can start while it does"
    )


# Listing and ending threads


async def names(app: Plait, **options: Any) -> list[str]:
    """Return the threads that an app lists."""
    return [str(row.key) async for row in app.threads(**options)]


async def test_an_app_lists_the_threads_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.node.listing._PAGE", 3)

    class Other(Room):
        pass

    async with Plait(Room, Other, store=MemoryStore()) as app:
        assert await names(app) == []
        wanted = [f"room/{n:02}" for n in range(10)]
        for n in range(10):
            await app.thread(Room, f"{n:02}").set_state(Game(1))
        await app.thread(Other, "x").set_state(Game(1))
        await app.thread(Other, "only read").state()
        assert await names(app) == ["other/x", *wanted]
        assert await names(app, kind=Room) == await names(app, kind="room") == wanted
        assert await names(app, kind=Other) == ["other/x"]
        assert await names(app, kind=Room, prefix="0") == wanted
        assert await names(app, prefix="x") == ["other/x"]
        assert await names(app, kind=Room, after=ThreadRow(ThreadKey("room", "03"), 1, 0, 0)) == wanted[4:]
        for limit in (0, 1, 3, 4, 9, 10, 11):
            assert await names(app, kind=Room, limit=limit) == wanted[:limit]


async def test_an_app_destroys_a_thread_by_its_class_or_the_name_of_its_kind() -> None:
    app = Plait(Room, store=MemoryStore())
    with pytest.raises(Unavailable, match="plait is not running"):
        await app.destroy(Room, "one")
    async with app:
        for kind in (Room, "room"):
            await app.thread(Room, "one").set_state(Game(1))
            await app.destroy(kind, "one")
            assert await names(app) == []
            with pytest.raises(NotFound, match="there is no thread room/one"):
                await app.destroy(kind, "one")
