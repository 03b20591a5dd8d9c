"""Writes types that msgspec supports as TypeScript types of their JSON."""

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from typing import Any, Final, NamedTuple

from msgspec import NODEFAULT, inspect

from plait_schemas.codec import encode_json
from plait_schemas.models import expand, types_in

__all__ = ["Member", "TypeScript", "alias", "comment", "identifier", "interface", "key", "literal"]

_STRINGS: Final = (
    inspect.StrType,
    inspect.BytesType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
)
_Fields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
_Named = _Fields | inspect.EnumType

_WORDS: Final = frozenset(
    """
    arguments await break case catch class const continue debugger default delete do else enum eval export extends
    false finally for function if implements import in instanceof interface let new null package private protected
    public return static super switch this throw true try typeof var void while with yield
    """.split()  # noqa: SIM905
)
_TYPES: Final = frozenset(
    "any bigint boolean never number object string symbol undefined unknown AsyncIterable Record".split()  # noqa: SIM905
)
_LINE: Final = 120


class Member(NamedTuple):
    """One line of an interface, such as `name?: string`, and its doc comment."""

    text: str
    doc: str = ""


class TypeScript:
    """Writes types. A named type is declared once, in `declarations`, and referred to by its name.

    A field is optional if JSON may lack it: in JSON that the server reads, every field with a default; in JSON that it
    writes, only the fields that it leaves out. A class for which that differs is declared twice, as `Card` and
    `CardInput`. Names in `taken` are not used. The type of any JSON value is `json`.
    """

    def __init__(self, taken: Iterable[str] = (), *, json: str = "unknown", is_readonly: bool = False) -> None:
        # By name, in order of first use.
        self.declarations: dict[str, str] = {}
        self._taken = {*_WORDS, *_TYPES, *taken}
        self._json = json
        self._readonly = "readonly " if is_readonly else ""
        self._names: dict[tuple[Any, bool], str] = {}
        self._aliases: dict[str, inspect.Type] = {}

    def type(self, type_: Any, *, is_input: bool = False) -> str:
        """Return the TypeScript of a type, for JSON that the server writes, or, with `is_input`, reads."""
        return self._type(inspect.type_info(type_), is_input)

    def declare(self, name: str, type_: Any, *, is_input: bool = False) -> None:
        """Declare a type under one of the names in `taken`."""
        info = expand(inspect.type_info(type_))
        if (
            not is_input
            and isinstance(info, _Named)
            and _class_name(info.cls) == name
            and (info.cls, False) not in self._names
        ):
            self._taken.remove(name)
            self._name(info, is_input=False)
        else:
            self.declarations[name] = ""
            self.declarations[name] = alias(name, [self._type(info, is_input=is_input)])

    def name(self, name: str, type_: Any, doc: str = "") -> None:
        """Declare a name for a type that has none, and use it for this type from then on."""
        info = inspect.type_info(type_)
        self._taken.add(name)
        self.declarations[name] = alias(name, [self._type(info, is_input=False)], doc)
        self._aliases[name] = info

    def _type(self, info: inspect.Type, is_input: bool) -> str:
        name = next((name for name, named in self._aliases.items() if named == info), None)
        return name or self._write_out(expand(info), is_input)

    def _write_out(self, info: inspect.Type, is_input: bool) -> str:
        match info:
            case inspect.Metadata(type=inner):
                return self._type(inner, is_input)
            case inspect.NoneType():
                return "null"
            case inspect.BoolType():
                return "boolean"
            case inspect.IntType() | inspect.FloatType():
                return "number"
            case inspect.LiteralType(values=values):
                return " | ".join(map(literal, values))
            case inspect.UnionType(types=types):
                options = dict.fromkeys(self._type(each, is_input) for each in types)
                return self._json if self._json in options else " | ".join(options)
            case inspect.TupleType(item_types=types):
                return self._tuple(self._type(each, is_input) for each in types)
            case inspect.CollectionType(item_type=item):
                return f"{self._readonly}{self._in_brackets(item, is_input)}[]"
            case inspect.DictType(value_type=value):
                text = self._type(value, is_input)
                return f"{{ readonly [key: string]: {text} }}" if self._readonly else f"Record<string, {text}>"
            case _ if isinstance(info, _Named):
                return self._name(info, is_input=is_input)
            case _:
                return "string" if isinstance(info, _STRINGS) else self._json

    def _tuple(self, elements: Iterable[str]) -> str:
        return f"{self._readonly}[{', '.join(elements)}]"

    def _in_brackets(self, info: inspect.Type, is_input: bool) -> str:
        """Return a type, in parentheses if it needs them when `[]` or `?` follows."""
        text = self._type(info, is_input)
        while isinstance(info := expand(info), inspect.Metadata):
            info = info.type
        has_options = isinstance(info, inspect.UnionType | inspect.LiteralType) and " | " in text
        return f"({text})" if has_options or text.startswith("readonly ") else text

    # Named types

    def _name(self, info: _Named, *, is_input: bool) -> str:
        at = (info.cls, is_input and _reads_more_than_it_writes(info))
        if at not in self._names:
            self._names[at] = name = self._free_name(_class_name(info.cls) + ("Input" if at[1] else ""))
            # Reserve its place before the declarations that it refers to.
            self.declarations[name] = ""
            self.declarations[name] = self._declaration(name, info, is_input)
        return self._names[at]

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name

    def _declaration(self, name: str, info: _Named, is_input: bool) -> str:
        if isinstance(info, inspect.EnumType):
            return alias(name, [literal(each.value) for each in info.cls], _doc(info))
        tag = info.tag if isinstance(info, inspect.StructType) else None
        if _is_array(info):
            elements = [literal(tag)] if tag is not None else []
            return alias(name, [self._tuple([*elements, *self._elements(info, is_input)])], _doc(info))
        assert not isinstance(info, inspect.NamedTupleType)
        members = [self._member(info, field, is_input) for field in info.fields]
        if isinstance(info, inspect.StructType) and info.tag_field is not None:
            members.insert(0, Member(f"{self._readonly}{key(info.tag_field)}: {literal(tag)}"))
        return interface(name, members, _doc(info))

    def _member(self, info: _Fields, field: inspect.Field, is_input: bool) -> Member:
        mark = "?" if _is_optional(info, field, is_input) else ""
        text = f"{self._readonly}{key(field.encode_name)}{mark}: {self._type(field.type, is_input)}"
        extra = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
        return Member(text, (extra or {}).get("description", ""))

    def _elements(self, info: _Fields, is_input: bool) -> Iterator[str]:
        """Yield the types of an array's elements; optional ones are at its end."""
        last = max((at for at, field in enumerate(info.fields) if field.required or not is_input), default=-1)
        for at, field in enumerate(info.fields):
            yield f"{self._in_brackets(field.type, is_input)}?" if at > last else self._type(field.type, is_input)


# Text


def alias(name: str, options: Iterable[str], doc: str = "") -> str:
    """Return a type that is one of `options`."""
    line = f"export type {name} = {' | '.join(options := list(options))};\n"
    if len(line) - 1 > _LINE:
        line = f"export type {name} =\n  | " + "\n  | ".join(options) + ";\n"
    return comment(doc) + line


def interface(name: str, members: Iterable[Member], doc: str = "") -> str:
    """Return an object type."""
    lines = "".join(f"{comment(member.doc, '  ')}  {member.text};\n" for member in members)
    return f"{comment(doc)}export interface {name} {{" + (f"\n{lines}" if lines else "") + "}\n"


def comment(text: str, indent: str = "") -> str:
    """Return a doc comment; an empty string for an empty text."""
    lines = cleandoc(text).strip().replace("*/", "*\\/").splitlines()
    if len(lines) < 2:
        return f"{indent}/** {lines[0]} */\n" if lines else ""
    return f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines) + f"{indent} */\n"


def key(name: str) -> str:
    """Return the name of a member, quoted if it is no identifier."""
    return name if re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", name) else literal(name)


def identifier(name: str) -> str:
    """Return the name of a parameter, with `_` added if it is a reserved word of TypeScript."""
    return f"{name}_" if name in _WORDS else name


def literal(value: object) -> str:
    """Return a value of JSON."""
    return encode_json(value).decode()


# Classes


def _class_name(cls: Any) -> str:
    origin = getattr(cls, "__origin__", None)
    if origin is None:
        return "_".join(re.findall(r"\w+", cls.__name__))  # The name of a generic model contains its arguments.
    arguments = (each.__name__ if isinstance(each, type) else str(each) for each in cls.__args__)
    return re.sub(r"\W+", "_", "_".join([origin.__name__, *arguments])).strip("_")


def _doc(info: _Named) -> str:
    """Return the docstring of a class, unless Python has generated it."""
    cls = getattr(info.cls, "__origin__", info.cls)
    doc = cls.__doc__ or ""
    return "" if doc.startswith(f"{cls.__name__}(") else doc


def _is_array(info: _Fields) -> bool:
    return isinstance(info, inspect.NamedTupleType) or (isinstance(info, inspect.StructType) and info.array_like)


def _is_optional(info: _Fields, field: inspect.Field, is_input: bool) -> bool:
    if field.required or is_input:
        return not field.required
    if (
        isinstance(info, inspect.StructType)
        and getattr(info.cls, "__origin__", info.cls).__struct_config__.omit_defaults
    ):
        return True
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _reads_more_than_it_writes(info: inspect.Type) -> bool:
    """Tell whether a type, or one that it refers to, has a field that is always written, but optional when read."""
    return any(
        _is_optional(each, field, True) != (_is_optional(each, field, False) and not _is_array(each))
        for each in _classes_in(info)
        for field in each.fields
    )


def _classes_in(info: inspect.Type) -> Iterator[_Fields]:
    return (each for each in types_in(info, expands=True) if isinstance(each, _Fields))
