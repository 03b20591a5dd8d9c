"""The URL of a store in Redis."""

import pytest
from tests.cases import each_case

from plait.store.redis.url import RedisUrl


def test_a_url_names_the_server_the_login_and_the_database() -> None:
    url = RedisUrl.parse("redis://ada:s%40cret%2F@db.internal:6380/3?prefix=chat&replicas=2&durable=yes")
    assert url.addresses == [("db.internal", 6380)]
    assert (url.username, url.password, url.database) == ("ada", "s@cret/", 3)
    assert (url.prefix, url.replicas, url.durable, url.has_tls, url.service) == ("chat", 2, True, False, None)
    assert str(url) == repr(url) == "redis://ada:***@db.internal:6380/3"


@each_case("scheme", ["redis", "valkey", "REDIS"])
def test_what_a_url_leaves_out_has_a_default(scheme: str) -> None:
    url = RedisUrl.parse(f"{scheme}://localhost")
    assert url.addresses == [("localhost", 6379)]
    assert (url.username, url.password, url.database, url.prefix) == (None, None, 0, "plait")
    assert (url.replicas, url.durable, url.has_tls) == (0, None, False)


def test_a_url_with_tls_may_name_the_certificates() -> None:
    url = RedisUrl.parse("rediss://:pw@[::1]:6390/0?ssl_ca_certs=/etc/ca.pem")
    assert (url.has_tls, url.ssl_ca_certs, url.password) == (True, "/etc/ca.pem", "pw")
    assert url.addresses == [("::1", 6390)]


def test_a_url_may_name_sentinels() -> None:
    url = RedisUrl.parse("redis+sentinel://:pw@a:26380,b/mymaster/2?prefix=x")
    assert (url.addresses, url.service, url.database) == ([("a", 26380), ("b", 26379)], "mymaster", 2)
    assert str(url) == "redis+sentinel://:***@a:26380,b/mymaster/2"


@each_case(
    ("url", "why"),
    [
        ("redis://h/0?color=red", "unknown option 'color'; the options are prefix, replicas, durable"),
        ("redis://h/0?password=secret", "put the password before the @"),
        ("redis://h/0?prefix=a&prefix=b", "given twice"),
        ("redis://h/0#x", "there is a #"),
        ("redis://h/game", "the database must be a number"),
        ("redis://h/0/1", "the database must be a number"),
        ("redis://a,b/0", "name one server, or its Sentinels"),
        ("redis+sentinel://a,b", "the name of the primary is missing"),
        ("redis://h:x/0", "'x' is not a port"),
        ("redis://h/0?prefix=a{b}", "prefix must match"),
        ("redis://h/0?replicas=-1", "replicas must be a whole number"),
        ("redis://h/0?replicas=10", "replicas must be a whole number up to 9"),
        ("redis://h/0?durable=maybe", "durable must be yes or no"),
        ("redis://h/0?durable=no&replicas=1", "with durable=no, no write waits for a replica"),
        ("redis://h/0?ssl_ca_certs=x", "ssl_ca_certs is for rediss"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_said_why(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RedisUrl.parse(url)


@each_case("password", ["secret", "se/cret", "se:cret", "se@cret", "se?cret", "se#cret"])
@each_case("rest", ["/0?color=red", "/game", ":x/0", "/0?prefix={}"])
def test_no_error_tells_a_password(password: str, rest: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        RedisUrl.parse(f"redis://ada:{password}@host{rest}")
    for part in (password, "secret", "cret"):
        assert part not in str(caught.value)
