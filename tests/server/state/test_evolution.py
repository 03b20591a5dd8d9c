"""`@migrate`, as a class is made."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.cases import each_case

from plait.actor.thread import Thread
from plait.state.migrations import find_migrations, migrate


def make(*, state_version: Any = 3, **members: Any) -> type[Thread[Any]]:
    return type("Room", (Thread,), {"state_version": state_version, **members})


def test_migrations_are_known_by_the_version_that_they_begin_with() -> None:
    class Room(Thread[Any]):
        state_version = 3

        @migrate(from_=2)
        def add_title(state: Any) -> Any:
            return {**state, "title": ""}

        @staticmethod
        @migrate(from_=1)
        def rename(state: Any) -> Any:
            return {"score": state["points"]}

    found = find_migrations(Room, 3)
    assert sorted(found) == [1, 2]
    assert found[2](found[1]({"points": 3})) == {"score": 3, "title": ""}
    assert Room._kind.state_version == 3
    assert Room._kind.migrations == found


def test_a_class_has_version_1_and_no_migrations_until_it_says_otherwise() -> None:
    class Room(Thread[Any]):
        pass

    assert (Room._kind.state_version, Room._kind.migrations) == (1, {})


def test_migrations_are_inherited_and_may_be_replaced() -> None:
    class Room(Thread[Any]):
        state_version = 2

        @staticmethod
        @migrate(from_=1)
        def step(state: Any) -> Any:
            return "room"

    class LargeRoom(Room):
        state_version = 3

        @staticmethod
        @migrate(from_=2)
        def next_step(state: Any) -> Any:
            return "large"

    class OtherRoom(Room):
        @staticmethod
        @migrate(from_=1)
        def step(state: Any) -> Any:
            return "other"

    assert {version: function(None) for version, function in LargeRoom._kind.migrations.items()} == {
        1: "room",
        2: "large",
    }
    assert OtherRoom._kind.migrations[1](None) == "other"


@each_case("from_", [0, -1, 3, 4, "1", 1.5, None])
def test_a_migration_that_does_not_lead_to_the_version_of_the_class_is_an_error(from_: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Room\.step: @migrate\(from_=.*\): from_ must be a whole number, at least 1 and below"
    ):
        make(step=migrate(from_=from_)(lambda state: state))


def test_two_migrations_from_one_version_are_an_error() -> None:
    def step() -> Callable[..., Any]:
        return migrate(from_=1)(lambda state: state)

    with pytest.raises(TypeError, match="two migrations from 1"):
        make(first=step(), second=step())


def test_the_same_migration_under_two_names_is_an_error() -> None:
    step = migrate(from_=1)(lambda state: state)
    with pytest.raises(TypeError, match="two migrations"):
        make(first=step, second=step)


@each_case("state_version", [0, -1, "2", 1.5, None, True])
def test_a_version_that_is_no_positive_number_is_an_error(state_version: Any) -> None:
    with pytest.raises(TypeError, match="state_version"):
        make(state_version=state_version)


def test_a_migration_that_is_a_coroutine_function_is_an_error() -> None:
    async def step(state: Any) -> Any:
        return state

    with pytest.raises(TypeError, match="step"):
        make(step=migrate(from_=1)(step))
