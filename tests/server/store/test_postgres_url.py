"""URLs of stores in PostgreSQL."""

import pytest
from tests.cases import each_case

from plait import Plait, Thread
from plait.errors import StoreError
from plait.settings import Settings
from plait.spelling import hide_password
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.urls import open_share, open_store

SECRET = "pass-word"
URL = f"postgresql://ada:{SECRET}@127.0.0.1:1/game"


def test_a_url_has_options_of_the_store_and_of_the_driver() -> None:
    found = PostgresUrl.parse(f"{URL}?schema=games&prefix=g_&sslmode=disable&host=/run/postgresql")
    assert (found.schema, found.prefix) == ("games", "g_")
    assert (found.is_synchronous, found.has_standby, found.has_session) == (True, False, True)
    assert found.dsns == ["postgresql://127.0.0.1:1/game?sslmode=disable&host=%2Frun%2Fpostgresql"]
    assert (found.user, found.password) == ("ada", SECRET)
    assert str(found) == "postgresql://ada:***@127.0.0.1:1/game"
    other = PostgresUrl.parse(f"{URL}?synchronous_commit=off&statement_cache_size=0")
    assert (other.schema, other.prefix) == ("public", "plait_")
    assert (other.is_synchronous, other.has_standby, other.has_session) == (False, False, False)
    assert PostgresUrl.parse("postgres://h/d?standby=synchronous").has_standby


@each_case(
    ("options", "why"),
    [
        ("?shema=x", "unknown option 'shema'"),
        ("?schema=a&schema=b", "given twice"),
        ("?schema=Games", "schema must match"),
        ("?prefix=x-", "prefix must match"),
        ("?synchronous_commit=local", "synchronous_commit must be on or off, not 'local'"),
        ("?standby=yes", "standby must be"),
        ("?statement_cache_size=7", "statement_cache_size must be"),
        ("?standby=synchronous&synchronous_commit=off", "no commit waits for a standby"),
        (f"?password={SECRET}", "put the password before the @"),
    ],
)
def test_a_wrong_option_is_named_and_the_password_is_not(options: str, why: str) -> None:
    for read in (PostgresUrl.parse, open_store):
        with pytest.raises(ValueError, match=why) as caught:
            read(URL + options)
        assert SECRET not in str(caught.value)


@each_case(
    ("url", "shown"),
    [
        ("postgresql://ada:a@b/c?d:e@host/game", "postgresql://ada:***@host/game"),
        ("postgresql://ada@host/game", "postgresql://ada@host/game"),
        ("postgresql:///game?user=x&password=y&port=1", "postgresql:///game?user=x&password=***&port=1"),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("a.db", "a.db"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


async def test_no_error_nor_setting_shows_the_password(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(URL)
    assert isinstance(store, PostgresStore)
    with pytest.raises(StoreError, match=r"cannot open the store postgresql://ada:\*\*\*@127.0.0.1:1/game: ") as caught:
        await store.__aenter__()
    assert SECRET not in f"{caught.value!r}{caught.value.detail}{store.durability}{store!r}{store.url!r}{caplog.text}"
    assert SECRET not in repr(Settings(store=URL))
    with pytest.raises(ValueError, match="unknown store URL") as wrong:
        open_store(f"oracle://ada:{SECRET}@h/d")
    assert SECRET not in str(wrong.value)


async def test_an_app_has_a_store_by_its_url() -> None:
    class Room(Thread[dict[str, int]]):
        initial_state = {"n": 0}  # noqa: RUF012

    app = Plait(Room, store=URL)
    with pytest.raises(StoreError, match="cannot open the store") as caught:
        await app.__aenter__()
    assert SECRET not in str(caught.value)


def test_workers_do_not_share_it() -> None:
    with pytest.raises(StoreError, match="one process") as caught:
        open_share(URL, 0, 2)
    assert SECRET not in str(caught.value)
