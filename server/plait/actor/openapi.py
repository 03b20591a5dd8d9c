"""Describes the HTTP requests to threads as OpenAPI 3.1: endpoints, rpcs, queries, runs, tasks, files and chats."""

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, get_args
from urllib.parse import quote

import msgspec

from plait.actor.client_types import RpcTypes, check_type, read_rpc_types
from plait.actor.endpoints import EndpointMethod, Parameter
from plait.actor.kind import Kind
from plait_schemas.schema import components

__all__ = ["make_openapi"]

_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
_BYTES: Final[dict[str, Any]] = {"application/octet-stream": {}}
# The prefix of the names of methods that concern runs.
_RUN: Final = "run:"
_ERROR: Final = {"$ref": "#/components/responses/Error"}
_ERROR_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("code", "message", "path")},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_MESSAGES: Final = {"type": "array", "items": {"type": "object"}}
_PARAMETER: Final = re.compile(r"\{(.*?)\}")
# Stands for the schema of a type, by its number, until all types are described together.
_USE: Final = "$use"


def make_openapi(kinds: Iterable[Kind], *, with_files: Collection[str] = (), with_chats: Collection[str] = ()) -> bytes:
    """Return the document as JSON, with an empty `info`, with the files and chats of the kinds that have them.

    Raises NoTypes for a type that JSON Schema cannot describe.
    """
    document = _Document()
    for kind in kinds:
        for endpoint in kind.endpoints:
            document.add_endpoint(kind.name, endpoint)
        for _, method in sorted(kind.methods.items()):
            if method.is_run:
                document.add_run(kind.name, method.name.removeprefix(_RUN), read_rpc_types(method))
            elif not method.name.startswith(_RUN):
                document.add_rpc(kind.name, read_rpc_types(method))
        for _, query in sorted(kind.queries.items()):
            document.add_query(kind.name, read_rpc_types(query))
        if (get_run := kind.methods.get("tasks:get")) is not None:
            document.add_tasks(kind.name, get_args(read_rpc_types(get_run).result)[0])
        if kind.name in with_files:
            document.add_files(kind.name)
        if kind.name in with_chats:
            document.add_chat(kind.name)
    return document.finish()


class _Document:
    """The operations so far, and the types in them."""

    def __init__(self) -> None:
        self._paths: dict[str, dict[str, Any]] = {}
        # The paths by their texts without the names of parameters: paths that differ only in these names are the same.
        self._known: dict[str, str] = {}
        self._types: list[Any] = []

    def add_endpoint(self, kind: str, endpoint: EndpointMethod) -> None:
        """Add an endpoint of a kind."""
        where = f"{kind}: endpoint {endpoint.attribute}"
        thread = "thread"
        while thread in endpoint.pattern.parameters:
            thread += "_"
        operation = {
            **_describe(kind, f"{kind}.{endpoint.attribute}", inspect.getdoc(endpoint.function) or ""),
            "parameters": [_thread(thread), *self._parameters(where, endpoint)],
            "responses": {**self._answer(where, endpoint), "default": _ERROR},
        }
        if (body := endpoint.body) is not None:
            content = {_JSON: self._schema(f"{where}, {body.name}", body.type)} if endpoint.is_json else _BYTES
            operation["requestBody"] = {"required": body.is_required, "content": content}
        path = f"/threads/{kind}/{{{thread}}}{endpoint.pattern.without_types.rstrip('/')}"
        self._add(path, endpoint.method.lower(), operation)

    def add_rpc(self, kind: str, rpc: RpcTypes) -> None:
        """Add an rpc of a kind."""
        where = f"{kind}: rpc {rpc.name}"
        body = {"type": "object", "properties": self._arguments(where, rpc), "additionalProperties": False}
        result = {} if rpc.result is None else self._use(f"{where}, result", rpc.result)
        if rpc.is_stream:
            content = {_LINES: {"schema": _lines(result)}}
        else:
            content = {_JSON: {"schema": _object("result", result)}}
        operation = {
            **_describe(kind, f"{kind}.rpc.{rpc.name}", rpc.doc),
            "parameters": [_thread()],
            "requestBody": {"required": any(each.is_required for each in rpc.arguments)} | _json_body(body),
            "responses": {"200": {"description": "OK", "content": content}, "default": _ERROR},
        }
        self._add(f"/threads/{kind}/{{thread}}/rpc/{quote(rpc.name, safe='')}", "post", operation)

    def add_query(self, kind: str, query: RpcTypes) -> None:
        """Add a query of a kind: its result once, or as a stream of events."""
        where = f"{kind}: query {query.name}"
        arguments = [
            {"name": name, "in": "query", "required": False, **_json_body(schema)}
            for name, schema in self._arguments(where, query).items()
        ]
        content = {_JSON: self._schema(f"{where}, result", query.result), "text/event-stream": {}}
        operation = {
            **_describe(kind, f"{kind}.query.{query.name}", query.doc),
            "parameters": [_thread(), *arguments],
            "responses": {
                "200": {"description": "OK", "content": content},
                "304": {"description": "The result has the tag in `If-None-Match`"},
                "default": _ERROR,
            },
        }
        self._add(f"/threads/{kind}/{{thread}}/query/{quote(query.name, safe='')}", "get", operation)

    def add_run(self, kind: str, agent: str, run: RpcTypes) -> None:
        """Add the runs of an agent: in a thread with a signed id, and in a thread with a name."""
        where = f"agent {agent}"
        answer: dict[str, Any] = {"description": "OK"}
        operation: dict[str, Any] = {"responses": {"200": answer, "default": _ERROR}}
        if run.result is not None:
            output = self._use(f"{where}, output", run.result)
            kinds = {_JSON: output} if not run.is_stream else {"text/event-stream": {}, _LINES: _lines(output)}
            if run.is_stream and run.result is str:
                kinds = {"text/event-stream": {}, "text/plain": output}
            answer["content"] = {type_: {"schema": schema} for type_, schema in kinds.items()}
        for given in run.arguments[:1]:
            body = _json_body(self._use(f"{where}, input", given.type))
            operation["requestBody"] = {"required": given.is_required} | body
        self._add(f"/run/{agent}", "post", {**_describe(kind, f"run.{agent}", run.doc), **operation})
        named = {**_describe(kind, f"{kind}.run.{agent}", run.doc), "parameters": [_thread()], **operation}
        self._add(f"/threads/{kind}/{{thread}}/run/{agent}", "post", named)

    def add_tasks(self, kind: str, run: Any) -> None:
        """Add the operations on the runs of a kind's tasks."""
        shown = self._use(f"{kind}: a run of a task", run)
        id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        listing = _object("runs", {"type": "array", "items": shown})
        for name, path, schema, more in (("list", "", listing, []), ("get", "/{id}", shown, [id])):
            operation = {
                **_describe(kind, f"{kind}.tasks.{name}", ""),
                "parameters": [_thread(), *more],
                "responses": {"200": {"description": "OK", "content": {_JSON: {"schema": schema}}}, "default": _ERROR},
            }
            self._add(f"/threads/{kind}/{{thread}}/tasks{path}", "get", operation)

    def add_files(self, kind: str) -> None:
        """Add the operations on the files of a kind."""
        stored = {"content": {_JSON: {"schema": {"type": "object"}}}}
        answers: dict[str, Any] = {
            "get": {"200": {"description": "The file", "content": _BYTES}, "206": {"description": "A part of it"}},
            "put": {"200": {"description": "Replaced", **stored}, "201": {"description": "Created", **stored}},
            "delete": {"204": {"description": "Removed"}},
        }
        for method, answer in answers.items():
            operation = {
                **_describe(kind, f"{kind}.files.{method}", ""),
                "parameters": [
                    _thread(),
                    {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}},
                ],
                **({"requestBody": {"required": True, "content": _BYTES}} if method == "put" else {}),
                "responses": {**answer, "default": _ERROR},
            }
            self._add(f"/threads/{kind}/{{thread}}/files/{{path}}", method, operation)

    def add_chat(self, kind: str) -> None:
        """Add the requests of `useChat` to a kind."""
        events = {"200": {"description": "The answer", "content": {"text/event-stream": {}}}}
        listing = {
            "200": {"description": "The messages", "content": {_JSON: {"schema": _object("messages", _MESSAGES)}}}
        }
        stopped = {
            "200": {"description": "OK", "content": {_JSON: {"schema": _object("stopped", {"type": "boolean"})}}}
        }
        before = {"name": "before", "in": "query", "required": False, "schema": {"type": "integer"}}
        id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        body = {"requestBody": {"required": True} | _json_body(_object("messages", _MESSAGES))}
        nothing = {"204": {"description": "Nothing is answered"}}
        for name, method, path, parameters, more, answers in (
            ("list", "get", "", [before], {}, listing),
            ("send", "post", "", [], body, events),
            ("resume", "get", "/{id}/stream", [id], {}, events | nothing),
            ("stop", "post", "/stop", [], {}, stopped),
        ):
            operation = {
                **_describe(kind, f"{kind}.chat.{name}", ""),
                "parameters": [_thread(), *parameters],
                **more,
                "responses": {**answers, "default": _ERROR},
            }
            self._add(f"/threads/{kind}/{{thread}}/chat{path}", method, operation)

    def finish(self) -> bytes:
        """Return the whole document."""
        schemas, named = components(self._types)
        error = {"description": "An error", "content": {_JSON: {"schema": _ERROR_SCHEMA}}}
        document = {
            "openapi": "3.1.0",
            "info": {},
            "paths": _fill(self._paths, schemas),
            "components": {"schemas": dict(sorted(named.items())), "responses": {"Error": error}},
        }
        # JSON Schema has definitions at another place.
        return msgspec.json.encode(document).replace(b'"#/$defs/', b'"#/components/schemas/')

    # Inside

    def _add(self, path: str, method: str, operation: dict[str, Any]) -> None:
        known = self._known.setdefault(_PARAMETER.sub("{}", path), path)
        names = dict(zip(_PARAMETER.findall(path), _PARAMETER.findall(known), strict=True))
        for each in operation.get("parameters", ()):
            if each["in"] == "path":
                each["name"] = names[each["name"]]
        methods = self._paths.setdefault(known, {})
        methods[method] = _merge(methods[method], operation) if method in methods else operation

    def _arguments(self, where: str, rpc: RpcTypes) -> dict[str, dict[str, Any]]:
        """Return the schemas of `args` and `kwargs`."""
        named = {each.name: self._use(f"{where}, argument {each.name}", each.type) for each in rpc.arguments}
        placed = [named[each.name] for each in rpc.arguments if not each.is_named]
        args: dict[str, Any] = {"type": "array", "maxItems": len(placed)} | ({"prefixItems": placed} if placed else {})
        return {"args": args, "kwargs": {"type": "object", "properties": named, "additionalProperties": False}}

    def _use(self, where: str, type_: Any) -> dict[str, Any]:
        """Return the placeholder for the schema of a type."""
        check_type(where, type_)
        if type_ not in self._types:
            self._types.append(type_)
        return {_USE: self._types.index(type_)}

    def _schema(self, where: str, type_: Any) -> dict[str, Any]:
        return {"schema": self._use(where, type_)}

    def _parameters(self, where: str, endpoint: EndpointMethod) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "in": each.place, "required": each.place == "path" or each.is_required}
            | self._schema(f"{where}, {each.name}", _type_in_url(each, endpoint))
            for each in endpoint.parameters
            if each.place in ("path", "query")
        ]

    def _answer(self, where: str, endpoint: EndpointMethod) -> dict[str, Any]:
        if endpoint.is_response:
            return {"200": {"description": "OK"}}
        if endpoint.result_type is type(None):
            return {"204": {"description": "Done"}}
        type_ = Any if endpoint.result_type is msgspec.UNSET else endpoint.result_type
        return {"200": {"description": "OK", "content": {_JSON: self._schema(f"{where}, result", type_)}}}


def _type_in_url(parameter: Parameter, endpoint: EndpointMethod) -> Any:
    """Return the type of a parameter; without an annotation, a parameter of the path has the type of its converter."""
    if parameter.type is not Any:
        return parameter.type
    return {"int": int, "float": float}.get(endpoint.pattern.parameters[parameter.name], str)


def _describe(kind: str, id: str, doc: str) -> dict[str, Any]:
    summary, _, rest = doc.partition("\n")
    described: dict[str, Any] = {"operationId": id, "tags": [kind]}
    if summary:
        described["summary"] = summary
    if rest.strip():
        described["description"] = rest.strip()
    return described


def _thread(name: str = "thread") -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "maxLength": 256}}


def _object(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def _lines(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of each line of a stream."""
    return {"anyOf": [_object("chunk", chunk), _object("end", {}), _object("error", {})]}


def _json_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {_JSON: {"schema": schema}}}


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Describe two operations of one path and method as a single one."""
    merged = {**second, **first}
    for name, value in merged.items():
        if name not in first or name not in second:
            if isinstance(value, dict) and value.get("required") is True:
                merged[name] = value | {"required": False}
        elif value == second[name]:
            continue
        elif name == "schema":
            known = value.get("anyOf", [value])
            merged[name] = value if second[name] in known else {"anyOf": [*known, second[name]]}
        elif name == "required":
            merged[name] = False
        elif name == "parameters":
            merged[name] = [*_merge(_by_name(value), _by_name(second[name])).values()]
        elif name in ("summary", "description"):
            merged[name] = f"{value}\n\n{second[name]}" if name == "description" else f"{value} / {second[name]}"
        elif isinstance(value, dict):
            merged[name] = _merge(value, second[name])
    return merged


def _by_name(parameters: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{each['in']} {each['name']}": each for each in parameters}


def _fill(value: Any, schemas: list[dict[str, Any]]) -> Any:
    """Return a part of the document with the schemas in their places."""
    if isinstance(value, dict):
        if (number := value.get(_USE)) is not None:
            return schemas[number]
        return {key: _fill(each, schemas) for key, each in value.items()}
    return [_fill(each, schemas) for each in value] if isinstance(value, list) else value
