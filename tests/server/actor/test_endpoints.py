"""Which methods can be endpoints, and what a class with a wrong one says when it is made."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.cases import each_case

from plait import Limits, Plait, Thread, endpoint, query
from plait.actor.endpoints import EndpointMethod, Endpoints


class Point(msgspec.Struct):
    x: int


def make(function: Callable[..., Any], *more: Callable[..., Any]) -> list[EndpointMethod]:
    """Return the endpoints of a class that has these."""
    return [*Endpoints(type("Room", (), {each.__name__: each for each in (function, *more)}))]


def test_arguments_come_from_the_path_the_query_and_the_body() -> None:
    @endpoint("POST", "/points/{name}")
    def add(self: object, name: str, point: Point, request: Request, *, at: float | None = None) -> None: ...

    (made,) = make(add)
    places = {each.name: each.place for each in made.parameters}
    assert places == {"name": "path", "point": "body", "request": "request", "at": "query"}


def test_a_list_is_the_body_of_a_post_and_repeated_in_the_query_of_a_get() -> None:
    @endpoint("POST", "/a")
    def put(self: object, tags: list[str]) -> None: ...

    @endpoint("GET", "/a")
    def find(self: object, tags: list[str]) -> None: ...

    assert {each.method: each.parameters[0].place for each in make(put, find)} == {"POST": "body", "GET": "query"}


@each_case(
    ("method", "path"),
    [
        ("GET", "/"),
        ("PUT", "/"),
        ("DELETE", "/"),
        ("GET", "/changes"),
        ("POST", "/rpc/add"),
        ("POST", "/rpc/{method}"),
        ("POST", "/run/helper"),
        ("POST", "/interrupt"),
        ("POST", "/chat"),
        ("GET", "/chat/export"),
        ("GET", "/files"),
        ("PUT", "/files/{path:path}"),
        ("DELETE", "/files/a"),
    ],
)
def test_a_path_that_plait_answers_itself_is_refused(method: Any, path: str) -> None:
    def shadowed(self: object, method: str = "", path: str = "") -> None: ...

    with pytest.raises(TypeError, match=r"Room.shadowed would never be called: plait answers"):
        make(endpoint(method, path)(shadowed))


@each_case(("method", "path"), [("GET", "/query/orders"), ("GET", "/query/{name}"), ("GET", "/query/{n:int}")])
def test_the_path_of_queries_is_refused_in_a_class_that_has_some(method: Any, path: str) -> None:
    def shadowed(self: object, name: str = "", n: int = 0) -> None: ...

    @query
    def orders(self: object) -> list[int]:
        return []

    with pytest.raises(TypeError, match=r"Room.shadowed would never be called: plait answers .* by '/query/\{name\}'"):
        make(endpoint(method, path)(shadowed), orders)
    assert make(endpoint(method, path)(shadowed))


@each_case(("method", "path"), [("POST", "/query/orders"), ("GET", "/query"), ("GET", "/query/orders/{name}")])
def test_other_paths_are_free_beside_queries(method: Any, path: str) -> None:
    def free(self: object, name: str = "") -> None: ...

    @query
    def orders(self: object) -> list[int]:
        return []

    assert make(endpoint(method, path)(free), orders)


@each_case(("method", "path"), [("POST", "/"), ("POST", "/changes"), ("GET", "/rpc/add"), ("GET", "/a")])
def test_other_paths_are_free(method: Any, path: str) -> None:
    def free(self: object) -> None: ...

    assert make(endpoint(method, path)(free))


def test_an_endpoint_that_another_one_hides_is_refused() -> None:
    @endpoint("GET", "/a/{x}")
    def first(self: object, x: str) -> None: ...

    @endpoint("GET", "/a/{y}")
    def second(self: object, y: str) -> None: ...

    with pytest.raises(TypeError, match=r"would never be called: another endpoint answers GET '/a/\{.\}' first"):
        make(first, second)


@each_case("names", [("a", "b"), ("b", "a")])
@each_case("paths", [("/{name}.json", "/{name}"), ("/{name}.min.json", "/{name}.json"), ("/a{x}", "/{x}a")])
def test_the_names_of_the_methods_do_not_decide_the_order(names: tuple[str, str], paths: tuple[str, str]) -> None:
    def first(self: object, name: str = "", x: str = "") -> None: ...

    def second(self: object, name: str = "", x: str = "") -> None: ...

    marked = [endpoint("GET", path)(each) for path, each in zip(paths, (first, second), strict=True)]
    room = type("Room", (), dict(zip(names, marked, strict=True)))
    assert [each.pattern.text for each in Endpoints(room)] == [*paths]


def test_a_class_with_a_wrong_endpoint_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong.report would never be called"):

        class Wrong(Thread[None]):
            @endpoint("GET", "/changes")
            def report(self) -> None: ...


def test_an_endpoint_must_not_replace_an_attribute_of_thread() -> None:
    with pytest.raises(TypeError, match=r"Wrong.destroy is an attribute of Thread"):

        class Wrong(Thread[None]):
            @endpoint("GET", "/end")
            async def destroy(self) -> None: ...


def test_a_derived_class_has_the_endpoints_of_its_base() -> None:
    class Base(Thread[None]):
        @endpoint("GET", "/a")
        def a(self) -> None: ...

    class Derived(Base):
        @endpoint("GET", "/b")
        def b(self) -> None: ...

    assert [each.attribute for each in Derived._kind.endpoints] == ["a", "b"]
    assert Plait(Derived, store="memory://")


async def _yields(self: object) -> AsyncIterator[int]:
    yield 1


def _two_bodies(self: object, a: Point, b: Point) -> None: ...


def _many(self: object, *args: int) -> None: ...


def _query(self: object, point: Point) -> None: ...


def _lacks(self: object) -> None: ...


@each_case(
    ("function", "method", "path", "why"),
    [
        (_yields, "GET", "/a", "must not yield"),
        (_two_bodies, "POST", "/a", "only one of a, b can be the body"),
        (_many, "POST", "/a", "are not supported"),
        (_query, "GET", "/a", "a GET has no body, and 'point' cannot be in a query"),
        (_lacks, "GET", "/{name}", "needs the parameter 'name' of its path"),
    ],
)
def test_a_signature_that_no_request_fits_is_refused(
    function: Callable[..., Any], method: Any, path: str, why: str
) -> None:
    marked = endpoint(method, path)(function)
    with pytest.raises(TypeError, match=why):
        make(marked)


def test_a_body_of_json_has_no_limit_above_that_of_messages() -> None:
    class Room(Thread[None]):
        @endpoint("PUT", "/a", limit=2_000)
        def put(self, items: list[int], request: Request) -> None: ...

    assert Plait(Room, store="memory://", limits=Limits(frame=2_000))
    with pytest.raises(TypeError, match=r"Room\.put: limit=2000 is more than Limits\.frame, which is 1000"):
        Plait(Room, store="memory://", limits=Limits(frame=1_000))


def test_a_body_that_is_not_decoded_may_have_any_limit() -> None:
    class Room(Thread[None]):
        @endpoint("PUT", "/data", limit=2_000)
        def put(self, data: bytes) -> None: ...

        @endpoint("PUT", "/request", limit=2_000)
        def take(self, request: Request) -> None: ...

    assert Plait(Room, store="memory://", limits=Limits(frame=1_000))


@each_case("arguments", [("get", "/a"), ("HEAD", "/a"), ("GET", "a")])
def test_wrong_options_are_refused_at_once(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"the method is one of|must begin with a slash"):
        endpoint(*arguments)
    with pytest.raises(ValueError, match="must be at least 1"):
        endpoint("POST", "/a", limit=0)
