"""Writes the types of an app's threads for its clients, as TypeScript and as JSON Schema."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from plait.actor.kind import Kind
from plait.actor.per_actor import PerActor
from plait.actor.picture_types import make_picture_type
from plait.actor.rpc import Method, Stream
from plait.actor.thread import Thread
from plait_schemas.export import DIALECT, definitions, json_text
from plait_schemas.schema import schema_hash, schema_of
from plait_schemas.typescript import Member, TypeScript, comment, identifier, interface, key, literal

__all__ = ["Argument", "NoTypes", "RpcTypes", "check_type", "make_types_files", "read_rpc_types"]

_HEAD: Final = "The threads of this app. Written by `plait types`."
_DECLARED: Final = ("State", "StateInput", "Rpcs", "Events", "Card")


class NoTypes(Exception):
    """A type has no JSON Schema; the message says where the type is used."""


class Argument(NamedTuple):
    """An argument of an rpc."""

    name: str
    type: Any
    is_required: bool
    # Whether it is keyword-only.
    is_named: bool


class RpcTypes(NamedTuple):
    """An rpc, as its callers see it."""

    name: str
    doc: str
    arguments: list[Argument]
    # The type of the result, or, with `is_stream`, of each chunk; None if there is no result.
    result: Any
    is_stream: bool


class _Surface(NamedTuple):
    """The types of a Thread class that clients use."""

    kind: str
    # The prefix of the class's names in TypeScript.
    prefix: str
    state: Any
    hash: str
    rpcs: list[RpcTypes]
    queries: list[RpcTypes]
    events: dict[str, Any]
    # The type of the card; None without one.
    card: Any
    # The places of the state's texts.
    texts: list[str]

    def types(self) -> Iterator[tuple[str, Any]]:
        """Yield every type, with a description of where it is used."""
        yield f"{self.kind}: the state", self.state
        for noun, rpc in (*(("rpc", each) for each in self.rpcs), *(("query", each) for each in self.queries)):
            where = f"{self.kind}: {noun} {rpc.name}"
            for argument in rpc.arguments:
                yield f"{where}, argument {argument.name}", argument.type
            yield f"{where}, {'chunk of its stream' if rpc.is_stream else 'result'}", rpc.result
        for name, type_ in self.events.items():
            yield f"{self.kind}: event {name}", type_
        if self.card is not None:
            yield f"{self.kind}: the card", self.card


def make_types_files(kinds: Iterable[Kind]) -> dict[str, str]:
    """Return the text of `plait-types.ts` and of `plait-types.json`. Raises NoTypes."""
    surfaces: list[_Surface] = []
    for kind in kinds:
        surfaces.append(_read_surface(kind, {surface.prefix for surface in surfaces}))
    return {"plait-types.ts": _write_typescript(surfaces), "plait-types.json": _make_json_schema(surfaces)}


# Reading classes


def _read_surface(kind: Kind, taken: set[str]) -> _Surface:
    parts = (inspect.getattr_static(kind.cls, name) for name in dir(kind.cls))
    of_parts = {name: type_ for part in parts if isinstance(part, PerActor) for name, type_ in part.events.items()}
    events = of_parts | getattr(kind.cls, "events", {})
    words = re.split(r"[^a-z0-9]+", kind.name)
    prefix = "".join(map(str.capitalize, words))
    if not prefix[0].isalpha():
        prefix = f"Kind{prefix}"
    while prefix in taken:
        prefix += "_"
    rpcs, queries = (
        [read_rpc_types(method) for _, method in sorted(methods.items())] for methods in (kind.methods, kind.queries)
    )
    make = kind.cls.card
    card = None if make is Thread.card else get_type_hints(make, include_extras=True).get("return", Any)
    state = make_picture_type(kind.state_type.type, kind.readable, prefix)
    surface = _Surface(kind.name, prefix, state, "", rpcs, queries, dict(events), card, kind.state_type.texts)
    for where, type_ in surface.types():
        check_type(where, type_)
    return surface._replace(hash=schema_hash(schema_of(kind.state_type.type)))


def check_type(where: str, type_: Any) -> None:
    """Raise NoTypes for a type that has no JSON Schema; `where` names its use."""
    try:
        schema_of(type_)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise NoTypes(f"{where}: {type_!r} has no JSON Schema: {str(error).splitlines()[-1]}") from None


def read_rpc_types(method: Method) -> RpcTypes:
    """Return the types of an rpc, or of an agent that clients call."""
    function, hints = method.read_types()
    parameters = list(inspect.signature(function).parameters.values())[1:]
    arguments = [
        Argument(
            each.name,
            hints.get(each.name, Any),
            is_required=each.default is each.empty,
            is_named=each.kind is each.KEYWORD_ONLY,
        )
        for each in parameters
        if hints.get(each.name) is not Stream
    ]
    result = hints.get("return", Any)
    if method.is_stream:
        # The type argument of AsyncIterator[...]; chunks that are sent through a Stream may have any type.
        result = next(iter(get_args(result)), Any) if method.is_generator else Any
    elif result is type(None):
        result = None
    return RpcTypes(method.name, inspect.getdoc(function) or "", arguments, result, method.is_stream)


# TypeScript


def _write_typescript(surfaces: Sequence[_Surface]) -> str:
    taken = [f"{surface.prefix}{part}" for surface in surfaces for part in _DECLARED]
    typescript = TypeScript(taken)
    for surface in surfaces:
        typescript.declare(f"{surface.prefix}State", surface.state)
        typescript.declare(f"{surface.prefix}StateInput", surface.state, is_input=True)
        if surface.card is not None:
            typescript.declare(f"{surface.prefix}Card", surface.card)
    parts = [part for surface in surfaces for part in _write_declarations(surface, typescript)]
    return "\n".join([comment(_HEAD), *typescript.declarations.values(), *parts, _write_kinds(surfaces)])


def _write_kinds(surfaces: Sequence[_Surface]) -> str:
    """Return the types of each kind by its name, for the package `plait-client`; another program need not have that."""
    members = [(key(each.kind), each.prefix) for each in surfaces]
    kinds = "".join(
        f"    {kind}: {{ state: {name}State; rpcs: {name}Rpcs; events: {name}Events }};\n" for kind, name in members
    )
    head = "// @ts-ignore: programs without the package use the other types.\n"
    return f'{head}declare module "plait-client" {{\n  interface Kinds {{\n{kinds}  }}\n}}\n'


def _write_declarations(surface: _Surface, typescript: TypeScript) -> list[str]:
    prefix = surface.prefix
    rpcs = [_write_method(rpc, typescript) for rpc in surface.rpcs]
    rpcs += [_write_query(query, typescript) for query in surface.queries]
    calls = "call and query" if surface.queries else "call"
    events = [Member(f"{key(name)}: {typescript.type(type_)}") for name, type_ in surface.events.items()]
    return [
        interface(f"{prefix}Rpcs", rpcs, f"What clients may {calls} of {surface.kind}."),
        interface(f"{prefix}Events", events, f"What {surface.kind} emits."),
        comment(f"The hash of {prefix}State's schema.")
        + f'export const {prefix[0].lower()}{prefix[1:]}Schema = "{surface.hash}";\n',
        *([_write_texts(surface)] if surface.texts else ()),
    ]


def _write_texts(surface: _Surface) -> str:
    name = f"{surface.prefix[0].lower()}{surface.prefix[1:]}Texts"
    places = "".join(f"  {literal(place)},\n" for place in surface.texts)
    return comment(f"The texts in {surface.prefix}State.") + f"export const {name} = [\n{places}] as const;\n"


def _write_method(rpc: RpcTypes, typescript: TypeScript) -> Member:
    """Return a method with its positional arguments; its comment lists the keyword-only ones, for `callWith`."""
    named = [_write_parameter(key(each.name), each, typescript) for each in rpc.arguments if each.is_named]
    doc = f"{rpc.doc}\n\nBy name, with `callWith`: {{ {'; '.join(named)} }}" if named else rpc.doc
    return Member(f"{key(rpc.name)}{_write_signature(rpc, typescript)}", doc)


def _write_query(query: RpcTypes, typescript: TypeScript) -> Member:
    """Return a query: an object with a method, so that it cannot be called as an rpc."""
    return Member(f"{key(query.name)}: {{ query{_write_signature(query, typescript)} }}", query.doc)


def _write_signature(rpc: RpcTypes, typescript: TypeScript) -> str:
    placed = [_write_parameter(identifier(each.name), each, typescript) for each in rpc.arguments if not each.is_named]
    result = "void" if rpc.result is None else typescript.type(rpc.result)
    return f"({', '.join(placed)}): {f'AsyncIterable<{result}>' if rpc.is_stream else result}"


def _write_parameter(name: str, argument: Argument, typescript: TypeScript) -> str:
    return f"{name}{'' if argument.is_required else '?'}: {typescript.type(argument.type, is_input=True)}"


# JSON Schema


def _make_json_schema(surfaces: Sequence[_Surface]) -> str:
    schemas, named = definitions([type_ for surface in surfaces for _, type_ in surface.types()])
    # In the order of `types`.
    in_order = iter(schemas)
    kinds = {surface.kind: _make_kind_schema(surface, in_order) for surface in surfaces}
    return json_text({"$schema": DIALECT, "kinds": kinds, "$defs": dict(sorted(named.items()))})


def _make_kind_schema(surface: _Surface, schemas: Iterator[dict[str, Any]]) -> dict[str, Any]:
    queries = surface.queries
    return {
        "hash": surface.hash,
        "state": next(schemas),
        "rpcs": {rpc.name: _make_rpc_schema(rpc, schemas) for rpc in surface.rpcs},
        **({"queries": {each.name: _make_rpc_schema(each, schemas) for each in queries}} if queries else {}),
        "events": {name: next(schemas) for name in surface.events},
        **({} if surface.card is None else {"card": next(schemas)}),
        **({"texts": surface.texts} if surface.texts else {}),
    }


def _make_rpc_schema(rpc: RpcTypes, schemas: Iterator[dict[str, Any]]) -> dict[str, Any]:
    properties = {argument.name: next(schemas) for argument in rpc.arguments}
    answer = next(schemas)
    described: dict[str, Any] = {
        "positional": [argument.name for argument in rpc.arguments if not argument.is_named],
        "arguments": {
            "type": "object",
            "properties": properties,
            "required": [argument.name for argument in rpc.arguments if argument.is_required],
            "additionalProperties": False,
        },
    }
    if rpc.doc:
        described["description"] = rpc.doc
    if rpc.result is not None or rpc.is_stream:
        described["chunk" if rpc.is_stream else "result"] = answer
    return described
