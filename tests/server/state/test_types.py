"""States made of values and of JSON, and how they are refused."""

import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait import Plait, Thread
from plait.errors import InvalidState, TooLarge
from plait.limits import DEFAULT_LIMITS, UNLIMITED, Limits
from plait.state.revision import Revision
from plait.state.state_history import StateHistory
from plait.state.types import UNDECODED, StateType
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import apply, decode_ops
from plait_schemas.text_patch import TextDiff


class Player(msgspec.Struct, frozen=True):
    name: str
    score: int = 0


class Game(msgspec.Struct, frozen=True):
    players: tuple[Player, ...] = ()
    scores: dict[str, int] = {}


@dataclass
class Card:
    title: str
    done: bool = False


class Settings(TypedDict):
    volume: int


class Size(enum.Enum):
    SMALL = "small"


KEY = ThreadKey("room", "one")


def push(type_: Any, data: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[Any, bytes | None]:
    """Return the state of a thread to which a client pushed `data`, and its JSON."""
    return take(StateType(type_), *StateType(type_).from_json(data, limits), limits)


def set_state(type_: Any, value: object, limits: Limits = DEFAULT_LIMITS) -> tuple[Any, bytes | None]:
    """Return the state of a thread whose code set it to `value`, and its JSON."""
    return take(StateType(type_), *StateType(type_).from_value(value, limits), limits)


def take(state_type: StateType, state: Any, data: bytes, limits: Limits) -> tuple[Any, bytes | None]:
    history = StateHistory(KEY, state_type, None)
    history.append(
        history.diff(history.current, state, data, limits), "server", Revision(state_type, json=data, tree=state)
    )
    return history.current.state, history.current.json


def nested(depth: int) -> Any:
    """Return a list that nests `depth` deep."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


# Values


@each_case(
    ("type_", "value"),
    [
        (Any, {"a": [1, None, True, 1.5, "é"]}),
        (Any, None),
        (Any, False),
        (Any, ""),
        (dict, {}),
        (Game, Game((Player("Ada", 3),))),
        (Card, Card("Buy milk")),
        (Settings, {"volume": 3}),
        (list[int], [1, 2]),
        (set[str], {"a"}),
        (int | None, None),
        (Size, Size.SMALL),
        (dict[Size, int], {Size.SMALL: 1}),
    ],
)
def test_a_value_of_the_type_is_a_state_and_is_read_back_from_its_json(type_: Any, value: Any) -> None:
    state, data = set_state(type_, value)
    assert state == value
    assert type(state) is type(value)
    assert data is not None
    assert push(type_, data) == (value, data)


def test_a_value_is_made_one_of_the_type_where_it_can_be() -> None:
    state, data = set_state(Game, {"players": [{"name": "Ada"}]})
    assert state == Game((Player("Ada"),))
    assert data == b'{"players":[{"name":"Ada","score":0}],"scores":{}}'


def test_a_state_that_can_change_is_not_the_object_that_was_set() -> None:
    value = {"a": [1]}
    state, _ = set_state(dict, value)
    value["a"].append(2)
    assert state == {"a": [1]}


def test_a_state_that_cannot_change_keeps_its_objects() -> None:
    class Pair(msgspec.Struct, frozen=True):
        left: Player
        right: Player

    value = Pair(Player("Ada"), Player("Bob"))
    state, _ = set_state(Pair, value)
    assert state.left is value.left


@each_case(
    ("type_", "is_immutable"),
    [
        (int, True),
        (str | None, True),
        (Player, True),
        (tuple[Player, ...], True),
        (tuple[int, Player], True),
        (frozenset[str], True),
        (datetime, True),
        (UUID, True),
        (Size, True),
        (Game, False),
        (Card, False),
        (Settings, False),
        (Any, False),
        (object, False),
        (dict, False),
        (list[int], False),
        (set[int], False),
        (tuple[list[int], ...], False),
        (Player | list[int], False),
        (bytearray, False),
    ],
)
def test_a_type_is_immutable_only_if_nothing_in_it_can_change(type_: Any, is_immutable: bool) -> None:
    assert StateType(type_).is_immutable == is_immutable


class Tree(msgspec.Struct, frozen=True):
    children: tuple["Tree", ...] = ()


class Forest(msgspec.Struct, frozen=True):
    trees: tuple["Forest", ...] = ()
    names: list[str] = []


def test_a_type_that_holds_itself_is_looked_through_once() -> None:
    assert StateType(Tree).is_immutable
    assert not StateType(Forest).is_immutable


# What is refused


@each_case("number", [float("nan"), float("inf"), float("-inf")])
@each_case("wrap", [lambda n: n, lambda n: {"a": n}, lambda n: [[n]], lambda n: {"a": None, "b": {"c": (n,)}}])
def test_a_number_that_json_has_not_is_refused(wrap: Callable[[float], Any], number: float) -> None:
    with pytest.raises(InvalidState):
        set_state(Any, wrap(number))


@dataclass(slots=True)
class Reading:
    celsius: float | None


def test_a_number_that_json_has_not_is_refused_in_a_dataclass_with_slots() -> None:
    with pytest.raises(InvalidState):
        set_state(Reading, Reading(float("nan")))


def test_a_null_is_no_number_that_json_has_not() -> None:
    value = {"text": "null", "nothing": None, "n": 1.5}
    assert set_state(Any, value)[0] == value


@each_case("value", [object(), {"a": object()}, {"a": 1j}, {(1, 2): 3}, "\ud800", {"\udfff": 1}, print])
def test_a_value_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidState):
        set_state(Any, value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises((InvalidState, TooLarge)):
        set_state(Any, value)


@each_case(
    ("data", "path"),
    [
        (b'{"players":[{"name":"Ada"},{"name":3}]}', "/players/1/name"),
        (b'{"players":[{}]}', "/players/0"),
        (b'{"players":3}', "/players"),
        (b'{"scores":{"Ada":"x"}}', "/scores/*"),
        (b"[]", ""),
        (b"null", ""),
        (b'{"players":[{"name":"Ada","score":1.5}]}', "/players/0/score"),
    ],
)
def test_an_error_says_where_as_a_json_pointer(data: bytes, path: str) -> None:
    with pytest.raises(InvalidState) as caught:
        push(Game, data)
    assert caught.value.path == path
    assert "$" not in str(caught.value)


@each_case("data", [b"[]", b" [1]", b"3", b"null", b'[{"a":"' + 20_000 * b"a" + b'"}]'])
@each_case("type_", [dict, dict[str, Any]])
def test_a_state_of_dicts_is_no_other_json(type_: Any, data: bytes) -> None:
    with pytest.raises(InvalidState, match="Expected `object`"):
        push(type_, data)
    with pytest.raises(InvalidState, match="Expected `object`"):
        set_state(type_, msgspec.json.decode(data))


@each_case("data", [b"{}", b"3", b'{"a":"' + 20_000 * b"a" + b'"}'])
def test_a_state_of_a_list_is_no_other_json(data: bytes) -> None:
    with pytest.raises(InvalidState, match="Expected `array`"):
        push(list, data)
    with pytest.raises(InvalidState, match="Expected `array`"):
        set_state(list, msgspec.json.decode(data))


class Slashed(msgspec.Struct):
    value: int = msgspec.field(name="a/b")


def test_a_pointer_escapes_a_slash_in_a_name() -> None:
    with pytest.raises(InvalidState) as caught:
        push(Slashed, b'{"a/b":"x"}')
    assert caught.value.path == "/a~1b"


def test_an_error_in_a_value_says_where_too() -> None:
    with pytest.raises(InvalidState) as caught:
        set_state(Game, {"players": [{"name": None}]})
    assert caught.value.path == "/players/0/name"


@each_case(
    "data",
    [b"", b"{", b'{"a":1,}', b"nope", b"[1] 2", b"NaN", b"'a'", b"\xff", b'"\xff"', b'{"\xff":1}', b'{"a":["\xc3"]}'],
)
def test_text_that_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidState):
        push(Any, data)


@given(st.binary())
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    with contextlib.suppress(InvalidState, TooLarge):
        push(Any, data)


# Limits


@each_case("limit", [1, 3, 64])
def test_a_state_may_be_as_deep_as_the_limit_and_no_deeper(limit: int) -> None:
    limits = Limits(depth=limit)
    fits, too_deep = nested(limit), nested(limit + 1)
    assert set_state(Any, fits, limits)[0] == fits
    assert push(Any, msgspec.json.encode(fits), limits)[0] == fits
    with pytest.raises(TooLarge):
        set_state(Any, too_deep, limits)
    with pytest.raises(TooLarge):
        push(Any, msgspec.json.encode(too_deep), limits)


def test_a_state_may_be_as_large_as_the_limit_and_no_larger() -> None:
    limits = Limits(state=100)
    fits, too_large = "x" * 98, "x" * 99
    assert set_state(Any, fits, limits)[0] == fits
    assert push(Any, msgspec.json.encode(fits), limits)[0] == fits
    with pytest.raises(TooLarge):
        set_state(Any, too_large, limits)
    with pytest.raises(TooLarge):
        push(Any, msgspec.json.encode(too_large), limits)


def test_a_state_is_as_large_as_what_is_stored_of_it() -> None:
    limits = Limits(state=100)
    assert push(list[int], b"[" + b" " * 200 + b"]", limits) == ([], b"[]")
    with pytest.raises(TooLarge):
        set_state(Any, "é" * 50, limits)


@each_case("opening", [b"[", b'{"a":'])
@each_case("limits", [DEFAULT_LIMITS, UNLIMITED])
def test_hostile_depth_is_refused(opening: bytes, limits: Limits) -> None:
    with pytest.raises(TooLarge):
        push(Any, opening * 100_000, limits)


@each_case("depth", [200, 400, 600, 900, 5_000])
def test_a_value_that_is_far_too_deep_is_refused_like_any_other(depth: int) -> None:
    with pytest.raises((InvalidState, TooLarge)):
        set_state(Any, [None, nested(depth)])


def test_without_limits_a_state_may_be_as_deep_as_can_be_read() -> None:
    value = nested(UNLIMITED.depth - 1)
    assert set_state(Any, [None, value], UNLIMITED)[0] == [None, value]


def test_a_state_of_many_small_parts_with_line_breaks_is_not_deep() -> None:
    board = {"cards": [{"title": f"line\n{n}"} for n in range(200)]}
    assert set_state(dict, board)[0] == board


LARGE_PART = [[[n]] for n in range(20_000)]


@each_case("old", [b'{"v":[]}', b'{"v":{}}', b"{}", b"[]", b"1"])
def test_a_large_part_of_a_plain_state_is_stored_as_it_was_sent_and_not_decoded(old: bytes) -> None:
    type_ = StateType(Any)
    new = encode_json({"v": LARGE_PART})
    ops = type_.diff((UNDECODED, old), (UNDECODED, new), DEFAULT_LIMITS, TextDiff())
    assert [type(op.value) for op in ops] == [msgspec.Raw]
    assert apply(decode_json(old), decode_ops(encode_json(ops))) == {"v": LARGE_PART}


@each_case("part", ["1e400", '"\\ud800"', "1" * 4301, "[" * 63 + "]" * 63])
def test_a_large_part_of_a_plain_state_is_refused_as_a_small_one_is(part: str) -> None:
    type_ = StateType(Any)
    for size in (0, 20_000):
        new = b'{"v":[%b,"%b"]}' % (part.encode(), b"x" * size)
        with pytest.raises((InvalidState, TooLarge)):
            type_.diff((UNDECODED, b"{}"), (UNDECODED, new), DEFAULT_LIMITS, TextDiff())


@each_case(
    ("value", "read"),
    [
        (datetime(2026, 1, 1, 12, tzinfo=UTC), "2026-01-01T12:00:00Z"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.5"), "1.5"),
        (b"ab", "YWI="),
        (HTTPStatus.OK, 200),
        ({1}, [1]),
        ((1, 2), [1, 2]),
        ({1: 2}, {"1": 2}),
    ],
)
async def test_what_json_has_no_type_for_is_read_back_as_docs_say(value: Any, read: Any) -> None:
    class Room(Thread[dict[str, Any]]):
        @staticmethod
        def initial_state() -> dict[str, Any]:
            return {}

    async with Plait(Room, store="memory:") as app:
        room = app.thread(Room, "one")
        await room.set_state({"value": value})
        assert (await room.state())["value"] == read
