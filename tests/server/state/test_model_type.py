"""States with Pydantic models: what validation makes of them, and what it may not."""

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator
from tests.server.rooms import open_house

from plait.actor.thread import Thread
from plait.errors import CorruptThread, InvalidState
from plait.limits import DEFAULT_LIMITS, UNLIMITED
from plait.state.model_type import ModelType
from plait.state.revision import Revision
from plait.state.state_history import StateHistory
from plait.state.types import UNDECODED
from plait.store.protocol import StoredThread
from plait.store.thread_rows import ThreadKey

KEY = ThreadKey("room", "one")


class Divided(BaseModel):
    n: float | None = 0.0

    @field_validator("n")
    @classmethod
    def _divide(cls, n: float | None) -> float | None:
        return float("inf") if n == 1 else n


class OneWay(BaseModel):
    n: int = 0

    @field_serializer("n")
    def _write(self, n: int) -> str:
        return "odd" if n % 2 else str(n)


class Cat(BaseModel):
    name: str = ""
    lives: int = 9


class Dog(BaseModel):
    name: str = ""
    tricks: list[str]


class Home(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    pet: Dog | Cat = Cat()
    kept_by: str = Field(default="", alias="keptBy")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    n: int = 0


def from_json(type_: Any, data: bytes) -> bytes:
    state, json = ModelType(type_).from_json(data, DEFAULT_LIMITS)
    assert state is UNDECODED
    return json


def place_of(type_: Any, data: bytes) -> str | None:
    with pytest.raises(InvalidState) as refused:
        from_json(type_, data)
    return refused.value.path


def test_a_state_gets_what_is_left_out_and_keeps_the_order_of_the_fields() -> None:
    assert from_json(Home, b'{"keptBy": "a", "pet": {"lives": 3}}') == (b'{"pet":{"name":"","lives":3},"keptBy":"a"}')


def test_a_validator_makes_no_number_that_json_does_not_have() -> None:
    assert from_json(Divided, b'{"n": null}') == b'{"n":null}'
    assert place_of(Divided, b'{"n": 1}') == ""
    with pytest.raises(InvalidState, match="infinite or not a number"):
        ModelType(Divided).check({"n": 1}, UNLIMITED, b"", is_whole=False)


def test_a_state_that_its_model_could_not_read_again_is_refused() -> None:
    assert from_json(OneWay, b'{"n": 2}') == b'{"n":"2"}'
    assert place_of(OneWay, b'{"n": 3}') == "/n"
    with pytest.raises(InvalidState, match="the type cannot read what it writes: Input should be a valid integer"):
        ModelType(OneWay).check({"n": 3}, UNLIMITED, b"", is_whole=False)


def test_a_stored_state_that_its_model_refuses_is_not_replaced() -> None:
    for type_, data in ((Cat, b'{"lives":"many"}'), (OneWay, b'{"n":3}')):
        with pytest.raises(CorruptThread):
            StateHistory(KEY, ModelType(type_), StoredThread("e", 1, data, (), 1))


def test_a_field_is_unknown_if_no_model_of_a_union_has_it() -> None:
    assert from_json(Home, b'{"pet": {"name": "a", "tricks": ["sit"]}}') == (
        b'{"pet":{"name":"a","tricks":["sit"]},"keptBy":""}'
    )
    assert place_of(Home, b'{"pet": {"name": "a", "trick": []}}') == "/pet/trick"
    assert ModelType(Home).find_unknown({"pet": {"tricks": []}, "old": 1}) == ["/old"]
    assert ModelType(Home).find_unknown({"pet": {"trick": []}}) == ["/pet/trick"]


def test_a_field_is_read_by_its_name_if_its_model_says_so_and_written_by_its_alias() -> None:
    assert b'"keptBy":"ada"' in from_json(Home, b'{"kept_by": "ada"}')
    assert place_of(Home, b'{"kept": "ada"}') == "/kept"


def test_a_model_that_allows_other_members_keeps_them() -> None:
    assert from_json(Open, b'{"n": 1, "more": [2]}') == b'{"n":1,"more":[2]}'


def test_other_members_are_dropped_only_where_that_is_asked_for() -> None:
    assert place_of(Cat, b'{"live": 1}') == "/live"
    state, json = ModelType(Cat).from_json(b'{"live": 1}', DEFAULT_LIMITS, drops_unknown=True)
    assert (state, json) == (UNDECODED, b'{"name":"","lives":9}')


def test_a_model_in_a_struct_is_validated() -> None:
    class Board(msgspec.Struct):
        cats: dict[str, Cat] = {}

    type_ = ModelType(Board)
    state, json = type_.from_value(Board({"a": Cat(name="A")}), UNLIMITED)
    assert (state, json) == (UNDECODED, b'{"cats":{"a":{"name":"A","lives":9}}}')
    assert type_.decode(json) == Board({"a": Cat(name="A")})
    assert type_.decode_tree(json) == {"cats": {"a": {"name": "A", "lives": 9}}}


VALIDATED: list[int] = []


class Counted(BaseModel):
    n: int = 0
    any: Any = None

    @field_validator("n")
    @classmethod
    def _count(cls, n: int) -> int:
        VALIDATED.append(n)
        return n


class CountedRoom(Thread[Counted]):
    initial_state = Counted()


async def test_the_first_reader_after_a_change_gets_what_the_change_has_validated() -> None:
    async with open_house(CountedRoom) as house:
        room = (await house.actor(CountedRoom)).thread
        VALIDATED.clear()
        await room.update("/n", 1)
        assert (room.state.n, VALIDATED) == (1, [1])


async def test_a_validated_state_is_given_to_one_reader_and_shares_nothing_with_the_document() -> None:
    class InStruct(msgspec.Struct):
        model: Counted = msgspec.field(default_factory=Counted)
        any: Any = None

    for type_, document in ((Counted, {"n": 1, "any": [1]}), (InStruct, {"model": {"n": 1}, "any": [1]})):
        types = ModelType(type_)
        state, kept = types.check(document, UNLIMITED, b"", is_whole=False)
        revision = Revision(types, tree=kept, copy=state)
        for read in (revision.copy, lambda revision=revision: revision.state):
            read().any.append(2)
        assert revision.copy().any == [1] == kept["any"]


class HomeRoom(Thread[Home]):
    initial_state = Home()


async def test_a_draft_and_a_transaction_have_the_members_of_the_json() -> None:
    async with open_house(HomeRoom) as house:
        actor = await house.actor(HomeRoom)
        room = actor.thread
        async with room.transaction():
            with room.edit() as draft:
                draft.keptBy = "ada"
            assert room.state.kept_by == "ada"
            room.update("/pet", Dog(name="rex", tricks=["sit"]))
            assert room.state.pet == Dog(name="rex", tricks=["sit"])
        assert actor.state.current.document == {"pet": {"name": "rex", "tricks": ["sit"]}, "keptBy": "ada"}
        assert [len(change.ops) for change in await room.history()] == [2]
        await room.revert(0)
        assert room.state == Home()
