"""How arguments are made of JSON, and what a stream may do."""

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from tests.cases import each_case

from plait import Limits, Plait
from plait.actor.rpc import Method, Stream, find_methods, rpc
from plait.actor.thread import Thread
from plait.errors import InvalidArguments, MethodNotFound

DEPTH = 8
LIMITS = Limits(depth=DEPTH)


class Move(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Player:
    name: str


class Options(TypedDict, total=False):
    loud: bool


class Side(enum.Enum):
    LEFT = "left"


def method(function: Callable[..., Any]) -> Method:
    return Method(function.__name__, function.__name__, function, concurrent=False)


def bind(
    function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments that a method is called with, by name."""
    found = method(function)
    raw_kwargs = {name: raw(value) for name, value in (kwargs or {}).items()} or None
    positional, named = found.arguments([raw(each) for each in args], raw_kwargs, limits=LIMITS)
    result: dict[str, Any] = function(None, *positional, **named)
    return result


def raw(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))


def play(
    self: object,
    move: Move,
    player: Player = Player("Cleo"),  # noqa: B008
    *,
    sides: tuple[Side, ...] = (),
    options: Options | None = None,
) -> dict[str, Any]:
    return {"move": move, "player": player, "sides": sides, "options": options}


# Conversion


def test_arguments_are_made_of_the_annotated_types() -> None:
    assert bind(play, [{"x": 1}, {"name": "Ada"}]) == {
        "move": Move(1),
        "player": Player("Ada"),
        "sides": (),
        "options": None,
    }


def test_arguments_may_be_given_by_name() -> None:
    assert bind(play, [{"x": 1}], {"sides": ["left"], "options": {"loud": True}}) == {
        "move": Move(1),
        "player": Player("Cleo"),
        "sides": (Side.LEFT,),
        "options": {"loud": True},
    }
    assert bind(play, [], {"player": {"name": "Ada"}, "move": {"x": 2}})["player"] == Player("Ada")


def test_an_argument_without_annotation_may_be_any_json() -> None:
    def echo(self: object, value, other=None):  # type: ignore[no-untyped-def]
        return {"value": value, "other": other}

    assert bind(echo, [{"a": [1, None]}]) == {"value": {"a": [1, None]}, "other": None}


def test_an_annotation_may_narrow_its_type() -> None:
    def roll(self: object, sides: Annotated[int, msgspec.Meta(ge=2, le=100)]) -> dict[str, Any]:
        return {"sides": sides}

    assert bind(roll, [6]) == {"sides": 6}
    with pytest.raises(InvalidArguments) as caught:
        bind(roll, [1])
    assert caught.value.path == "/sides"


@each_case(
    ("args", "kwargs", "path", "words"),
    [
        ([], {}, "/move", "missing"),
        ([{}], {}, "/move", "x"),
        ([{"x": "one"}], {}, "/move/x", "int"),
        ([{"x": 1.5}], {}, "/move/x", "int"),
        ([None], {}, "/move", "object"),
        ([{"x": 1}, {"name": 3}], {}, "/player/name", "str"),
        ([{"x": 1}], {"sides": ["left", "up"]}, "/sides/1", "up"),
        ([{"x": 1}], {"options": {"loud": 1}}, "/options/loud", "bool"),
        ([{"x": 1}], {"move": {"x": 1}}, "/move", "twice"),
        ([{"x": 1}], {"speed": 1}, "/speed", "speed"),
        ([], {"player": {"name": "Ada"}}, "/move", "missing"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_the_path(
    args: list[Any], kwargs: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(InvalidArguments, match=words) as caught:
        bind(play, args, kwargs)
    assert caught.value.path == path
    assert "play" in str(caught.value)
    assert "$" not in str(caught.value)


def test_too_many_arguments_are_an_error_that_counts_them() -> None:
    with pytest.raises(InvalidArguments, match="2 arguments, 3 were given"):
        bind(play, [{"x": 1}, {"name": "Ada"}, []])


@each_case("data", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1)])
def test_an_argument_that_nests_too_deep_is_refused(data: bytes) -> None:
    def echo(self: object, value: Any) -> dict[str, Any]:
        return {"value": value}

    with pytest.raises(InvalidArguments, match="deep") as caught:
        bind(echo, [msgspec.Raw(data)])
    assert caught.value.path == "/value"


def test_an_argument_may_nest_as_deep_as_the_limit() -> None:
    def echo(self: object, value: Any) -> dict[str, Any]:
        return {"value": value}

    value: list[Any] = []
    for _ in range(DEPTH - 1):
        value = [value]
    assert bind(echo, [value]) == {"value": value}


@each_case("data", [b'"\xff"', b'{"x":"\xc3"}'])
def test_an_argument_that_is_not_utf_8_is_refused(data: bytes) -> None:
    def echo(self: object, value: Any) -> dict[str, Any]:
        return {"value": value}

    with pytest.raises(InvalidArguments):
        bind(echo, [msgspec.Raw(data)])


# Signatures


def test_a_parameter_that_json_cannot_fill_is_refused_when_the_class_is_made() -> None:
    def variadic(self: object, *values: int) -> None:
        pass

    def keywords(self: object, **values: int) -> None:
        pass

    def positional(self: object, value: int, /) -> None:
        pass

    for function in (variadic, keywords, positional):
        with pytest.raises(TypeError, match=function.__name__):
            method(function)


def test_only_a_method_that_is_declared_to_return_something_answers_null_for_none() -> None:
    def nothing(self: object) -> None:
        pass

    def maybe(self: object) -> int | None:
        return None

    def undeclared(self: object):  # type: ignore[no-untyped-def]
        pass

    assert not method(nothing).returns_value
    assert method(maybe).returns_value
    assert not method(undeclared).returns_value


def test_the_mark_takes_a_name_and_leaves_the_function_as_it_is() -> None:
    class Room:
        @rpc(name="addPlayer", concurrent=True)
        def add_player(self) -> str:
            return "added"

        @rpc
        async def leave(self) -> None:
            pass

    assert Room().add_player() == "added"
    found = find_methods(Room)
    assert {name: (each.attribute, each.is_concurrent) for name, each in found.items()} == {
        "addPlayer": ("add_player", True),
        "leave": ("leave", False),
    }


@each_case("name", ["undo", "state", "on_connect", "update", "name"])
def test_an_rpc_does_not_take_the_place_of_what_every_thread_has(name: str) -> None:
    with pytest.raises(TypeError, match=rf"Room\.{name} is an attribute of Thread .* @rpc\(name='{name}'\)"):
        type("Room", (Thread,), {name: rpc(lambda self: None)})

    class Room(Thread[Any]):
        @rpc(name="undo")
        def undo_mine(self) -> None:
            pass

    assert Room._kind.method("undo").attribute == "undo_mine"


# Streams


def test_a_generator_and_a_method_with_a_stream_stream() -> None:
    async def count(self: object, to: int) -> AsyncIterator[int]:
        yield to

    def by_hand(self: object, stream: Stream, to: int) -> None:
        pass

    def plain(self: object) -> None:
        pass

    assert [method(each).is_stream for each in (count, by_hand, plain)] == [True, True, False]
    assert method(count).is_concurrent
    assert method(by_hand).is_concurrent


def test_a_stream_is_no_argument_that_clients_give() -> None:
    def by_hand(self: object, stream: Stream, to: int) -> None:
        pass

    with pytest.raises(InvalidArguments, match="1 arguments, 2 were given"):
        method(by_hand).arguments([raw(1), raw(2)], limits=LIMITS)
    with pytest.raises(InvalidArguments, match="stream"):
        method(by_hand).arguments([], {"stream": raw(1), "to": raw(1)}, limits=LIMITS)


def test_a_stream_hands_on_what_it_is_given_until_it_ends() -> None:
    said: list[tuple[str, Any]] = []
    stream = Stream(lambda what, value: said.append((what, value)))
    stream.send(1)
    stream.send(None)
    stream.end("last")
    assert said == [("chunk", 1), ("chunk", None), ("end", "last")]


@each_case("end", [lambda stream: stream.end(), lambda stream: stream.error("no")])
def test_nothing_can_be_said_on_a_stream_that_has_ended(end: Callable[[Stream], None]) -> None:
    said: list[str] = []
    stream = Stream(lambda what, value: said.append(what))
    end(stream)
    with pytest.raises(RuntimeError, match="ended"):
        stream.send(1)
    with pytest.raises(RuntimeError, match="ended"):
        stream.end()
    with pytest.raises(RuntimeError, match="ended"):
        stream.error("late")
    assert len(said) == 1


# Mistakes


def test_rpc_names_the_keyword_when_it_gets_a_name() -> None:
    with pytest.raises(TypeError, match=r"the name is a keyword, @rpc\(name='go'\)"):
        rpc("go")  # type: ignore[call-overload]


def _no_parameter() -> None: ...


def _no_self(number: int) -> None: ...


def _no_self_but_names(*, number: int) -> None: ...


@each_case("function", [_no_parameter, _no_self, _no_self_but_names])
def test_an_rpc_without_self_is_an_error_of_its_class(function: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Room\.go is an rpc, so its first parameter is the thread: def \w+\(self, …\)"
    ):
        type("Room", (Thread,), {"go": rpc(function)})


def test_the_thread_may_have_another_name_than_self() -> None:
    class Room(Thread[None]):
        @rpc
        def plain(room) -> None: ...

        @rpc
        def typed(room: Thread[Any]) -> None: ...  # type: ignore[misc]

    assert Room is not None


@each_case(
    ("name", "hint"),
    [
        ("addPlayer", "; did you mean add_player?"),
        ("add_plyaer", "; did you mean add_player?"),
        ("leave", "; did you mean leave_all?"),
        ("swim", ""),
    ],
)
async def test_an_unknown_rpc_is_told_with_the_name_that_was_meant(name: str, hint: str) -> None:
    class Room(Thread[None]):
        @rpc
        def add_player(self) -> None: ...

        @rpc(clients=False)
        def leave_all(self) -> None: ...

    async with Plait(Room, store="memory:") as app:
        with pytest.raises(MethodNotFound) as caught:
            await app.thread(Room, "one").call(name)
    assert str(caught.value) == f"Method {name} does not exist{hint}"
