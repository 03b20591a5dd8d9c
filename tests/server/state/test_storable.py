"""Whether the states of a Thread class can be stored."""

import re
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, Optional, TypedDict, TypeVar

import msgspec
import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.cases import each_case

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.state.model_type import ModelType

State = TypeVar("State")


class Game(msgspec.Struct, frozen=True):
    score: int
    title: str = "untitled"


class Node(msgspec.Struct):
    children: list["Node"] = []
    parent: Optional["Node"] = None


class Holder(msgspec.Struct):
    games: dict[str, list[deque[int] | None]] = {}


@dataclass
class Point:
    x: int
    y: complex = 0


class Pair(NamedTuple):
    left: int
    right: msgspec.msgpack.Ext


class Shelf(TypedDict):
    book: Annotated[type, msgspec.Meta(description="a class")]


class Refusing(msgspec.Struct):
    score: int = 0

    def __post_init__(self) -> None:
        if self.score > 3:
            raise RuntimeError("too many")


def make(state: Any, **attributes: Any) -> type[Thread[Any]]:
    """Define a class with this type of state."""
    return types.new_class("Room", (Thread[state],), exec_body=lambda body: body.update(attributes))


# The type


@each_case(
    ("state", "says"),
    [
        (complex, "states of type complex cannot be stored as JSON; use a msgspec.Struct"),
        (deque, "states of type deque cannot be stored"),
        (Holder, "states of type Holder, which has deque at /games/*/*, cannot be stored"),
        (Point, "states of type Point, which has complex at /y, cannot be stored"),
        (Pair, "states of type Pair, which has Ext at /right, cannot be stored"),
        (Shelf, "states of type Shelf, which has type at /book, cannot be stored"),
        (tuple[int, complex], "which has complex at /1, cannot"),
        (dict[tuple[int, ...], int], "which has keys that are neither strings nor numbers at the top level, cannot"),
        (int | complex, "cannot be stored: Type unions containing a custom type"),
        ("Later", "'Later'"),
    ],
)
def test_a_state_type_that_json_cannot_hold_is_refused_with_the_place(state: Any, says: str) -> None:
    with pytest.raises(TypeError, match=rf"^Room: states of type .*{re.escape(says.removeprefix('states of type '))}"):
        make(state)


@each_case(
    "state", [Game, Node, Refusing, dict, list, dict[str, Any], set[int], Any, object, dict[str, object], Game | None]
)
def test_a_state_type_that_json_can_hold_is_taken(state: Any) -> None:
    make(state)


# The initial state


@each_case(
    ("state", "initial", "says"),
    [
        (Game, {}, "Room.initial_state does not fit Game: Object missing required field `score`"),
        (Game, {"scroe": 1}, "Room.initial_state does not fit Game: "),
        (Game, {"score": "1"}, "Room.initial_state does not fit Game: Expected `int`, got `str`, at /score"),
        (Game, None, "Room.initial_state does not fit Game: Expected `object`, got `null`"),
        (list[int], {}, "Room.initial_state does not fit list[int]: Expected `array`, got `object`"),
        (Any, {1j}, "Room.initial_state does not fit Any: the state is not JSON: "),
        (dict, {"n": float("nan")}, "Room.initial_state does not fit dict: the state is not JSON: it has a number"),
        (Refusing, {"score": 4}, "Room.initial_state does not fit Refusing: RuntimeError: too many"),
    ],
)
def test_an_initial_state_of_another_type_is_refused_when_the_class_is_defined(
    state: Any, initial: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(says)}"):
        make(state, initial_state=initial)


def test_an_initial_state_that_is_inherited_is_checked_against_the_type_of_each_class() -> None:
    class Base(Thread[State], Generic[State]):
        initial_state: Any = {"score": 1}  # noqa: RUF012

    class Filled(Base[Game]):
        pass

    with pytest.raises(TypeError, match=r"^Numbers\.initial_state does not fit list\[int\]"):

        class Numbers(Base[list[int]]):
            pass

    assert Filled._kind.initial_state() == {"score": 1}


def test_an_initial_state_may_be_missing_or_declared_in_an_abstract_class() -> None:
    class Abstract(Thread[State], Generic[State]):
        initial_state: State | Callable[[], State]

    class Empty(Abstract[Game]):
        pass

    class Full(Abstract[Game]):
        initial_state = Game(2)

    assert not Empty._kind.has_initial_state
    assert Full._kind.initial_state() == Game(2)


def test_a_function_that_cannot_make_an_initial_state_is_refused_when_the_class_is_defined() -> None:
    async def later() -> Game:
        return Game(1)

    for initial, says in (
        (property(lambda self: Game(1)), "must not be a property: make it a value, or a @staticmethod"),
        (later, "must not be `async def`: make it a value, or a @staticmethod"),
        (lambda self: Game(1), "must not take arguments: make it a value, or a @staticmethod"),
    ):
        with pytest.raises(TypeError, match=rf"^Room\.initial_state {re.escape(says)}"):
            make(Game, initial_state=initial)


# Pydantic models, dataclasses of Pydantic's, and attrs


class Model(BaseModel):
    n: int = Field(default=0, ge=0)


@pydantic_dataclass
class Checked:
    n: int = Field(default=0, ge=0)


class WithModel(msgspec.Struct, frozen=True):
    model: Model = Model()


@each_case("type_", [Model, WithModel, dict[str, Model], list[Model | None]])
def test_a_state_with_a_model_anywhere_is_a_document_that_is_validated(type_: Any) -> None:
    state_type = make(type_)._kind.state_type
    assert isinstance(state_type, ModelType)
    assert (state_type.is_document, state_type.is_plain, state_type.is_immutable) == (True, False, False)


@each_case("type_", [Checked, dict[str, Checked]])
def test_a_dataclass_of_pydantic_is_no_state_and_no_argument(type_: Any) -> None:
    sentence = "Checked is a dataclass of Pydantic's, whose validators would not run: make it a subclass of pydantic"
    with pytest.raises(TypeError, match=sentence):
        make(type_)

    for annotations in ({"checked": type_}, {"return": type_}):

        def function(self: Any, checked: Any) -> None: ...

        function.__annotations__ = annotations
        with pytest.raises(TypeError, match=sentence):
            make(dict[str, Any], function=rpc(function))


@each_case("initial", [Model.model_construct(n=-1), {"n": -1}])
def test_an_initial_state_that_its_model_refuses_is_refused(initial: Any) -> None:
    with pytest.raises(TypeError, match=r"initial_state does not fit Model: Input should be greater than .*, at /n"):
        make(Model, initial_state=initial)
