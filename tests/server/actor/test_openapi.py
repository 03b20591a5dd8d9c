"""What the OpenAPI document of an app says, and that it is valid."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
import pytest
from openapi_spec_validator import validate
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from plait import Context, Files, Messages, Plait, Step, Stream, Tasks, Thread, endpoint, query, rpc, task
from plait.actor.client_types import NoTypes

TITLE, VERSION = "The shop", "2.0"


class Line(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(max_length=100)]
    amount: float | None = None


class Report(msgspec.Struct):
    """A yearly report."""

    year: int
    lines: list[Line] = []


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


class Note(BaseModel):
    text: str
    inner: "Note | None" = None


class Shop(Thread[dict[str, Any]]):
    files = Files()
    messages = Messages(agent="silent", live=True)

    @endpoint("GET", "/report/{year:int}")
    async def report(self, year: int, lines: bool = False, tags: list[str] | None = None) -> Report:
        """The report of a year.

        With lines, if asked for.
        """
        return Report(year)

    @endpoint("PUT", "/report/{year:int}")
    async def replace(self, year, report: Report, thread: str = "") -> None:  # type: ignore[no-untyped-def]
        """Replace it."""

    @endpoint("GET", "/{thread}/{id:uuid}/{rest:path}")
    def odd(self, thread: str, id: UUID, rest: str, request: Request) -> Response:
        return Response()

    @endpoint("POST", "/")
    def pet(self, pet: Cat | Dog) -> Note:
        return Note(text="")

    @endpoint("PUT", "/blob")
    def blob(self, data: bytes) -> int:
        return len(data)

    @rpc
    def add(self, line: Line, *, times: int = 1) -> int:
        """Add a line."""
        return times

    @query
    def lines(self, year: int, *, most: int = 10) -> list[Line]:
        """The lines of a year."""
        return []

    @query(name="große/lines")
    def large_lines(self):  # type: ignore[no-untyped-def]
        return []

    @rpc(name="große/list")
    def list_all(self) -> None: ...

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        yield to

    @rpc
    async def feed(self, stream: Stream) -> None: ...


@pytest.fixture
def document() -> dict[str, Any]:
    app = Plait(Shop, store="memory://", secret="a secret, long enough to sign tokens with")

    @app.agent("helper", thread=Shop)
    async def helper(ctx: Context[Shop], question: str) -> Report:
        """Help."""
        return Report(1)

    @app.agent("talker", thread=Shop)
    async def talker(ctx: Context[Shop], input: Line | None = None) -> AsyncIterator[str]:
        yield ""

    @app.agent("silent", thread=Shop)
    async def silent(ctx: Context[Shop]) -> None: ...

    return app.openapi(title=TITLE, version=VERSION)


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"] == "3.1.0"
    assert document["info"] == {"title": TITLE, "version": VERSION}


def test_it_has_all_endpoints_rpcs_queries_runs_files_and_chats(document: dict[str, Any]) -> None:
    operations = {f"{method} {path}" for path, methods in document["paths"].items() for method in methods}
    thread = "/threads/shop/{thread}"
    assert operations == {
        f"get {thread}/report/{{year}}",
        f"put {thread}/report/{{year}}",
        "get /threads/shop/{thread_}/{thread}/{id}/{rest}",
        f"post {thread}",
        f"put {thread}/blob",
        f"post {thread}/rpc/add",
        f"post {thread}/rpc/gro%C3%9Fe%2Flist",
        f"post {thread}/rpc/count",
        f"post {thread}/rpc/feed",
        f"get {thread}/query/lines",
        f"get {thread}/query/gro%C3%9Fe%2Flines",
        *(f"{method} {thread}/files/{{path}}" for method in ("get", "put", "delete")),
        *(
            f"post {thread}/rpc/messages%3A{each}"
            for each in ("approve", "edit", "read", "regenerate", "siblings", "switch")
        ),
        f"get {thread}/chat",
        f"post {thread}/chat",
        f"get {thread}/chat/{{id}}/stream",
        f"post {thread}/chat/stop",
        *(f"post {prefix}/run/{agent}" for prefix in ("", thread) for agent in ("helper", "talker", "silent")),
    }
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len({*ids}) == len(ids)


def test_an_endpoint_has_its_parameters_and_its_result(document: dict[str, Any]) -> None:
    report = document["paths"]["/threads/shop/{thread}/report/{year}"]["get"]
    assert (report["summary"], report["description"]) == ("The report of a year.", "With lines, if asked for.")
    parameters = {each["name"]: (each["in"], each["required"], each["schema"]) for each in report["parameters"]}
    assert parameters["year"] == ("path", True, {"type": "integer"})
    assert parameters["lines"] == ("query", False, {"type": "boolean"})
    assert [*parameters] == ["thread", "year", "lines", "tags"]
    content = report["responses"]["200"]["content"]["application/json"]
    assert content == {"schema": {"$ref": "#/components/schemas/Report"}}
    assert document["components"]["schemas"]["Report"]["description"] == "A yearly report."


def test_an_endpoint_has_its_body_and_may_have_no_result(document: dict[str, Any]) -> None:
    paths = document["paths"]
    replaced = paths["/threads/shop/{thread}/report/{year}"]["put"]
    assert replaced["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Report"}
    assert "204" in replaced["responses"]
    year = next(each for each in replaced["parameters"] if each["name"] == "year")
    assert year["schema"] == {"type": "integer"}
    blob = paths["/threads/shop/{thread}/blob"]["put"]
    assert blob["requestBody"] == {"required": True, "content": {"application/octet-stream": {}}}


def test_an_rpc_has_its_arguments_by_place_and_by_name(document: dict[str, Any]) -> None:
    add = document["paths"]["/threads/shop/{thread}/rpc/add"]["post"]
    body = add["requestBody"]
    assert body["required"] is True
    properties = body["content"]["application/json"]["schema"]["properties"]
    line = {"$ref": "#/components/schemas/Line"}
    assert properties["args"] == {"type": "array", "maxItems": 1, "prefixItems": [line]}
    assert properties["kwargs"]["properties"]["line"] == line
    assert properties["kwargs"]["properties"]["times"]["type"] == "integer"
    result = add["responses"]["200"]["content"]["application/json"]["schema"]
    assert result == {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}


def test_a_query_has_its_arguments_in_the_url_and_its_result_or_a_stream(document: dict[str, Any]) -> None:
    lines = document["paths"]["/threads/shop/{thread}/query/lines"]["get"]
    assert lines["summary"] == "The lines of a year."
    thread, args, kwargs = lines["parameters"]
    assert thread["name"] == "thread"
    year = {"type": "integer"}
    for each in (args, kwargs):
        assert (each["in"], each["required"], "schema" in each) == ("query", False, False)
    schemas = {each["name"]: each["content"]["application/json"]["schema"] for each in (args, kwargs)}
    assert schemas["args"] == {"type": "array", "maxItems": 1, "prefixItems": [year]}
    assert schemas["kwargs"]["properties"].keys() == {"year", "most"}
    assert {*lines["responses"]} == {"200", "304", "default"}
    assert lines["responses"]["200"]["content"] == {
        "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}}},
        "text/event-stream": {},
    }


def test_an_endpoint_beside_an_rpc_and_files_of_its_path_is_described() -> None:
    class Desk(Thread[None]):
        files = Files()

        @endpoint("GET", "/rpc/add")
        def read(self) -> int:
            return 1

        @endpoint("POST", "/files/{name:path}")
        def extend(self, name: str) -> None: ...

        @rpc
        def add(self) -> None: ...

    document = Plait(Desk, store="memory://").openapi()
    validate(document)
    operations = {path: {*methods} for path, methods in document["paths"].items()}
    thread = "/threads/desk/{thread}"
    assert operations == {
        f"{thread}/rpc/add": {"get", "post"},
        f"{thread}/files/{{name}}": {"get", "put", "post", "delete"},
    }


def test_paths_that_differ_in_the_names_of_parameters_are_one_path() -> None:
    class Desk(Thread[None]):
        @endpoint("GET", "/{thread}/{a}")
        def read(self, thread: str, a: str) -> None: ...

        @endpoint("DELETE", "/{b}/{c}")
        def remove(self, b: str, c: int, a: int = 0) -> None: ...

    document = Plait(Desk, store="memory://").openapi()
    validate(document)
    ((path, methods),) = document["paths"].items()
    names = {
        method: [(each["in"], each["name"]) for each in operation["parameters"]]
        for method, operation in methods.items()
    }
    in_path = [("path", name) for name in re.findall(r"{(\w+)}", path)]
    assert names == {"get": in_path, "delete": [*in_path, ("query", "a")]}


def test_endpoints_that_differ_in_the_types_of_their_paths_are_one_operation() -> None:
    class Desk(Thread[None]):
        @endpoint("POST", "/a/{n:int}")
        def by_number(self, n: int, page: int, at: int, line: Line) -> int:
            """By number."""
            return n

        @endpoint("POST", "/a/{x}")
        def by_name(self, x: str, page: str, note: Note) -> str:
            """By name."""
            return x

        @endpoint("POST", "/a/{rest:path}")
        def others(self, rest: str, page: str) -> None: ...

    document = Plait(Desk, store="memory://").openapi()
    validate(document)
    operation = document["paths"]["/threads/desk/{thread}/a/{n}"]["post"]
    assert [*document["paths"]] == ["/threads/desk/{thread}/a/{n}"]
    assert operation["summary"] == "By number. / By name."
    parameters = {each["name"]: (each["required"], each["schema"]) for each in operation["parameters"]}
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert (parameters["page"], parameters["at"]) == ((True, either), (False, {"type": "integer"}))
    assert operation["requestBody"]["required"] is False
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Line", "Note")]}
    assert {*operation["responses"]} == {"200", "204", "default"}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == either


def test_a_type_without_a_schema_is_named() -> None:
    class Wrong(Thread[None]):
        @endpoint("GET", "/a")
        def a(self) -> complex:
            return 1j

    with pytest.raises(NoTypes, match=r"wrong: endpoint a, result: .* has no JSON Schema"):
        Plait(Wrong, store="memory://").openapi()


def test_an_app_without_requests_has_a_valid_document() -> None:
    class Quiet(Thread[Literal["a"]]):
        pass

    validate(Plait(Quiet, store="memory://").openapi())


def test_tasks_that_clients_see_are_read_and_those_that_they_begin_are_rpcs() -> None:
    class Desk(Thread[dict[str, Any]]):
        tasks = Tasks(live=True)

        @task(clients=True)
        async def publish(self, step: Step, pages: int) -> int:
            return pages

    class Office(Thread[dict[str, Any]]):
        tasks = Tasks()

        @task
        async def file(self, step: Step) -> None: ...

    document = Plait(Desk, Office, store="memory://").openapi(title=TITLE, version=VERSION)
    validate(document)
    place = "/threads/desk/{thread}"
    rpcs = [f"{place}/rpc/{name}" for name in ("task%3Apublish", "tasks%3Acancel", "tasks%3Aget", "tasks%3Asend")]
    office = [f"/threads/office/{{thread}}/rpc/tasks%3A{name}" for name in ("cancel", "send")]
    assert sorted(document["paths"]) == sorted([*rpcs, *office, f"{place}/tasks", f"{place}/tasks/{{id}}"])
    answer = document["paths"][f"{place}/tasks/{{id}}"]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"$ref": "#/components/schemas/TaskRun"}
    arguments = document["paths"][rpcs[0]]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert arguments["kwargs"]["properties"].keys() == {"pages", "key"}


class Counted(BaseModel):
    """A type that counts how often it is described."""

    times: ClassVar[int] = 0

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        cls.times += 1
        return handler(schema)


def test_the_document_is_made_once_and_again_when_an_agent_is_added() -> None:
    class Desk(Thread[None]):
        @rpc
        def file(self, note: Counted) -> None:
            pass

    app = Plait(Desk, store="memory://")
    first = app.openapi()
    times = Counted.times
    first["paths"].clear()
    assert (titled := app.openapi(title=TITLE))["info"] == {"title": TITLE, "version": "1"}
    assert list(titled) == ["openapi", "info", "paths", "components"]
    assert "/threads/desk/{thread}/rpc/file" in titled["paths"]
    assert Counted.times == times > 0

    @app.agent("sort", thread=Desk)
    async def sort(ctx: Context[Desk]) -> int:
        return 1

    assert "/run/sort" in app.openapi()["paths"]
