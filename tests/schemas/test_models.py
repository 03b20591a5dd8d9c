"""Pydantic models as JSON, and their description."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from msgspec import inspect
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretBytes,
    SecretStr,
    computed_field,
    create_model,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.cases import each_case

from plait_schemas.codec import convert, encode_json, make_decoder, to_builtins
from plait_schemas.diff import diff
from plait_schemas.draft import draft, recorded
from plait_schemas.encoding import encode_given
from plait_schemas.members import attributes
from plait_schemas.models import ModelError, expand, find_input_names, is_model
from plait_schemas.patch import Op
from plait_schemas.schema import components, is_additive, schema_hash, schema_of
from plait_schemas.typescript import TypeScript


class Card(BaseModel):
    """A card."""

    title: str = Field(min_length=1, description="What is on it.")
    size: Decimal = Decimal(1)
    of: float | None = None
    made_by: str = Field(default="", alias="madeBy")

    @computed_field
    def length(self) -> int:
        return len(self.title)


class Board(BaseModel):
    cards: dict[str, Card] = {}
    best: Card | None = None


class Tree(BaseModel):
    children: list["Tree"] = []


class Names(RootModel[list[str]]):
    pass


class Json(RootModel["dict[str, Json] | list[Json] | str"]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Home(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


@pydantic_dataclass
class Checked:
    n: int = Field(default=0, ge=0)


# Values


def test_a_model_is_written_as_what_it_reads() -> None:
    card = Card(title="a", madeBy="bo")
    data = b'{"title":"a","size":"1","of":null,"madeBy":"bo"}'
    assert encode_json(card) == data
    assert encode_json({"cards": (card,)}) == b'{"cards":[%b]}' % data
    assert make_decoder(Card)(data) == make_decoder(Card)(msgspec.Raw(data)) == card
    assert make_decoder(list[Card])(b"[%b]" % data) == [card]
    assert to_builtins({"a": card}) == {"a": {"title": "a", "size": "1", "of": None, "madeBy": "bo"}}


@each_case(
    ("type_", "data", "parts"),
    [
        (Board, b'{"cards": {"a.b/c": {"title": ""}}}', ["cards", "a.b/c", "title"]),
        (Board, b'{"best": {}}', ["best", "title"]),
        (Tree, b'{"children": [{}, {"children": 1}]}', ["children", "1", "children"]),
        (Home, b'{"pet": {"kind": "dog"}}', ["pet", "name"]),
        (Home, b'{"pet": {"kind": "cow"}}', ["pet"]),
        (Names, b'["a", 1]', ["1"]),
        (dict[str, Card], b'{"a": {"title": ""}}', ["title"]),
        (Card, b"[1]", []),
    ],
)
def test_an_error_has_its_place_in_the_model(type_: Any, data: bytes, parts: list[str]) -> None:
    for read in (make_decoder(type_), lambda data: convert(msgspec.json.decode(data), type_)):
        with pytest.raises(msgspec.ValidationError) as refused:
            read(data)
        assert isinstance(refused.value.__cause__, ModelError)
        assert refused.value.__cause__.parts == parts


@each_case("data", [b'{"title": "a", "of": NaN}', b'{"title": "a", "of": 1e400}', b'{"title": "a"', b"\xff"])
def test_a_model_is_not_made_of_what_is_no_json(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        make_decoder(Card)(data)


def test_a_model_with_an_infinite_number_is_not_json() -> None:
    for number in (float("nan"), float("-inf")):
        card = Card(title="NaN", of=number)
        with pytest.raises(ValueError, match="infinite"):
            encode_given({"card": card})
    assert encode_given(Card(title="NaN Infinity")) == b'{"title":"NaN Infinity","size":"1","of":null,"madeBy":""}'

    class Loose(BaseModel):
        model_config = ConfigDict(extra="allow")
        any: Any = None
        inner: list["Loose"] = []

    for number in (float("nan"), float("inf")):
        for value in (
            Loose(any=number),
            Loose(any={"a": [number]}),
            Loose(inner=[Loose(any=number)]),
            Loose.model_validate({"more": number}),
        ):
            with pytest.raises(ValueError, match="infinite"):
                encode_given(value)
    assert encode_given(Loose.model_validate({"more": 1.5})) == b'{"any":null,"inner":[],"more":1.5}'

    class Constants(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan="constants")
        n: float

    with pytest.raises(msgspec.DecodeError):
        encode_json(Constants(n=float("inf")))


def test_other_objects_are_no_json_as_before() -> None:
    with pytest.raises(TypeError, match="Encoding objects of type object is unsupported"):
        encode_json(object())
    with pytest.raises(msgspec.ValidationError, match="Expected `Odd`, got `dict`"):
        convert({"a": {}}, dict[str, Odd])
    odd = Odd()
    assert convert({"a": odd}, dict[str, Odd]) == {"a": odd}


class Odd:
    pass


def test_a_dataclass_of_pydantic_is_refused_wherever_it_would_be_read_without_its_validators() -> None:
    class Inside(BaseModel):
        checked: Checked = Checked()

    for type_ in (Checked, Checked | None, dict[str, list[Checked]], Annotated[Checked, 1]):
        with pytest.raises(TypeError, match=r"Checked is a dataclass of Pydantic's, whose validators would not run: "):
            make_decoder(type_)
    with pytest.raises(msgspec.ValidationError) as refused:  # Pydantic runs them here.
        make_decoder(Inside)(b'{"checked": {"n": -5}}')
    assert isinstance(refused.value.__cause__, ModelError)
    assert refused.value.__cause__.parts == ["checked", "n"]


def refused(type_: Any) -> str:
    with pytest.raises(TypeError) as why:
        make_decoder(type_)
    return str(why.value)


def test_a_field_that_is_not_read_by_the_name_by_which_it_is_written_is_refused() -> None:
    class Read(BaseModel):
        n: int = Field(1, validation_alias="N")

    class Written(BaseModel):
        n: int = Field(1, serialization_alias="N")

    class Apart(BaseModel):
        n: int = Field(1, validation_alias=AliasPath("of", 0))

    class ByName(BaseModel):
        model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
        n: int = Field(1, alias="N")

    class Outer(BaseModel):
        inner: list[Written] | None = None

    assert refused(Read) == (
        "Read.n would be lost, as it is written to JSON as 'n', but not read by that name: "
        "give it the same alias for both"
    )
    for type_ in (Written, Apart, ByName):
        assert refused(type_).startswith(f"{type_.__name__}.n would be lost, as it is written to JSON as ")
    for outer in (dict[str, Written], Outer, RootModel[list[Written]]):
        assert refused(outer).startswith("Written.n would be lost")


def test_a_field_with_one_alias_for_both_is_read_as_it_is_written() -> None:
    class Both(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        a: int = Field(0, alias="A")
        b: int = Field(0, validation_alias=AliasChoices("old", "B"), serialization_alias="B")
        c: int = Field(0, validation_alias="C")

    class Camel(BaseModel):
        model_config = ConfigDict(alias_generator=lambda name: name.upper())
        n: int = 0

    for value in (Both.model_validate({"A": 1, "B": 2, "C": 3}), Camel.model_validate({"N": 4})):
        assert make_decoder(type(value))(encode_json(value)) == value


def test_a_value_that_is_left_out_of_json_or_hidden_in_it_is_refused() -> None:
    class Hidden(BaseModel):
        key: str = Field("", exclude=True)

    class Secret(BaseModel):
        key: SecretStr

    class Bytes(BaseModel):
        keys: dict[str, list[SecretBytes | None]] = {}

    assert refused(Hidden) == "Hidden.key would be lost, as exclude=True leaves it out of JSON: remove that"
    secret = "would be lost, as it is written to JSON as asterisks: use str or bytes"
    assert refused(list[Secret]) == refused(SecretStr | None) == f"SecretStr {secret}"
    assert refused(Bytes) == f"SecretBytes {secret}"


def test_a_private_field_of_attrs_is_refused_as_it_is_not_written() -> None:
    @attrs.define
    class Private:
        a: int = 1
        _b: int = 2

    @dataclass
    class Plain:
        _b: int = 2

    assert refused(dict[str, Private]) == (
        "Private._b would be lost, as private fields of attrs are not written to JSON: rename it"
    )
    assert make_decoder(Plain)(encode_json(Plain(3))) == Plain(3)


def test_models_are_compared_and_edited_as_their_json() -> None:
    before = Board(cards={"a": Card(title="a"), "b": Card(title="b")})
    after = before.model_copy(update={"cards": {**before.cards, "a": Card(title="a", madeBy="bo")}})
    assert diff(before, after) == [Op("replace", "/cards/a/madeBy", "bo")]
    assert diff(Names(["a"]), Names(["a", "b"])) == [Op("add", "/1", "b")]
    changed: Any = draft({"card": None})
    changed["card"] = Card(title="a")
    assert recorded(changed) == [Op("replace", "/card", {"title": "a", "size": "1", "of": None, "madeBy": ""})]


# Types


def test_a_model_is_described_as_a_dataclass_with_its_fields() -> None:
    info = expand(inspect.type_info(Card))
    assert isinstance(info, inspect.DataclassType)
    assert [(field.name, field.encode_name, field.required) for field in info.fields] == [
        ("title", "title", True),
        ("size", "size", False),
        ("of", "of", False),
        ("made_by", "madeBy", False),
    ]
    assert expand(inspect.type_info(Names)) == inspect.type_info(list[str])
    assert expand(inspect.type_info(Json)) == inspect.AnyType()
    assert expand(inspect.type_info(int)) == inspect.type_info(int)
    assert attributes(Card(title="a")) == {"title": "title", "size": "size", "of": "of", "madeBy": "made_by"}
    assert attributes(Names([])) is None
    assert not is_model(Checked)
    assert not is_model(list[Card])


def test_a_model_reads_fields_by_other_names() -> None:
    class Loose(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        a: int = Field(0, validation_alias=AliasChoices("b", "c"), serialization_alias="d")

    assert sorted(find_input_names(Loose)) == ["a", "b", "c"]
    assert list(find_input_names(Card)) == ["title", "size", "of", "madeBy"]


def test_models_are_written_as_typescript() -> None:
    typescript = TypeScript()
    assert typescript.type(list[Card]) == "Card[]"
    assert typescript.type(Card, is_input=True) == "CardInput"
    assert typescript.type(Names) == "string[]"
    assert typescript.type(Json) == "unknown"
    assert typescript.type(Home) == "Home"
    assert typescript.type(Tree | None) == "Tree | null"
    assert typescript.declarations["Card"] == (
        "/** A card. */\nexport interface Card {\n  /** What is on it. */\n  title: string;\n  size: string;\n"
        "  of: number | null;\n  madeBy: string;\n}\n"
    )
    assert "  size?: string;\n" in typescript.declarations["CardInput"]
    assert typescript.declarations["Home"] == "export interface Home {\n  pet: Cat | Dog;\n}\n"
    assert typescript.declarations["Tree"] == "export interface Tree {\n  children: Tree[];\n}\n"


def test_a_model_has_a_schema_with_definitions_that_are_not_mixed_up() -> None:
    def define(field: Any) -> Any:
        return create_model("Outer", inner=(create_model("Inner", n=(field, ...)), ...))

    one, two = define(int), define(str)
    schemas, named = components([Board, Tree, list[Card], Card])
    assert sorted(named) == ["Card", "Tree"]
    assert is_additive({**schemas[1], "$defs": named}, {"$ref": "#/$defs/Tree", "$defs": named})
    two.__qualname__ = "Other"
    (first, second), named = components([one, two])
    kinds = [
        named[schema["properties"]["inner"]["$ref"].removeprefix("#/$defs/")]["properties"]["n"]["type"]
        for schema in (first, second)
    ]
    assert kinds == ["integer", "string"]
    assert schema_hash(schema_of(one)) != schema_hash(schema_of(two))


def test_a_model_that_has_grown_fits_an_older_client() -> None:
    def define(**fields: Any) -> Any:
        inner = create_model("Inner", kind=(Literal["inner"], ...), **fields)
        other = create_model("Other", kind=(Literal["other"], ...))
        pet: Any = Annotated[inner | other, Field(discriminator="kind")]
        return schema_of(create_model("Outer", pet=(pet, ...)))

    assert is_additive(define(), define(extra=(str, "")))
    assert not is_additive(define(extra=(str, "")), define())
    assert not is_additive(define(), define(needed=(int, ...)))
    wrapped = {"allOf": [{"$ref": "#/$defs/A"}]}
    assert not is_additive(
        {**wrapped, "$defs": {"A": {"type": "string"}}}, {**wrapped, "$defs": {"A": {"type": "null"}}}
    )


class Shouted(str):
    """A text of a class of its own, whose `str()` is another one."""

    def __str__(self) -> str:
        return self.upper()


def test_a_text_of_a_class_of_its_own_is_a_text() -> None:
    text = Shouted("half a \u00bd")
    assert encode_json([text, {text: text}]) == encode_json(["half a \u00bd", {"half a \u00bd": "half a \u00bd"}])
    assert type(to_builtins({"text": text})["text"]) is str
    with pytest.raises(UnicodeEncodeError):
        encode_json(Shouted("\ud83c"))
