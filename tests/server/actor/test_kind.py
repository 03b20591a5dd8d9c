"""What a Thread subclass says about itself."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from tests.cases import each_case

from plait.actor.kind import Kind, check_name, kebab_case
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import NotFound


def kind_of(cls: type[Thread[Any]]) -> Kind:
    return cls._kind


# Settings and hooks


@each_case("name", ["idle_timeout", "turn_timeout"])
@each_case("value", ["60", -1, (1,), True, float("nan")])
def test_a_timeout_is_a_number_of_seconds_or_none(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"Room\.{name} must be a number of seconds.*, or None"):
        type("Room", (Thread,), {name: value})
    type("Room", (Thread,), {name: None})


def test_a_hook_with_a_yield_in_it_is_refused() -> None:
    async def later(self: object, state: Any, source: Any) -> Any:
        yield

    def once(self: object) -> Any:
        yield

    for name, hook in (("on_state_changed", later), ("on_start", once), ("validate_state_change", later)):
        with pytest.raises(TypeError, match=rf"Room\.{name} must not contain yield"):
            type("Room", (Thread,), {name: hook})


# Names


@each_case(
    ("name", "kind"),
    [
        ("GameRoom", "game-room"),
        ("MyAIRoom", "my-a-i-room"),
        ("TAG_AGENT", "tag-agent"),
        ("ABC", "abc"),
        ("A", "a"),
        ("Chat_Room", "chat--room"),
        ("Chat", "chat"),
        ("chatRoom", "chat-room"),
        ("chat", "chat"),
        ("Room2", "room2"),
        ("Room2D", "room2-d"),
        ("Chat_", "chat"),
        ("ABC_", "abc-"),
    ],
)
def test_a_class_name_becomes_a_kind_as_the_published_clients_do_it(name: str, kind: str) -> None:
    assert kebab_case(name) == kind


def test_the_kind_of_a_class_comes_from_its_name() -> None:
    class GameRoom(Thread[Any]):
        pass

    assert kind_of(GameRoom).name == "game-room"


def test_a_class_may_name_its_kind_itself() -> None:
    class GameRoom(Thread[Any]):
        kind = "room_2"

    class LaterRoom(GameRoom):
        pass

    assert kind_of(GameRoom).name == "room_2"
    assert kind_of(LaterRoom).name == "later-room"


@each_case("name", ["Game Room", "game/room", "Größe", "GAME", "-x", "x" * 129, "", 3, None])
def test_a_kind_that_cannot_stand_in_a_url_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match="kind"):
        type("Room", (Thread,), {"kind": name})


@each_case("name", ["a", "x" * 256, "with space", "ключ", "🔑", "a/b", "%2F", "...", "~"])
def test_a_name_may_be_any_short_text(name: str) -> None:
    assert check_name(name) == name


@each_case("name", ["", ".", "..", "x" * 257, "a\n", "\x00", "a\x7f", "\x85", "\ud800"])
def test_a_name_that_is_empty_or_dots_or_too_long_or_has_control_characters_is_refused(name: str) -> None:
    with pytest.raises(NotFound):
        check_name(name)


# State


class Game(msgspec.Struct, frozen=True):
    score: int = 0


State = TypeVar("State")


class Base(Thread[State], Generic[State]):
    pass


def test_the_state_type_is_the_one_in_brackets() -> None:
    class Direct(Thread[Game]):
        pass

    class Inherited(Direct):
        pass

    class Filled(Base[Game]):
        pass

    class Open(Base[Any]):
        pass

    class Silent(Thread):  # type: ignore[type-arg]
        pass

    assert [kind_of(cls).state_type.type for cls in (Direct, Inherited, Filled, Open, Silent)] == [
        Game,
        Game,
        Game,
        Any,
        Any,
    ]


def test_a_state_type_that_msgspec_does_not_know_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError):

        class Odd(Thread[dict[int, int] | dict[str, str]]):
            pass


def test_an_initial_state_is_a_value_or_what_makes_one() -> None:
    class Value(Thread[Game]):
        initial_state = Game(1)

    class Function(Thread[Game]):
        @staticmethod
        def initial_state() -> Game:
            return Game(2)

    class Method(Thread[Game]):
        @classmethod
        def initial_state(cls) -> Game:  # pyright: ignore[reportIncompatibleVariableOverride]
            return Game(3)

    class Class(Thread[Game]):
        initial_state = Game

    class Lambda(Thread[dict[str, int]]):
        initial_state = lambda: {"n": 4}  # noqa: E731

    class Falsy(Thread[Any]):
        initial_state = None

    kinds = [kind_of(cls) for cls in (Value, Function, Method, Class, Lambda, Falsy)]
    assert all(kind.has_initial_state for kind in kinds)
    assert [kind.initial_state() for kind in kinds] == [Game(1), Game(2), Game(3), Game(), {"n": 4}, None]


def test_a_class_without_initial_state_has_none() -> None:
    class Empty(Thread[Game]):
        pass

    class AnnotatedOnly(Thread[Game]):
        initial_state: Game | Callable[[], Game]

    assert not kind_of(Empty).has_initial_state
    assert not kind_of(AnnotatedOnly).has_initial_state


# Hooks


def test_a_card_that_awaits_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Room\.card must not be `async def`: a change is made without awaiting"):

        class Room(Thread[Game]):
            async def card(self, state: Game) -> str:
                return "never"


def test_a_validate_state_change_that_cannot_decide_at_once_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="validate_state_change"):

        class Coroutine(Thread[Game]):
            async def validate_state_change(self, next_state: Game, source: object) -> None:  # type: ignore[override]
                pass

    with pytest.raises(TypeError, match="validate_state_change"):

        class Generator(Thread[Game]):
            async def validate_state_change(  # pyright: ignore[reportIncompatibleMethodOverride]
                self, next_state: Game, source: object
            ) -> Any:
                yield


def test_an_asynchronous_validate_state_change_is_refused_in_a_mixin_too() -> None:
    class Mixin:
        async def validate_state_change(self, next_state: Game, source: object) -> None:
            pass

    with pytest.raises(TypeError, match="validate_state_change"):
        type("Room", (Mixin, Thread), {})


def test_the_hooks_of_a_class_are_those_that_it_or_an_ancestor_has_of_its_own() -> None:
    class Mixin:
        def on_message(self, connection: object, data: object) -> None:
            pass

    class Parent(Thread[Game]):
        def on_start(self) -> None:
            pass

    class Child(Mixin, Parent):
        async def on_stop(self) -> None:
            pass

    assert kind_of(Child).overrides == {"on_start", "on_stop", "on_message"}


# Rpcs


def test_rpcs_are_found_by_the_names_that_clients_use() -> None:
    class Room(Thread[Game]):
        @rpc(name="addPlayer")
        def add_player(self, name: str) -> None:
            pass

        @rpc
        def leave(self) -> None:
            pass

        def hidden(self) -> None:
            pass

    assert set(kind_of(Room).methods) == {"addPlayer", "leave"}
    assert set(kind_of(Room).attributes) == {"add_player", "leave"}


def test_two_rpcs_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="move"):

        class Room(Thread[Game]):
            @rpc
            def move(self) -> None:
                pass

            @rpc(name="move")
            def go(self) -> None:
                pass


def test_a_method_that_a_subclass_takes_back_is_no_rpc() -> None:
    class Room(Thread[Game]):
        @rpc
        def leave(self) -> None:
            pass

    class Closed(Room):
        def leave(self) -> None:
            pass

    assert kind_of(Closed).methods == {}


# Lists


@each_case("keys", ["slug", {"cards": "slug"}, {"/cards": 1}, {1: "slug"}])
def test_the_keys_of_lists_are_members_by_pointers(keys: Any) -> None:
    with pytest.raises(TypeError, match=r"Room\.list_keys"):
        type("Room", (Thread,), {"list_keys": keys})
    type("Room", (Thread,), {"list_keys": {"": "slug", "/columns/*/cards": "slug"}})
