"""The parts of the URLs of engines."""

from tests.cases import each_case

from plait.store.url_parts import split_url
from plait.store.urls import open_store


@each_case("scheme", ["mysql", "postgresql", "redis", "nats"])
@each_case("quoted", ["[zzz", "zzz[qqq]", "zzz℀", "zzz/qqq", "zzz?qqq", "zzz#qqq", "zzz@/qqq", "zzz:12/qqq"])
def test_no_character_of_a_password_leads_to_an_error_that_shows_it(scheme: str, quoted: str) -> None:
    try:
        shown = str(open_store(f"{scheme}://ada:{quoted}@host/1").url)  # type: ignore[attr-defined]
    except ValueError as error:
        shown = str(error)
    assert "zzz" not in shown
    assert "qqq" not in shown


def test_the_login_is_unquoted_and_hosts_have_ports() -> None:
    found = split_url("x://a%40b:p%3A%2Fw@db1,db2:7,[::1]:8,[::1]/a%2Fb?c=%20", ("c",))
    assert (found.user, found.password, found.path, found.options) == ("a@b", "p:/w", "a%2Fb", {"c": " "})
    assert found.split_hosts(5) == [("db1", 5), ("db2", 7), ("::1", 8), ("::1", 5)]
    assert split_url("x://", ()).split_hosts(5) == [("127.0.0.1", 5)]
    assert (split_url("x://ada@h", ()).password, split_url("x://ada:@h", ()).password) == (None, "")
