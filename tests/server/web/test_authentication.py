"""Who asks, and whether they may."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.cases import each_case

from plait.errors import Forbidden, Unauthenticated
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey
from plait.web.authentication import Action, Identity

KEY = ThreadKey("room", "one")
ADA = Principal("ada")


def request(**headers: str) -> Request:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw, "query_string": b""})


def make_identity(
    *origins: str,
    authenticate: Callable[[Request], Any] | None = None,
    authorize: Callable[[Principal | None, ThreadKey, Action], Any] | None = None,
) -> Identity:
    return Identity(origins, authenticate, authorize)


# Origins


@each_case(
    ("origin", "host"),
    [
        ("https://example.com", "example.com"),
        ("http://example.com", "example.com:80"),
        ("https://example.com:443", "example.com"),
        ("http://example.com:8000", "example.com:8000"),
        ("https://EXAMPLE.com", "example.COM"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
    ],
)
def test_a_page_of_the_same_origin_may_come_in(origin: str, host: str) -> None:
    make_identity().check_origin(request(origin=origin, host=host))


@each_case(
    ("origin", "host"),
    [
        ("https://evil.example", "example.com"),
        ("https://example.com.evil", "example.com"),
        ("https://evil-example.com", "example.com"),
        ("https://sub.example.com", "example.com"),
        ("http://example.com:8001", "example.com:8000"),
        ("https://example.com@evil.example", "example.com"),
        ("null", "example.com"),
        ("", ""),
        ("null", ""),
        ("file://", "example.com"),
        ("example.com", "example.com"),
        ("http://[", "example.com"),
        ("http://[::1", "[::1"),
        ("\xff", "example.com"),
    ],
)
def test_a_page_of_another_origin_is_kept_out(origin: str, host: str) -> None:
    with pytest.raises(Forbidden):
        make_identity("https://friend.example").check_origin(request(origin=origin, host=host))


def test_origins_that_are_allowed_may_come_in_however_they_are_written() -> None:
    identity = make_identity("https://Friend.example/", "http://localhost:3000")
    identity.check_origin(request(origin="https://friend.example", host="example.com"))
    identity.check_origin(request(origin="http://LOCALHOST:3000", host="example.com"))
    for origin in ("http://friend.example", "http://localhost:3001", "https://friend.example:8443"):
        with pytest.raises(Forbidden):
            identity.check_origin(request(origin=origin, host="example.com"))


def test_a_star_lets_every_page_in() -> None:
    make_identity("*").check_origin(request(origin="https://evil.example", host="example.com"))
    make_identity("*").check_origin(request(origin="null", host="example.com"))


@each_case("origin", ["localhost:3000", "example.com", "https://example.com/app", "https://", "", "h"])
def test_what_is_no_origin_cannot_be_allowed(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        make_identity(origin)


def test_a_program_that_is_no_browser_has_no_origin() -> None:
    make_identity().check_origin(request(host="example.com"))


# Principals


async def later(value: Any) -> Any:
    return value


async def test_without_authenticate_everybody_is_nobody() -> None:
    assert await make_identity().principal(request()) is None


@each_case("is_async", [False, True])
async def test_authenticate_finds_a_principal_or_refuses(is_async: bool) -> None:
    def wrap(value: Principal | None) -> Callable[[Request], Principal | Awaitable[Any] | None]:
        return lambda _: later(value) if is_async else value

    assert await make_identity(authenticate=wrap(ADA)).principal(request()) == ADA
    with pytest.raises(Unauthenticated):
        await make_identity(authenticate=wrap(None)).principal(request())


@each_case("found", [False, True, "ada", {"id": "ada"}, 0, ""])
@each_case("is_async", [False, True])
async def test_nobody_comes_in_by_anything_else_that_authenticate_returns(found: object, is_async: bool) -> None:
    identity = make_identity(authenticate=lambda _: later(found) if is_async else found)
    with pytest.raises(TypeError, match=f"authenticate returned a {type(found).__name__}"):
        await identity.principal(request())


async def test_authenticate_may_answer_itself() -> None:
    response = PlainTextResponse("pay first", 402)
    found = await make_identity(authenticate=lambda _: response).principal(request())
    assert isinstance(found, Response)
    assert found is response


async def test_authenticate_sees_the_request() -> None:
    identity = make_identity(authenticate=lambda request: Principal(request.headers["authorization"]))
    assert await identity.principal(request(authorization="ada")) == ADA


# Rights


async def test_without_authorize_everybody_may_do_everything() -> None:
    await make_identity().check(None, KEY, "write")


@each_case("is_async", [False, True])
async def test_authorize_decides_about_each_action(is_async: bool) -> None:
    asked: list[tuple[Principal | None, ThreadKey, Action]] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: Action) -> bool | Awaitable[Any]:
        asked.append((principal, thread, action))
        return later(action == "read") if is_async else action == "read"

    identity = make_identity(authorize=authorize)
    await identity.check(ADA, KEY, "read")
    assert await identity.may(ADA, KEY, "read")
    assert not await identity.may(None, KEY, "write")
    for action in ("connect", "write", "call", "request"):
        with pytest.raises(Forbidden, match="room/one"):
            await identity.check(ADA, KEY, action)
    assert asked[0] == (ADA, KEY, "read")


# Functions of the app


@each_case(
    ("name", "function"),
    [
        ("authenticate", lambda: None),
        ("authenticate", lambda request, more: None),
        ("authorize", lambda principal, thread: True),
        ("authorize", lambda: True),
    ],
)
def test_a_function_that_does_not_accept_its_arguments_is_an_error_at_the_start(name: str, function: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must accept these arguments"):
        make_identity(**{name: function})


def test_functions_may_accept_more_than_their_arguments() -> None:
    make_identity(authenticate=lambda *_: None, authorize=lambda principal, thread, action, more=None: True)
