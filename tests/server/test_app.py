"""What an app checks when it is built."""

import logging
import re
from typing import Any

import msgspec
import pytest

from plait.actor.thread import Thread
from plait.app import Plait
from plait.limits import Limits
from plait.store.memory import MemoryStore


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
