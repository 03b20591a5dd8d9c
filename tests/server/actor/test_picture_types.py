"""The types of pictures, for the clients of an app, and the warning about pictures that clients cannot decode."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field
from tests.cases import each_case

from plait.actor.client_types import make_types_files
from plait.actor.thread import Thread
from plait.state.principal import Principal


class Card(msgspec.Struct, frozen=True, rename="camel"):
    front_side: str = ""
    back_side: str = ""


class Player(msgspec.Struct, frozen=True):
    name: str = ""
    money: int = 0
    friends: tuple["Player", ...] = ()


class Game(msgspec.Struct, frozen=True):
    turn: str = ""
    deck: tuple[Card, ...] = ()
    players: dict[str, Player] = {}
    hands: dict[str, tuple[Card, ...]] = {}
    rows: tuple[Card, ...] = ()
    best: Optional[Player] = None  # noqa: UP045 - as authors write it, too


class Patterns(Thread[Game]):
    kind = "game"
    initial_state = Game()
    can_read = ("/turn", "/players/*/name", "/hands/{user}", "/rows/*/frontSide", "/best/name")


class Method(Thread[Game]):
    kind = "game"
    initial_state = Game()

    def can_read(self, state: Game, viewer: Principal | None) -> tuple[str, ...]:  # type: ignore[override]
        return ("/turn",)


class Whole(Thread[Game]):
    kind = "game"
    initial_state = Game()
    can_read = ("/**",)


def write_types(cls: type[Thread[Any]]) -> str:
    return make_types_files([cls._kind])["plait-types.ts"]


def find_interface(text: str, name: str) -> dict[str, str]:
    """Return the members of an interface, with their types."""
    body = text.split(f"export interface {name} {{\n")[1].split("}", maxsplit=1)[0]
    return dict(line.strip().rstrip(";").split(": ", 1) for line in body.splitlines())


def test_members_that_not_all_clients_see_are_optional() -> None:
    text = write_types(Patterns)
    assert "export type GameState = GameGamePicture;" in text
    state = find_interface(text, "GameGamePicture")
    assert state.keys() == {"turn", "deck?", "players", "hands", "rows", "best"}
    assert (state["turn"], state["deck?"], state["hands"]) == ("string", "Card[]", "Record<string, Card[]>")
    player = state["players"].removeprefix("Record<string, ").removesuffix(">")
    assert find_interface(text, player).keys() == {"name", "money?", "friends?"}
    assert find_interface(text, state["rows"].removesuffix("[]")).keys() == {"frontSide", "backSide?"}
    assert state["best"].endswith(" | null")


def test_with_a_method_all_members_are_optional() -> None:
    text = write_types(Method)
    state = find_interface(text, "GameGamePicture")
    assert all(name.endswith("?") for name in state)
    assert all(name.endswith("?") for name in find_interface(text, "GameCardPicture"))


def test_a_class_that_shows_everything_has_the_type_of_its_state() -> None:
    assert "Picture" not in write_types(Whole)


@dataclass
class OfDataclass:
    turn: str
    deck: list[str] = field(default_factory=list)


class OfTypedDict(TypedDict):
    turn: str
    deck: list[str]


class OfModel(BaseModel):
    turn: str
    deck: list[str] = Field(default=[], serialization_alias="deck")


@each_case("state", [OfDataclass("a"), {"turn": "a", "deck": []}, OfModel(turn="a")])
def test_each_kind_of_type_has_a_type_of_its_pictures(state: Any) -> None:
    of: Any = OfTypedDict if isinstance(state, dict) else type(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)

        class Room(Thread[of]):
            initial_state = state
            can_read = ("/turn",)

    members = find_interface(write_types(Room), f"Room{of.__name__}Picture")
    assert members == {"turn": "string", "deck?": "string[]"}


class Strict(msgspec.Struct, frozen=True):
    turn: str
    rows: tuple[Card, ...]
    notes: dict[str, OfDataclass]


@each_case(
    ("patterns", "path"),
    [
        (("/turn",), "/rows"),
        (("/rows", "/notes"), "/turn"),
        (("/turn", "/rows/*/frontSide", "/notes/*/deck"), r"/notes/\*/turn"),
        (("/turn", "/rows/*/frontSide", "/notes/{user}/deck"), r"/notes/\*/turn"),
        (("/turn", "/rows/*/frontSide", "/notes/{user}"), None),
        (("/**",), None),
        (lambda self, state, viewer: (), None),
    ],
)
def test_a_class_is_warned_of_hidden_members_without_a_default(patterns: Any, path: str | None) -> None:
    def define() -> type[Thread[Any]]:
        class Room(Thread[Strict]):
            can_read = patterns

        return Room

    check_warning(define, None if path is None else rf"Room\.can_read hides {path} from some clients")


def check_warning(define: Callable[[], object], match: str | None) -> None:
    if match is not None:
        with pytest.warns(UserWarning, match=match):
            define()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define()
