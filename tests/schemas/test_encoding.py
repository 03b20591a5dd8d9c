"""What code hands over as JSON, and where a value has what JSON does not have."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from pydantic import BaseModel, ConfigDict, RootModel
from tests.cases import each_case
from tests.schemas.test_codec import DOCUMENTS

from plait_schemas.codec import HALF_PAIR, decode_json, encode_json
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.patch import Op


class Struct(msgspec.Struct, rename={"value": "the/value"}):
    value: Any


@dataclass
class Plain:
    value: Any


@dataclass(slots=True)
class Slotted:
    value: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    value: Any = None


class Root(RootModel[Any]):
    pass


class Measure(Enum):
    UNKNOWN = math.nan
    NONE = None


def make_cycle() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def make_deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


WRAPS = [
    ("/0", lambda value: [value]),
    ("/1", lambda value: Pair(None, value)),
    ("/a~1b", lambda value: {"b": 1, "a/b": value}),
    ("/7", lambda value: {7: value, "8": None}),
    ("/the~1value", Struct),
    ("/value", Plain),
    ("/value", Slotted),
    ("/value", lambda value: Loose(value=value)),
    ("/more", lambda value: Loose.model_validate({"more": value})),
    ("", Root),
]
FAULTS = [
    (math.nan, "it has a number that is infinite or not a number"),
    (math.inf, "it has a number that is infinite or not a number"),
    (-math.inf, "it has a number that is infinite or not a number"),
    (Measure.UNKNOWN, "it has a number that is infinite or not a number"),
    ({1: "a", "1": "b"}, "two of its keys are '1' in JSON"),
    ("half \ud83d", HALF_PAIR),
    (object(), "Encoding objects of type object is unsupported"),
]


@each_case(("fault", "why"), FAULTS)
@each_case(("outer", "wrap"), WRAPS)
def test_what_json_does_not_have_is_refused_with_its_place(fault: Any, why: str, outer: str, wrap: Any) -> None:
    for inner, inside in [("", lambda each: each), *WRAPS]:
        value = wrap(inside(fault))
        with pytest.raises(EncodeError) as refused:
            encode_given(value)
        if type(fault) is not object and not (isinstance(value, BaseModel) and isinstance(inside(fault), Struct)):
            assert (refused.value.message, refused.value.path) == (why, outer + inner)


def test_a_value_that_contains_itself_and_one_that_is_too_deep_are_refused() -> None:
    for path, value in (("/1", make_cycle()), ("/a/1", {"a": make_cycle()})):
        with pytest.raises(EncodeError, match="it contains itself") as refused:
            encode_given(value)
        assert refused.value.path == path
    with pytest.raises(EncodeError, match="it is nested too deep"):
        encode_given(make_deep())


@given(DOCUMENTS)
def test_json_is_encoded_as_it_is(document: Any) -> None:
    assert encode_given(document) == encode_json(document)


def test_what_only_looks_like_a_fault_is_encoded() -> None:
    values: list[Any] = [
        *(Measure.NONE, {1: None}, {"a": {None}}, [msgspec.Raw(b"null")], {math.nan: None}, "null", b"null", 2**80),
        *([None, 2**80], {1: 2, "2": 3}, {"a1": {"1": 1}, 1: 1}, msgspec.Raw(b'{"1": 2 }'), [None, 1e308]),
    ]
    for value in values:
        assert encode_given(value) == encode_json(value)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_encoding_refuses_what_would_become_null(number: float) -> None:
    for value in (number, [None, (number,)], {"a": {number}}, Op("add", "/n", number)):
        with pytest.raises(EncodeError, match="infinite or not a number"):
            encode_given(value)
    assert encode_given([None, "null", 1.5]) == b'[null,"null",1.5]'
    assert decode_json(encode_given(Loose(value=1.5))) == {"value": 1.5}
