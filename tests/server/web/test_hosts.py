"""The names that a server answers to."""

import socket

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from tests.cases import each_case

from plait.web.hosts import Hosts

LOCAL = [
    "localhost",
    "localhost:8000",
    "LOCALHOST.",
    "app.localhost:8000",
    "127.0.0.1:8000",
    "192.168.0.7",
    "[::1]:8000",
    "[::1]",
    socket.gethostname(),
]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "[x]",
]


def takes(hosts: Hosts, host: str) -> bool:
    try:
        hosts.check(Request({"type": "http", "headers": [(b"host", host.encode())]}))
    except HTTPException as error:
        return error.status_code != 421
    return True


def test_an_open_server_answers_to_local_names_and_addresses_alone() -> None:
    hosts = Hosts((), is_guarded=False)
    assert [host for host in LOCAL if not takes(hosts, host)] == []
    assert [host for host in FOREIGN if takes(hosts, host)] == []


def test_what_is_listened_on_is_answered_to() -> None:
    hosts = Hosts((), is_guarded=False)
    hosts.listen("Game.Lan")
    assert takes(hosts, "game.lan:8000")
    assert not takes(hosts, "other.lan:8000")


def test_a_server_that_asks_who_it_is_answers_to_every_name() -> None:
    assert takes(Hosts((), is_guarded=True), "example.com")


@each_case("allowed", [(), ("*",), ("[::1]",)])
@each_case("is_guarded", [False, True])
@each_case("host", ["[::1].evil.example", "[::1]x", "[::1", "[::1]:8000x", "[::1]:80:80", "[[::1]]"])
def test_what_is_no_host_is_a_bad_request(host: str, is_guarded: bool, allowed: tuple[str, ...]) -> None:
    hosts, request = Hosts(allowed, is_guarded=is_guarded), {"type": "http", "headers": [(b"host", host.encode())]}
    with pytest.raises(HTTPException) as refused:
        hosts.check(Request(request))
    assert refused.value.status_code == 400


@each_case("is_guarded", [False, True])
def test_the_names_that_are_given_are_all_that_are_answered_to(is_guarded: bool) -> None:
    hosts = Hosts(["Example.com", "*.example.org", "[::1]"], is_guarded=is_guarded)
    hosts.listen("game.lan")
    taken = ["example.com:8000", "a.example.org", "a.b.example.org", "[::1]:8000"]
    assert [host for host in taken if not takes(hosts, host)] == []
    refused = ["www.example.com", "example.org", "xexample.org", "localhost", "127.0.0.1", "game.lan"]
    assert [host for host in refused if takes(hosts, host)] == []


def test_a_star_is_every_name() -> None:
    assert takes(Hosts(["*"], is_guarded=False), "evil.example")


def test_a_request_without_a_host_is_none_of_a_page() -> None:
    Hosts((), is_guarded=False).check(Request({"type": "http", "headers": []}))


@each_case("host", ["https://example.com", "example.com:8000", "", "a b", "*.", "**", "a.*.b"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        Hosts([host], is_guarded=False)


def test_it_is_said_once_how_to_answer_to_a_name(caplog: pytest.LogCaptureFixture) -> None:
    hosts = Hosts((), is_guarded=False)
    for name in ("game.example", "other.example"):
        takes(hosts, name)
    (record,) = caplog.records
    assert "'game.example' was refused" in record.message
    assert "PLAIT_ALLOWED_HOSTS" in record.message


@pytest.mark.parametrize(("host", "lines"), [("0.0.0.0", 1), ("::", 1), ("127.0.0.1", 0), ("game.lan", 0)])
def test_listening_on_every_address_is_warned_about(host: str, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    Hosts((), is_guarded=False).listen(host)
    assert len(caplog.records) == lines
    for other in (Hosts(["example.com"], is_guarded=False), Hosts((), is_guarded=True)):
        other.listen(host)
    assert len(caplog.records) == lines
