"""Types as TypeScript has them."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
from tests.cases import each_case

from plait_schemas.typescript import Member, TypeScript, alias, comment, identifier, interface, key

T = TypeVar("T")


class Color(enum.Enum):
    """The color of a card."""

    RED = "red"
    BLUE = "dark blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Card(msgspec.Struct):
    """A card.

    It lies on a board. */ alert(1)
    """

    title: Annotated[str, msgspec.Meta(description="What is on it.")]
    labels: tuple[str, ...] = ()
    below: "Card | None" = None
    a_slash: int = msgspec.field(default=0, name="a/b")


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag="dog", tag_field="kind"):
    pass


class Short(msgspec.Struct, omit_defaults=True):
    n: int = 0


class Unset(msgspec.Struct):
    n: int | msgspec.UnsetType = msgspec.UNSET
    m: list[int] = msgspec.field(default_factory=lambda: [1])


class Row(msgspec.Struct, array_like=True, tag="row"):
    a: int
    b: str | None = None


class ShortRow(msgspec.Struct, array_like=True, omit_defaults=True):
    n: int = 0


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Plain:
    n: int
    m: list[int] = field(default_factory=list)


class Options(TypedDict):
    n: int
    m: NotRequired[str]


def declared(type_: Any, *, is_input: bool = False) -> dict[str, str]:
    typescript = TypeScript()
    typescript.type(type_, is_input=is_input)
    return typescript.declarations


@each_case(
    ("type_", "text"),
    [
        (None, "null"),
        (bool, "boolean"),
        (int, "number"),
        (float, "number"),
        (Annotated[int, msgspec.Meta(ge=0)], "number"),
        (str, "string"),
        (bytes, "string"),
        (datetime, "string"),
        (date, "string"),
        (timedelta, "string"),
        (UUID, "string"),
        (Decimal, "string"),
        (Any, "unknown"),
        (msgspec.Raw, "unknown"),
        (complex, "unknown"),
        (list, "unknown[]"),
        (list[int], "number[]"),
        (set[str], "string[]"),
        (frozenset[str], "string[]"),
        (tuple[int, ...], "number[]"),
        (Sequence[int], "number[]"),
        (list[list[int | None]], "(number | null)[][]"),
        (tuple[int, str | None], "[number, string | null]"),
        (tuple[()], "[]"),
        (dict, "Record<string, unknown>"),
        (dict[int, str | None], "Record<string, string | null>"),
        (Mapping[str, list[int]], "Record<string, number[]>"),
        (int | float | None, "number | null"),
        (int | Any, "unknown"),
        (Literal["a", 'b"', 1, None], 'null | 1 | "a" | "b\\""'),
        (list[Literal["a", "b"]], '("a" | "b")[]'),
        (Color, "Color"),
        (list[Color | None], "(Color | null)[]"),
        (Card, "Card"),
        (Page[Card], "Page_Card"),
        (Page[int | None], "Page_int_None"),
    ],
)
def test_a_type_is_written_as_its_json(type_: Any, text: str) -> None:
    assert TypeScript().type(type_) == text


@each_case(
    ("type_", "text"),
    [
        (list[int], "readonly number[]"),
        (list[list[int]], "readonly (readonly number[])[]"),
        (list[int | None], "readonly (number | null)[]"),
        (list[int] | None, "readonly number[] | null"),
        (tuple[int, list[str]], "readonly [number, readonly string[]]"),
        (dict[str, list[int]], "{ readonly [key: string]: readonly number[] }"),
        (list[dict[str, Any]], "readonly { readonly [key: string]: Json }[]"),
        (msgspec.Raw, "Json"),
        (int | Any, "Json"),
    ],
)
def test_what_nobody_changes_is_readonly_and_what_may_be_any_json_has_the_type_that_is_asked_for(
    type_: Any, text: str
) -> None:
    assert TypeScript(json="Json", is_readonly=True).type(type_) == text


@each_case(
    ("type_", "text"),
    [
        (Cat, 'export interface Cat {\n  readonly type: "Cat";\n  readonly lives: number;\n}\n'),
        (Row, 'export type Row = readonly ["row", number, string | null];\n'),
        (Point, "export type Point = readonly [number, number];\n"),
        (Short, "export interface Short {\n  readonly n?: number;\n}\n"),
    ],
)
def test_classes_that_nobody_changes_are_declared_so(type_: Any, text: str) -> None:
    typescript = TypeScript(is_readonly=True)
    typescript.type(type_)
    assert list(typescript.declarations.values()) == [text]


def test_a_type_that_was_given_a_name_is_written_by_it() -> None:
    typescript = TypeScript()
    typescript.name("Version", tuple[str, int], "An epoch, and a version in it.")
    assert typescript.type(list[tuple[str, int] | None]) == "(Version | null)[]"
    assert typescript.type(tuple[int, str]) == "[number, string]"
    version = msgspec.defstruct("Version", [("at", tuple[str, int])])
    assert typescript.type(version) == "Version2"
    assert list(typescript.declarations.values()) == [
        "/** An epoch, and a version in it. */\nexport type Version = [string, number];\n",
        "export interface Version2 {\n  at: Version;\n}\n",
    ]


def test_a_class_is_declared_with_its_words_and_the_names_of_its_json() -> None:
    assert declared(Card) == {
        "Card": """\
/**
 * A card.
 *
 * It lies on a board. *\\/ alert(1)
 */
export interface Card {
  /** What is on it. */
  title: string;
  labels: string[];
  below: Card | null;
  "a/b": number;
}
"""
    }


def test_what_is_read_may_leave_out_what_has_a_default() -> None:
    typescript = TypeScript()
    assert typescript.type(list[Card]) == "Card[]"
    assert typescript.type(Card, is_input=True) == "CardInput"
    assert typescript.declarations["CardInput"].splitlines()[5:] == [
        "export interface CardInput {",
        "  /** What is on it. */",
        "  title: string;",
        "  labels?: string[];",
        "  below?: CardInput | null;",
        '  "a/b"?: number;',
        "}",
    ]


def test_a_class_that_is_read_as_it_is_written_is_declared_once() -> None:
    for type_ in (Cat, Short, Options, Color, Page[Cat]):
        typescript = TypeScript()
        assert typescript.type(type_) == typescript.type(type_, is_input=True)


def test_a_class_that_refers_to_one_that_is_read_otherwise_is_so_itself() -> None:
    assert TypeScript().type(Page[Card], is_input=True) == "Page_CardInput"
    assert TypeScript().type(dict[str, tuple[Page[Card] | None]], is_input=True) == (
        "Record<string, [Page_CardInput | null]>"
    )


@each_case(
    ("type_", "text"),
    [
        (Color, '/** The color of a card. */\nexport type Color = "red" | "dark blue";\n'),
        (Size, "export type Size = 1 | 2;\n"),
        (Cat, 'export interface Cat {\n  type: "Cat";\n  lives: number;\n}\n'),
        (Dog, 'export interface Dog {\n  kind: "dog";\n}\n'),
        (Short, "export interface Short {\n  n?: number;\n}\n"),
        (Unset, "export interface Unset {\n  n?: number;\n  m: number[];\n}\n"),
        (Row, 'export type Row = ["row", number, string | null];\n'),
        (ShortRow, "export type ShortRow = [number];\n"),
        (Point, "export type Point = [number, number];\n"),
        (Plain, "export interface Plain {\n  n: number;\n  m: number[];\n}\n"),
        (Page[int], "export interface Page_int {\n  items: number[];\n}\n"),
    ],
)
def test_each_way_to_make_a_class_is_declared(type_: Any, text: str) -> None:
    assert list(declared(type_).values()) == [text]


def test_a_key_that_may_be_missing_is_optional() -> None:
    assert "  m?: string;\n" in declared(Options)["Options"]
    assert "  n: number;\n" in declared(Options)["Options"]


@each_case(
    ("type_", "text"),
    [
        (Row, 'export type RowInput = ["row", number, (string | null)?];\n'),
        (ShortRow, "export type ShortRowInput = [number?];\n"),
        (Point, "export type PointInput = [number, number?];\n"),
        (Unset, "export interface UnsetInput {\n  n?: number;\n  m?: number[];\n}\n"),
        (Plain, "export interface PlainInput {\n  n: number;\n  m?: number[];\n}\n"),
    ],
)
def test_elements_and_fields_with_a_default_may_be_left_out_of_what_is_read(type_: Any, text: str) -> None:
    assert list(declared(type_, is_input=True).values()) == [text]


def test_classes_of_one_name_and_names_of_typescript_are_told_apart() -> None:
    typescript = TypeScript(["Taken"])
    names = ["Card", "Card", "Record", "string", "function", "Taken"]
    types: Any = tuple(msgspec.defstruct(name, [("n", int)]) for name in names)
    assert typescript.type(tuple.__class_getitem__(types)) == "[Card, Card2, Record2, string2, function2, Taken2]"
    assert list(typescript.declarations) == ["Card", "Card2", "Record2", "string2", "function2", "Taken2"]


def test_a_type_can_be_declared_under_a_name() -> None:
    typescript = TypeScript(["State", "Cat", "Rows"])
    typescript.declare("State", Cat | None)
    assert typescript.declarations["State"] == "export type State = Cat2 | null;\n"
    typescript = TypeScript(["Cat"])
    typescript.declare("Cat", Cat)
    assert list(typescript.declarations) == ["Cat"]
    assert typescript.type(list[Cat]) == "Cat[]"


def test_long_unions_are_broken() -> None:
    options = [f"Number{number}" for number in range(12)]
    assert alias("Short", options[:2]) == "export type Short = Number0 | Number1;\n"
    assert alias("Long", options) == "export type Long =\n  | " + "\n  | ".join(options) + ";\n"


def test_an_interface_without_members_is_one_line() -> None:
    assert interface("Empty", [], "Nothing.") == "/** Nothing. */\nexport interface Empty {}\n"
    assert interface("One", [Member("n: number")]) == "export interface One {\n  n: number;\n}\n"


def test_nothing_to_say_is_no_comment() -> None:
    assert comment("") == ""
    assert comment("\n  \n") == ""


@each_case(("name", "text"), [("a", "a"), ("$_9", "$_9"), ("9a", '"9a"'), ("a-b", '"a-b"'), ("", '""'), ('"', '"\\""')])
def test_names_that_are_no_identifiers_are_quoted(name: str, text: str) -> None:
    assert key(name) == text


def test_parameters_are_not_called_like_words_of_the_language() -> None:
    assert [identifier(name) for name in ("name", "function", "default")] == ["name", "function_", "default_"]
