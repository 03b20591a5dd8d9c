"""Signed ids of threads: which are taken from a request, and how they are sent."""

import logging
from collections.abc import Mapping, Sequence
from http.cookies import SimpleCookie
from urllib.parse import quote, unquote

import pytest
from starlette.requests import Request
from tests.cases import each_case

from plait.agents.address import check_thread_id, make_thread_id
from plait.agents.thread_ids import Signer, ThreadIdProvider, ThreadIds

ID = "thrd_e58f7b31c9468657efc3cecb27ea2cd7"
OTHER = "thrd_00000000000000000000000000000000"
SIGNATURE = "KGnLg3QQbQ1ivjQRUt3SHFc49SKZ4vjabgt9Ca/i7FA="
SECRET = "agentuity"


def make_request(*headers: tuple[str, str]) -> Request:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw, "query_string": b"", "state": {}})


def sign(id: str, secret: str = SECRET) -> str:
    return f"{id};{Signer([secret]).sign(id)}"


def make_cookie(id: str, secret: str = SECRET) -> str:
    return f"atid={quote(sign(id, secret).replace(';', '.'), safe='')}"


async def find(*headers: tuple[str, str], secrets: Sequence[str] = (SECRET,)) -> str:
    return await ThreadIds(secrets).find(make_request(*headers))


# Signatures


@each_case(("id", "signature"), [(OTHER, "fFjv12KcFzbB/DEjetjND0VWP0SoaXfDpeln9gP4ltI="), (ID, SIGNATURE)])
def test_a_signature_is_the_hmac_in_base64(id: str, signature: str) -> None:
    assert Signer([SECRET]).sign(id) == signature
    assert Signer([SECRET]).verify(id, signature)


def test_the_first_secret_signs_and_all_verify() -> None:
    rotated = Signer(["new", "old"])
    assert rotated.sign(ID) == Signer(["new"]).sign(ID)
    assert rotated.verify(ID, Signer(["old"]).sign(ID))
    assert not Signer(["new"]).verify(ID, Signer(["old"]).sign(ID))


# Requests


async def test_a_request_without_an_id_gets_a_new_one() -> None:
    first, second = await find(), await find(("x-thread-id", ""), ("cookie", "other=1"))
    assert first != second
    for id in (first, second):
        assert len(id) == 37
        assert check_thread_id(id) == id
        assert set(id.removeprefix("thrd_")) <= set("0123456789abcdef")


async def test_a_signed_id_is_taken_from_the_header_or_the_cookie_alone() -> None:
    assert await find(("x-thread-id", f"{ID};{SIGNATURE}")) == ID
    assert await find(("cookie", f"a=b; {make_cookie(ID)}; c=d")) == ID
    assert await find(("cookie", f"atid={ID}.{SIGNATURE}")) == ID


async def test_a_valid_header_wins_over_a_valid_cookie() -> None:
    assert await find(("cookie", make_cookie(OTHER)), ("x-thread-id", sign(ID))) == ID


@each_case("header", [sign(ID, "foreign"), ID, "", ";", "nonsense"])
async def test_an_invalid_header_lets_a_valid_cookie_be_used(header: str) -> None:
    assert await find(("x-thread-id", header), ("cookie", make_cookie(OTHER))) == OTHER


@each_case(
    "value",
    [
        ID,
        f"{ID};",
        f"{ID};{SIGNATURE[:-1]}",
        f"{ID};{SIGNATURE.rstrip('=')}",
        f"{ID};{SIGNATURE.lower()}",
        f"{ID};{SIGNATURE};",
        f"{ID};{SIGNATURE};{SIGNATURE}",
        f"{OTHER};{SIGNATURE}",
        f"{ID};é{SIGNATURE[1:]}",
        sign(ID, "foreign"),
        sign(ID, ""),
        sign("room-1"),
        sign("thrd_"),
        sign("thrd_" + "a" * 26),
        sign("thrd_" + "a" * 60),
        sign("thrd_" + "-" * 32),
        f";{SIGNATURE}",
    ],
)
async def test_an_id_that_is_not_signed_well_is_not_used_and_logged(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for headers in ([("x-thread-id", value)], [("cookie", f"atid={quote(value.replace(';', '.', 1), safe='')}")]):
        caplog.clear()
        found = await find(*headers)
        assert found not in (ID, OTHER)
        assert found not in value
        (record,) = caplog.records
        shown = record.getMessage()
        assert "not valid" in shown
        assert SECRET not in shown
        assert ID not in shown
        assert SIGNATURE not in shown


async def test_two_headers_and_another_separator_are_no_id() -> None:
    assert await find(("x-thread-id", sign(ID)), ("x-thread-id", sign(OTHER))) not in (ID, OTHER)
    assert await find(("x-thread-id", f"{ID}.{SIGNATURE}")) != ID
    assert await find(("cookie", f"atid={quote(sign(ID), safe='')}")) != ID


# Answers


def read_headers(ids: ThreadIds, *, is_secure: bool) -> Mapping[str, str]:
    return {name.decode(): value.decode() for name, value in ids.make_headers(ID, is_secure=is_secure)}


def test_an_answer_has_the_id_in_a_header_and_in_a_cookie() -> None:
    headers = read_headers(ThreadIds(["agentuity", "old"]), is_secure=False)
    assert headers["x-thread-id"] == f"{ID};{SIGNATURE}"
    value, *attributes = headers["set-cookie"].split("; ")
    assert value == f"atid={ID}.{SIGNATURE.replace('/', '%2F').replace('=', '%3D')}"
    assert set(attributes) == {"Max-Age=604800", "Path=/", "HttpOnly", "SameSite=Lax"}
    assert unquote(SimpleCookie(headers["set-cookie"])["atid"].value) == f"{ID}.{SIGNATURE}"


def test_the_cookie_is_secure_exactly_with_https() -> None:
    ids = ThreadIds([SECRET])
    assert read_headers(ids, is_secure=True)["set-cookie"].split("; ").count("Secure") == 1
    assert "Secure" not in read_headers(ids, is_secure=False)["set-cookie"]


async def test_what_an_answer_has_continues_the_thread() -> None:
    ids = ThreadIds([SECRET])
    for id in (make_thread_id(), "thrd_" + "Z9" * 29):
        headers = dict(ids.make_headers(id, is_secure=True))
        cookie = headers[b"set-cookie"].decode().partition(";")[0]
        assert await ids.find(make_request(("x-thread-id", headers[b"x-thread-id"].decode()))) == id
        assert await ids.find(make_request(("cookie", cookie))) == id


# Providers


async def read_user_later(request: Request) -> str:
    return "thrd_" + request.headers["user"] * 30


@each_case("provider", [lambda request: "thrd_" + request.headers["user"] * 30, read_user_later])
async def test_a_provider_decides_and_reads_the_request(provider: ThreadIdProvider) -> None:
    ids = ThreadIds([SECRET], provider)
    assert await ids.find(make_request(("user", "a"), ("x-thread-id", sign(ID)))) == "thrd_" + "a" * 30


@each_case("length", [32, 64])
async def test_the_shortest_and_the_longest_id_pass(length: int) -> None:
    id = "thrd_" + "aZ9" * 20
    assert await ThreadIds([SECRET], lambda _: (id + "x" * 9)[:length]).find(make_request()) == (id + "x" * 9)[:length]


@each_case(
    ("id", "rule"),
    [
        ("thrd_" + "a" * 26, "32 to 64 characters, not 31"),
        ("thrd_" + "a" * 60, "32 to 64 characters, not 65"),
        ("sess_" + "a" * 32, "begin with 'thrd_'"),
        ("", "begin with 'thrd_'"),
        *(("thrd_" + "a" * 31 + each, "only letters and digits") for each in "-_.!@ é\n"),
        (None, "must be a str, not NoneType"),
        (b"thrd_" + b"a" * 32, "must be a str, not bytes"),
    ],
)
async def test_a_mistake_of_a_provider_names_the_rule(id: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^thread_ids: .*{rule}"):
        await ThreadIds([SECRET], lambda _: id).find(make_request())


# Secrets


def test_without_a_secret_nothing_is_signed() -> None:
    ids = ThreadIds([])
    assert not ids.has_secret
    with pytest.raises(RuntimeError, match="PLAIT_SECRET"):
        ids.make_headers(ID, is_secure=True)


def test_the_secret_of_development_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    ids = ThreadIds([])
    ids.use_development_secret()
    assert ids.has_secret
    assert "which is public" in caplog.text
